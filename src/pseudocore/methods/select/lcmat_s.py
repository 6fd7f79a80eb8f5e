r"""LCMat-S: points that match slope and curvature of their class's loss around a trained network.

Shin, Bae, Shin, Joo, Moon (2023), "Loss-curvature matching for dataset selection and condensation",
§3.3 and Algorithm 1. With $g_i$ the last layer's gradient of example i, $\hat\lambda_i$ its Hessian
diagonal, and $\mathcal K$ the K dimensions in which that varies most,

$$ \min_{S} \sum_{i \in T} \min_{j \in S} \Big( \lVert g_i - g_j \rVert_2
   + \tfrac12 \rho \sum_{k \in \mathcal K} \lvert \hat\lambda_{i,k} - \hat\lambda_{j,k} \rvert \Big)
   \tag{10, 11} $$

as facility location with the auxiliary example of Eq. (12), greedily, class by class
(`selection/facility.py`).

| paper | here |
|---|---|
| $\rho$, $K$ | `rho`, `num_dimensions` |
| $g$, $\hat\lambda$ in closed form | `selection/last_layer_gradients.py` |
| $\gamma$ of Algorithm 1 (optional) | `weighting` |

Cost: n² / classes distances of h features and K dimensions, then about as much again for the
choices. With `rho` 0 it is CRAIG's choice.

Deviations:
  D1. Of classes above 16,384 examples random parts are used, unless `exact`.
  D2. The authors' code (of its other selectors only `adacore`) leaves the network in training mode
      and passes one class at a time. Batch norm then removes what the class has in common, and the
      network no longer recognises it. `batch_norm` "class" does the same.
  D3. In that code gradients are those of the mean loss of a batch of 128 of one class. So those of
      a class's last, smaller batch are up to 16 times as long on CIFAR-10; `gradients` "batches"
      does the same.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from pseudocore.core.config import Count, NonNegative
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.selection.facility_selection import FacilitySelection, select
from pseudocore.selection.last_layer_gradients import GradientMetric, curvature, largest_variance
from pseudocore.training.pretrain import FeatureNetwork, extract_last_layer


@methods.register(
    "lcmat-s",
    kind="select",
    paper="Shin et al. 2023, arXiv 2303.04449",
    targets="gradients",
    weights="option",
)
@dataclass(frozen=True, kw_only=True)
class LCMatS(FeatureNetwork, FacilitySelection):
    """Points that match slope and curvature of their class's loss around a trained network."""

    in_rounds: ClassVar[Literal["mass", "clusters"]] = "clusters"
    rho: NonNegative = 0.1
    """Radius of the neighbourhood, the weight of curvature against slope; the paper: .01 to .5."""
    num_dimensions: Count = 100
    """Dimensions of the Hessian diagonal that are compared, those of largest variance."""

    def select(self, problem: Problem, rng: Rng) -> Coreset:
        layer = extract_last_layer(problem, self, rng)
        dimensions = largest_variance(layer, self.num_dimensions)  # K of Eq. (9), over all of T

        def metric_of(index: Tensor) -> GradientMetric:  # Eq. (10)
            part = layer.at(index)
            curved = 0.5 * self.rho * curvature(part, dimensions) if self.rho > 0 else None
            return GradientMetric(part, curved=curved)

        return select(problem, self, layer, metric_of, rng)
