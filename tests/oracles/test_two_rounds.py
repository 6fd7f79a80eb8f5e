"""Selection in two rounds against one: the same with one shard, near it with several."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pseudocore as pc
from pseudocore import methods
from pseudocore.assembly import Setup, build
from pseudocore.core.errors import ConfigError, DataError, PseudocoreError
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods as registry
from pseudocore.core.rng import Rng
from pseudocore.engine import items, mapping
from pseudocore.selection import facility
from pseudocore.selection.last_layer_gradients import GradientMetric
from pseudocore.training.pretrain import extract_last_layer
from pseudocore.workflows import two_rounds

RECIPE: dict[str, Any] = {"per_class": 5, "pretrain_epochs": 2}
ABLE = {
    "uniform": {},
    "herding": {},
    "k-center": {},
    "kernel-herding": {},
    "craig": {"pretrain_epochs": 2},
    "lcmat-s": {"pretrain_epochs": 2, "weighting": "clusters"},
}


@pytest.fixture(scope="module")
def problem() -> Problem:
    return build(Setup(data="digits", model="linear"), device="cpu")


def select(method: Any, problem: Problem, size: int) -> Any:
    return two_rounds.select(method, problem, Rng(1), size)


def test_shards_deal_out_every_example_once() -> None:
    for num_train, num in ((1437, 5), (1000, 16), (7, 7), (100_001, 3)):
        parts = [two_rounds.shard(num_train, num, place, Rng(0)) for place in range(num)]
        assert torch.equal(torch.cat(parts).sort().values, torch.arange(num_train))
        assert max(map(len, parts)) <= 2 * num_train / num + 1


@pytest.mark.parametrize("name", ABLE)
def test_one_shard_is_one_round(problem: Problem, name: str) -> None:
    method = registry[name].make(**recipe_of(name))
    one, two = method.select(problem, Rng(1)), select(method, problem, problem.num_train)
    assert torch.equal(one.indices, two.indices)
    assert torch.equal(one.weight, two.weight)


@pytest.mark.parametrize("name", ABLE)
def test_several_shards_keep_the_budget_and_the_mass(problem: Problem, name: str) -> None:
    method = registry[name].make(**recipe_of(name))
    found = select(method, problem, 400)
    assert len(found.indices.unique()) == 50
    assert torch.bincount(found.y).tolist() == [5] * 10
    assert float(found.weight.sum()) == pytest.approx(problem.num_train, rel=1e-5)
    assert not torch.equal(found.indices, method.select(problem, Rng(1)).indices)


def recipe_of(name: str) -> dict[str, Any]:
    return {"per_class": 5, **ABLE[name]}


def test_points_that_count_for_several_are_those_points_several_times() -> None:
    """A weighted objective is that of repeated points."""
    rng = np.random.default_rng(0)
    x, times = torch.tensor(rng.normal(size=(30, 2))), torch.tensor(rng.integers(1, 6, 30))

    def rows(points: Tensor) -> facility.Rows:
        def distance(i: Tensor, j: Any) -> Tensor:
            return torch.cdist(x[i], points[j])

        return facility.Rows(lambda index: 10 - distance(index, slice(None)), 100)

    weighted = facility.weighted(rows(x), times.double())
    repeated = rows(x.repeat_interleave(times, 0))
    picks = [facility.facility_location(one, 30, 6) for one in (weighted, repeated)]
    assert picks[0].tolist() == picks[1].tolist()
    values = [facility.objective(one, picks[0]) for one in (weighted, repeated)]
    assert values[0] == pytest.approx(values[1], rel=1e-12)


def test_the_objective_is_near_that_of_one_round(problem: Problem) -> None:
    method = methods.CRAIG(per_class=10, pretrain_epochs=2)
    layer = extract_last_layer(problem, method, Rng(1))

    def covered(coreset: Any) -> float:
        total = 0.0
        for label, index in enumerate(problem.class_indices):
            metric = GradientMetric(layer.at(index))
            rows = facility.from_distance(metric, len(index), metric.farthest)
            own = coreset.indices[coreset.y == label]
            total += facility.objective(rows, torch.searchsorted(index, own))
        return total

    one = covered(method.select(problem, Rng(1)))
    two = covered(select(method, problem, 360))
    chance = covered(methods.Uniform(per_class=10).select(problem, Rng(1)))
    assert two > chance
    assert (one - two) / one < 0.02
    assert (one - two) < 0.25 * (one - chance)


def test_workers_select_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_all(calls: Any, *_: Any) -> Any:
        for item, call in reversed(calls):  # in any order
            yield items.result_of(items.run(items.Call.from_json(call.to_json())), item)

    monkeypatch.setitem(mapping._BACKENDS, "local", run_all)
    options: Any = {"model": "linear", "shard_size": 500, **RECIPE}
    here = pc.reduce("craig", "digits", **options)
    there = pc.reduce("craig", "digits", out=tmp_path / "run", engine="local", **options)
    assert torch.equal(here.coreset.indices, there.coreset.indices)
    assert torch.equal(here.coreset.weight, there.coreset.weight)
    assert there.coreset.provenance["shard_size"] == 500


def test_half_precision_stays_on_the_disk(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(300) % 3
    for name, n in (("train", 300), ("test", 30)):
        x = rng.normal(size=(n, 4)) + np.eye(4)[y[:n]]
        np.save(tmp_path / f"{name}_x.npy", x.astype(np.float16))
        np.save(tmp_path / f"{name}_y.npy", y[:n])
    data = pc.dataset(tmp_path)
    assert data.train.x.dtype == torch.float16
    made = pc.reduce("craig", tmp_path, model="linear", shard_size=100, **RECIPE)
    assert made.coreset.x.dtype == torch.float32
    assert pc.evaluate(made, seeds=1)["metrics"]["accuracy"]["mean"] > 0.4


def test_what_is_refused(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    for method, code in (
        (methods.GradMatch(), "one-round-only"),
        (methods.VBPC(), "one-round-only"),
        (methods.CRAIG(weighting="learned"), "conflicting-options"),
    ):
        with pytest.raises(ConfigError) as caught:
            two_rounds.check(method, 100)
        assert caught.value.code == code
    with pytest.raises(DataError, match="a larger shard_size has some of every class"):
        select(methods.Uniform(per_class=1), problem, 12)
    with pytest.raises(ConfigError, match="give the examples of a shard too"):
        pc.reduce("uniform", "digits", engine="local", out="never")
    monkeypatch.setenv("PSEUDOCORE_DATA_LIMIT", "0.0001")
    with pytest.raises(PseudocoreError, match=r"--shard-size \d+ selects in two rounds"):
        two_rounds.check_fits(methods.CRAIG(), problem)
    two_rounds.check_fits(methods.Uniform(), problem)  # which holds no features


def test_what_a_selection_takes_is_forecast(problem: Problem) -> None:
    """By hand: the digits have 64 inputs, 1,437 examples and 10 classes."""
    largest = int(problem.data.class_counts.max())
    layer = extract_last_layer(problem, methods.CRAIG(pretrain_epochs=1), Rng(0))
    held = 4 * (layer.features.numel() + layer.log_probs.numel())
    assert held == 4 * 1437 * 74
    assert two_rounds.num_bytes(methods.CRAIG(), problem) == held + 4 * largest * 74
    assert two_rounds.num_bytes(methods.Herding(), problem) == 4 * largest * 64
    assert two_rounds.num_bytes(methods.Herding(space="network"), problem) > held
