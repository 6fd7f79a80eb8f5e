"""Facility location over last-layer gradients, shared by CRAIG, AdaCore and LCMat-S."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from pseudocore.core.config import Range
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.selection import facility
from pseudocore.selection.budgets import Group, SelectorSettings, choose
from pseudocore.selection.last_layer_gradients import GradientMetric, LastLayer

MANY_WRONG, MORE_WRONG = 0.2, 1.5
"""Share of chosen examples that the network gets wrong, and how many times the data's share, from
which a choice is warned of.
"""


@dataclass(frozen=True, kw_only=True)
class FacilitySelection(SelectorSettings):
    """Settings of the greedy maximisation, and what points weigh."""

    epsilon: Annotated[float, Range(low=0, high=0.99)] = 0.0
    """Loss of stochastic greedy: n/num·ln(1/epsilon) random candidates per choice; 0 tries all."""
    exact: bool = False
    """Whether a group of more than 16,384 examples, whose similarities would fill more than 1 GiB,
    is covered whole, computing n² distances for every few choices. If not, random parts of it
    stand for it.
    """
    weighting: Literal["mass", "ones", "learned", "clusters"] = "mass"  # type: ignore[assignment]
    """Weight of a point. `mass`: the examples of its class over the points of its class. `ones`: 1.
    `learned`: so that the weighted gradients of the points add up to those of their class.
    `clusters`: the number of examples nearest to it.
    """


def select(
    problem: Problem,
    settings: FacilitySelection,
    layer: LastLayer,
    metric_of: Callable[[Tensor], GradientMetric],
    rng: Rng,
) -> Coreset:
    """Greedy facility location in each group, under the metric of some training points (n,);
    `layer` is of all of them.
    """

    def rule(group: Group) -> Tensor | tuple[Tensor, Tensor]:
        n, device = len(group.indices), problem.device
        candidates, num_references = _part_sizes(n, group.num, settings.exact)
        part = rng(group.label, "part").permutation(n)[:candidates].sort().values
        metric = metric_of(group.indices[part])
        references = None
        if num_references < candidates:
            references = rng(group.label, "references").permutation(candidates)[:num_references]
        rows = facility.from_distance(
            metric, candidates, metric.farthest, device=device, references=references
        )
        if problem.multiplicity is not None:
            covered = part if references is None else part[references]
            counted = problem.multiplicity[group.indices[covered]]
            rows = facility.weighted(rows, counted.to(device, problem.dtype))
        chosen = facility.facility_location(
            rows,
            candidates,
            group.num,
            device=device,
            epsilon=settings.epsilon,
            rng=rng(group.label, "candidates"),
        )
        places = part.to(device)[chosen]
        if settings.weighting != "clusters":
            return places
        metric = metric_of(group.indices)
        rows = facility.from_distance(metric, n, metric.farthest, device=device, keep=False)
        _, nearest = facility.coverage(rows, places)
        each = None
        if problem.multiplicity is not None:
            each = problem.multiplicity[group.indices].to(device)
        return places, torch.bincount(nearest, each, minlength=len(places))

    coreset = choose(problem, settings, rule, lambda: layer)
    _warn_of_noise(layer, coreset, methods.name_of(settings))
    return coreset


def _warn_of_noise(layer: LastLayer, coreset: Coreset, name: str) -> None:
    """Say so where the choice is mostly of examples that the network gets wrong: with noisy labels
    these lie farthest from all others, and cover nothing but themselves.
    """
    if coreset.indices is None:
        return
    wrong = (layer.log_probs.argmax(1) != layer.y).double().cpu()
    of_all, chosen = float(wrong.mean()), float(wrong[coreset.indices].mean())
    if chosen >= MANY_WRONG and chosen >= MORE_WRONG * of_all:
        warnings.warn(
            f"{name} chose points of which its network gets {chosen:.0%} wrong, and {of_all:.0%} of"
            " all: labels are noisy or the network is overfitted, and uniform or herding may do"
            " better",
            stacklevel=2,
        )


def _part_sizes(n: int, num: int, exact: bool) -> tuple[int, int]:
    """How many of n examples are candidates, and how many of these are covered, to fit a matrix."""
    if exact or n * n <= facility.ENTRIES:
        return n, n
    candidates = min(n, max(math.isqrt(facility.ENTRIES), 4 * num))
    return candidates, min(candidates, max(1, facility.ENTRIES // candidates))
