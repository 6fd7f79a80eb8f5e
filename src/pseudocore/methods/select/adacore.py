r"""AdaCore: CRAIG on gradients divided by the curvature of the loss.

Pooladzandi, Davini, Mirzasoleiman (2022), "Adaptive second order coresets for data-efficient
machine learning". Facility location (`selection/facility.py`) with distances between preconditioned
gradients,

$$ \lVert H^{-1} g_i - H^{-1} g_j \rVert, \qquad H = \operatorname{diag}\Big(\frac1n \sum_i
\nabla^2_\theta \ell_i\Big) + \delta, $$

for the last layer in closed form: $H_{cd} = \frac1n \sum_i p_{ic}(1-p_{ic})\phi_{id}^2 + \delta$.

Cost: as CRAIG, times the number of classes.

Deviations:
  D1. The diagonal is exact and taken at one trained network; the paper estimates it with
      Hutchinson's method and averages it over steps.
  D2. $\delta$ is `damping` times the mean of the diagonal, which the paper does not need for its
      averages.
  D3. All points of a class weigh the same by default, as in the tables of Shin et al. (2023), who
      found that other weights cost accuracy; `weighting` "clusters" is the paper's.
  D4. In the code of these tables batch norm works on one class at a time, as for `lcmat-s` (its
      D2): `batch_norm` "class".
  D5. In that code gradients are those of the mean loss of a batch of 128 of one class. So those of
      a class's last, smaller batch are up to 16 times as long on CIFAR-10; `gradients` "batches"
      does the same.
"""

from dataclasses import dataclass

import torch

from pseudocore.core.config import Positive
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.selection.facility_selection import FacilitySelection, select
from pseudocore.selection.last_layer_gradients import GradientMetric, mean_curvature
from pseudocore.training.pretrain import FeatureNetwork, extract_last_layer


@methods.register(
    "adacore",
    kind="select",
    paper="Pooladzandi et al. 2022, arXiv 2207.13887",
    targets="gradients",
    weights="option",
)
@dataclass(frozen=True, kw_only=True)
class AdaCore(FeatureNetwork, FacilitySelection):
    """Points whose gradients, preconditioned by curvature, cover those of their class."""

    damping: Positive = 0.1
    """Added to the curvature, as a share of its mean; bounds the weight of flat directions."""

    def select(self, problem: Problem, rng: Rng) -> Coreset:
        layer = extract_last_layer(problem, self, rng)
        curvature = mean_curvature(layer)
        floor = (self.damping * curvature.mean()).clamp_min(torch.finfo(curvature.dtype).tiny)
        scale = floor / (curvature + floor)  # H⁻¹ up to a factor, which changes no choice
        return select(
            problem, self, layer, lambda index: GradientMetric(layer.at(index), scale=scale), rng
        )
