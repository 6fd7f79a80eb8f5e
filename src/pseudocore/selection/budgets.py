"""How many points a selector takes and what they weigh: class by class, or of all classes together."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from pseudocore.core.budget import Budget
from pseudocore.core.config import Range
from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.selection.last_layer_gradients import LastLayer
from pseudocore.selection.weights import at_zero, learned

Share = Annotated[float, Range(above=0, high=0.5)]


@dataclass(frozen=True, kw_only=True)
class BalancedBudget(Budget):
    """How many points a selector takes, and whether of every class."""

    balanced: bool = True
    """Whether each class gives its own points; if not, selects the same total without class
    balance.
    """

    def check(self, problem: Problem) -> None:
        if self.balanced:
            super().check(problem)
        elif self.allocate is not None:
            raise ConfigError(
                f"allocate = {self.allocate!r} splits points over classes, which balanced = false "
                "does not; leave one of them out",
                code="conflicting-options",
                options=("allocate", "balanced"),
            )

    def shortfall(self, problem: Problem) -> str | None:
        if not self.balanced and self.total(problem) <= problem.num_train:
            return None
        return super().shortfall(problem)


@dataclass(frozen=True, kw_only=True)
class SelectorSettings(BalancedBudget):
    """How many points a selector takes, and what they weigh."""

    weighting: Literal["mass", "ones", "learned"] = "mass"
    """Weight of a point. `mass`: the examples of its class over the points of its class, so that
    weights sum to the size of the training set. `ones`: 1, as in most published tables. `learned`:
    so that the weighted gradients of the points add up to those of their class.
    """


class Group(NamedTuple):
    """Training points that compete with each other."""

    indices: Tensor  # (n,)
    num: int  # how many to select
    label: int  # their class, or -1 for all classes together; separates random streams


def groups(problem: Problem, settings: BalancedBudget) -> list[Group]:
    """The classes, or the whole training set as one group."""
    settings.check(problem)
    if settings.balanced:
        pairs = zip(problem.class_indices, settings.counts(problem), strict=True)
        return [Group(indices, num, label) for label, (indices, num) in enumerate(pairs)]
    num = min(settings.total(problem), problem.num_train)
    return [Group(torch.arange(problem.num_train), num, -1)]


def random_points(problem: Problem, settings: BalancedBudget, rng: Rng) -> tuple[Tensor, Tensor]:
    """Random training points (M,) of each group, and their weights: each group's examples divided
    by its points.
    """
    index, weight = [], []
    for group in groups(problem, settings):
        n = len(group.indices)
        index.append(group.indices[rng(group.label).permutation(n)[: group.num]])
        weight.append(torch.full((group.num,), n / group.num, dtype=torch.float64))
    return torch.cat(index), torch.cat(weight)


def in_order(problem: Problem, settings: BalancedBudget, places: Tensor) -> Tensor:
    """Places in `places`, by group and then as in the training set."""
    order = places.argsort()
    if not settings.balanced or problem.task == "regression":
        return order
    return order[problem.train_y.to(places.device)[places[order]].argsort(stable=True)]


def choose(
    problem: Problem,
    settings: SelectorSettings,
    rule: Callable[[Group], Tensor | tuple[Tensor, Tensor]],
    layer: Callable[[], LastLayer] | None = None,
) -> Coreset:
    """The points that `rule` selects of each group, and their weights.

    The rule gives places within the group, alone or with weights of its own. `layer` is what the
    selector's network sees of all training points, which learned weights match; by default they
    match what a linear network of zero weights sees.
    """
    if settings.weighting == "learned" and problem.task == "regression":
        raise ConfigError(
            "weighting = 'learned' matches gradients of class probabilities, and the targets of"
            f" {problem.data.name!r} are numbers; take mass or ones",
            code="wrong-task",
            task=problem.task,
        )
    index, weight = [], []
    of_all = layer() if settings.weighting == "learned" and layer is not None else None
    for group in groups(problem, settings):
        selected = rule(group)
        places, own = selected if isinstance(selected, tuple) else (selected, None)
        if own is None and settings.weighting == "learned":
            seen = at_zero(problem, group.indices) if of_all is None else of_all.at(group.indices)
            own = learned(seen, places)
        index.append(group.indices[places.cpu()])
        weight += [] if own is None else [own.cpu().double()]
    if weight:
        return problem.subset(torch.cat(index), torch.cat(weight))
    chosen = torch.cat(index)
    return problem.subset(chosen, torch.ones(len(chosen)) if settings.weighting == "ones" else None)


def choose_highest(
    problem: Problem,
    settings: SelectorSettings,
    scores: Tensor,
    rng: Rng,
    layer: Callable[[], LastLayer],
) -> Coreset:
    """The points of the highest scores (n,) of each group; ties are broken at random."""
    return choose(
        problem,
        settings,
        lambda group: top(
            scores[group.indices.to(scores.device)], group.num, rng("ties", group.label)
        ),
        layer,
    )


def top(scores: Tensor, num: int, rng: Rng) -> Tensor:
    """Places (num,) of the highest scores in descending order; ties are broken at random."""
    order = rng.permutation(len(scores)).to(scores.device)
    return order[scores[order].sort(descending=True, stable=True).indices[:num]]


@dataclass(frozen=True, kw_only=True)
class ValidationSettings:
    """Fields of a selector that holds a part of the training set out of the selection."""

    validation: Share = 0.1
    """Share of each class that is held out."""

    def capacity(self, problem: Problem) -> list[int]:
        """One example of each class at least is held out."""
        return [max(1, num - 1) for num in problem.data.class_counts.tolist()]

    def split(self, group: Group, rng: Rng) -> tuple[Tensor, Tensor]:
        """Places of the candidates in the group, and training indices of those held out."""
        return hold_out(group, self.validation, rng("validation"))


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
