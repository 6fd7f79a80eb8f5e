"""Uniform selection: the baseline every other method must beat.

Draws `per_class` training examples of each class without replacement, or the same total without
class balance. Cost: one permutation per class.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.selection.budgets import Budget, Group, choose


@methods.register("uniform", kind="select", paper="baseline")
@dataclass(frozen=True, kw_only=True)
class Uniform(Budget):
    """Class-balanced random subset."""

    weighting: Literal["ones", "mass"] = "ones"
    """Weight of a point: 1, or its share of its class, so that weights sum to the data's size."""

    def select(self, problem: Problem, rng: Rng) -> Coreset:
        def rule(group: Group) -> tuple[Tensor, Tensor]:
            n = len(group.indices)
            weight = torch.full((group.num,), n / group.num if self.weighting == "mass" else 1.0)
            return rng(group.label).permutation(n)[: group.num], weight

        return choose(problem, self, rule)
