"""What `drive` tells those who listen: where it starts, and every step before a checkpoint that
counts it.
"""

from collections.abc import Mapping
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.runtime.loop import drive


class State(NamedTuple):
    total: Tensor


class Info(NamedTuple):
    of_chains: Tensor
    plain: float


def step(problem: Problem, state: State, rng: Rng) -> tuple[State, Info]:
    total = state.total + rng.normal(3)
    return State(total), Info(total, 1.5)


class Memory:
    def __init__(self, saved: tuple[int, dict[str, Tensor]] | None = None) -> None:
        self.saved, self.events = saved, []

    def load(self) -> tuple[int, dict[str, Tensor]] | None:
        return self.saved

    def save(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        self.saved = (step, dict(tensors))
        self.events.append(f"save {step}")


def test_listeners_hear_the_start_and_every_step_before_it_is_saved(problem: Problem) -> None:
    memory = Memory((2, {"total": torch.ones(3)}))
    ending = drive(
        step, State(torch.zeros(3)), problem, Rng(0), num_steps=6, checkpoints=memory, checkpoint_every=2,
        on_start=lambda done: memory.events.append(f"start {done}"), on_step=lambda done, state, info: memory.events.append(f"step {done}"),
    )  # fmt: skip
    assert memory.events == ["start 2", "step 3", "step 4", "save 4", "step 5", "step 6", "save 6"]
    expected = torch.ones(3) + sum(Rng(0)("step", number).normal(3) for number in range(2, 6))
    assert torch.allclose(ending.state.total, expected)
    assert (ending.status, ending.num_steps) == ("finished", 6)


def test_a_step_that_is_not_kept_is_not_counted(problem: Problem) -> None:
    """Interrupted while its listener works, a step is taken again: what listeners keep and what
    checkpoints count agree.
    """
    memory = Memory()

    def listen(done: int, state: State, info: Info) -> None:
        if done == 4:
            raise KeyboardInterrupt

    ending = drive(
        step,
        State(torch.zeros(3)),
        problem,
        Rng(0),
        num_steps=6,
        checkpoints=memory,
        on_step=listen,
    )
    assert (ending.status, ending.num_steps) == ("interrupted", 3)
    assert memory.events == ["save 3"]


def test_numbers_of_several_chains_are_logged_as_their_mean(problem: Problem) -> None:
    logged: list[dict[str, float]] = []
    ending = drive(
        step, State(torch.zeros(3)), problem, Rng(0), num_steps=1, on_log=lambda done, values: logged.append(values)
    )  # fmt: skip
    assert logged == [{"of_chains": pytest.approx(float(ending.state.total.mean())), "plain": 1.5}]
