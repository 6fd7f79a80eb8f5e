"""Uniform selection: the baseline every other method must beat.

Draws `per_class` training examples of each class without replacement. Cost: one permutation per class.
"""

from dataclasses import dataclass
from typing import Literal

from pseudocore.core.config import Count
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.parts.initial import balanced_indices

__all__ = ["Uniform"]


@methods.register("uniform", kind="select", paper="baseline")
@dataclass(frozen=True, kw_only=True)
class Uniform:
    """Class-balanced random subset."""

    per_class: Count = 10
    """Points per class."""
    weighting: Literal["ones", "mass"] = "ones"
    """Weight of a point: 1, or its share of its class (weights then sum to the training set's size, and the posterior
    is as narrow as the full one)."""

    def select(self, problem: Problem, rng: Rng) -> Coreset:
        index = balanced_indices(problem, self.per_class, rng)
        share = problem.data.class_counts[problem.data.train.y[index]] / self.per_class
        return problem.chosen(index, share if self.weighting == "mass" else None)
