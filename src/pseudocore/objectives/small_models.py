r"""Gaussian posteriors of small models, exact or by Laplace's approximation, and the divergences
between Gaussians.

A small model is a log-likelihood $f(x, \theta)$, its curvature and the scale $\sigma_0$ of a prior
$\mathcal N(0, \sigma_0^2 I)$. Newton's method on $\sum_m w_m f(x_m, \theta) + \log p(\theta)$ finds
the mode, and the inverse curvature there is the covariance:

$$ \theta \leftarrow \theta + H^{-1}\nabla, \qquad H = \sigma_0^{-2} I - \sum_m w_m \nabla^2_\theta
   f(x_m, \theta), \qquad \pi \approx \mathcal N(\hat\theta, H^{-1}) . $$

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

RANK_TOLERANCE = 1e-12
"""Share of the largest variance below which a direction counts as having none."""


class Gaussian(NamedTuple):
    mean: Tensor  # (p,)
    covariance: Tensor  # (p, p)


class Quadratic(NamedTuple):
    """A log-likelihood to second order around a point, up to a constant."""

    at: Tensor  # the point (p,)
    slope: Tensor  # the gradient there (p,)
    curvature: Tensor  # minus the Hessian there (p, p)

    def slope_at(self, theta: Tensor) -> Tensor:
        return self.slope - self.curvature @ (theta - self.at)


class SmallModel(Protocol):
    """A likelihood of x (n, d), y (n, ...) and theta (draws, p), with a Gaussian prior."""

    @property
    def prior(self) -> float:
        """Standard deviation of the prior."""

    @property
    def num_newton(self) -> int:
        """Newton steps from the mode on slightly different points; 1 where f is quadratic."""

    def num_parameters(self, num_features: int) -> int: ...
    def log_likelihood(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """f of each draw and point, (draws, n), up to a constant."""

    def curvature(self, theta: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """Minus the Hessian of the weighted sum of f at one theta (p,), (p, p)."""


@dataclass(frozen=True, kw_only=True)
class _Conjugate:
    """A Gaussian likelihood with one parameter per feature."""

    noise: float = 1.0
    """Standard deviation of an observation."""
    prior: float = 1.0
    """Standard deviation of the prior."""
    num_newton: int = 1

    def __post_init__(self) -> None:
        _check_positive(noise=self.noise, prior=self.prior)

    def num_parameters(self, num_features: int) -> int:
        return num_features


class Location(_Conjugate):
    """x ~ N(θ, noise² I): the mean of a Gaussian; y is ignored."""

    def log_likelihood(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        squares = theta.square().sum(1, keepdim=True) - 2 * theta @ x.mT + x.square().sum(1)
        return -0.5 * squares / self.noise**2

    def curvature(self, theta: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        return weight.sum() / self.noise**2 * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)


class Regression(_Conjugate):
    """y ~ N(x·θ, noise²): linear regression on targets (n, 1), without a bias."""

    def log_likelihood(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return -0.5 * (y.squeeze(1) - theta @ x.mT).square() / self.noise**2

    def curvature(self, theta: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        return x.mT @ (weight[:, None] * x) / self.noise**2


class AffineRegression(Regression):
    """y ~ N(x·θ + θ₀, noise²): as `Regression`, with a bias, the last parameter."""

    def num_parameters(self, num_features: int) -> int:
        return num_features + 1

    def log_likelihood(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return super().log_likelihood(theta, with_one(x), y)

    def curvature(self, theta: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        return super().curvature(theta, with_one(x), y, weight)


@dataclass(frozen=True, kw_only=True)
class Softmax:
    """p(y | x) = softmax of x·W + b, on labels (n,) or class probabilities (n, classes)."""

    num_classes: int = 2
    prior: float = 1.0
    """Standard deviation of the prior."""
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
        """Σ w (diag p − ppᵀ) ⊗ xxᵀ, whose rows of blocks sum to 0."""
        k, inputs = self.num_classes, with_one(x)
        p = (inputs @ theta.view(k, -1).mT).softmax(1)
        blocks: list[list[Tensor]] = [[x.new_zeros(())] * k for _ in range(k)]
        for one, other in itertools.combinations(range(k), 2):
            shares = weight * p[:, one] * p[:, other]
            blocks[one][other] = blocks[other][one] = -inputs.mT @ (shares[:, None] * inputs)
        zeros = x.new_zeros(inputs.shape[1], inputs.shape[1])
        for one in range(k):
            blocks[one][one] = -sum(blocks[one], start=zeros)
        return torch.cat([torch.cat(row, 1) for row in blocks])


def posterior(
    model: SmallModel,
    x: Tensor,
    y: Tensor,
    weight: Tensor,
    *,
    start: Tensor | None = None,
    num_newton: int,
    tolerance: float = 0.0,
) -> Gaussian:
    """The Gaussian at the mode that Newton's method reaches from `start`, which defaults to 0."""
    theta = mode(model, x, y, weight, start=start, num_newton=num_newton, tolerance=tolerance)
    return Gaussian(theta, torch.cholesky_inverse(_root_precision(model, x, y, weight, theta)))


def mode(
    model: SmallModel,
    x: Tensor,
    y: Tensor,
    weight: Tensor,
    *,
    start: Tensor | None = None,
    num_newton: int,
    tolerance: float = 0.0,
) -> Tensor:
    """Theta (p,) after `num_newton` steps, or fewer where one is shorter than `tolerance` allows."""
    theta = x.new_zeros(model.num_parameters(x.shape[1])) if start is None else start
    sizes = 0.5 ** torch.arange(NUM_HALVINGS, dtype=x.dtype, device=x.device)
    for _ in range(num_newton):
        slope = slope_of(model, x, y, weight, theta) - theta / model.prior**2
        root = _root_precision(model, x, y, weight, theta)
        step = torch.cholesky_solve(slope.unsqueeze(1), root).squeeze(1)
        tried = theta + sizes[:, None] * step
        log_likelihood = model.log_likelihood(tried, x, y) @ weight
        heights = log_likelihood - 0.5 * tried.square().sum(1) / model.prior**2
        theta = tried.index_select(0, heights.argmax(0, keepdim=True))[0]
        if tolerance > 0 and bool(step.norm() <= tolerance * theta.norm()):
            break
    return theta


def _root_precision(
    model: SmallModel, x: Tensor, y: Tensor, weight: Tensor, theta: Tensor
) -> Tensor:
    identity = torch.eye(len(theta), dtype=theta.dtype, device=theta.device)
    return cholesky(model.curvature(theta, x, y, weight) + identity / model.prior**2)


def laplace_near(model: SmallModel, x: Tensor, y: Tensor, weight: Tensor, at: Gaussian) -> Gaussian:
    """Laplace's approximation for weights near those that have their mode at `at`: one Newton step
    from there, whose derivatives in the weights are exact.
    """
    own = expand(model, x, y, weight, at.mean)
    mean = at.mean + at.covariance @ (own.slope - at.mean / model.prior**2)
    return Gaussian(mean, torch.cholesky_inverse(_root_precision(model, x, y, weight, mean)))


def expand(model: SmallModel, x: Tensor, y: Tensor, weight: Tensor, at: Tensor) -> Quadratic:
    """Σ w f around one theta (p,)."""
    slope = slope_of(model, x, y, weight, at)
    return Quadratic(at, slope, model.curvature(at, x, y, weight))


def draw(gaussian: Gaussian, num: int, rng: Rng) -> Tensor:
    """(num, p) draws."""
    mean = gaussian.mean
    return draws_of(gaussian, rng.normal(num, len(mean), device=mean.device, dtype=mean.dtype))


def draws_of(gaussian: Gaussian, noise: Tensor) -> Tensor:
    """The draws that standard normal noise (num, p) makes."""
    draws: Tensor = gaussian.mean + noise @ cholesky(gaussian.covariance).mT
    return draws


def root(covariance: Tensor) -> Tensor:
    """R (p, p) with R Rᵀ = covariance, which may be singular; its columns are principal axes."""
    values, vectors = torch.linalg.eigh(covariance)
    scales = torch.where(values > RANK_TOLERANCE * values.max(), values, 0).sqrt()
    columns: Tensor = vectors * scales
    return columns


def kl(one: Gaussian, other: Gaussian) -> Tensor:
    """KL[one || other] in nats."""
    root, root_other = cholesky(one.covariance), cholesky(other.covariance)
    shift = (one.mean - other.mean).unsqueeze(1)
    shift = torch.linalg.solve_triangular(root_other, shift, upper=False)
    scaled = torch.linalg.solve_triangular(root_other, root, upper=False)
    logs = root_other.diagonal().log().sum() - root.diagonal().log().sum()
    divergence: Tensor = 0.5 * (scaled.square().sum() + shift.square().sum() - len(one.mean)) + logs
    return divergence


def wasserstein(one: Gaussian, other: Gaussian) -> Tensor:
    """Squared 2-Wasserstein distance (Kim et al. 2022, Eq. 15)."""
    root = cholesky(one.covariance)
    cross = torch.linalg.eigvalsh(root.mT @ other.covariance @ root).clamp_min(0).sqrt().sum()
    traces = one.covariance.trace() + other.covariance.trace()
    squared: Tensor = (one.mean - other.mean).square().sum() + traces - 2 * cross
    return squared


def with_one(x: Tensor) -> Tensor:
    """Inputs (n, d) with a 1 appended."""
    return torch.cat([x, x.new_ones(len(x), 1)], 1)


def slope_of(model: SmallModel, x: Tensor, y: Tensor, weight: Tensor, theta: Tensor) -> Tensor:
    """The gradient of Σ w f at one theta (p,)."""
    slope: Tensor = grad(lambda theta: model.log_likelihood(theta.unsqueeze(0), x, y)[0] @ weight)(
        theta
    )
    return slope


def _check_positive(**values: float) -> None:
    """As `config.check`, but fast: models are made at every step of a method."""
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ConfigError(
                f"{name} = {value!r} must be a positive number",
                code="not-positive",
                **{name: value},
            )


def cholesky(matrix: Tensor) -> Tensor:
    """The Cholesky factor; NaN where rounding leaves none, so that the run ends as diverged."""
    factor, info = torch.linalg.cholesky_ex(matrix)
    return torch.where(info == 0, factor, math.nan)
