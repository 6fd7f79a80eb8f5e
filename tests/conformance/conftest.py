"""Shared by the conformance tests: small problems made of the built-in digits, and chance that
nothing may depend on.
"""

import functools
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.tree import clone, flatten
from pseudocore.core.types import Dataset, Examples
from pseudocore.data import digits
from pseudocore.data import preprocessing as whiten
from pseudocore.models.convnet import ConvNetWide
from pseudocore.runtime.draws import record
from pseudocore.runtime.steps import StepRunner
from pseudocore.training.experts import Resident, Training, train

PER_CLASS = 12
NUM_EXPERTS, NUM_EPOCHS = 2, 4
"""As many epochs as a tiny trajectory method asks for, and one more."""

MakeProblem = Callable[..., Problem]


@pytest.fixture(scope="session")
def data() -> Dataset:
    """Twelve training images of each digit, forty test images."""
    whole = digits()
    train = torch.cat(
        [(whole.train.y == label).nonzero().flatten()[:PER_CLASS] for label in range(10)]
    )
    return Dataset(
        "few-digits",
        Examples(whole.train.x[train], whole.train.y[train]),
        Examples(whole.test.x[:40], whole.test.y[:40]),
        10,
    )


@pytest.fixture(scope="session")
def make_problem(data: Dataset) -> MakeProblem:
    """The digits under a convolutional network of four and eight channels, with experts for the
    methods that learn from them.
    """

    @functools.cache
    def trained(norm: Any, dtype: torch.dtype, device: str) -> Resident:
        return train(
            bare(norm, dtype, device),
            Training(lr=0.05, batch_size=16),
            num=NUM_EXPERTS,
            num_epochs=NUM_EPOCHS,
        )

    def bare(norm: Any, dtype: torch.dtype, device: str) -> Problem:
        model, where = (
            ConvNetWide(width=4, norm=norm).build(data.shape, data.num_classes),
            torch.device(device),
        )
        torch.backends.cudnn.deterministic = True  # as `setup.build` has it
        return Problem(
            data,
            model,
            whiten.make("standard", data, device=where, dtype=dtype),
            device=where,
            dtype=dtype,
        )

    def make(
        norm: Any = "none", dtype: torch.dtype = torch.float32, device: str = "cpu"
    ) -> Problem:
        return replace(bare(norm, dtype, device), experts=trained(norm, dtype, device))

    return make


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
            firsts[stepper] = record(stepper.step, stepper.problem, state, rng)
        recorded = firsts[stepper]
        after, info = recorded.step(clone(state), recorded.draws(rng))
        assert flatten(after).keys() == flatten(state).keys()
        return after, info

    def begin() -> int:
        monkeypatch.setattr(StepRunner, "__call__", replay)
        return taken

    return begin
