r"""GradMatch: weighted points whose gradients add up to the gradient of their class.

Killamsetty, Sivasubramanian, Ramakrishnan, De, Iyer (2021), "GRAD-MATCH: gradient matching based
data subset selection for efficient deep model training", Eq. (2) and Algorithm 2: orthogonal
matching pursuit (`selection/matching.py`) for

$$ \min_{S,\, w \ge 0} \Big\lVert \sum_i g_i - \sum_{j \in S} w_j g_j \Big\rVert^2 + \lambda \lVert
w \rVert^2 . $$

`gradmatch` matches the gradient of the training examples, `gradmatch-val` that of examples held out
of the selection.

Cost: one pass over the features of its class and $O(n\,t)$ for the t-th point; t weights are solved
for anew.

Deviations:
  D1. Gradients are those of the last layer at one trained network, and the points are chosen once,
      as in the tables of Shin et al. (2023).
  D2. $\lambda$ is `ridge` times the mean squared gradient norm, so that it means the same for every
      network.
  D3. The budget is always spent: a point that does not help keeps its place with weight 0. Weights
      are scaled to sum to the class's size, unless `weighting` is "learned".
  D4. There is no third split: `gradmatch-val` holds out a part of the training set, which the
      network was trained on all the same.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pseudocore.core.config import NonNegative
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.selection.budgets import Group, SelectorSettings, ValidationSettings, choose
from pseudocore.selection.last_layer_gradients import LastLayer, along, mean_gradient, norms
from pseudocore.selection.matching import matching_pursuit
from pseudocore.training.pretrain import Pretraining, extract_last_layer

PAPER = "Killamsetty et al. 2021, arXiv 2103.00123"


@methods.register("gradmatch", kind="select", paper=PAPER, targets="gradients", weights="yes")
@dataclass(frozen=True, kw_only=True)
class GradMatch(Pretraining, SelectorSettings):
    """Weighted points whose gradients add up to the gradient of their class."""

    ridge: NonNegative = 0.5
    """Penalty on the weights, in units of the mean squared gradient norm."""
    weighting: Literal["mass", "ones", "learned", "scaled"] = "scaled"  # type: ignore[assignment]
    """Weight of a point. `mass`: the examples of its class over the points of its class. `ones`: 1.
    `learned`: as solved for, where the penalty makes the sum fall short of the class. `scaled`:
    those, scaled to sum to the class.
    """

    def select(self, problem: Problem, rng: Rng) -> Coreset:
        layer = extract_last_layer(problem, self, rng)

        def rule(group: Group) -> Tensor | tuple[Tensor, Tensor]:
            rest, targets = self.split(group, rng)
            candidates = layer.at(group.indices[rest])
            places, weight = self._pursue(candidates, layer.at(targets), group.num)
            if self.weighting in ("mass", "ones"):
                return rest[places.cpu()]
            if weight.sum() == 0:  # nothing to match, as where every gradient is zero
                weight = torch.full_like(weight, 1 / len(weight))
            share = weight.sum() if self.weighting == "scaled" else 1
            return rest[places.cpu()], weight * len(group.indices) / share

        return choose(problem, self, rule)

    def split(self, group: Group, rng: Rng) -> tuple[Tensor, Tensor]:
        """Places of the candidates in the group, and indices of the examples to match."""
        return torch.arange(len(group.indices)), group.indices

    def _pursue(self, candidates: LastLayer, targets: LastLayer, num: int) -> tuple[Tensor, Tensor]:
        """Places (num,) of candidates whose weighted gradients add up to the mean of the targets',
        and their weights.
        """
        residual, features = candidates.residual, candidates.features

        def inner(index: Tensor) -> Tensor:
            return (residual @ residual[index[0]]) * (features @ features[index[0]] + 1)

        target = along(candidates, mean_gradient(targets))
        ridge = self.ridge * float(norms(candidates).square().mean())
        return matching_pursuit(inner, target, num, ridge=ridge)


@methods.register("gradmatch-val", kind="select", paper=PAPER, targets="gradients", weights="yes")
@dataclass(frozen=True, kw_only=True)
class GradMatchVal(ValidationSettings, GradMatch):
    """Weighted points whose gradients add up to the gradient of held-out examples."""
