"""How many points a coreset has of each class, and what they weigh."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from torch import Tensor

from pseudocore.core.config import Range
from pseudocore.core.errors import ConfigError

if TYPE_CHECKING:
    from pseudocore.core.problem import Problem

PER_CLASS = 10
"""Points per class where no budget is given."""

BUDGETS = frozenset({"per_class", "points", "fraction"})
"""Options that set a budget, one of which excludes the others."""

Allocation = Literal["proportional", "equal"]
OptionalCount = Annotated[int | None, Range(low=1)]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How many points there are: per class, in all, or as a fraction of the training set."""

    per_class: OptionalCount = None
    """Points per class; of a class that has fewer examples, all. Defaults to 10 where no other
    budget is given.
    """
    points: OptionalCount = None
    """Points in all, instead of per class."""
    fraction: Annotated[float | None, Range(above=0, high=1)] = None
    """Points as a fraction of the training set, instead of per class."""
    allocate: Allocation | None = None
    """Split the points over classes in proportion to their size, or equally. Defaults to equal for
    points per class, else to proportional.
    """

    def __post_init__(self) -> None:
        given = sorted(name for name in BUDGETS if getattr(self, name) is not None)
        if len(given) > 1:
            raise ConfigError(
                f"{' and '.join(given)} exclude each other; give one of them",
                code="two-budgets",
                options=given,
            )

    @property
    def _takes_what_there_is(self) -> bool:
        """Whether classes get the same number, and one that runs out makes room for no other."""
        return self.points is None and self.fraction is None and self.allocate is None

    def capacity(self, problem: "Problem") -> list[int]:
        """The most points that each class can have."""
        counts: list[int] = problem.data.class_counts.tolist()
        return counts

    def total(self, problem: "Problem") -> int:
        """Points in all, before any class runs out of examples."""
        if self.fraction is not None:
            return max(1, round(self.fraction * problem.num_train))
        return self.points or (self.per_class or PER_CLASS) * problem.num_classes

    def counts(self, problem: "Problem") -> list[int]:
        """Points of each class; no class has more than its capacity."""
        capacity = self.capacity(problem)
        if self._takes_what_there_is:
            return [min(self.per_class or PER_CLASS, most) for most in capacity]
        total = min(self.total(problem), sum(capacity))
        if total < len(capacity):
            advice = (
                "; for a target of numbers say task = 'regression'" if len(capacity) > 20 else ""
            )
            raise ConfigError(
                f"a budget of {total} is less than one point for each of the {len(capacity)} classes "
                f"of {problem.data.name!r}; {len(capacity)} would be one of each{advice}",
                code="fewer-points-than-classes",
                points=total,
                num_classes=len(capacity),
            )
        equal = self.allocate == "equal" or (self.allocate is None and self.per_class is not None)
        return (evenly if equal else proportionally)(total, capacity)

    def check(self, problem: "Problem") -> None:
        """Refuse a budget that cannot be split over the classes."""
        self.counts(problem)

    def shortfall(self, problem: "Problem") -> str | None:
        """What the training set is too small for, in a sentence."""
        capacity, name, total = self.capacity(problem), problem.data.name, self.total(problem)
        asked, least = self.per_class or PER_CLASS, min(capacity)
        if self._takes_what_there_is:
            if asked <= least:
                return None
            short = sum(most < asked for most in capacity)
            others = f", and so it is in {short - 1} other classes" if short > 1 else ""
            return (
                f"{asked} points per class were asked for, but class {capacity.index(least)} of "
                f"{name!r} has only {least}: all are used{others}"
            )
        if total <= sum(capacity):
            return None
        return f"{total} points were asked for and {name!r} gives {sum(capacity)}: all are used"


def with_budget(options: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Options with others on top of them; one budget replaces another."""
    kept = (
        options if BUDGETS.isdisjoint(given) else {n: options[n] for n in options.keys() - BUDGETS}
    )
    return {**kept, **given}


def proportionally(total: int, sizes: Sequence[int]) -> list[int]:
    """`total` points split like the sizes, by largest remainders; at least one each."""
    whole = sum(sizes)
    counts = [max(1, total * size // whole) for size in sizes]

    def missing(label: int) -> int:
        return total * sizes[label] - counts[label] * whole

    while (left := total - sum(counts)) > 0:
        counts[max(range(len(sizes)), key=missing)] += 1
    while left < 0:
        counts[min((c for c in range(len(sizes)) if counts[c] > 1), key=missing)] -= 1
        left += 1
    return counts


def evenly(total: int, sizes: Sequence[int]) -> list[int]:
    """`total` points split equally, classes that run out making room for the others; what is left
    over goes to the largest.
    """
    order = sorted(range(len(sizes)), key=lambda label: sizes[label])
    counts = [0] * len(sizes)
    for place, label in enumerate(order):
        counts[label] = min(sizes[label], total // (len(sizes) - place))
        total -= counts[label]
    return counts


def mass(labels: Tensor, class_counts: Tensor) -> Tensor:
    """Weights (M,) of points with these labels that sum to the number of examples: each class's
    examples, divided by its points.

    Examples of classes without points are shared by all points in proportion.
    """
    size, points = class_counts.double(), torch.bincount(labels, minlength=len(class_counts))
    share = size / points.clamp_min(1) * (size.sum() / size[points > 0].sum())
    return share[labels]
