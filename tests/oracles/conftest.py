"""Shared by the oracles: small float64 problems, and derivatives that no formula of ours has a part
in.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Dataset, Examples
from pseudocore.data import preprocessing as whiten
from pseudocore.models.dense import MLP, Linear

NUM_CLASSES, DIM = 3, 6

MakeProblem = Callable[..., Problem]
Differentiate = Callable[[Callable[[Tensor], float], Tensor], Tensor]


class MemoryCache:
    """A cache in memory."""

    def __init__(self) -> None:
        self.kept: list[tuple[dict[str, Any], dict[str, Tensor]]] = []

    def load(self, what: Mapping[str, Any]) -> dict[str, Tensor] | None:
        return next((tensors for described, tensors in self.kept if described == what), None)

    def save(self, what: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self.kept.append((dict(what), dict(tensors)))

    def lock(self, _: Mapping[str, Any]) -> nullcontext[None]:
        return nullcontext()


@pytest.fixture
def cache() -> MemoryCache:
    return MemoryCache()


@pytest.fixture(scope="session")
def make_problem() -> MakeProblem:
    """Three overlapping Gaussian classes of six features in float64, by default under logistic
    regression.
    """

    def make(model: Linear | MLP = Linear(), num: int = 45) -> Problem:  # noqa: B008  frozen
        rng = Rng(0)("oracle")
        y = torch.arange(num) % NUM_CLASSES
        centres = rng("centres").normal(NUM_CLASSES, DIM, dtype=torch.float64)
        x = centres[y] + rng("spread").normal(num, DIM, dtype=torch.float64)
        data = Dataset("gaussians", Examples(x, y), Examples(x[:9] + 0.5, y[:9]), NUM_CLASSES)
        return Problem(
            data,
            model.build((DIM,), NUM_CLASSES),
            whiten.make("standard", data, dtype=torch.float64),
            dtype=torch.float64,
        )

    return make


@pytest.fixture(scope="session")
def differentiate() -> Differentiate:
    """Gradient of a scalar function entry by entry: central differences, extrapolated once
    (Richardson), error O(step⁴).
    """

    def gradient(function: Callable[[Tensor], float], at: Tensor) -> Tensor:
        result = np.zeros(at.numel())
        for entry in range(at.numel()):
            wide, narrow = (_central(function, at, entry, step) for step in (2e-3, 1e-3))
            result[entry] = (4 * narrow - wide) / 3
        return torch.from_numpy(result).view(at.shape)

    return gradient


def _central(function: Callable[[Tensor], float], at: Tensor, entry: int, step: float) -> float:
    def moved(by: float) -> Tensor:
        point = at.clone()
        point.view(-1)[entry] += by
        return point

    return (function(moved(step)) - function(moved(-step))) / (2 * step)
