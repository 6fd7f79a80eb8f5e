"""The loop ends a run that leaves the range of the data, and keeps what was within it."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from pseudocore.assembly import Reduction, build
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.runtime.bounds import MAX_REACH
from pseudocore.runtime.loop import run
from pseudocore.workflows.reduction import run_reduction


class State(NamedTuple):
    size: Tensor


class Info(NamedTuple):
    size: Tensor


@dataclass(frozen=True)
class Growing:
    """One part of the coreset grows tenfold with every step."""

    part: str
    num_steps: int = 20

    def init(self, problem: Problem, rng: Rng) -> State:
        return State(torch.ones(()))

    def step(self, problem: Problem, state: State, rng: Rng) -> tuple[State, Info]:
        return State(10 * state.size), Info(state.size)

    def coreset(self, problem: Problem, state: State) -> Coreset:
        def grown(name: str, value: Tensor) -> Tensor:
            return value * state.size if self.part == name else value

        scale = float(state.size) if self.part == "scale" else 1.0
        x = grown("x", problem.data.train.x[:2].float())
        y, weight = grown("y", torch.eye(2)), grown("weight", torch.ones(2))
        return Coreset(x, y, weight, provenance={"posterior": {"logit_scale": scale}})


@pytest.mark.parametrize("part", ["x", "y", "weight", "scale"])
def test_each_part_is_bounded(problem: Problem, part: str) -> None:
    outcome = run(Growing(part), problem, seed=0)
    assert outcome.status == "diverged"
    assert f"kept step {outcome.num_steps}" in outcome.reason
    largest = float(problem.data.train.x.abs().max())
    kept = outcome.coreset
    assert float(kept.x.abs().max()) <= MAX_REACH * largest
    assert float(kept.y.abs().max()) <= MAX_REACH
    assert float(kept.weight.sum()) <= MAX_REACH * problem.num_train
    assert 1e-12 < kept.learned["logit_scale"] < 1e12
    tenfold = Growing(part).coreset(problem, State(torch.tensor(10.0 ** (outcome.num_steps + 1))))
    assert not _is_bounded(tenfold, problem, largest), "it ended too early"


def _is_bounded(coreset: Coreset, problem: Problem, largest: float) -> bool:
    scale = dict(coreset.provenance["posterior"])["logit_scale"]
    return (
        float(coreset.x.abs().max()) <= MAX_REACH * largest
        and float(coreset.y.abs().max()) <= MAX_REACH
        and float(coreset.weight.sum()) <= MAX_REACH * problem.num_train
        and scale < 1e12
    )


def test_a_coreset_that_cannot_be_is_divergence(problem: Problem) -> None:
    class NoWeight(Growing):
        def coreset(self, problem: Problem, state: State) -> Coreset:
            weight = torch.ones(2) * (state.size < 500)
            return Coreset(torch.zeros(2, 2), torch.tensor([0, 1]), weight)

    outcome = run(NoWeight("nothing"), problem, seed=0)
    assert (outcome.status, outcome.num_steps) == ("diverged", 2)
    assert "no coreset was left" in outcome.reason


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("frepo", {"label_lr": 1e10, "pool_size": 1, "batch_size": 16}),
        ("vbpc", {"image_lr": 1e8, "pool_size": 1, "batch_size": 16}),
        ("dm", {"image_lr": 1e25, "batch_size": 8}),
        ("psvi", {"weight_lr": 1e12}),
    ],
)
def test_absurd_step_sizes_end_as_diverged_and_leave_a_usable_coreset(
    method: str, options: dict[str, Any]
) -> None:
    setup = {"data": "digits", "model": "linear" if method == "psvi" else "mlp", "width": 8}
    setup = {**setup, "width": None} if method == "psvi" else setup
    table = {"method": method, "seed": 0, "setup": setup, "options": {"per_class": 1, **options}}
    table["options"]["num_steps"] = 12
    reduction = Reduction.from_config(table)
    problem = build(reduction.setup, device="cpu")
    outcome = run_reduction(reduction, problem)
    assert outcome.status == "diverged"
    assert "kept step" in outcome.reason
    assert float(outcome.coreset.x.abs().max()) <= MAX_REACH
    assert float(outcome.coreset.y.abs().max()) <= MAX_REACH
    assert outcome.coreset.learned is not None
