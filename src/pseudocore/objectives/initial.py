"""Where pseudo-images start: real training images, mixes of two of a class, or noise of the data's
own scale.
"""

from typing import Literal

import torch
from torch import Tensor

from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng

Initial = Literal["real", "mix", "noise"]


def balanced_indices(problem: Problem, per_class: int, rng: Rng) -> Tensor:
    """`per_class` distinct training indices of every class, ordered by class; refuses more than a
    class has.
    """
    problem.check_per_class(per_class)
    return torch.cat(
        [
            members[rng(label).permutation(len(members))[:per_class]]
            for label, members in enumerate(problem.class_indices)
        ]
    )


def initial_inputs(
    problem: Problem, per_class: int, kind: Initial, rng: Rng
) -> tuple[Tensor, Tensor]:
    """Starting network inputs (M, ...) and their labels (M,)."""
    index = balanced_indices(problem, per_class, rng)
    x, y = problem.batch(index)
    if kind == "noise":
        x = rng("noise").normal(*x.shape, dtype=problem.dtype).to(x.device) * x.std()
    if kind == "mix":
        other, _ = problem.batch(_partners(problem, index, rng("partner")))
        share = (
            rng("share")
            .uniform(len(x), *(1 for _ in x.shape[1:]), dtype=problem.dtype)
            .to(x.device)
        )
        x = share * x + (1 - share) * other
    return x, y


def _partners(problem: Problem, index: Tensor, rng: Rng) -> Tensor:
    """Another training point of the same class for each, (M,); the point itself where it is the
    only one of its class.
    """
    partners = []
    for place, (point, label) in enumerate(
        zip(index.tolist(), problem.data.train.y[index].tolist(), strict=True)
    ):
        others = problem.class_indices[label]
        others = others[others != point] if len(others) > 1 else others
        partners.append(others[rng(place).integers(len(others), 1)])
    return torch.cat(partners)
