"""Where pseudo-points start, and the settings of the methods that learn them."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pseudocore.core.config import Count
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng

Initial = Literal["real", "mix", "noise"]


@dataclass(frozen=True, kw_only=True)
class PointSettings:
    """Fields of every iterative method; their order is that of the flags in `--help`, no more."""

    per_class: Count = 10
    """Pseudo-points per class."""
    num_steps: Count = 2000
    """Outer steps."""


@dataclass(frozen=True, kw_only=True)
class ImageSettings(PointSettings):
    """Fields of every method that learns images."""

    initial: Initial = "real"
    """Start from real images, from mixes of two of a class, or from noise."""
    formation: Count = 1
    """Images that a stored one holds along each side; 1 stores them one by one."""


def balanced_indices(problem: Problem, per_class: int, rng: Rng) -> Tensor:
    """`per_class` distinct training indices of every class, ordered by class."""
    problem.check_per_class(per_class)
    return torch.cat(
        [
            indices[rng(label).permutation(len(indices))[:per_class]]
            for label, indices in enumerate(problem.class_indices)
        ]
    )


def initial_inputs(
    problem: Problem, per_class: int, kind: Initial, rng: Rng
) -> tuple[Tensor, Tensor]:
    """Starting network inputs (M, ...), noise at the scale of the data, and their labels (M,)."""
    index = balanced_indices(problem, per_class, rng)
    x, y = problem.batch(index)
    if kind == "noise":
        x = rng("noise").normal(*x.shape, dtype=problem.dtype).to(x.device) * x.std()
    if kind == "mix":
        other, _ = problem.batch(_partners(problem, index, rng("partner")))
        shape = (len(x), *(1 for _ in x.shape[1:]))
        share = rng("share").uniform(*shape, dtype=problem.dtype).to(x.device)
        x = share * x + (1 - share) * other
    return x, y


def _partners(problem: Problem, index: Tensor, rng: Rng) -> Tensor:
    """Another training point of the same class for each, (M,), or itself in a class of one."""
    partners = []
    for place, point in enumerate(index.tolist()):
        others = problem.class_indices[int(problem.data.train.y[point])]
        others = others[others != point] if len(others) > 1 else others
        partners.append(others[rng(place).integers(len(others), 1)])
    return torch.cat(partners)
