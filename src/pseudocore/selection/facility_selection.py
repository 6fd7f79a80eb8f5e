"""Selection by facility location over last-layer gradients: what CRAIG, AdaCore and LCMat-S share,
each with a distance of its own.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from pseudocore.core.config import Range
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.selection import facility
from pseudocore.selection.budgets import Budget, Group, choose
from pseudocore.selection.last_layer_gradients import GradientMetric

Weighting = Literal["clusters", "ones"]


@dataclass(frozen=True, kw_only=True)
class Covering(Budget):
    """How points that cover the rest are looked for."""

    epsilon: Annotated[float, Range(low=0, high=0.99)] = 0.0
    """What stochastic greedy may lose: above 0, each choice looks at n/num·ln(1/epsilon) random
    candidates; at 0, at all.
    """
    exact: bool = False
    """Whether a group of more than 16,384 examples, whose similarities would fill more than 1 GiB,
    is chosen from and covered whole, at n²
    distances computed as they are asked for; if not, random parts of it stand for it."""


def cover(
    problem: Problem,
    covering: Covering,
    metric_of: Callable[[Tensor], GradientMetric],
    weighting: Weighting,
    rng: Rng,
) -> Coreset:
    """Greedy facility location in each group, under the metric of its members; weights are 1, or
    how many each point stands for.
    """

    def rule(group: Group) -> Tensor | tuple[Tensor, Tensor]:
        n, where = len(group.members), problem.device
        candidates, num_references = _looked_at(n, group.num, covering.exact)
        part = rng(group.label, "part").permutation(n)[:candidates].sort().values
        metric = metric_of(group.members[part])
        references = (
            rng(group.label, "references").permutation(candidates)[:num_references]
            if num_references < candidates
            else None
        )
        rows = facility.from_distance(
            metric, candidates, metric.farthest, device=where, references=references
        )
        stream = rng(group.label, "candidates")
        chosen = facility.facility_location(
            rows, candidates, group.num, device=where, epsilon=covering.epsilon, rng=stream
        )
        places = part.to(where)[chosen]
        return (
            places
            if weighting == "ones"
            else (places, _weights(metric_of(group.members), n, places))
        )

    return choose(problem, covering, rule)


def _looked_at(n: int, num: int, exact: bool) -> tuple[int, int]:
    """How many of n examples are candidates, and how many of these are to be covered, so that a
    matrix of both fits.

    As many of either is the best use of a matrix, as long as there are candidates enough for a
    choice of `num`.
    """
    if exact or n * n <= facility.ENTRIES:
        return n, n
    candidates = min(n, max(math.isqrt(facility.ENTRIES), 4 * num))
    return candidates, min(candidates, max(1, facility.ENTRIES // candidates))


def _weights(metric: GradientMetric, n: int, places: Tensor) -> Tensor:
    """How many of all n examples are nearest to each of the places."""
    rows = facility.from_distance(metric, n, metric.farthest, device=places.device, keep=False)
    return torch.bincount(facility.coverage(rows, places)[1], minlength=len(places))
