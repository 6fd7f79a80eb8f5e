"""A small problem for samplers: moons under a two-layer network, in float64."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pseudocore.core.problem import GaussianPrior, Problem
from pseudocore.core.types import Coreset
from pseudocore.data import moons
from pseudocore.data import preprocessing as whiten
from pseudocore.models.dense import MLP

MakeProblem = Callable[..., Problem]


@pytest.fixture(scope="session")
def make_problem() -> MakeProblem:
    data = moons(60, 300)

    def make(**changes: Any) -> Problem:
        settings: dict[str, Any] = {"prior": GaussianPrior(0.7), "dtype": torch.float64, **changes}
        return Problem(
            data,
            MLP(width=5, depth=1).build((2,), 2),
            whiten.make("standard", data, dtype=torch.float64),
            **settings,
        )

    return make


@pytest.fixture
def problem(make_problem: MakeProblem) -> Problem:
    return make_problem()


@pytest.fixture(scope="session")
def coreset() -> Coreset:
    x, y = moons(60, 300).train
    return Coreset(x[:12].double(), y[:12], torch.linspace(0.5, 2, 12, dtype=torch.float64))
