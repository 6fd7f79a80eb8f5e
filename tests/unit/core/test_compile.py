"""A captured step must be the eager step: same draws, same states, same fallbacks. Capture itself needs a GPU."""

from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from pseudocore.core.compile import WARM_UP, Stepper
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.tree import clone


class State(NamedTuple):
    x: Tensor
    previous: Tensor


class Info(NamedTuple):
    drawn: Tensor


def step(problem: Problem, state: State, rng: Rng) -> tuple[State, Info]:
    """Draws twice from one stream, once from another, and hands an old buffer on: the three ways a capture could go wrong."""
    first = rng("noise").normal(4, device=problem.device)
    again = rng("noise").normal(4, device=problem.device)
    other = rng("other", 1).uniform(4, device=problem.device)
    return State(state.x + first - 0.5 * again + other, state.x), Info(first - again)


def host_step(problem: Problem, state: State, rng: Rng) -> tuple[State, Info]:
    chance = rng("host").uniform(4).to(problem.device)
    return State(state.x + chance, state.x), Info(chance.sum())


def run(problem: Problem, compile: str, function=step, num: int = 12) -> tuple[list[State], Stepper]:
    state = State(torch.zeros(4, device=problem.device), torch.zeros(4, device=problem.device))
    stepper, states = Stepper(function, problem, compile), []  # type: ignore[arg-type]
    for number in range(num):
        state, info = stepper(state, Rng(3)("step", number))
        if function is step:
            assert not info.drawn.any(), "one stream drawn twice gives the same numbers twice"
        states.append(clone(state))
    return states, stepper


def test_a_cpu_runs_the_step_itself(problem: Problem) -> None:
    states, stepper = run(problem, "auto")
    expected = State(torch.zeros(4), torch.zeros(4))
    for number, state in enumerate(states):
        expected, _ = step(problem, expected, Rng(3)("step", number))
        assert torch.equal(state.x, expected.x)
        assert torch.equal(state.previous, expected.previous)
    assert stepper.note == ""


@pytest.mark.gpu
def test_captured_equals_eager(problem: Problem) -> None:
    problem = replace(problem, device=torch.device("cuda"))
    captured, stepper = run(problem, "auto")
    eager, _ = run(problem, "off")
    assert stepper.note == ""
    assert stepper._graph is not None
    for one, other in zip(captured, eager, strict=True):
        assert torch.equal(one.x, other.x)
        assert torch.equal(one.previous, other.previous)


@pytest.mark.gpu
def test_a_step_that_draws_on_the_host_runs_eagerly_and_says_why(problem: Problem) -> None:
    problem = replace(problem, device=torch.device("cuda"))
    captured, stepper = run(problem, "auto", host_step, num=WARM_UP + 4)
    eager, _ = run(problem, "off", host_step, num=WARM_UP + 4)
    assert "drawn on the host" in stepper.note
    assert all(torch.equal(one.x, other.x) for one, other in zip(captured, eager, strict=True))
