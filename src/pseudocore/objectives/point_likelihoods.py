r"""The log-likelihood of every training point as a vector over posterior draws, of which Bayesian
coresets of real points are made.

With draws $\theta_1, \dots, \theta_S$ the vector of point n is

$$ \hat g_n = \frac1{\sqrt{S - 1}} \Big(f_n(\theta_1) - \bar f_n, \dots, f_n(\theta_S) - \bar
   f_n\Big), \qquad \langle \hat g_n, \hat g_m \rangle = \widehat{\operatorname{Cov}}[f_n, f_m] . $$

The draws are of Laplace's approximation for softmax regression, or the exact posterior of a linear
one, on what the last layer sees. These are the inputs of a linear network, or the features of one
that was trained on all data and is held fixed. Everything is in float64.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad

from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Examples
from pseudocore.objectives import small_models
from pseudocore.objectives.small_models import AffineRegression, Gaussian, SmallModel, Softmax
from pseudocore.training.pretrain import Pretraining, extract_last_layer

MAX_PARAMETERS = 3000
"""Limit on the last layer's parameters, whose covariance is factored."""
MAX_NEWTON, TOLERANCE = 100, 1e-8
"""Newton steps to a mode at most, and the length of a step, as a share of the mode's, that ends it.
"""
BLOCK = 2**22
"""Numbers of a block of log-likelihoods."""


@dataclass(frozen=True, eq=False)
class PointModel:
    """Training points under a small model."""

    model: SmallModel
    x: Tensor  # (n, h), in float64
    y: Tensor  # (n, ...)

    @property
    def num_parameters(self) -> int:
        return self.model.num_parameters(self.x.shape[1])

    def examples(self, index: Tensor) -> Examples:
        """Some of the points."""
        return Examples(self.x[index], self.y[index])

    def at(self, index: Tensor) -> "PointModel":
        """The model of some of the points."""
        return PointModel(self.model, *self.examples(index))

    def posterior(self, index: Tensor, weight: Tensor, *, start: Tensor | None = None) -> Gaussian:
        """Laplace's approximation on some weighted points, by a search from `start`."""
        return small_models.posterior(
            self.model, *self.examples(index), weight,
            start=start, num_newton=MAX_NEWTON, tolerance=TOLERANCE,
        )  # fmt: skip

    def of_all(self) -> Gaussian:
        """The posterior of all points."""
        n = len(self.x)
        return self.posterior(torch.arange(n, device=self.x.device), self.x.new_ones(n))

    def log_likelihood(self, thetas: Tensor) -> Tensor:
        """f of every point at every draw, (n, draws)."""
        parts = [self.model.log_likelihood(thetas, *part) for part in self._blocks(len(thetas))]
        return torch.cat(parts, 1).mT

    def slopes(self, thetas: Tensor) -> Tensor:
        """The gradient in θ of the sum of f at every draw, (draws, p)."""
        total = torch.zeros_like(thetas)
        for part in self._blocks(len(thetas)):
            total += grad(lambda thetas, part=part: self.model.log_likelihood(thetas, *part).sum())(
                thetas
            )
        return total

    def _blocks(self, num: int) -> list[tuple[Tensor, Tensor]]:
        """The points in blocks that `num` draws of them fit in."""
        size = max(1, BLOCK // (num * 10))
        return list(zip(torch.split(self.x, size), torch.split(self.y, size), strict=True))


class Projections(NamedTuple):
    """Vectors of all points, and of the same points over other draws."""

    vectors: Tensor  # (n, draws)
    fresh: Tensor  # (n, draws), to tell what of a fit is chance


def point_model(problem: Problem, recipe: Pretraining, rng: Rng, *, name: str) -> PointModel:
    """Training points as the last layer sees them; `name` is the method's, for errors."""
    if (num := problem.num_classes * (problem.model.num_features + 1)) > MAX_PARAMETERS:
        raise ConfigError(
            f"{name} needs draws from the posterior of the last layer, whose covariance it factors; "
            f"this one has {num:,} parameters and {MAX_PARAMETERS:,} are the limit",
            code="no-log-likelihood-draws",
            num_parameters=num,
            limit=MAX_PARAMETERS,
        )
    _, sd = problem.prior_moments()
    model: SmallModel = Softmax(num_classes=problem.num_classes, prior=float(sd[-1]))
    if problem.task == "regression":
        if not is_linear(problem):
            raise ConfigError(
                f"{name} needs --model linear for a target of numbers, or draws = 'reference'",
                code="model-not-supported",
                model=problem.model.describe().get("name"),
            )
        model = AffineRegression(noise=problem.gaussian.relative_noise, prior=float(sd[-1]))
    if is_linear(problem):
        x = torch.cat(
            [problem.inputs(part).flatten(1) for part in torch.split(problem.train_x, 4096)]
        )
        y = problem.train_y
        return PointModel(model, x.double(), y.double() if y.is_floating_point() else y)
    layer = extract_last_layer(problem, recipe, rng)
    return PointModel(model, layer.features.double(), layer.y)


def is_linear(problem: Problem) -> bool:
    """Whether the last layer is the whole network, on inputs as they are."""
    return problem.model.describe().get("name") == "linear"


def centred(log_likelihood: Tensor) -> Tensor:
    """Vectors (n, draws) whose inner products are covariances of (n, draws)."""
    draws = log_likelihood.shape[1]
    deviation = log_likelihood - log_likelihood.mean(1, keepdim=True)
    return deviation / math.sqrt(max(1, draws - 1))


def projections(points: PointModel, num: int, rng: Rng) -> Projections:
    """Vectors over `num` draws from the posterior of all points, and over as many others."""
    posterior = points.of_all()
    one, other = (
        centred(points.log_likelihood(small_models.draw(posterior, num, rng(name))))
        for name in ("draws", "fresh")
    )
    return Projections(one, other)


def reference_projections(problem: Problem, num: int, rng: Rng, *, name: str) -> Projections:
    """Vectors over the draws of the problem's reference, of the whole network: half of at most
    2 `num` draws, and the other half.
    """
    if problem.reference is None:
        raise ConfigError(
            f"{name} is to project on draws of the full-data posterior, but the problem has no "
            "reference",
            code="needs-reference",
        )
    thetas: Any = problem.reference.thetas
    chosen = rng("reference").permutation(len(thetas))[: 2 * num].to(thetas.device)
    with torch.no_grad():
        parts = [
            torch.stack([problem.log_likelihood(theta, *batch) for theta in thetas[chosen]])
            for batch in problem.batches(1024)
        ]
    found = torch.cat(parts, 1).mT.double()
    return Projections(*(centred(part) for part in found.tensor_split(2, 1)))
