"""The functions of a notebook: objects and names, in memory and in a folder, and their errors."""

import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import pseudocore
from pseudocore import api
from pseudocore import assembly as setups
from pseudocore.api import ReduceResult
from pseudocore.core.errors import ConfigError, DataError, PseudocoreError, RunError
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, Dataset, Examples, Predict
from pseudocore.data import digits
from pseudocore.data.arrays import write_npz
from pseudocore.inference.last_layer_vi import LastLayerVI
from pseudocore.store.run_folder import Run
from pseudocore.workflows import progress

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
def result() -> ReduceResult:
    """One image per digit after three steps of VBPC."""
    return pseudocore.reduce("vbpc", "digits", per_class=1, **TINY)


@pytest.fixture(scope="module")
def made(result: ReduceResult) -> Coreset:
    return result.coreset


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


def test_reduce_in_memory(
    result: ReduceResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, origin = result.coreset, result.coreset.provenance
    assert made.x.shape == (10, 1, 8, 8)
    assert made.labels.tolist() == list(range(10))
    names = ("method", "seed", "status", "num_steps", "data_fingerprint")
    assert [origin[name] for name in names] == [
        "vbpc", 0, "finished", 3, digits().fingerprint
    ]  # fmt: skip
    assert (origin["setup"]["data"], origin["setup"]["width"]) == ("digits", 4)
    assert origin["options"]["per_class"] == 1
    assert set(origin["posterior"]) == {"logit_scale", "prior_variance", "ridge"}
    monkeypatch.chdir(tmp_path)
    assert same(pseudocore.reduce("vbpc", "digits", ipc=1, **TINY).coreset, made)
    assert list(tmp_path.iterdir()) == []


def test_what_reduce_returns(result: ReduceResult) -> None:
    assert (result.status, result.reason, result.num_steps) == ("finished", "", 3)
    assert [row["step"] for row in result.history] == [3]
    assert "loss" in result.history[0]
    assert result.seconds > 0
    assert repr(result).startswith("ReduceResult(vbpc on digits: 10 points, finished after 3 steps")


def test_reduce_into_a_folder(made: Coreset, tmp_path: Path) -> None:
    run = pseudocore.reduce("vbpc", "digits", per_class=1, out=tmp_path / "run", **TINY)
    assert same(run.coreset, made)
    for path in (tmp_path / "run", tmp_path / "run" / "coreset.safetensors", str(tmp_path / "run")):
        loaded = pseudocore.load(path)
        assert same(loaded, made)
        assert loaded.provenance == made.provenance
    folder = Run.open(tmp_path / "run")
    assert folder.manifest["status"] == "finished"
    assert folder.manifest["data_fingerprint"] == digits().fingerprint
    assert [line["step"] for line in folder.metrics()] == [3]
    assert api.Reduction.from_config(folder.config).to_config() == {
        name: made.provenance[name] for name in folder.config
    }
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()
    with pytest.raises(RunError, match="already holds a run"):
        pseudocore.reduce("uniform", "digits", out=tmp_path / "run")


def test_objects_do_what_their_names_do(made: Coreset) -> None:
    options = {name: value for name, value in TINY.items() if name not in ("model", "width")}
    logged: list[int] = []
    run = pseudocore.reduce(
        pseudocore.methods.VBPC(per_class=1, **options),
        digits(),
        model=pseudocore.models.ConvNet(width=4),
        on_log=lambda step, values: logged.append(step),
        log_every=1,
        compile="off",
    )
    assert same(run.coreset, made)
    assert logged == [row["step"] for row in run.history] == [1, 2, 3]
    assert run.coreset.provenance["method"] == "vbpc"
    assert run.coreset.provenance["options"] == made.provenance["options"]
    assert run.coreset.provenance["setup"]["model"] == "convnet3"


def test_any_object_with_select_is_a_method(tmp_path: Path) -> None:
    class First:
        def select(self, problem: Problem, rng: Rng) -> Coreset:
            return problem.subset(torch.cat([one[:1] for one in problem.class_indices]))

    run = pseudocore.reduce(First(), "digits", out=tmp_path / "run")
    assert len(run.coreset) == 10
    assert run.coreset.provenance["method"].endswith("<locals>.First")
    assert run.coreset.provenance["options"] == {}
    assert pseudocore.evaluate(tmp_path / "run", **FAST).data == "digits"


class Net(nn.Sequential):
    def __init__(self, num_classes: int, width: int = 6) -> None:
        super().__init__(
            nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, num_classes)
        )


@pytest.mark.parametrize("model", [Net, Net(10), lambda num_classes: Net(num_classes)])
def test_a_network_of_ones_own(model: Any, tmp_path: Path) -> None:
    """By class, instance or function; a file names it and cannot make it run."""
    options: dict[str, Any] = {"per_class": 1, "num_steps": 2, "batch_size": 16, "pool_size": 2}
    run = pseudocore.reduce("vbpc", "digits", model=model, out=tmp_path / "run", **options)
    assert ":" in run.coreset.provenance["setup"]["model"]
    scores = [
        pseudocore.evaluate(run, **FAST),
        pseudocore.evaluate(run.coreset, model=model, **FAST),
        pseudocore.evaluate(tmp_path / "run", model=model, **FAST),
    ]
    assert len({score.metrics["nll"]["mean"] for score in scores}) == 1
    x = digits().test.x[:3]
    assert torch.equal(
        pseudocore.infer(run, num_steps=2)(x), pseudocore.infer(run, model=model, num_steps=2)(x)
    )
    for fails in (pseudocore.evaluate, pseudocore.infer):
        with pytest.raises(ConfigError) as caught:
            fails(tmp_path / "run")  # type: ignore[operator]
        assert caught.value.code == "custom-model"


def test_a_preset_is_where_reduce_starts(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'method = "uniform"\ndata = "digits"\nseed = 4\n[options]\nper_class = 3\n'
        '[setup]\nmodel = "linear"\n[evaluate]\ninference = "sgd"\nnum_steps = 2\n'
    )
    preset = str(tmp_path / "mine.toml")
    run = pseudocore.reduce("uniform", preset=preset)
    assert len(run.coreset) == 30
    assert run.coreset.provenance["seed"] == 4
    assert pseudocore.evaluate(run, seeds=1).inference == "sgd"
    assert len(pseudocore.reduce("uniform", "digits", preset=preset, ipc=1, seed=0).coreset) == 10
    with pytest.raises(ConfigError) as caught:
        pseudocore.reduce("herding", preset=preset)
    assert caught.value.code == "preset-of-other-method"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: pseudocore.reduce(3, "digits"), "method must be a name, .*; not int"),
        (lambda: pseudocore.reduce(pseudocore.methods.VBPC, "digits"), "not the class VBPC"),
        (lambda: pseudocore.reduce("uniform", [1, 2]), "data must be a name, .* not list"),
        (lambda: pseudocore.reduce("uniform", np.ones((9, 3))), "not an array without labels"),
        (lambda: pseudocore.reduce("uniform"), "data must be given"),
        (lambda: pseudocore.reduce("uniform", "digits", model=3), "model must be .* not int"),
        (
            lambda: pseudocore.reduce("uniform", "digits", model=pseudocore.models.ConvNet),
            r"an instance, ConvNet\(\)",
        ),
        (lambda: pseudocore.infer(3), "coreset must be .* not int"),
        (lambda: pseudocore.infer("run", 3), r"with fit\(problem, coreset, rng\); not int"),
        (lambda: pseudocore.infer("run", LastLayerVI), "not LastLayerVI"),
    ],
)
def test_a_wrong_type_is_answered_with_what_is_accepted(
    call: Callable[[], object], words: str
) -> None:
    with pytest.raises(TypeError, match=words):
        call()


def test_options_beside_an_object_that_has_its_own_are_refused(made: Coreset) -> None:
    """They could only be ignored, and nobody would notice."""
    calls: list[Callable[[], object]] = [
        lambda: pseudocore.infer(made, LastLayerVI(num_steps=3), num_steps=5),
        lambda: pseudocore.reduce(pseudocore.methods.Uniform(), "digits", per_class=5),
        lambda: pseudocore.reduce(pseudocore.methods.Uniform(), preset="vbpc2025/cifar10-ipc10"),
        lambda: pseudocore.reduce("uniform", "digits", model=Net(10), width=3),
    ]
    for call in calls:
        with pytest.raises(ConfigError) as caught:
            call()
        assert caught.value.code == "options-beside-instance"


def test_ipc_and_per_class_are_one_option() -> None:
    with pytest.raises(ConfigError) as caught:
        pseudocore.reduce("uniform", "digits", ipc=1, per_class=2)
    assert caught.value.code == "option-given-twice"


def test_the_prior_is_an_option_of_methods_that_read_it_and_of_inference() -> None:
    moons: dict[str, Any] = {"model": "linear", "ipc": 2, "num_steps": 2}
    runs = [pseudocore.reduce("psvi", "moons", prior_scale=s, **moons) for s in (1.0, 3.0)]
    assert not same(runs[0].coreset, runs[1].coreset)
    tight, loose = (
        pseudocore.reduce("uniform", "moons", prior_scale=s, model="linear", ipc=2)
        for s in (0.1, 3.0)
    )
    assert same(tight.coreset, loose.coreset)
    x = tight.problem.data.test.x
    hmc = {"num_draws": 10, "num_burn": 20, "num_chains": 2}
    sure, unsure = (float(pseudocore.infer(run, "hmc", **hmc)(x).max()) for run in (loose, tight))
    assert sure > unsure + 0.1  # a tight prior keeps predictions near one half


def test_progress_is_drawn_on_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", -1.0)
    pseudocore.reduce("vbpc", "digits", ipc=1, progress=True, **TINY)
    assert "vbpc on digits: 3/3" in capsys.readouterr().err


def test_the_seed_decides(made: Coreset) -> None:
    other = pseudocore.reduce("vbpc", "digits", per_class=1, seed=1, **TINY)
    assert not same(other.coreset, made)


@pytest.mark.parametrize(
    ("method", "data", "options", "error", "words"),
    [
        ("vbpc", "digits", {"per_clas": 1}, ConfigError, r"\(did you mean 'per_class'\?\)"),
        ("vbcp", "digits", {}, ConfigError, "unknown method 'vbcp'; did you mean 'vbpc'"),
        ("vbpc", "digit", {}, DataError, "unknown data set 'digit'; did you mean 'digits'"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest_ones(
    method: str, data: str, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        pseudocore.reduce(method, data, **options)


def test_every_problem_is_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        pseudocore.reduce("vbpc", "digits", per_class=0, num_steps="many", width=-1)
    for part in (
        "per_class = 0 must be at least 1",
        "num_steps = 'many' is not a whole number",
        "width = -1 must be at least 1",
    ):
        assert part in str(caught.value)


def test_fewer_points_than_classes_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    for method in ("vbpc", "uniform"):
        with pytest.raises(ConfigError, match="less than one point for each of the 10 classes"):
            pseudocore.reduce(method, "digits", points=5, out=tmp_path / "run")
        assert not (tmp_path / "run").exists()
    pseudocore.reduce("uniform", "digits", per_class=1, out=tmp_path / "run")


def test_more_per_class_than_there_are_takes_what_there_is_and_says_so() -> None:
    with pytest.warns(UserWarning, match=r"500 points .* class 8 of 'digits' has only 139: all"):
        run = pseudocore.reduce("uniform", "digits", per_class=500, model="linear")
    assert len(run.coreset) == run.problem.num_train
    assert run.coreset.weight.tolist() == [1] * len(run.coreset)


def test_divergence_is_an_error_and_the_last_good_coreset_is_kept(tmp_path: Path) -> None:
    wild = {
        **TINY,
        "model": "convnet-wide",
        "num_steps": 50,
        "image_lr": 1e12,
    }  # no norm to tame it
    with pytest.raises(
        RunError, match=r"vbpc diverged: .* became NaN or infinite by step \d+; kept step \d+"
    ) as caught:
        pseudocore.reduce("vbpc", "digits", per_class=1, out=tmp_path / "run", **wild)
    assert caught.value.code == "diverged"
    assert caught.value.fields["result"].status == "diverged"
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


def test_data_of_ones_own(own_data: Dataset, tmp_path: Path) -> None:
    """As a `Dataset`, as arrays, and by path; features get a dense network, which is written down."""
    coreset = pseudocore.reduce("uniform", own_data, per_class=2).coreset
    assert coreset.x.shape == (4, 4)
    assert coreset.provenance["setup"]["data"] == "mine"
    assert coreset.provenance["setup"]["model"] == "mlp"
    assert pseudocore.evaluate(coreset, own_data, **FAST).data == "mine"
    with pytest.raises(DataError, match="unknown data set 'mine'"):
        pseudocore.evaluate(coreset, **FAST)
    x, y = own_data.train
    arrays = pseudocore.dataset(x.numpy(), y, test=tuple(own_data.test), name="mine")
    run = pseudocore.reduce("uniform", arrays, per_class=2)
    assert same(run.coreset, coreset)
    assert pseudocore.evaluate(run, **FAST).data == "mine"  # a result knows its data
    write_npz(tmp_path / "mine.npz", own_data)
    by_path = pseudocore.reduce("uniform", tmp_path / "mine.npz", per_class=2).coreset
    assert same(by_path, coreset)
    assert pseudocore.evaluate(by_path, **FAST).metrics.keys() >= {"accuracy", "nll"}


def test_arrays_become_a_data_set() -> None:
    x, y = Rng(0).integers(256, 40, 8, 8).numpy().astype(np.uint8), np.arange(40) % 2
    found = pseudocore.dataset(x, y, class_names=("a", "b"))
    assert found.shape == (1, 8, 8)
    assert (len(found.train.y), len(found.test.y), found.class_names) == (32, 8, ("a", "b"))
    colours = pseudocore.dataset(np.repeat(x[..., None], 3, -1), y, layout="NHWC")
    assert colours.shape == (3, 8, 8)
    with pytest.raises(DataError, match="training data has 40 inputs but 3 labels"):
        pseudocore.dataset(x, y[:3])


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

    class Prior:
        def fit(self, problem: Problem, coreset: Coreset, rng: Rng) -> Predict:
            return lambda x: torch.full((len(x), 10), -math.log(10))

    plain = pseudocore.infer(made, Prior())
    assert plain.predict(x).probs[0, 0].item() == pytest.approx(0.1)
    with pytest.raises(ConfigError) as caught:
        plain.predict(x).sample(2)
    assert caught.value.code == "no-functions"
    by_class = pseudocore.evaluate(made, inference=Prior(), seeds=1)
    assert by_class.metrics["nll"]["mean"] == pytest.approx(math.log(10))
    assert by_class.inference.endswith("Prior")
    assert not torch.equal(pseudocore.infer(made, num_steps=3, seed=1)(x), by_name(x))


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


def test_evaluate(made: Coreset) -> None:
    seen: list[int] = []
    scores = pseudocore.evaluate(made, on_seed=lambda seed, metrics: seen.append(seed), **FAST)
    assert (scores.inference, scores.data, scores.seeds, seen) == (
        "last-layer-vi", "digits", 2, [0, 1]
    )  # fmt: skip
    assert (scores.model["name"], scores.model["width"]) == ("convnet3", 4)
    assert scores.options["num_steps"] == 3
    for name in ("accuracy", "nll", "ece", "brier"):
        values = [one[name] for one in scores.per_seed]
        assert scores.metrics[name]["mean"] == pytest.approx(sum(values) / 2)
        assert scores.metrics[name]["sd"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    assert sum(scores.reliability["count"]) == 2 * len(digits().test.y)


def test_an_evaluation_is_an_object_a_mapping_and_a_table(made: Coreset) -> None:
    scores = pseudocore.evaluate(made, **FAST)
    assert json.loads(json.dumps(scores.to_dict())) == dict(scores)
    assert list(scores) == [
        "inference", "options", "model", "data", "setup", "robust", "seeds", "metrics", "per_seed",
        "reliability", "spectrum", "seconds", "cost",
    ]  # fmt: skip
    assert scores["metrics"] is scores.metrics
    assert "traces" not in scores
    assert scores.traces is None
    assert scores.table().splitlines()[0].startswith("accuracy ↑        ")
    assert repr(scores).startswith("Evaluation(last-layer-vi on digits: accuracy .")


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
    by_object = pseudocore.evaluate(made, model=pseudocore.models.MLP(width=8), **FAST)
    assert by_object.setup == {"model": "mlp", "width": 8, "depth": 2}


def test_evaluate_does_not_augment(tmp_path: Path) -> None:
    run = pseudocore.reduce("vbpc", "digits", per_class=1, augment="crop_scale", **TINY)
    coreset = run.coreset
    assert coreset.provenance["setup"]["augment"] == "crop_scale"
    assert api.build_problem(coreset).augment is None
    assert api.build_problem(coreset, augment="crop").augment is not None


def test_evaluate_as_its_makers_meant_unless_told(made: Coreset) -> None:
    """By provenance, as files without a contract have it."""
    old = replace(made, contract=None)
    meant = old.with_provenance(evaluate={"inference": "sgd", "num_steps": 4})
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
    coreset = pseudocore.reduce("uniform", tmp_path / "mine.npz", per_class=2).coreset
    write_npz(
        tmp_path / "mine.npz",
        replace(own_data, test=Examples(own_data.test.x + 1, own_data.test.y)),
    )
    with pytest.raises(
        DataError,
        match=r"made from another 'mine' than the one found here \(their fingerprints differ\)",
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
    strange = replace(made, contract=None, provenance={**made.provenance, **provenance})
    quick: dict[str, Any] = {} if "evaluate" in provenance else {"num_steps": 1}
    with pytest.raises(PseudocoreError) as caught:
        pseudocore.evaluate(strange, seeds=1, **quick)
    assert len(str(caught.value)) > 20


def test_the_public_surface(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything in `__all__` is there and documented, and nothing heavy is imported before it is
    used.
    """
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
    documented = set(re.findall(r"^\| `(\w+)", page, re.MULTILINE))
    assert documented == {name for name in pseudocore.__all__ if name != "__version__"}
    assert all(getattr(pseudocore, name) is not None for name in pseudocore.__all__)
    assert dir(pseudocore) == pseudocore.__all__
    with pytest.raises(AttributeError, match="has no attribute 'condense'"):
        _ = pseudocore.condense
    with pytest.warns(DeprecationWarning, match="use train_experts"):
        assert pseudocore.experts is pseudocore.train_experts
    code = "import sys, pseudocore; dir(pseudocore); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
