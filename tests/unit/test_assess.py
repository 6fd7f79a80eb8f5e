"""What an evaluation holds beside its metrics: cost by stage, traces, spectra, a slice of the
losses, what was chosen.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pseudocore import api
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, Dataset, Examples
from pseudocore.evaluation import evaluate as evaluate_module
from pseudocore.evaluation.spectrum import spectrum
from pseudocore.report.page import render
from pseudocore.store.run_folder import Run

TINY: dict[str, Any] = {"num_draws": 3, "num_burn": 2, "num_leapfrog": 2}


@pytest.fixture(scope="module")
def made() -> Coreset:
    return api.reduce("uniform", "digits", per_class=1, model="linear").coreset


def test_the_cost_of_every_stage_is_kept(tmp_path: Path) -> None:
    result = api.reduce("uniform", "digits", per_class=1, model="linear", out=tmp_path / "run")
    coreset = result.coreset
    manifest = Run.open(tmp_path / "run").manifest
    assert list(manifest["cost"]) == ["load", "preprocess", "reduce"]
    assert manifest["peak_memory_mib"] == max(one["peak_mib"] for one in manifest["cost"].values())
    result = api.evaluate(coreset, inference="hmc", seeds=2, severities=[1], num_robust=20, **TINY)
    assert list(result["cost"]) == [
        "load",
        "preprocess",
        "corrupt",
        "infer",
        "predict",
        "robustness",
        "diagnose",
    ]
    assert 0 < sum(one["seconds"] for one in result["cost"].values()) <= result["seconds"]
    assert "robustness" not in api.evaluate(coreset, inference="sgd", num_steps=2, seeds=1)["cost"]


def test_costs_of_a_resumed_run_add_up(tmp_path: Path, made: Coreset) -> None:
    words = {
        "method": "uniform",
        "setup": {"data": "digits", "model": "linear"},
        "options": {"per_class": 1},
    }
    reduction = api.Reduction.from_config(words)
    problem = api.build_problem(made)
    folder = Run.create(tmp_path / "run", api.resolved(reduction, problem).to_config())
    folder.update_manifest(cost={"reduce": {"seconds": 100.0, "peak_mib": 10**6}})
    api.run_reduction(reduction, problem, folder)
    cost = Run.open(tmp_path / "run").manifest["cost"]["reduce"]
    assert 100 <= cost["seconds"] < 101
    assert cost["peak_mib"] == 10**6


def test_traces_are_those_of_the_first_seed(made: Coreset) -> None:
    one, two = (api.evaluate(made, inference="hmc", seeds=seeds, **TINY) for seeds in (1, 2))
    assert one["traces"] == two["traces"]
    assert {len(chain) for chains in one["traces"].values() for chain in chains} == {3}
    assert "traces" not in api.evaluate(made, inference="ensemble", num_steps=2, seeds=1)


def test_the_spectrum_is_that_of_the_coreset_and_of_real_images(made: Coreset) -> None:
    found = api.evaluate(made, inference="sgd", num_steps=2, seeds=1)["spectrum"]
    assert found["coreset"] == pytest.approx(spectrum(made.x).power.tolist())
    whole = spectrum(api.build_problem(made).data.train.x).power.tolist()
    assert found["data"] == pytest.approx(whole, rel=0.05)  # of 1000 in 1437 images


def test_features_have_no_spectrum() -> None:
    x, y = Rng(0).normal(40, 4), torch.arange(40) % 2
    own = Dataset("mine", Examples(x, y), Examples(x[:10], y[:10]), 2)
    coreset = api.reduce("uniform", own, per_class=2, model="linear")
    assert "spectrum" not in api.evaluate(coreset, own, inference="sgd", num_steps=2, seeds=1)


def test_the_slice_goes_from_the_coresets_network_to_the_datas(made: Coreset) -> None:
    """On logistic regression losses are convex along the line, and each falls on the way to the
    network of its own set.
    """
    found = api.evaluate(made, inference="sgd", num_steps=2, seeds=1, landscape=True)["landscape"]
    start, end = found["at"].index(0.0), found["at"].index(1.0)
    assert found["data"][end] < found["data"][start]
    assert found["coreset"][start] < found["coreset"][end]
    for losses in (found["data"], found["coreset"]):
        bends = torch.tensor(losses, dtype=torch.float64).diff().diff()
        assert bends.min() > -1e-4


def test_what_was_chosen_is_said_for_every_seed(made: Coreset) -> None:
    result = api.evaluate(made, inference="laplace", choose_prior="marginal", num_steps=5, seeds=2)
    assert [one["seed"] for one in result["chosen"]] == [0, 1]
    assert all(one["prior_scale"] > 0 for one in result["chosen"])
    assert result["options"]["choose_prior"] == "marginal"
    assert "chosen" not in api.evaluate(made, inference="laplace", num_steps=5, seeds=1)


def test_the_page_shows_it_all(tmp_path: Path) -> None:
    api.reduce("uniform", "digits", per_class=1, model="linear", out=tmp_path / "run")
    run = Run.open(tmp_path / "run")
    for temperature in (1.0, 0.1):
        result = api.evaluate(
            run.coreset(),
            inference="hmc",
            seeds=1,
            temperature=temperature,
            landscape=temperature == 1,
            **TINY,
        )
        run.save_evaluation(f"hmc-{temperature}", json.loads(json.dumps(result.to_dict())))
    text = render([run], tmp_path / "page.html").read_text()
    for words in (
        "traces of hmc",
        "frequency spectrum of the coreset",
        "loss along a line",
        "NLL over temperature",
        "adaptive ECE",
    ):
        assert words in text
    assert text.count('alt="frequency spectrum') == 1
    assert "preprocess " in text
    assert "peak memory" in text


def _measured(result: Any) -> dict[str, Any]:
    return {k: v for k, v in result.to_dict().items() if k not in ("seconds", "cost")}


@pytest.mark.parametrize("inference", ["hmc", "sgd"])
def test_a_killed_evaluation_is_resumed_after_its_last_seed(
    tmp_path: Path, made: Coreset, inference: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "seeds" / "one.json"
    given: dict[str, Any] = {"inference": inference, "seeds": 3, "severities": [1], "num_robust": 9}
    given |= TINY if inference == "hmc" else {"num_steps": 2}
    whole = api.evaluate(made, **given)

    def kill(seed: int, _: Any) -> None:
        if seed == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        api.evaluate(made, **given, resume=path, on_seed=kill)
    fitted, one = [], evaluate_module._one
    monkeypatch.setattr(evaluate_module, "_one", lambda *a: fitted.append(a[3]) or one(*a))
    resumed = api.evaluate(made, **given, resume=path)
    assert fitted == [2]
    assert repr(_measured(resumed)) == repr(_measured(whole))
    assert resumed["cost"]["infer"]["seconds"] > 0
    for change in ({"num_robust": 8}, {"severities": [2]}, {"published": True}):
        fitted.clear()
        api.evaluate(made, **{**given, **change, "seeds": 1}, resume=path)
        assert fitted == [0], change
    path.write_text("{")  # damaged: made anew
    assert repr(_measured(api.evaluate(made, **given, resume=path))) == repr(_measured(whole))


def test_seeds_that_cannot_be_kept_are_measured_all_the_same(tmp_path: Path, made: Coreset) -> None:
    (tmp_path / "file").write_text("in the way")
    given: dict[str, Any] = {"inference": "sgd", "num_steps": 2, "seeds": 2}
    kept = api.evaluate(made, **given, resume=tmp_path / "file" / "seeds.json")
    assert repr(_measured(kept)) == repr(_measured(api.evaluate(made, **given)))
