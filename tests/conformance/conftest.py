"""Shared by the conformance tests: small problems made of the built-in digits, and chance that
nothing may depend on.
"""

import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.tree import clone, flatten
from pseudocore.core.types import Dataset
from pseudocore.runtime.steps import StepRunner, _record
from pseudocore.testing import few_digits, small_problem

MakeProblem = Callable[..., Problem]


@pytest.fixture(scope="session")
def data() -> Dataset:
    return few_digits()


@pytest.fixture(scope="session")
def make_problem() -> MakeProblem:
    return functools.partial(small_problem, experts=True)


@pytest.fixture
def problem(make_problem: MakeProblem) -> Problem:
    return make_problem()


@pytest.fixture(scope="session")
def scramble() -> Callable[[int], None]:
    """Put every global generator somewhere else."""

    def elsewhere(number: int) -> None:
        torch.manual_seed(number)
        np.random.seed(number)  # noqa: NPY002  the legacy generator is the global one
        random.seed(number)

    return elsewhere


@pytest.fixture(scope="session")
def global_state() -> Callable[[], list[Any]]:
    """The state of every global generator, comparable."""

    def state() -> list[Any]:
        legacy: Any = np.random.get_state()  # noqa: NPY002
        return [torch.get_rng_state().tolist(), legacy[1].tolist(), legacy[2:], random.getstate()]

    return state


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """From the call on, every step is taken as a captured graph takes it, without a GPU: with the
    draws that a first step has made, and
    a state that is copied. The number of steps taken so far."""
    taken = 0
    firsts: dict[StepRunner, Any] = {}

    def replay(stepper: StepRunner, state: Any, rng: Rng) -> tuple[Any, Any]:
        nonlocal taken
        taken += 1
        if stepper not in firsts:
            firsts[stepper] = _record(stepper._step, stepper._problem, state, rng)
        recorded = firsts[stepper]
        after, info = recorded.step(clone(state), recorded.draws(rng))
        assert flatten(after).keys() == flatten(state).keys()
        return after, info

    def begin() -> int:
        monkeypatch.setattr(StepRunner, "__call__", replay)
        return taken

    return begin
