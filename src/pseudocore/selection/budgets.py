"""How many points are taken of whom: class by class, or of all together; and points held out to
judge by.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from pseudocore.core.config import Count, Range
from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset

Share = Annotated[float, Range(above=0, high=0.5)]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How much a selector may take."""

    per_class: Count = 10
    """Points per class."""
    balanced: bool = True
    """Whether every class gives as many points; if not, as many in all are taken of all examples
    together.
    """


class Group(NamedTuple):
    """Examples that compete with each other."""

    members: Tensor  # (n,) training indices
    num: int
    """How many of them to take."""
    label: int
    """Their class, or -1 when they are of all classes; what tells random streams apart."""


def groups(problem: Problem, budget: Budget) -> list[Group]:
    """The classes, or all of the training set as one group; refuses more than a class has."""
    problem.check_per_class(budget.per_class)
    if budget.balanced:
        return [
            Group(members, budget.per_class, label)
            for label, members in enumerate(problem.class_indices)
        ]
    return [Group(torch.arange(problem.num_train), budget.per_class * problem.num_classes, -1)]


def choose(
    problem: Problem, budget: Budget, rule: Callable[[Group], Tensor | tuple[Tensor, Tensor]]
) -> Coreset:
    """What `rule` takes of each group: places among its members, or these and their weights;
    weights are 1 unless told.
    """
    index, weight = [], []
    for group in groups(problem, budget):
        taken = rule(group)
        places, weights = taken if isinstance(taken, tuple) else (taken, torch.ones(group.num))
        index.append(group.members[places.cpu()])
        weight.append(weights.cpu().double())
    return problem.subset(torch.cat(index), torch.cat(weight))


def hold_out(group: Group, share: float, rng: Rng) -> tuple[Group, Tensor]:
    """The group without a random share of its members, at least one, and those; what is left can
    fill the budget.
    """
    n = len(group.members)
    num = min(max(1, round(share * n)), n - group.num)
    if num < 1:
        raise ConfigError(
            f"{group.num} points were asked for of {n} examples, which leaves none of them to validate on; "
            f"--ipc must be smaller than the smallest class, or take the method without -val"
        )
    order = rng(group.label).permutation(n)
    return group._replace(members=group.members[order[num:].sort().values]), group.members[
        order[:num].sort().values
    ]


def top(scores: Tensor, num: int, rng: Rng) -> Tensor:
    """Places (num,) of the highest scores, the highest first; chance decides between equal ones."""
    order = rng.permutation(len(scores)).to(scores.device)
    return order[scores[order].sort(descending=True, stable=True).indices[:num]]
