"""How many points a selector takes: class by class, or of all classes together."""

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
    """How many points a selector takes."""

    per_class: Count = 10
    """Points per class."""
    balanced: bool = True
    """Whether each class gives `per_class` points; if not, the same total without class balance."""


class Group(NamedTuple):
    """Training points that compete with each other."""

    indices: Tensor  # (n,)
    num: int  # how many to select
    label: int  # their class, or -1 for all classes together; separates random streams


def groups(problem: Problem, budget: Budget) -> list[Group]:
    """The classes, or the whole training set as one group."""
    problem.check_per_class(budget.per_class)
    if not budget.balanced:
        return [Group(torch.arange(problem.num_train), budget.per_class * problem.num_classes, -1)]
    return [
        Group(indices, budget.per_class, label)
        for label, indices in enumerate(problem.class_indices)
    ]


def choose(
    problem: Problem, budget: Budget, rule: Callable[[Group], Tensor | tuple[Tensor, Tensor]]
) -> Coreset:
    """The points that `rule` selects of each group.

    The rule gives places within the group, alone (weights are then 1) or with their weights.
    """
    index, weight = [], []
    for group in groups(problem, budget):
        selected = rule(group)
        places, own = selected if isinstance(selected, tuple) else (selected, torch.ones(group.num))
        index.append(group.indices[places.cpu()])
        weight.append(own.cpu().double())
    return problem.subset(torch.cat(index), torch.cat(weight))


def choose_highest(problem: Problem, budget: Budget, scores: Tensor, rng: Rng) -> Coreset:
    """The points of the highest scores (n,) of each group; ties are broken at random."""
    return choose(
        problem,
        budget,
        lambda group: top(
            scores[group.indices.to(scores.device)], group.num, rng("ties", group.label)
        ),
    )


def top(scores: Tensor, num: int, rng: Rng) -> Tensor:
    """Places (num,) of the highest scores in descending order; ties are broken at random."""
    order = rng.permutation(len(scores)).to(scores.device)
    return order[scores[order].sort(descending=True, stable=True).indices[:num]]


def hold_out(group: Group, share: float, rng: Rng) -> tuple[Tensor, Tensor]:
    """Places of the candidates in the group, and training indices of a random `share` held out.

    At least one point is held out, and at least `group.num` candidates remain.
    """
    n = len(group.indices)
    num = min(max(1, round(share * n)), n - group.num)
    if num < 1:
        raise ConfigError(
            f"{group.num} points were asked for of {n} examples, which leaves none of them to "
            f"validate on; use an --ipc below the smallest class, or the method without -val",
            code="nothing-to-hold-out",
            num=group.num,
            available=n,
        )
    order = rng(group.label).permutation(n)
    return order[num:].sort().values, group.indices[order[:num].sort().values]
