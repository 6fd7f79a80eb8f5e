r"""Kernel herding, kernel thinning and Stein thinning: points whose kernel means are those of their
class.

With $k$ the squared-exponential kernel on the features of a class, $\mu(i)$ its mean over the class
and $p$ the Stein kernel of a density of the class (`selection/kernels.py`),

$$ \text{kernel-herding:} \quad i_{t+1} = \operatorname*{argmax}_{i \notin S_t} \mu(i) - \tfrac1{t+1}
\textstyle\sum_{s \in S_t} k(i, s) $$

$$ \text{stein-thinning:} \quad i_{t+1} = \operatorname*{argmin}_{i \notin S_t} \tfrac12 p(i, i) +
\textstyle\sum_{s \in S_t} p(i, s) , $$

and kernel thinning halves $M 2^m$ random examples of the class $m$ times: of each pair of
neighbours one goes to either half. The choice is by a coin biased against the difference between
the halves' kernel means so far. The half nearest to the class by MMD is then refined: each point in
turn is replaced by the one that lowers MMD most.

Chen, Welling & Smola (2010), "Super-samples from kernel herding"; Dwivedi & Mackey (2024), "Kernel
thinning" (KT-Split and KT-Swap); Riabiz et al. (2022), "Optimal thinning of MCMC output". Kernel and
conventions are those of `coreax`.

Cost, on the CPU: n² / classes kernels of d features (at most `num_references` n), then n a point; kernel
thinning n² / classes more.

Deviations:
  D1. Without replacement, as in `coreax` by default.
  D2. The length scale is the median distance between examples; Stein thinning's target is a density
      fitted to the class, as a data set has no score of its own.
  D3. Kernel thinning halves by the kernel itself in place of its square root (Dwivedi & Mackey 2022,
      "Generalized kernel thinning"), and at most 8,192 examples of a class.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from pseudocore.core.config import Count, Range
from pseudocore.core.likelihood import BOTH
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.selection import kernel_selection, kernels
from pseudocore.selection.budgets import Group, SelectorSettings, choose
from pseudocore.training.pretrain import Pretraining, Space, extract_last_layer, feature_map

MAX_HALVED = 8192
"""Examples of a class that kernel thinning begins with."""


@dataclass(frozen=True, kw_only=True)
class KernelSettings(Pretraining, SelectorSettings, ABC):
    """What a kernel compares, and how far it reaches."""

    tasks = BOTH

    space: Space = "inputs"
    """What is compared: network inputs, or last-layer features of a pre-trained network."""
    length_scale: Annotated[float | None, Range(above=0)] = None
    """Length scale of the kernel. Defaults to the median distance between training examples."""

    def _selected(self, problem: Problem, rng: Rng) -> Coreset:
        features = feature_map(problem, self.space, self, rng)
        layer = partial(extract_last_layer, problem, self, rng)
        length = self.length_scale
        if length is None:
            some = rng("length").permutation(problem.num_train)[: kernels.NUM_MEDIAN]
            length = kernels.median_distance(features(some.sort().values).cpu())

        def rule(group: Group) -> Tensor:
            if group.num >= len(group.indices):
                return torch.arange(len(group.indices))
            x = features(group.indices).cpu()
            return self._places(x, group.num, length, rng(group.label))

        return choose(problem, self, rule, layer if self.space == "network" else None)

    @abstractmethod
    def _places(self, x: Tensor, num: int, length: float, rng: Rng) -> Tensor:
        """The rows of x to select, (num,), by a kernel of this length scale."""


@dataclass(frozen=True, kw_only=True)
class MeanSettings(KernelSettings):
    """As `KernelSettings`, with how many examples stand for a class."""

    num_references: Count = 10_000
    """Random examples of a class that its kernel mean is over, where it has more."""


@methods.register(
    "kernel-herding",
    kind="select",
    paper="Chen et al. 2010, arXiv 1203.3472",
    targets="features",
    weights="option",
)
@dataclass(frozen=True, kw_only=True)
class KernelHerding(MeanSettings):
    """Points whose kernel mean follows that of their class."""

    in_rounds: ClassVar[Literal["mass", "clusters"]] = "mass"

    def select(self, problem: Problem, rng: Rng) -> Coreset:
        return self._selected(problem, rng)

    def _places(self, x: Tensor, num: int, length: float, rng: Rng) -> Tensor:
        kernel = _between(x, length)
        return kernel_selection.herding(kernel, len(x), num, _some(x, self.num_references, rng))


@methods.register(
    "kernel-thinning",
    kind="select",
    paper="Dwivedi & Mackey 2024, arXiv 2105.05842",
    targets="features",
    weights="option",
)
@dataclass(frozen=True, kw_only=True)
class KernelThinning(MeanSettings):
    """Points left when a class is halved, and halved again, with the same kernel mean."""

    def select(self, problem: Problem, rng: Rng) -> Coreset:
        return self._selected(problem, rng)

    def _places(self, x: Tensor, num: int, length: float, rng: Rng) -> Tensor:
        kernel, references = _between(x, length), _some(x, self.num_references, rng)
        return kernel_selection.thinning(kernel, len(x), num, references, rng, most=MAX_HALVED)


@methods.register(
    "stein-thinning",
    kind="select",
    paper="Riabiz et al. 2022, arXiv 2005.03952",
    targets="features",
    weights="option",
)
@dataclass(frozen=True, kw_only=True)
class SteinThinning(KernelSettings):
    """Points of small Stein discrepancy to a density fitted to their class."""

    density: Literal["gaussian", "kde"] = "gaussian"
    """The density: a Gaussian of the class's moments, or Gaussians on all its examples, as wide as
    the kernel.
    """

    def select(self, problem: Problem, rng: Rng) -> Coreset:
        return self._selected(problem, rng)

    def _places(self, x: Tensor, num: int, length: float, rng: Rng) -> Tensor:
        score = score_of(self.density, x, length)(x)
        kernel = partial(_stein, x, score, length)
        diagonal = x.shape[1] / length**2 + score.square().sum(1)
        return kernel_selection.stein_thinning(kernel, diagonal, len(x), num)


def score_of(density: Literal["gaussian", "kde"], x: Tensor, length: float) -> kernels.Score:
    """The score of a density fitted to rows."""
    return kernels.gaussian_score(x) if density == "gaussian" else kernels.kde_score(x, length)


def _between(x: Tensor, length: float) -> kernels.Kernel:
    return lambda i, j: kernels.gaussian(x[i], x[j], length)


def _stein(x: Tensor, score: Tensor, length: float, i: Tensor, j: Tensor) -> Tensor:
    return kernels.stein(x[i], score[i], x[j], score[j], length)


def _some(x: Tensor, num: int, rng: Rng) -> Tensor:
    return rng("references").permutation(len(x))[:num].sort().values
