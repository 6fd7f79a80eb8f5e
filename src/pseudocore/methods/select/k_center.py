r"""k-center: points such that every point of their class is near one of them.

Sener, Savarese (2018), "Active learning for convolutional neural networks: a core-set approach",
Algorithm 1: the farthest-first traversal of Gonzalez (1985). In each class, with features $\phi$,

$$ i_1 = \operatorname*{argmin}_i \lVert \phi(x_i) - \mu \rVert, \qquad
   i_{t+1} = \operatorname*{argmax}_i \min_{s \le t} \lVert \phi(x_i) - \phi(x_{i_s}) \rVert . $$

The covering radius is at most twice the best one. Cost: `per_class` passes over the features of
each class, O(n · d · per_class).

Deviations:
  D1. It begins with the point nearest to the class mean; the paper begins with points that were
      labelled before.
  D2. The greedy rule alone; the paper can refine it by an integer program that drops outliers.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

from pseudocore.core.likelihood import BOTH
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.selection import greedy
from pseudocore.selection.budgets import SelectorSettings, choose
from pseudocore.training.pretrain import Pretraining, Space, extract_last_layer, feature_map


@methods.register(
    "k-center",
    kind="select",
    paper="Sener & Savarese 2018, arXiv 1708.00489",
    targets="features",
    weights="option",
)
@dataclass(frozen=True, kw_only=True)
class KCenter(Pretraining, SelectorSettings):
    """Points of each class such that none of it is far from all of them."""

    in_rounds: ClassVar[Literal["mass", "clusters"]] = "mass"
    tasks = BOTH

    space: Space = "inputs"
    """What is compared: network inputs, or last-layer features of a pre-trained network."""

    def select(self, problem: Problem, rng: Rng) -> Coreset:
        features = feature_map(problem, self.space, self, rng)
        layer = partial(extract_last_layer, problem, self, rng)
        return choose(
            problem,
            self,
            lambda group: greedy.k_center(features(group.indices), group.num),
            layer if self.space == "network" else None,
        )
