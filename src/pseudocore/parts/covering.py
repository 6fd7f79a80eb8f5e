"""Selection by facility location over last-layer gradients: what CRAIG, AdaCore and LCMat-S share, each with a distance of its own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from pseudocore.core.config import Range
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.parts import facility
from pseudocore.parts.budget import Budget, Group, choose
from pseudocore.parts.gradients import GradientMetric

__all__ = ["Covering", "Weighting", "cover"]

Weighting = Literal["clusters", "ones"]


@dataclass(frozen=True, kw_only=True)
class Covering(Budget):
    """How points that cover the rest are looked for."""

    epsilon: Annotated[float, Range(low=0, high=0.99)] = 0.0
    """What stochastic greedy may lose: above 0, each choice looks at n/num·ln(1/epsilon) random candidates; at 0, at all."""
    references: Annotated[int | None, Range(low=1)] = None
    """Random examples that stand for a group when it is judged how well it is covered; unless told, all of it up to 16,384 examples, and
    beyond that as many as fit into 1 GiB of similarities."""


def cover(problem: Problem, covering: Covering, metric_of: Callable[[Tensor], GradientMetric], weighting: Weighting, rng: Rng) -> Coreset:
    """Greedy facility location in each group, under the metric of its members; weights are 1, or how many each point stands for."""

    def rule(group: Group) -> Tensor | tuple[Tensor, Tensor]:
        metric, n = metric_of(group.members), len(group.members)
        references = _references(covering, n, rng(group.label, "references"))
        rows = facility.from_distance(metric, n, metric.farthest, device=problem.device, references=references)
        candidates = rng(group.label, "candidates")
        chosen = facility.facility_location(rows, n, group.num, device=problem.device, epsilon=covering.epsilon, rng=candidates)
        if weighting == "ones":
            return chosen
        whole = rows if references is None else facility.from_distance(metric, n, metric.farthest, device=problem.device, keep=False)
        _, place = facility.coverage(whole, chosen)
        return chosen, torch.bincount(place, minlength=group.num)

    return choose(problem, covering, rule)


def _references(covering: Covering, n: int, rng: Rng) -> Tensor | None:
    fitting = n if n * n <= facility.ENTRIES else max(1, facility.ENTRIES // n)
    num = covering.references or fitting
    return None if num >= n else rng.permutation(n)[:num].sort().values
