r"""Herding: points whose mean follows the mean of their class.

Welling (2009), "Herding dynamical weights to learn"; as exemplar selection Rebuffi et al. (2017),
"iCaRL", Algorithm 4. In each class, with $\mu$ the mean of its features $\phi$,

$$ i_t = \operatorname*{argmin}_{i \text{ not yet taken}} \lVert \mu - \tfrac1t\big(\phi(x_i) +
\sum_{s<t} \phi(x_{i_s})\big) \rVert . $$

The first points are the best for every smaller budget. Cost: `per_class` passes over the features
of each class, O(n · d · per_class).

Deviations:
  D1. Without replacement, so that a coreset never holds a point twice; Welling's dynamics may
      revisit.
  D2. Features are used as they are; iCaRL scales each to length 1.
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
    "herding",
    kind="select",
    paper="Welling 2009; Rebuffi et al. 2017, arXiv 1611.07725",
    targets="features",
    weights="option",
)
@dataclass(frozen=True, kw_only=True)
class Herding(Pretraining, SelectorSettings):
    """Points of each class whose mean follows the class mean."""

    in_rounds: ClassVar[Literal["mass", "clusters"]] = "mass"
    tasks = BOTH

    space: Space = "inputs"
    """What means are taken of: network inputs, or last-layer features of a pre-trained network."""

    def select(self, problem: Problem, rng: Rng) -> Coreset:
        features = feature_map(problem, self.space, self, rng)
        layer = partial(extract_last_layer, problem, self, rng)
        return choose(
            problem,
            self,
            lambda group: greedy.herding(features(group.indices), group.num),
            layer if self.space == "network" else None,
        )
