"""Where pseudo-points start, what they weigh, and the settings of the methods that learn them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pseudocore.core.budget import Budget
from pseudocore.core.config import Count
from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng

Initial = Literal["real", "mix", "noise"]


@dataclass(frozen=True, kw_only=True)
class PointSettings(Budget):
    """Fields of the iterative methods; their order is that of the flags in `--help`, no more."""

    num_steps: Count = 2000
    """Outer steps."""
    weighting: Literal["mass", "ones"] = "mass"
    """Weight of a point. `mass`: the examples of its class over the points of its class, so that
    weights sum to the size of the training set. `ones`: 1, as in most published tables.
    """

    @property
    def num_shown(self) -> int:
        """Images that networks see of a stored one."""
        return 1

    def weights(self, problem: Problem, like: Tensor) -> Tensor:
        """Weight of each stored point (M,), ordered by class; what networks see of it shares it."""
        if self.weighting == "ones":
            return like.new_full((sum(self.counts(problem)),), self.num_shown)
        pairs = zip(problem.data.class_counts.tolist(), self.counts(problem), strict=True)
        # filled, as a captured step cannot copy from the host
        return torch.cat([like.new_full((num,), size / num) for size, num in pairs])

    def mean_weight(self, problem: Problem) -> float:
        """Of the images that networks see: what the noise of a point of weight 1 is multiplied by,
        so that Gaussian posteriors are the same whatever weights sum to.
        """
        if self.weighting == "ones":
            return 1.0
        return problem.num_train / (sum(self.counts(problem)) * self.num_shown)

    def relative_weights(self, problem: Problem, like: Tensor) -> Tensor | None:
        """Weights (M,) in a mean over points; None where all are equal."""
        pairs = zip(problem.data.class_counts.tolist(), self.counts(problem), strict=True)
        if self.weighting == "ones" or len({size / num for size, num in pairs}) == 1:
            return None
        weight = self.weights(problem, like)
        return weight / weight.mean()


@dataclass(frozen=True, kw_only=True)
class ImageSettings(PointSettings):
    """Fields of every method that learns images."""

    initial: Initial = "real"
    """Start from real images, from mixes of two of a class, or from noise."""
    formation: Count = 1
    """Images that a stored one holds along each side; 1 stores them one by one."""

    @property
    def num_shown(self) -> int:
        return self.formation**2

    def capacity(self, problem: Problem) -> list[int]:
        """Stored images start as `formation`² real ones, unless they are noise."""
        counts = super().capacity(problem)
        if self.initial == "noise":
            return counts
        return [max(1, num // self.formation**2) for num in counts]


def initial_indices(problem: Problem, counts: Sequence[int], rng: Rng) -> Tensor:
    """As many distinct training indices of each class as `counts` says, ordered by class."""
    pairs = zip(counts, problem.class_indices, strict=True)
    return torch.cat(
        [
            indices[rng(label).permutation(len(indices))[:num]]
            for label, (num, indices) in enumerate(pairs)
        ]
    )


def initial_inputs(
    problem: Problem, counts: Sequence[int], kind: Initial, rng: Rng
) -> tuple[Tensor, Tensor]:
    """Starting network inputs (M, ...), noise at the scale of the data, and their labels (M,), in
    order of class.
    """
    if not problem.model.learns_inputs:
        raise ConfigError(
            f"network {problem.model.describe().get('name')!r} has no gradient in its inputs, as one"
            " that looks tokens up, so no points can be learned; select points (uniform, herding,"
            " k-center), or learn them in its features (features=)",
            code="no-input-gradient",
        )
    index = initial_indices(problem, counts, rng)
    x, y = problem.batch(index)
    if kind == "noise":
        x = rng("noise").normal(*x.shape, dtype=problem.dtype).to(x.device) * x.std()
    if kind == "mix":
        other, other_y = problem.batch(_partners(problem, index, rng("partner")))
        shape = (len(x), *(1 for _ in x.shape[1:]))
        share = rng("share").uniform(*shape, dtype=problem.dtype).to(x.device)
        x = share * x + (1 - share) * other
        if problem.task == "regression":
            y = torch.lerp(other_y, y, share.view(-1, 1))
    return x, y


def _partners(problem: Problem, index: Tensor, rng: Rng) -> Tensor:
    """Another training point of the same class for each, (M,), or itself in a class of one."""
    partners = []
    for place, point in enumerate(index.tolist()):
        label = 0 if problem.task == "regression" else int(problem.data.train.y[point])
        others = problem.class_indices[label]
        others = others[others != point] if len(others) > 1 else others
        partners.append(others[rng(place).integers(len(others), 1)])
    return torch.cat(partners)
