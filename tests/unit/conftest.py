"""A linear model, an affine preprocessing and a four-point problem: enough to work every formula
out by hand.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from pseudocore.core.errors import PseudocoreError
from pseudocore.core.problem import Problem
from pseudocore.core.types import Dataset, Examples
from pseudocore.models.dense import Linear


class Affine(NamedTuple):
    """Pixels to (pixels - shift) / scale."""

    shift: float = 0.0
    scale: float = 1.0

    def apply(self, x: Tensor) -> Tensor:
        return (x - self.shift) / self.scale

    def invert(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift

    def describe(self) -> dict[str, Any]:
        return self._asdict()


MakeProblem = Callable[..., Problem]


@pytest.fixture(scope="session")
def make_problem() -> MakeProblem:
    """A problem on two features and two classes; images (1, 1, 2) instead with `images=True`."""

    def make(
        *, images: bool = False, shift: float = 0.0, scale: float = 1.0, **changes: Any
    ) -> Problem:
        x = torch.tensor([[0.0, 1.0], [1.0, 0.5], [0.25, 0.0], [0.75, 1.0]])
        if images:
            x = (x * 255).to(torch.uint8).reshape(4, 1, 1, 2)
        split = Examples(x, torch.tensor([0, 1, 0, 0]))
        data = Dataset("four", split, split, 2)
        return Problem(data, Linear().build(data.shape, 2), Affine(shift, scale), **changes)

    return make


@pytest.fixture
def problem(make_problem: MakeProblem) -> Problem:
    return make_problem()


@pytest.fixture
def fails() -> Callable[..., AbstractContextManager[None]]:
    """`with fails(code, *parts):` expects an error with that code and these parts of a sentence."""

    @contextmanager
    def expected(code: str, *parts: object) -> Iterator[None]:
        with pytest.raises(PseudocoreError) as caught:
            yield
        assert caught.value.code == code, caught.value
        assert [part for part in map(str, parts) if part not in str(caught.value)] == []

    return expected
