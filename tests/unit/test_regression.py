"""Regression from end to end: what serves it, what refuses, and what a file keeps."""

import dataclasses
import math
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pseudocore as pc
from pseudocore.core.contract import Contract
from pseudocore.core.errors import ArtifactError, ConfigError, DataError
from pseudocore.core.likelihood import check_task
from pseudocore.core.registry import inferences, methods
from pseudocore.runtime.bounds import beyond

SERVING = {
    "uniform", "full", "herding", "k-center", "giga", "frank-wolfe", "psvi", "vbpc", "bpc-pcd"
}  # fmt: skip
INFERRING = {
    "hmc", "sghmc", "a-sghmc", "cyclical-sghmc", "sgld", "last-layer-vi", "laplace", "sgd", "ensemble",
    "mean-field-vi", "swag",
}  # fmt: skip


@pytest.fixture(scope="module")
def data() -> pc.Dataset:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(80, 2, generator=rng)
    y = 7 + 3 * x[:, 0] - x[:, 1] + torch.randn(80, generator=rng)
    return pc.dataset(x, y, name="numbers")


@pytest.fixture(scope="module")
def run(data: pc.Dataset) -> Any:
    return pc.reduce("uniform", data, model="linear", points=12)


def test_capabilities_are_as_documented() -> None:
    def serve(registry: Any) -> set[str]:
        found = set()
        for entry in registry:
            with suppress(ConfigError):
                check_task(entry.make, entry.name, "regression")
                found.add(entry.name)
        return found

    assert serve(methods) >= SERVING
    assert serve(inferences) == INFERRING


@pytest.mark.parametrize("method", ["dm", "craig", "frepo", "bpc-fkl"])
def test_a_method_for_classes_says_so(method: str, data: pc.Dataset) -> None:
    with pytest.raises(
        ConfigError, match=f"^{method} is for classes, and the targets of this data"
    ):
        pc.reduce(method, data, model="linear")


@pytest.mark.parametrize("inference", sorted(INFERRING))
def test_every_inference_predicts_in_the_targets_units(inference: str, run: Any) -> None:
    short: dict[str, Any] = {
        "hmc": {"num_draws": 12, "num_burn": 10},
        "sghmc": {"num_draws": 12, "num_burn": 10},
        "a-sghmc": {"num_draws": 12, "num_burn": 10},
        "cyclical-sghmc": {"num_draws": 12, "num_burn": 10},
        "sgld": {"num_draws": 12, "num_burn": 10},
        "mean-field-vi": {"num_steps": 300},
        "swag": {"num_steps": 300, "batch_size": 4},
        "sgd": {"num_steps": 100},
        "ensemble": {"num_steps": 100, "num_members": 2},
        "laplace": {"num_steps": 300, "step_size": 0.02},
    }
    posterior = pc.infer(run.coreset, inference, **short.get(inference, {}))
    raw = run.problem.data.test.x
    found = posterior.predict(raw)
    assert (found.mean - run.problem.data.test.y[:, 0]).abs().mean() < 4
    assert (found.sd >= run.problem.gaussian.noise * 0.999).all()
    low, high = found.interval(0.5)
    assert (low < found.quantile(0.5)).all()
    assert (found.quantile(0.5) < high).all()
    assert found.sample(3).shape == (3, len(raw))
    assert torch.equal(found.sample(3), posterior.predict(raw).sample(3))
    assert torch.equal(posterior(raw), torch.stack([found.mean, found.sd], 1))
    entropy = 0.5 * torch.log(2 * math.pi * math.e * found.sd.square())
    assert torch.allclose(found.entropy, entropy)
    with pytest.raises(ConfigError, match="no class probabilities"):
        _ = found.probs


def test_a_file_needs_no_data(run: Any, tmp_path: Path) -> None:
    run.coreset.save(tmp_path / "c.safetensors")
    coreset = pc.load(tmp_path / "c.safetensors")
    assert coreset.task == "regression"
    assert "regression" in repr(coreset)
    contract = coreset.contract
    assert contract is not None
    assert contract.target == run.problem.likelihood.describe()
    raw = run.problem.data.test.x
    ours, theirs = (pc.infer(one).predict(raw) for one in (run, coreset))
    assert torch.equal(ours.mean, theirs.mean)
    x, y, weight = coreset.dataset()[0]
    assert (x.shape, y.shape, weight.shape) == ((2,), (1,), ())


@pytest.mark.parametrize(
    "change",
    [
        {"noise": -1.0},
        {"noise": math.inf},
        {"centre": math.nan},
        {"unit": "1"},
        {"more": 1.0},
    ],
)
def test_a_strangers_numbers_are_checked(change: dict[str, Any], run: Any) -> None:
    table = run.coreset.contract.to_table()
    table["target"] = {**table["target"], **change}
    with pytest.raises(ArtifactError, match="target = "):
        Contract.from_table(table, {})


def test_evaluate_has_the_scores_of_numbers(run: Any) -> None:
    found = pc.evaluate(run, seeds=2, fidelity=True)
    assert {"rmse", "nll", "crps", "coverage_50", "coverage_90"} <= found.metrics.keys()
    assert {"fidelity_kl", "fidelity_w2"} <= found.metrics.keys()
    assert "accuracy" not in found.metrics
    assert "50 % coverage" in found.table()
    with pytest.raises(ConfigError, match="published of evaluate are for classes"):
        pc.evaluate(run, published=True)


def test_any_network_has_a_noise_from_held_out_points(data: pc.Dataset) -> None:
    run = pc.reduce("herding", data, model="mlp", width=8, points=20)
    assert 0.5 < run.problem.gaussian.noise < 2
    assert pc.evaluate(run, seeds=1, num_steps=300).metrics["rmse"]["mean"] < 3


def test_a_given_noise_is_used_and_refused_for_classes(data: pc.Dataset) -> None:
    run = pc.reduce("uniform", data, model="linear", points=5, target_noise=0.25)
    assert run.problem.gaussian.noise == 0.25
    with pytest.raises(ConfigError, match="target_noise = 1 is of a regression"):
        pc.reduce("uniform", "digits", target_noise=1.0)


@pytest.mark.parametrize(
    ("method", "option", "part"),
    [
        ("vbpc", {"ridge": 0.5, "match": "posterior"}, "ridge and match of vbpc have no effect"),
        ("herding", {"space": "network"}, "space = 'network' is of a network trained on classes"),
        ("uniform", {"weighting": "learned"}, "matches gradients of class probabilities"),
    ],
)
def test_options_of_classes_are_refused(
    method: str, option: dict[str, Any], part: str, data: pc.Dataset
) -> None:
    with pytest.raises(ConfigError, match=part):
        pc.reduce(method, data, model="linear", points=5, **option)


@pytest.mark.parametrize("method", sorted(SERVING))
def test_every_method_makes_finite_points_with_targets(
    method: str, data: pc.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = {"num_chains": 1, "num_burn": 1, "num_draws": 3, "num_leapfrog": 2}
    monkeypatch.setitem(pc.references.OPTIONS, "hmc", short)
    options: dict[str, Any] = {} if method == "full" else {"points": 6}
    if method in ("psvi", "vbpc", "bpc-pcd"):
        options["num_steps"] = 3
    if method == "bpc-pcd":
        options["num_warmup"] = 5
    found = pc.reduce(method, data, model="linear", **options)
    coreset = found.coreset
    assert coreset.y.shape == (64 if method == "full" else 6, 1)
    assert all(part.isfinite().all() for part in (coreset.x, coreset.y, coreset.weight))
    if coreset.indices is not None:
        assert torch.equal(coreset.y, data.train.y[coreset.indices])
    again = pc.reduce(method, data, model="linear", **options).coreset
    assert torch.equal(coreset.y, again.y)
    assert pc.evaluate(found, seeds=1).metrics["rmse"]["mean"] > 0


@pytest.mark.parametrize("method", ["psvi", "vbpc"])
def test_targets_may_be_large(method: str, data: pc.Dataset) -> None:
    """Bounds on what is learned are in standard deviations: prices are no divergence."""
    y, yt = (1e6 + 1e5 * part.y[:, 0] for part in (data.train, data.test))
    large = pc.dataset(data.train.x, y, test=(data.test.x, yt))
    run = pc.reduce(method, large, model="linear", points=6, num_steps=20)
    assert run.coreset.y.min() > 1e5
    likelihood = run.problem.likelihood
    assert beyond(run.coreset, 10.0, 64, likelihood) is None
    far = dataclasses.replace(run.coreset, y=run.coreset.y + 1e10)
    assert "targets reached" in str(beyond(far, 10.0, 64, likelihood))


def test_size_is_for_classes(data: pc.Dataset) -> None:
    with pytest.raises(ConfigError, match="size is for classes"):
        pc.size(data, within=0.1, model="linear")


def test_a_coreset_of_classes_fits_no_regression(run: Any) -> None:
    own = run.coreset
    classes = pc.Coreset(own.x, torch.zeros(len(own), dtype=torch.int64), own.weight)
    with pytest.raises(DataError, match="the coreset is for classification"):
        run.problem.check_fits(classes)


def test_herding_sees_targets(data: pc.Dataset) -> None:
    """The target is one more feature: its mean over the points follows that of the data."""
    found = pc.reduce("herding", data, model="linear", points=8).coreset

    def gap(y: Tensor) -> float:
        return abs(float(y.mean() - data.train.y.mean()))

    assert gap(found.y) < 0.5
    assert found.weight.sum() == len(data.train.y)


def test_the_page_runs(own_world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs/regression.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    exec(compile(code, "docs/regression.md", "exec"), {"__name__": "__main__"})
    assert "RMSE" in capsys.readouterr().out
    served = re.findall(r"^\| (?:methods|inferences) \| (.*) \|$", page, re.M)
    named = {name for row in served for name in re.findall(r"`([a-z-]+)`", row)}
    assert named == SERVING | INFERRING


def test_features_and_images_have_regressions_too(data: pc.Dataset) -> None:
    embedded = torch.cat([data.train.x, data.train.x.square()], 1)
    test = torch.cat([data.test.x, data.test.x.square()], 1)
    run = pc.reduce("psvi", data, features=(embedded, test), points=8, num_steps=20)
    nearest = run.coreset.nearest
    assert nearest is not None
    assert len(nearest) == 8  # among all: there are no classes
    images = torch.randint(0, 256, (30, 1, 8, 8), dtype=torch.uint8)
    y = images.double().mean((1, 2, 3)) / 10 + 0.5
    of_images = pc.dataset(images, y, layout="NCHW")
    small = {"width": 4, "depth": 1}
    made = pc.reduce("vbpc", of_images, points=4, num_steps=2, batch_size=8, **small)
    assert pc.infer(made, num_steps=5).predict(images[:2]).mean.shape == (2,)
