r"""Graph cut, log-determinant and feature-based selection: siblings of facility location.

Wei, Iyer, Bilmes (2015), "Submodularity in data subset selection and active learning": graph cut
and features. Krause, Guestrin (2008), "Near-optimal sensor placements in Gaussian processes": the
log-determinant. In each class

$$ \text{graph cut}\ \sum_i \sum_{j \in S} s_{ij} - \lambda \sum_{i,j \in S} s_{ij}, \qquad
   \text{log-det}\ \log\det(I + s_{SS} / \nu), \qquad
   \text{feature-based}\ \sum_d \sqrt{\textstyle\sum_{j \in S} \phi_{jd}} $$

are maximised greedily (`selection/submodular.py`), with $s$ a Gaussian kernel of the median
distance.

Cost: an n × n matrix for each class of n (not for `feature-based`), then O(n) a point beside one
row; `log-det` times the points taken; `feature-based` O(n · d) a point.

Deviations:
  D1. The features of `feature-based` are shifted by their least value in the class, as they must
      not be negative.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from torch import Tensor

from pseudocore.core.config import Positive, Range
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.selection import kernels, submodular
from pseudocore.selection.budgets import Group, SelectorSettings, choose
from pseudocore.selection.submodular import Concave, Objective
from pseudocore.training.pretrain import Pretraining, Space, extract_last_layer, feature_map


@dataclass(frozen=True, kw_only=True)
class _Greedy(Pretraining, SelectorSettings, ABC):
    """The points of the largest gains."""

    space: Space = "inputs"
    """What points are compared by: network inputs, or last-layer features of a pre-trained network.
    """

    @abstractmethod
    def objective(self, features: Tensor) -> Objective:
        """Of the features (n, d) of a class."""

    def select(self, problem: Problem, rng: Rng) -> Coreset:
        features = feature_map(problem, self.space, self, rng)

        def rule(group: Group) -> Tensor:
            made = self.objective(features(group.indices).double())
            return submodular.maximise(made, group.num).indices

        layer = partial(extract_last_layer, problem, self, rng)
        return choose(problem, self, rule, layer if self.space == "network" else None)


@methods.register(
    "graph-cut", kind="select", paper="Wei et al. 2015", targets="features", weights="option"
)
@dataclass(frozen=True, kw_only=True)
class GraphCut(_Greedy):
    """Points near all of their class and far from each other."""

    diversity: Annotated[float, Range(low=0, high=0.5)] = 0.5
    """Weight of similarities between chosen points, to be few."""

    def objective(self, features: Tensor) -> Objective:
        return submodular.GraphCut(_similarities(features), self.diversity)


@methods.register(
    "log-det", kind="select", paper="Krause & Guestrin 2008", targets="features", weights="option"
)
@dataclass(frozen=True, kw_only=True)
class LogDet(_Greedy):
    """Points that say most of their class under a Gaussian process."""

    noise: Positive = 0.1
    """Variance of the process's noise, beside a kernel of 1."""

    def objective(self, features: Tensor) -> Objective:
        return submodular.LogDet(_similarities(features), self.noise)


@methods.register(
    "feature-based", kind="select", paper="Wei et al. 2015", targets="features", weights="option"
)
@dataclass(frozen=True, kw_only=True)
class FeatureBased(_Greedy):
    """Points that have some of every feature of their class."""

    concave: Concave = "sqrt"
    """What makes more of a feature count less and less."""

    def objective(self, features: Tensor) -> Objective:
        return submodular.FeatureBased(features - features.min(0).values, self.concave)


def _similarities(features: Tensor) -> Tensor:
    return kernels.gaussian(features, features, kernels.median_distance(features))
