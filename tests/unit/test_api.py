"""The four functions of a notebook: in memory, in a folder, and what they say when they cannot."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import pseudocore
from pseudocore import api
from pseudocore import assembly as setups
from pseudocore.core.errors import ConfigError, DataError, PseudocoreError, RunError
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, Dataset, Examples
from pseudocore.data import digits
from pseudocore.data.npz import write_npz
from pseudocore.inference.last_layer_vi import LastLayerVI
from pseudocore.store.run_folder import Run

TINY: dict[str, Any] = {
    "num_steps": 3,
    "batch_size": 16,
    "pool_size": 2,
    "max_age": 5,
    "model": "convnet3",
    "width": 4,
}
FAST: dict[str, Any] = {"seeds": 2, "num_steps": 3}


@pytest.fixture(scope="module")
def made() -> Coreset:
    """One image per digit after three steps of VBPC."""
    return pseudocore.reduce("vbpc", "digits", per_class=1, **TINY)


@pytest.fixture(scope="module")
def own_data() -> Dataset:
    """Two classes of four features that no data source knows."""
    x, y = Rng(0).normal(40, 4), torch.arange(40) % 2
    x = x + 2 * y[:, None]
    return Dataset("mine", Examples(x[:30], y[:30]), Examples(x[30:], y[30:]), 2, ("low", "high"))


def same(one: Coreset, other: Coreset) -> bool:
    return (
        torch.equal(one.x, other.x)
        and torch.equal(one.y, other.y)
        and torch.equal(one.weight, other.weight)
    )


# --- reduce
# -----------------------------------------------------------------------------------------------------------


def test_reduce_in_memory(made: Coreset) -> None:
    assert made.x.shape == (10, 1, 8, 8)
    assert made.labels.tolist() == list(range(10))
    origin = made.provenance
    assert (origin["method"], origin["seed"], origin["status"], origin["num_steps"]) == (
        "vbpc",
        0,
        "finished",
        3,
    )
    assert origin["setup"]["data"] == "digits"
    assert origin["setup"]["width"] == 4
    assert origin["options"]["per_class"] == 1
    assert origin["data_fingerprint"] == digits().fingerprint
    assert set(origin["posterior"]) == {"logit_scale", "prior_variance", "ridge"}


def test_reduce_writes_nothing_unless_told(
    made: Coreset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert same(pseudocore.reduce("vbpc", "digits", per_class=1, **TINY), made)
    assert list(tmp_path.iterdir()) == []


def test_reduce_into_a_folder(made: Coreset, tmp_path: Path) -> None:
    coreset = pseudocore.reduce("vbpc", "digits", per_class=1, out=tmp_path / "run", **TINY)
    assert same(coreset, made)
    for path in (tmp_path / "run", tmp_path / "run" / "coreset.safetensors", str(tmp_path / "run")):
        loaded = pseudocore.load(path)
        assert same(loaded, made)
        assert loaded.provenance == made.provenance
    run = Run.open(tmp_path / "run")
    assert run.manifest["status"] == "finished"
    assert run.manifest["data_fingerprint"] == digits().fingerprint
    assert [line["step"] for line in run.metrics()] == [3]
    assert api.Reduction.from_config(run.config).to_config() == {
        name: made.provenance[name] for name in run.config
    }
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()


def test_a_selector_into_a_folder(tmp_path: Path) -> None:
    coreset = pseudocore.reduce("uniform", "digits", per_class=2, out=tmp_path / "run")
    assert same(pseudocore.load(tmp_path / "run"), coreset)
    assert Run.open(tmp_path / "run").finished


def test_the_seed_decides(made: Coreset) -> None:
    assert not same(pseudocore.reduce("vbpc", "digits", per_class=1, seed=1, **TINY), made)


def test_a_folder_that_holds_a_run_is_refused(tmp_path: Path) -> None:
    pseudocore.reduce("uniform", "digits", out=tmp_path / "run")
    with pytest.raises(RunError, match="already holds a run"):
        pseudocore.reduce("uniform", "digits", out=tmp_path / "run")


def test_unknown_words_are_refused_with_the_nearest_ones() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown option 'per_clas' \(did you mean 'per_class'\?\)"
    ):
        pseudocore.reduce("vbpc", "digits", per_clas=1)
    with pytest.raises(ConfigError, match=r"unknown method 'vbcp'; did you mean 'vbpc'\?"):
        pseudocore.reduce("vbcp", "digits")
    with pytest.raises(DataError, match=r"unknown data set 'digit'; did you mean 'digits'\?"):
        pseudocore.reduce("vbpc", "digit")


def test_every_problem_is_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        pseudocore.reduce("vbpc", "digits", per_class=0, num_steps="many", width=-1)
    for part in (
        "per_class = 0 must be at least 1",
        "num_steps = 'many' is not a whole number",
        "width = -1 must be at least 1",
    ):
        assert part in str(caught.value)


def test_more_per_class_than_there_are_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    for method in ("vbpc", "uniform"):
        with pytest.raises(
            ConfigError,
            match=r"500 points per class were asked for, but class \d of 'digits' has only \d+",
        ):
            pseudocore.reduce(method, "digits", per_class=500, out=tmp_path / "run")
        assert not (tmp_path / "run").exists()
    pseudocore.reduce("uniform", "digits", per_class=1, out=tmp_path / "run")


def test_divergence_is_an_error_and_the_last_good_coreset_is_kept(tmp_path: Path) -> None:
    wild = {
        **TINY,
        "model": "convnet-wide",
        "num_steps": 50,
        "image_lr": 1e12,
    }  # no norm to tame it
    with pytest.raises(
        RunError, match=r"vbpc diverged: .* became NaN or infinite by step \d+; kept step \d+"
    ):
        pseudocore.reduce("vbpc", "digits", per_class=1, out=tmp_path / "run", **wild)
    run = Run.open(tmp_path / "run")
    assert run.manifest["status"] == "diverged"
    assert "NaN or infinite" in run.manifest["reason"]
    kept = pseudocore.load(tmp_path / "run")
    assert kept.x.isfinite().all()
    assert kept.provenance["status"] == "diverged"
    assert kept.provenance["num_steps"] == run.manifest["num_steps"] < 50
    saved = run.checkpoints.load()
    assert saved is None or saved[0] == run.manifest["num_steps"]


def test_what_a_killed_call_took_is_counted_by_the_next(tmp_path: Path) -> None:
    options = {"per_class": 1, "num_steps": 6, "batch_size": 16, "pool_size": 2}
    reduction = api.Reduction.from_config(
        {"method": "vbpc", "setup": {"data": "digits", "model": "mlp"}, "options": options}
    )
    problem = setups.build(reduction.setup)

    def die(step: int, values: dict[str, float]) -> None:
        if step == 5:
            raise RuntimeError("as a killed process, it says nothing")

    with Run.create(tmp_path / "run", reduction.to_config()) as folder, pytest.raises(RuntimeError):
        api.run_reduction(reduction, problem, folder, on_log=die, log_every=1, checkpoint_every=2)
    with Run.create(tmp_path / "run", reduction.to_config(), resume=True) as folder:
        (step, _), lost = folder.checkpoints.load() or (0, {}), folder.checkpoints.seconds
        assert step == 4
        assert lost > 0
        assert folder.manifest.get("seconds") is None
        outcome = api.run_reduction(reduction, problem, folder)
    manifest = Run.open(tmp_path / "run").manifest
    assert manifest["seconds"] == pytest.approx(lost + outcome.seconds, abs=0.01)
    assert manifest["cost"]["reduce"]["seconds"] > lost


def test_a_data_set_of_ones_own(own_data: Dataset) -> None:
    coreset = pseudocore.reduce("vbpc", own_data, per_class=2, **{**TINY, "model": "mlp"})
    assert coreset.x.shape == (4, 4)
    assert coreset.provenance["setup"]["data"] == "mine"
    assert pseudocore.evaluate(coreset, own_data, **FAST)["data"] == "mine"
    with pytest.raises(DataError, match="unknown data set 'mine'"):
        pseudocore.evaluate(coreset, **FAST)


def test_features_get_a_dense_network_and_the_word_is_written_down(own_data: Dataset) -> None:
    coreset = pseudocore.reduce("uniform", own_data, per_class=2)
    assert coreset.provenance["setup"]["model"] == "mlp"


def test_data_by_path(own_data: Dataset, tmp_path: Path) -> None:
    write_npz(tmp_path / "mine.npz", own_data)
    coreset = pseudocore.reduce("uniform", tmp_path / "mine.npz", per_class=2)
    assert same(coreset, pseudocore.reduce("uniform", own_data, per_class=2))
    assert pseudocore.evaluate(coreset, **FAST)["metrics"].keys() >= {"accuracy", "nll"}


# --- infer
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inference", ["last-layer-vi", "sgd", "ensemble"])
def test_infer_gives_a_function_of_raw_inputs(made: Coreset, inference: str) -> None:
    predict = pseudocore.infer(made, inference, num_steps=3)
    x = digits().test.x[:5]
    assert predict(x).exp().sum(1) == pytest.approx(1.0, abs=1e-5)
    assert torch.equal(predict(x), predict(x.float() / 255))
    assert torch.equal(predict(x), predict(x.numpy()))


@pytest.mark.parametrize("inference", ["last-layer-vi", "sgd", "laplace"])
def test_inputs_of_another_shape_or_unit_are_refused(made: Coreset, inference: str) -> None:
    predict = pseudocore.infer(made, inference, num_steps=3)
    x = digits().test.x[:5]
    for wrong in (x[:, :, :7], x[0], x.flatten(1), x.expand(5, 3, 8, 8)):
        with pytest.raises(DataError, match=r"must have shape \(n, 1, 8, 8\), not "):
            predict(wrong)
    with pytest.raises(DataError, match="these reach 255; divide them by 255, or give uint8"):
        predict(x.float())
    for odd in (float("nan"), float("-inf")):
        with pytest.raises(DataError, match="inputs to predict hold NaN or infinite values"):
            predict((x / 255).index_fill(3, torch.tensor(2), odd))
    assert predict(made.x).shape == (len(made), 10)  # learned pixels may leave 0 to 1


def test_infer_takes_an_inference_as_a_value(made: Coreset) -> None:
    x = digits().test.x[:5]
    by_value, by_name = (
        pseudocore.infer(made, LastLayerVI(num_steps=3)),
        pseudocore.infer(made, num_steps=3),
    )
    assert torch.equal(by_value(x), by_name(x))
    assert not torch.equal(pseudocore.infer(made, num_steps=3, seed=1)(x), by_name(x))


def test_options_beside_an_inference_that_has_its_own_are_refused(made: Coreset) -> None:
    """They could only be ignored, and nobody would notice."""
    with pytest.raises(ConfigError, match="num_steps"):
        pseudocore.infer(made, LastLayerVI(num_steps=3), num_steps=5)


def test_infer_refuses_a_coreset_of_another_shape(made: Coreset, own_data: Dataset) -> None:
    other = pseudocore.reduce("uniform", own_data, per_class=1)
    with pytest.raises(
        DataError, match=r"points have shape \(4,\) but those of 'digits' have \(1, 8, 8\)"
    ):
        pseudocore.infer(other, problem=api.build_problem(made))


def test_unknown_inferences_and_options_are_refused(made: Coreset) -> None:
    with pytest.raises(
        ConfigError, match=r"unknown inference 'last-layer'; did you mean 'last-layer-vi'\?"
    ):
        pseudocore.infer(made, "last-layer")
    with pytest.raises(
        ConfigError, match=r"unknown option 'num_step' \(did you mean 'num_steps'\?\)"
    ):
        pseudocore.evaluate(made, num_step=3)


# --- evaluate
# ---------------------------------------------------------------------------------------------------------


def test_evaluate(made: Coreset) -> None:
    seen: list[int] = []
    result = pseudocore.evaluate(made, on_seed=lambda seed, metrics: seen.append(seed), **FAST)
    assert (result["inference"], result["data"], result["seeds"], seen) == (
        "last-layer-vi",
        "digits",
        2,
        [0, 1],
    )
    assert result["model"]["name"] == "convnet3"
    assert result["model"]["width"] == 4
    assert result["options"]["num_steps"] == 3
    for name in ("accuracy", "nll", "ece", "brier"):
        values = [one[name] for one in result["per_seed"]]
        assert result["metrics"][name]["mean"] == pytest.approx(sum(values) / 2)
        assert result["metrics"][name]["sd"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    assert sum(result["reliability"]["count"]) == 2 * len(digits().test.y)


def test_evaluate_is_what_one_would_do_by_hand(made: Coreset) -> None:
    test = digits().test
    predict = pseudocore.infer(made, num_steps=3, seed=1)
    log_probs = predict(test.x)
    (scores,) = (one for one in pseudocore.evaluate(made, **FAST)["per_seed"] if one["seed"] == 1)
    assert scores["accuracy"] == pytest.approx(
        float((log_probs.argmax(1) == test.y).double().mean())
    )
    assert scores["nll"] == pytest.approx(
        -float(log_probs.double().gather(1, test.y[:, None]).mean()), rel=1e-6
    )


def test_evaluate_a_folder(made: Coreset, tmp_path: Path) -> None:
    pseudocore.reduce("vbpc", "digits", per_class=1, out=tmp_path / "run", **TINY)
    from_folder, from_memory = (
        pseudocore.evaluate(tmp_path / "run", **FAST),
        pseudocore.evaluate(made, **FAST),
    )
    assert from_folder["metrics"] == from_memory["metrics"]


def test_evaluate_with_another_network(made: Coreset) -> None:
    """The old network's width says nothing about the new one's."""
    result = pseudocore.evaluate(made, setup={"model": "mlp"}, **FAST)
    assert (result["model"]["name"], result["model"]["width"]) == ("mlp", 256)
    assert (
        pseudocore.evaluate(made, setup={"model": "mlp", "width": 8}, **FAST)["model"]["width"] == 8
    )
    assert pseudocore.evaluate(made, setup={"width": 6}, **FAST)["model"]["width"] == 6
    with pytest.raises(ConfigError, match=r"unknown option 'modell' \(did you mean 'model'\?\)"):
        pseudocore.evaluate(made, setup={"modell": "mlp"}, **FAST)


def test_evaluate_does_not_augment(tmp_path: Path) -> None:
    coreset = pseudocore.reduce("vbpc", "digits", per_class=1, augment="crop_scale", **TINY)
    assert coreset.provenance["setup"]["augment"] == "crop_scale"
    assert api.build_problem(coreset).augment is None
    assert api.build_problem(coreset, augment="crop").augment is not None


def test_evaluate_as_its_makers_meant_unless_told(made: Coreset) -> None:
    meant = made.with_provenance(evaluate={"inference": "sgd", "num_steps": 4})
    result = pseudocore.evaluate(meant, seeds=1)
    assert (result["inference"], result["options"]["num_steps"]) == ("sgd", 4)
    assert pseudocore.evaluate(meant, seeds=1, num_steps=5)["options"]["num_steps"] == 5
    other = pseudocore.evaluate(meant, seeds=1, inference="last-layer-vi", num_steps=2)
    assert (other["inference"], other["options"]["num_steps"]) == ("last-layer-vi", 2)


@pytest.mark.parametrize("option", ["ridge", "prior_variance", "logit_scale"])
@pytest.mark.parametrize("value", [0.0, -1.0])
def test_numbers_that_make_no_posterior_are_refused(
    made: Coreset, option: str, value: float
) -> None:
    """A negative ridge has no Cholesky factor, and zero must not quietly mean `the default`."""
    given: dict[str, Any] = {"num_steps": 1, option: value}
    with pytest.raises(ConfigError, match=f"{option} = {value} must be above 0"):
        pseudocore.evaluate(made, seeds=1, **given)


def test_evaluate_needs_at_least_one_seed(made: Coreset) -> None:
    with pytest.raises(ConfigError, match="seeds = 0 must be at least 1"):
        pseudocore.evaluate(made, seeds=0)


def test_other_data_of_the_same_name_are_refused_unless_named(
    own_data: Dataset, tmp_path: Path
) -> None:
    write_npz(tmp_path / "mine.npz", own_data)
    coreset = pseudocore.reduce("uniform", tmp_path / "mine.npz", per_class=2)
    write_npz(
        tmp_path / "mine.npz",
        replace(own_data, test=Examples(own_data.test.x + 1, own_data.test.y)),
    )
    with pytest.raises(
        DataError,
        match=r"made of another 'mine' than the one found here \(their fingerprints differ\)",
    ):
        pseudocore.evaluate(coreset, **FAST)
    assert pseudocore.evaluate(coreset, tmp_path / "mine.npz", **FAST)["data"] == "mine"


def test_a_coreset_without_provenance(made: Coreset) -> None:
    bare = replace(made, provenance={})
    with pytest.raises(
        ConfigError, match="does not say what data it stands for; name the data set"
    ):
        pseudocore.evaluate(bare, **FAST)
    result = pseudocore.evaluate(bare, "digits", setup={"model": "mlp", "width": 8}, **FAST)
    assert result["model"]["name"] == "mlp"


@pytest.mark.parametrize(
    "provenance",
    [
        {"setup": 5},
        {"setup": {"data": 5}},
        {"setup": {"width": "wide"}},
        {"setup": {"data": "digits", "model": ["mlp"]}},
        {"evaluate": "sgd"},
        {"evaluate": {"inference": 5}},
        {"evaluate": {"inference": "sgd", "num_steps": "many"}},
        {"posterior": 5},
        {"posterior": {"logit_scale": "large"}},
        {"posterior": {"ridge": -1.0}},
        {"data_fingerprint": ["x"]},
    ],
    ids=str,
)
def test_provenance_by_a_stranger_is_refused_in_a_sentence(
    made: Coreset, provenance: dict[str, Any]
) -> None:
    """`load` takes files from anybody, so nothing in a provenance may be taken for granted."""
    strange = replace(made, provenance={**made.provenance, **provenance})
    quick: dict[str, Any] = {} if "evaluate" in provenance else {"num_steps": 1}
    with pytest.raises(PseudocoreError) as caught:
        pseudocore.evaluate(strange, seeds=1, **quick)
    assert len(str(caught.value)) > 20


def test_the_package_imports_lazily_and_names_what_it_has() -> None:
    assert set(dir(pseudocore)) >= {
        "Coreset",
        "Dataset",
        "Examples",
        "evaluate",
        "infer",
        "load",
        "reduce",
    }
    with pytest.raises(AttributeError, match="has no attribute 'condense'"):
        _ = pseudocore.condense
