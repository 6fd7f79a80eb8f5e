r"""GraNd and EL2N: the points of the largest gradient or error early in training.

Paul, Ganguli, Dziugaite (2021), "Deep learning on a data diet: finding important examples early in
training". Expectations are over networks trained for a few epochs from different starts; the points
of the highest score are taken,

$$ \text{grand}\ \ \mathbb E\, \lVert g \rVert_2
   = \mathbb E\, \lVert p - y \rVert_2 \sqrt{\lVert \phi \rVert_2^2 + 1}, \qquad
   \text{el2n}\ \ \mathbb E\, \lVert p - y \rVert_2 . $$

Cost: `num_networks` pre-trainings, and a pass of each network over the training set.

Deviations:
  D1. The gradient is that of the last layer, in closed form.
  D2. One network by default, the one all selectors share; the paper averages over ten.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from pseudocore.core.config import Count
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.selection.budgets import SelectorSettings, choose_highest
from pseudocore.selection.last_layer_gradients import LastLayer, norms
from pseudocore.training.pretrain import Pretraining, extract_last_layer

PAPER = "Paul et al. 2021, arXiv 2107.07075"


@methods.register("grand", kind="select", paper=PAPER, targets="difficulty", weights="option")
@dataclass(frozen=True, kw_only=True)
class GraNd(Pretraining, SelectorSettings):
    """Points with the longest gradient early in training."""

    num_networks: Count = 1
    """Networks the score is averaged over; the first is the one all selectors share."""

    def select(self, problem: Problem, rng: Rng) -> Coreset:
        streams = [rng, *(rng("network", number) for number in range(1, self.num_networks))]
        layers = (extract_last_layer(problem, self, stream) for stream in streams)
        scores = torch.stack([self.score(layer) for layer in layers]).mean(0)
        layer = partial(extract_last_layer, problem, self, rng)
        return choose_highest(problem, self, scores, rng, layer)

    def score(self, layer: LastLayer) -> Tensor:
        return norms(layer)


@methods.register("el2n", kind="select", paper=PAPER, targets="difficulty", weights="option")
@dataclass(frozen=True, kw_only=True)
class EL2N(GraNd):
    """Points with the largest error of the predicted probabilities early in training."""

    def score(self, layer: LastLayer) -> Tensor:
        error: Tensor = torch.linalg.vector_norm(layer.residual, dim=1)
        return error
