"""`pseudocore.size`: the smallest coreset within a bound, on data whose answer is known.

Each class is two points, repeated: two points of the class, each weighing half of it, have exactly
the posterior of all data, and one of them has another.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import pseudocore
from pseudocore.core.errors import ConfigError, RunError
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, Dataset, Examples
from pseudocore.evaluation.size import Row, chosen, upper_bound
from pseudocore.workflows import references
from pseudocore.workflows import size as sizing

ASKED: dict[str, Any] = {
    "methods": ["one", "distinct"],
    "budgets": [1, 2, 4],
    "model": "linear",
    "preprocess": "none",
    "inference": "last-layer-vi",  # of linear features it is exact and has no noise
    "within": 0.001,
}


@dataclass(frozen=True, kw_only=True)
class Distinct:
    """The first points of each class, weighing as their class."""

    per_class: int = 10

    def select(self, problem: Problem, rng: Rng) -> Coreset:
        index = torch.cat([one[: self.per_class] for one in problem.class_indices])
        weight = torch.full((len(index),), problem.num_train / len(index))
        return problem.subset(index, weight)


class One(Distinct):
    """The same point of each class, again and again."""

    def select(self, problem: Problem, rng: Rng) -> Coreset:
        index = torch.cat([one[:1].repeat(self.per_class) for one in problem.class_indices])
        weight = torch.full((len(index),), problem.num_train / len(index))
        return problem.subset(index, weight)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(references.OPTIONS, "last-layer-vi", {"num_steps": 1})
    names = {"distinct": Distinct, "one": One}
    for name, method in names.items():
        methods.register(name, kind="select", paper="none")(method)
    yield
    for name in names:
        del methods._entries[name], methods._classes[name]


@pytest.fixture(scope="module")
def twos() -> Dataset:
    points = torch.tensor([[-1.0, 0.2], [0.6, -1.0], [1.0, -0.2], [-0.4, 1.0]])
    x, y = points.repeat(12, 1), torch.tensor([0, 0, 1, 1]).repeat(12)
    test = Rng(0)("test").normal(30, 2)
    return Dataset("twos", Examples(x, y), Examples(test, torch.arange(30) % 2), 2)


def test_the_known_answer(twos: Dataset) -> None:
    seen: list[tuple[str, int]] = []
    found = pseudocore.size(
        twos, on_row=lambda row, done, total: seen.append((row.method, row.per_class)), **ASKED
    )
    assert found.met
    assert (found.answer.method, found.answer.per_class) == ("distinct", 2)
    assert seen == [("one", 1), ("distinct", 1), ("one", 2), ("distinct", 2)]
    assert found.answer.kl <= found.answer.upper < 1e-6
    assert min(row.kl for row in found.rows if row is not found.answer) > 0.001
    assert found.test_kl < 1e-6
    assert len(found.coreset) == 4
    kept = found.coreset.provenance["fidelity"]
    assert kept["fidelity_kl"] == found.test_kl
    assert kept["reference"] == found.reference
    assert "distinct at 2 per class (4 points) is within 0.001" in found.sentence()
    assert "← answer" in found.table()
    assert found["answer"]["points"] == 4


def test_further_seeds_are_not_made_where_the_first_ones_exceed_the_bound(
    twos: Dataset, tmp_path: Path
) -> None:
    """Unless all budgets are asked for, which resumes such rows too."""
    short = pseudocore.size(twos, out=tmp_path / "short", **ASKED)
    assert [len(row.kl_by_seed) for row in short.rows] == [1, 1, 1, 2]
    assert all(row.kl_by_seed[0] > 2 * ASKED["within"] for row in short.rows[:3])
    assert not any(row.meets for row in short.rows[:3])
    barely = pseudocore.size(twos, **{**ASKED, "within": short.rows[0].kl * 0.6, "budgets": [1]})
    assert len(barely.rows[0].kl_by_seed) == 2  # another seed could have made up for it
    whole = pseudocore.size(twos, out=tmp_path / "short", every=True, **ASKED)
    assert {len(row.kl_by_seed) for row in whole.rows} == {2}
    assert [row.kl_by_seed[0] for row in whole.rows[:4]] == [
        row.kl_by_seed[0] for row in short.rows
    ]


def test_the_nearest_where_the_bound_cannot_be_met(
    twos: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = pseudocore.size(twos, **{**ASKED, "budgets": [1]})
    assert not found.met
    assert found.answer.upper == min(row.upper for row in found.rows)
    assert "no coreset tried is within 0.001 with 90% confidence" in found.sentence()
    assert "Two fits" not in found.sentence()
    short = {"num_burn": 10, "num_draws": 8, "num_chains": 2, "num_leapfrog": 4}
    monkeypatch.setitem(references.OPTIONS, "hmc", short)
    asked = {**ASKED, "budgets": [2], "inference": None, "seeds": 1, "methods": ["distinct"]}
    noisy = pseudocore.size(twos, **asked)  # by hmc, whose own noise is above the bound
    assert noisy.floor_kl > 0.001
    assert "Two fits to all data differ by" in noisy.sentence()


def test_it_resumes_where_it_stopped(
    twos: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = pseudocore.size(twos, out=tmp_path / "whole", **ASKED)

    def stop(row: Row, done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pseudocore.size(twos, out=tmp_path / "cut", on_row=stop, **ASKED)
    monkeypatch.setattr(references, "reference", None)  # it is in the folder
    resumed = pseudocore.size(twos, out=tmp_path / "cut", **ASKED)
    for one, other in zip(resumed.rows, whole.rows, strict=True):
        assert one._replace(seconds=0) == other._replace(seconds=0)
    assert torch.equal(resumed.coreset.x, whole.coreset.x)
    assert torch.equal(pseudocore.load(tmp_path / "cut").x, whole.coreset.x)
    with pytest.raises(RunError) as error:
        pseudocore.size(twos, out=tmp_path / "cut", **{**ASKED, "within": 0.01})
    assert error.value.code == "another-config"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(RunError) as error:
        pseudocore.size(twos, out=tmp_path / "other", **ASKED)
    assert error.value.code == "not-ours"


def test_methods_that_cannot_be_used_are_left_out(twos: Dataset) -> None:
    skipped: list[str] = []
    asked = {**ASKED, "methods": ["psvi", "distinct"], "budgets": [2], "model": "mlp", "width": 3}
    found = pseudocore.size(twos, on_skip=lambda name, why: skipped.append(name), **asked)
    assert skipped == ["psvi"]
    assert "psvi needs --model linear" in found.skipped["psvi"]
    assert {row.method for row in found.rows} == {"distinct"}
    with pytest.raises(ConfigError) as error:
        pseudocore.size(twos, **{**asked, "methods": ["psvi"]})
    assert error.value.code == "no-method"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"within": 0.0}, "invalid-options"),
        ({"methods": []}, "invalid-options"),
        ({"budgets": [0, 1]}, "invalid-options"),
        ({"confidence": 1.0}, "invalid-options"),
        ({"methods": ["full"]}, "no-budget"),
    ],
)
def test_what_cannot_work_is_refused(twos: Dataset, changes: dict[str, Any], code: str) -> None:
    with pytest.raises(ConfigError) as error:
        sizing.size(twos, **{**ASKED, **changes})
    assert error.value.code == code


def test_the_bound_holds_as_often_as_it_says() -> None:
    """Of the mean of skewed distances, over 400 worlds of 8 seeds and 40 inputs."""
    rng, below, num = Rng(1), 0, 400
    for world in range(num):
        seeds = 0.2 * rng("seeds", world).normal(8, 1, dtype=torch.float64)
        each = (seeds + 0.5 * rng("inputs", world).normal(8, 40, dtype=torch.float64)).exp()
        below += torch.e ** ((0.2**2 + 0.5**2) / 2) <= upper_bound(each, 0.9, rng("b", world))
    assert 0.8 < below / num < 0.95  # 8 seeds cost a few percent of coverage


def test_the_smallest_of_those_that_meet_the_bound() -> None:
    def row(method: str, points: int, kl: float, meets: bool) -> Row:
        return Row(method, points, points, kl, kl + 0.1, 0.0, 1.0, [kl], 0.0, meets, 0)

    rows = [row("a", 10, 0.3, False), row("a", 20, 0.02, True), row("b", 20, 0.01, True)]
    assert chosen(rows) is rows[2]
    assert chosen([*rows, row("c", 15, 0.04, True)]).method == "c"
    assert chosen(rows[:1]) is rows[0]
