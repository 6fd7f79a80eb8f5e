"""Trajectory methods and chains compiled in pieces take the same steps, and compile each piece
once, not once a use.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from pseudocore import assembly as setups
from pseudocore.assembly import Setup
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.tree import flatten
from pseudocore.data import DSA, load
from pseudocore.data.augment import Draw
from pseudocore.inference.hmc import HMC
from pseudocore.methods.bayes.bpc_cd import BPCContrastiveDivergence
from pseudocore.methods.bayes.bpc_fkl import BPCForwardKL
from pseudocore.methods.bayes.bpc_rkl import BPCReverseKL
from pseudocore.methods.bayes.bpc_w import BPCWasserstein
from pseudocore.objectives import unroll
from pseudocore.objectives.image_sgd import ImagesState
from pseudocore.runtime.execution import repeated
from pseudocore.runtime.steps import StepRunner
from pseudocore.training.experts import Resident

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
]

SHORT: dict[str, Any] = {"per_class": 1, "max_start": 2, "image_lr": 1.0}


@pytest.fixture
def problem(monkeypatch: pytest.MonkeyPatch) -> Problem:
    monkeypatch.setattr(
        torch, "compile", partial(torch.compile, backend="aot_eager")
    )  # traced like for a GPU, run like on a CPU
    bare = setups.build(Setup(model="convnet3", width=8, augment="flip"), load("digits"))
    theta = bare.model.init(Rng(0), num=2)
    return replace(
        bare,
        experts=Resident(theta[:, None] + 1e-2 * Rng(1).normal(2, 5, theta.shape[1]).cumsum(1)),
    )


def taken(
    step: Any, state: Any, problem: Problem, compile: Any
) -> tuple[dict[str, torch.Tensor], int]:
    """The state after three steps, and how many graphs were compiled."""
    counters.clear()
    stepper = StepRunner(step, problem, compile, repeats_passes=True)
    for number in range(3):
        state, _ = stepper(state, Rng(0)("step", number))
    assert stepper.note == ""
    return flatten(state), counters["stats"]["unique_graphs"]


@dataclass(frozen=True)
class AsOnAGPU:
    """All operations, the drawn one chosen by a number that stays on the device: one graph for all
    of them.
    """

    change: DSA

    def __call__(self, x: torch.Tensor, rng: Rng) -> torch.Tensor:
        shown: torch.Tensor = repeated(self.apply)(x, self.draw(rng, len(x), x.device))
        return shown

    def draw(self, rng: Rng, num: int, device: torch.device | str) -> tuple[Draw]:
        place = rng("operation").integers(len(self.change.operations), device=device)
        return (self.change.draw(rng, num, device)[0]._replace(operation=place),)

    def apply(self, x: torch.Tensor, draws: tuple[Draw]) -> torch.Tensor:
        return self.change.apply(x, draws)


@pytest.mark.parametrize("augment", [None, AsOnAGPU(DSA())], ids=["flip", "all"])
@pytest.mark.parametrize(
    "make",
    [
        partial(BPCForwardKL, num_draws=3),
        partial(BPCForwardKL, num_draws=4, draw_batch=2),
        partial(BPCReverseKL, num_draws=3, batch_size=20),
        BPCWasserstein,
        BPCContrastiveDivergence,
    ],
    ids=["fkl", "fkl-batched", "rkl", "w", "cd"],
)
def test_methods(problem: Problem, make: Any, augment: AsOnAGPU | None) -> None:
    problem, graphs = replace(problem, augment=augment or problem.augment), []
    for num_inner_steps in (2, 4):
        method = make(num_inner_steps=num_inner_steps, **SHORT)
        start = method.init(problem, Rng(0)("init"))
        eager, none = taken(method.step, start, problem, "off")
        compiled, num = taken(method.step, start, problem, "on")
        assert none == 0
        assert all(
            torch.allclose(compiled[name], value, rtol=1e-5, atol=1e-6)
            for name, value in eager.items()
        )
        graphs.append(num)
    assert 0 < graphs[0] == graphs[1]


def test_the_way_back_through_a_view(problem: Problem) -> None:
    view, x = AsOnAGPU(DSA()), problem.batch(torch.arange(20))[0]

    def step(_: Problem, state: ImagesState, rng: Rng) -> tuple[ImagesState, None]:
        images, pull = unroll.augment_vjp(view, state.x, rng("view"))
        return state._replace(x=pull(images.sin())), None

    start = ImagesState(x, torch.zeros(20), torch.zeros_like(x))
    eager, _ = taken(step, start, problem, "off")
    compiled, num = taken(step, start, problem, "on")
    assert torch.allclose(compiled["x"], eager["x"], rtol=1e-5, atol=1e-6)
    assert num == 2  # there and back


def test_chains(problem: Problem) -> None:
    bare, hmc = replace(problem, augment=None), HMC(num_chains=2, num_leapfrog=4, step_size=1e-3)
    log_density = hmc.log_density(bare, bare.subset(torch.arange(20)), Rng(0))
    start = hmc.init(log_density, bare.model.init(Rng(0), num=2), Rng(0))
    eager, _ = taken(lambda _, state, rng: hmc.step(log_density, state, rng), start, bare, "off")
    compiled, num = taken(
        lambda _, state, rng: hmc.step(log_density, state, rng), start, bare, "on"
    )
    assert torch.allclose(compiled["theta"], eager["theta"], rtol=1e-5, atol=1e-6)
    assert num == 1
