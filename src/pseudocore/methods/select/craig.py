r"""CRAIG: points whose weighted gradients approximate the gradient of their class.

Mirzasoleiman, Bilmes, Leskovec (2020), "Coresets for data-efficient training of machine learning
models", Eqs. (8)-(12). With $g_i$ the gradient of example i's loss,

$$ \Big\lVert \sum_i g_i - \sum_{j \in S} \gamma_j g_j \Big\rVert
   \le \sum_i \min_{j \in S} \lVert g_i - g_j \rVert, \qquad
   \gamma_j = \#\{ i : j \text{ is nearest to } i \}, $$

and the right-hand side falls as the facility-location objective $\sum_i \max_{j \in S} (C - \lVert
g_i - g_j \rVert)$ grows, which is maximised greedily (`selection/facility.py`). The weights sum to
the number of examples.

Cost: n² / classes distances of h features, then about as much again for the choices.

Deviations:
  D1. Gradients are those of the last layer at one trained network, as in the tables of Shin et al.
      (2023), and the points are chosen once; the paper chooses again after every few epochs of the
      final training.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.selection.facility_selection import FacilitySelection, select
from pseudocore.selection.last_layer_gradients import GradientMetric
from pseudocore.training.pretrain import Pretraining, extract_last_layer


@methods.register(
    "craig",
    kind="select",
    paper="Mirzasoleiman et al. 2020, arXiv 1906.01827",
    targets="gradients",
    weights="yes",
)
@dataclass(frozen=True, kw_only=True)
class CRAIG(Pretraining, FacilitySelection):
    """Points whose gradients cover those of their class, weighted by how many they stand for."""

    in_rounds: ClassVar[Literal["mass", "clusters"]] = "clusters"
    weighting: Literal["mass", "ones", "learned", "clusters"] = "clusters"

    def select(self, problem: Problem, rng: Rng) -> Coreset:
        layer = extract_last_layer(problem, self, rng)
        return select(problem, self, layer, lambda index: GradientMetric(layer.at(index)), rng)
