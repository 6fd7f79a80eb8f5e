"""The whole training set as its own coreset: the ceiling that the others are measured against."""

from dataclasses import dataclass

import torch

from pseudocore.core.likelihood import BOTH
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset


@methods.register("full", kind="select", paper="baseline", targets="nothing", weights="no")
@dataclass(frozen=True, kw_only=True)
class Full:
    """Every training point, weight 1."""

    tasks = BOTH

    def select(self, problem: Problem, rng: Rng) -> Coreset:
        return problem.subset(torch.arange(problem.num_train))
