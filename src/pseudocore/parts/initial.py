"""Where pseudo-images start: real training images, or noise of the data's own scale."""

from typing import Literal

import torch
from torch import Tensor

from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng

__all__ = ["Initial", "balanced_indices", "initial_inputs"]

Initial = Literal["real", "noise"]


def balanced_indices(problem: Problem, per_class: int, rng: Rng) -> Tensor:
    """`per_class` distinct training indices of every class, ordered by class; refuses more than a class has."""
    problem.check_per_class(per_class)
    return torch.cat([members[rng(label).permutation(len(members))[:per_class]] for label, members in enumerate(problem.members)])


def initial_inputs(problem: Problem, per_class: int, kind: Initial, rng: Rng) -> tuple[Tensor, Tensor]:
    """Starting network inputs (M, ...) and their labels (M,)."""
    index = balanced_indices(problem, per_class, rng)
    x, y = problem.batch(index)
    if kind == "noise":
        x = rng("noise").normal(*x.shape, dtype=problem.dtype).to(x.device) * x.std()
    return x, y
