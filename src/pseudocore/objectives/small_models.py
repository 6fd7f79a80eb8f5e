r"""Gaussian posteriors of small models, exact or by Laplace's approximation, and the divergences
between Gaussians.

A small model is a log-likelihood $f(x, \theta)$, its curvature and the scale $\sigma_0$ of a prior
$\mathcal N(0, \sigma_0^2 I)$. Newton's method on $\sum_m w_m f(x_m, \theta) + \log p(\theta)$ finds
the mode, and the inverse curvature there is the covariance:

$$ \theta \leftarrow \theta + H^{-1}\nabla, \qquad H = \sigma_0^{-2} I - \sum_m w_m \nabla^2_\theta f(x_m, \theta), \qquad
   \pi \approx \mathcal N(\hat\theta, H^{-1}) . $$

Where f is quadratic in θ (location, linear regression) one step from anywhere is the exact
posterior; elsewhere (softmax regression) this is Laplace's approximation. Everything is meant for
float64 and for at most some thousand parameters: H is built and factored.
"""

import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.func import grad

from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import label_log_likelihood
from pseudocore.core.rng import Rng

NUM_HALVINGS = 10
"""Step lengths tried in a Newton step: 1, 1/2, 1/4, ..."""

FLAT = 1e-12
"""Share of the largest variance below which a direction has none."""


class Gaussian(NamedTuple):
    mean: Tensor  # (p,)
    covariance: Tensor  # (p, p)


class Quadratic(NamedTuple):
    """A log-likelihood to second order around a point, up to a constant."""

    at: Tensor  # (p,)
    slope: Tensor  # (p,), there
    curvature: Tensor  # (p, p), minus the Hessian

    def slope_at(self, theta: Tensor) -> Tensor:
        return self.slope - self.curvature @ (theta - self.at)


class SmallModel(Protocol):
    """A likelihood with a Gaussian prior; inputs x (n, d), targets y (n, ...), parameters theta
    (draws, p).
    """

    @property
    def prior(self) -> float:
        """Standard deviation of the prior on every parameter, whose mean is 0."""

    @property
    def num_newton(self) -> int:
        """Newton steps that reach the mode from the mode of slightly different points; 1 where f is
        quadratic.
        """

    def num_parameters(self, num_features: int) -> int: ...
    def log_likelihood(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """f of each draw and point, (draws, n), up to a constant."""

    def curvature(self, theta: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """Minus the Hessian of the weighted sum of f at one theta (p,), (p, p)."""


@dataclass(frozen=True, kw_only=True)
class Location:
    """x ~ N(θ, noise² I): the mean of a Gaussian; y is not looked at."""

    noise: float = 1.0
    prior: float = 1.0
    num_newton: int = 1

    def __post_init__(self) -> None:
        _check_positive(noise=self.noise, prior=self.prior)

    def num_parameters(self, num_features: int) -> int:
        return num_features

    def log_likelihood(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        squares = theta.square().sum(1, keepdim=True) - 2 * theta @ x.mT + x.square().sum(1)
        return -0.5 * squares / self.noise**2

    def curvature(self, theta: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        return weight.sum() / self.noise**2 * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)


@dataclass(frozen=True, kw_only=True)
class Regression:
    """y ~ N(x·θ, noise²): linear regression on targets (n, 1), without a bias of its own."""

    noise: float = 1.0
    prior: float = 1.0
    num_newton: int = 1

    def __post_init__(self) -> None:
        _check_positive(noise=self.noise, prior=self.prior)

    def num_parameters(self, num_features: int) -> int:
        return num_features

    def log_likelihood(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return -0.5 * (y.squeeze(1) - theta @ x.mT).square() / self.noise**2

    def curvature(self, theta: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        return x.mT @ (weight[:, None] * x) / self.noise**2


@dataclass(frozen=True, kw_only=True)
class Softmax:
    """p(y | x) = softmax of x·W + b: logistic regression on integer labels (n,) or class
    probabilities (n, classes).
    """

    num_classes: int = 2
    prior: float = 1.0
    num_newton: int = 3

    def __post_init__(self) -> None:
        _check_positive(prior=self.prior)

    def num_parameters(self, num_features: int) -> int:
        return self.num_classes * (num_features + 1)

    def log_likelihood(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        heads = theta.view(len(theta), self.num_classes, -1)
        logits = torch.einsum("scd,nd->snc", heads[..., :-1], x) + heads[:, None, :, -1]
        return label_log_likelihood(logits.log_softmax(-1), y)

    def curvature(self, theta: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        inputs = torch.cat([x, x.new_ones(len(x), 1)], 1)
        p = (inputs @ theta.view(self.num_classes, -1).mT).softmax(1)
        blocks: list[list[Tensor]] = [
            [x.new_zeros(())] * self.num_classes for _ in range(self.num_classes)
        ]
        for one, other in itertools.combinations(range(self.num_classes), 2):
            shares = weight * p[:, one] * p[:, other]
            blocks[one][other] = blocks[other][one] = -inputs.mT @ (shares[:, None] * inputs)
        for one in range(
            self.num_classes
        ):  # Σ w (diag p − ppᵀ) ⊗ xxᵀ has rows of blocks that sum to 0
            blocks[one][one] = -sum(
                blocks[one], start=x.new_zeros(inputs.shape[1], inputs.shape[1])
            )
        return torch.cat([torch.cat(row, 1) for row in blocks])


def posterior(
    model: SmallModel,
    x: Tensor,
    y: Tensor,
    weight: Tensor,
    *,
    start: Tensor | None = None,
    num_newton: int,
) -> Gaussian:
    """The Gaussian at the mode that Newton's method reaches from `start` (0 unless told)."""
    theta = x.new_zeros(model.num_parameters(x.shape[1])) if start is None else start
    sizes = 0.5 ** torch.arange(NUM_HALVINGS, dtype=x.dtype, device=x.device)
    for _ in range(num_newton):
        slope = (
            grad(lambda theta: log_likelihood(model, theta, x, y, weight))(theta)
            - theta / model.prior**2
        )
        root = _factored(_precision(model, theta, x, y, weight))
        step = torch.cholesky_solve(slope.unsqueeze(1), root).squeeze(1)
        tried = theta + sizes[:, None] * step
        heights = (
            model.log_likelihood(tried, x, y) @ weight
            - 0.5 * tried.square().sum(1) / model.prior**2
        )
        theta = tried.index_select(0, heights.argmax(0, keepdim=True))[0]
    covariance = torch.cholesky_inverse(_factored(_precision(model, theta, x, y, weight)))
    return Gaussian(theta, covariance)


def log_likelihood(
    model: SmallModel, theta: Tensor, x: Tensor, y: Tensor, weight: Tensor
) -> Tensor:
    """Σ w f at one theta (p,)."""
    total: Tensor = model.log_likelihood(theta.unsqueeze(0), x, y)[0] @ weight
    return total


def expand(model: SmallModel, x: Tensor, y: Tensor, weight: Tensor, at: Tensor) -> Quadratic:
    """Σ w f around one theta (p,)."""
    slope: Tensor = grad(lambda theta: log_likelihood(model, theta, x, y, weight))(at)
    return Quadratic(at, slope, model.curvature(at, x, y, weight))


def draw(gaussian: Gaussian, num: int, rng: Rng) -> Tensor:
    """(num, p) draws."""
    mean, root = gaussian.mean, _factored(gaussian.covariance)
    draws: Tensor = (
        mean + rng.normal(num, len(mean), device=mean.device, dtype=mean.dtype) @ root.mT
    )
    return draws


def root(covariance: Tensor) -> Tensor:
    """R (p, p) with R Rᵀ = covariance, which may be singular; its columns lie along the principal
    axes.
    """
    values, vectors = torch.linalg.eigh(covariance)
    columns: Tensor = vectors * torch.where(values > FLAT * values.max(), values, 0).sqrt()
    return columns


def kl(one: Gaussian, other: Gaussian) -> Tensor:
    """KL[one || other] in nats."""
    root, root_other = _factored(one.covariance), _factored(other.covariance)
    scaled = torch.linalg.solve_triangular(root_other, root, upper=False)
    shift = torch.linalg.solve_triangular(
        root_other, (one.mean - other.mean).unsqueeze(1), upper=False
    )
    logs = root_other.diagonal().log().sum() - root.diagonal().log().sum()
    divergence: Tensor = 0.5 * (scaled.square().sum() + shift.square().sum() - len(one.mean)) + logs
    return divergence


def wasserstein(one: Gaussian, other: Gaussian) -> Tensor:
    """Squared 2-Wasserstein distance (Kim et al. 2022, Eq. 15)."""
    root = _factored(one.covariance)
    cross = torch.linalg.eigvalsh(root.mT @ other.covariance @ root).clamp_min(0).sqrt().sum()
    traces = one.covariance.trace() + other.covariance.trace()
    squared: Tensor = (one.mean - other.mean).square().sum() + traces - 2 * cross
    return squared


def _check_positive(**values: float) -> None:
    """Models are made at every step of a method, so nothing slower than this."""
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ConfigError(f"{name} = {value!r} must be a positive number")


def _factored(matrix: Tensor) -> Tensor:
    """The Cholesky factor; NaN where rounding has left the matrix without one, so that a run ends
    as diverged, with its last good state.
    """
    factor, info = torch.linalg.cholesky_ex(matrix)
    return torch.where(info == 0, factor, math.nan)


def _precision(model: SmallModel, theta: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    identity = torch.eye(len(theta), dtype=theta.dtype, device=theta.device)
    return model.curvature(theta, x, y, weight) + identity / model.prior**2
