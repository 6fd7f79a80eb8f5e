r"""GradMatch: weighted points whose gradients add up to the gradient of their class.

Killamsetty, Sivasubramanian, Ramakrishnan, De, Iyer (2021), "GRAD-MATCH: gradient matching based
data subset selection for efficient deep model training", Eq. (2) and Algorithm 2: orthogonal
matching pursuit (`objectives/matching.py`) for

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
      are scaled to sum to the class's size.
  D4. There is no third split: `gradmatch-val` holds out a part of the training set, which the
      network was trained on all the same.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from pseudocore.core.config import NonNegative
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.objectives.matching import matching_pursuit
from pseudocore.selection.budgets import Budget, Group, Share, choose, hold_out
from pseudocore.selection.last_layer_gradients import LastLayer, along, mean_gradient, norms
from pseudocore.training.pretrain import Pretraining, extract_last_layer

PAPER = "Killamsetty et al. 2021, arXiv 2103.00123"


@methods.register("gradmatch", kind="select", paper=PAPER)
@dataclass(frozen=True, kw_only=True)
class GradMatch(Pretraining, Budget):
    """Weighted points whose gradients add up to the gradient of their class."""

    ridge: NonNegative = 0.5
    """Penalty on the weights, in units of the mean squared gradient norm."""

    def select(self, problem: Problem, rng: Rng) -> Coreset:
        layer = extract_last_layer(problem, self, rng)

        def rule(group: Group) -> tuple[Tensor, Tensor]:
            rest, targets = self.split(group, rng)
            candidates = layer.at(group.indices[rest])
            places, weight = self._pursue(candidates, layer.at(targets), group.num)
            if len(rest) < len(group.indices):
                weight = weight * len(group.indices) / len(rest)
            return rest[places.cpu()], weight

        return choose(problem, self, rule)

    def split(self, group: Group, rng: Rng) -> tuple[Tensor, Tensor]:
        """Places of the candidates in the group, and indices of the examples to match."""
        return torch.arange(len(group.indices)), group.indices

    def _pursue(self, candidates: LastLayer, targets: LastLayer, num: int) -> tuple[Tensor, Tensor]:
        """Places (num,) of candidates whose weighted gradients add up to the mean of the targets',
        and their weights, scaled to sum to the number of candidates.
        """
        residual, features = candidates.residual, candidates.features

        def inner(index: Tensor) -> Tensor:
            return (residual @ residual[index[0]]) * (features @ features[index[0]] + 1)

        target = along(candidates, mean_gradient(targets))
        ridge = self.ridge * float(norms(candidates).square().mean())
        places, weight = matching_pursuit(inner, target, num, ridge=ridge)
        if weight.sum() == 0:  # nothing to match, as where every gradient is zero
            weight = torch.ones_like(weight)
        return places, weight * (len(residual) / weight.sum())


@methods.register("gradmatch-val", kind="select", paper=PAPER)
@dataclass(frozen=True, kw_only=True)
class GradMatchVal(GradMatch):
    """Weighted points whose gradients add up to the gradient of held-out examples."""

    validation: Share = 0.1
    """Share of each class that is held out."""

    def split(self, group: Group, rng: Rng) -> tuple[Tensor, Tensor]:
        return hold_out(group, self.validation, rng("validation"))
