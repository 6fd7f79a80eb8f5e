"""Uniform selection: the baseline every other method must beat.

Draws training examples of each class without replacement, or the same total without class balance. Cost: one permutation per class.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from pseudocore.core.likelihood import BOTH
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.selection.budgets import Group, SelectorSettings, choose


@methods.register("uniform", kind="select", paper="baseline", targets="nothing", weights="option")
@dataclass(frozen=True, kw_only=True)
class Uniform(SelectorSettings):
    """Class-balanced random subset."""

    in_rounds: ClassVar[Literal["mass", "clusters"]] = "mass"
    tasks = BOTH

    def select(self, problem: Problem, rng: Rng) -> Coreset:
        def rule(group: Group) -> Tensor:
            return rng(group.label).permutation(len(group.indices))[: group.num]

        return choose(problem, self, rule)
