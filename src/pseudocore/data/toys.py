"""Generated problems whose posteriors are known exactly.

Log-densities follow the project's scaling: a sum over weighted points, the prior once, constants
left out.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from pseudocore.core import config
from pseudocore.core.config import Count, Positive
from pseudocore.core.errors import ConfigError
from pseudocore.core.rng import Rng


@dataclass(frozen=True)
class GaussianLocation:
    """Points x ~ N(θ, noise² I), prior θ ~ N(0, prior² I); as in Kim et al. (2022), App. C.5."""

    dim: Count = 10
    num_points: Count = 100
    noise: Positive = 1.0
    prior: Positive = 1.0

    def __post_init__(self) -> None:
        config.check(self)

    def points(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
        """A location from the prior and points around it, (num_points, dim)."""
        rng = Rng(seed)("gaussian-location")
        theta = self.prior * rng("theta").normal(self.dim, dtype=dtype)
        return theta + self.noise * rng("points").normal(self.num_points, self.dim, dtype=dtype)

    def posterior(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (dim,) and covariance (dim, dim) given weighted points; Eqs. (28) and (29)."""
        precision = 1 / self.prior**2 + weight.sum() / self.noise**2
        mean = (weight @ x) / self.noise**2 / precision
        return mean, torch.eye(x.shape[1], dtype=x.dtype, device=x.device) / precision

    def log_density(self, theta: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """Unnormalised log-posterior of theta (..., dim)."""
        squares = (x - theta.unsqueeze(-2)).square().sum(-1)  # (..., n)
        prior = 0.5 * theta.square().sum(-1) / self.prior**2
        return -0.5 * (squares @ weight) / self.noise**2 - prior


@dataclass(frozen=True)
class LinearRegression:
    """Targets y ~ N(x·θ, noise²) with prior θ ~ N(0, prior² I)."""

    dim: Count = 5
    num_points: Count = 100
    noise: Positive = 1.0
    prior: Positive = 1.0

    def __post_init__(self) -> None:
        config.check(self)

    def points(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
        """Standard normal inputs (num_points, dim), and targets of a theta from the prior."""
        rng = Rng(seed)("linear-regression")
        theta = self.prior * rng("theta").normal(self.dim, dtype=dtype)
        x = rng("inputs").normal(self.num_points, self.dim, dtype=dtype)
        return x, x @ theta + self.noise * rng("targets").normal(self.num_points, dtype=dtype)

    def posterior(self, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (dim,) and covariance (dim, dim) given weighted points."""
        identity = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
        covariance = torch.linalg.inv(
            identity / self.prior**2 + x.T @ (weight[:, None] * x) / self.noise**2
        )
        return covariance @ (x.T @ (weight * y)) / self.noise**2, covariance

    def log_density(self, theta: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """Unnormalised log-posterior of theta (..., dim)."""
        squares = (y - theta @ x.T).square()  # (..., n)
        prior = 0.5 * theta.square().sum(-1) / self.prior**2
        return -0.5 * (squares @ weight) / self.noise**2 - prior


def logistic_log_density(
    theta: Tensor, x: Tensor, y: Tensor, weight: Tensor, prior: float = 1.0
) -> Tensor:
    """Unnormalised log-posterior of theta (..., d) for labels 0 and 1 and prior N(0, prior² I)."""
    signs = (2 * y - 1).to(x.dtype)
    return logsigmoid(signs * (theta @ x.T)) @ weight - 0.5 * theta.square().sum(-1) / prior**2


def logistic_posterior_moments(
    x: Tensor,
    y: Tensor,
    weight: Tensor,
    prior: float = 1.0,
    *,
    num_grid: int = 241,
    width: float = 10.0,
) -> tuple[Tensor, Tensor]:
    """Mean (2,) and covariance (2, 2) of the posterior in the plane, by quadrature, in float64.

    The grid spans `width` Laplace standard deviations either way along the principal axes at the
    mode; the rectangle rule on a smooth, decaying density errs far below float32.
    """
    if x.shape[1] != 2:
        message = f"the quadrature is two-dimensional; inputs have {x.shape[1]} features"
        raise ConfigError(message, code="wrong-shape")
    x, weight = x.double(), weight.double()
    mode, root = _laplace(x, y, weight, prior)
    axis = torch.linspace(-width, width, num_grid, dtype=torch.float64)
    theta = mode + torch.cartesian_prod(axis, axis) @ root.T  # (num_grid², 2)
    probability = logistic_log_density(theta, x, y, weight, prior).softmax(0)
    mean = probability @ theta
    centred = theta - mean
    return mean, centred.T @ (probability[:, None] * centred)


def _laplace(x: Tensor, y: Tensor, weight: Tensor, prior: float) -> tuple[Tensor, Tensor]:
    """Mode of the logistic posterior by damped Newton steps, and a root of its inverse Hessian."""
    theta = torch.zeros(2, dtype=torch.float64)
    identity = torch.eye(2, dtype=torch.float64)
    for _ in range(100):
        p = (x @ theta).sigmoid()
        gradient = x.T @ (weight * (y - p)) - theta / prior**2
        precision = x.T @ ((weight * p * (1 - p))[:, None] * x) + identity / prior**2
        step = torch.linalg.solve(precision, gradient)
        here, size = logistic_log_density(theta, x, y, weight, prior), 1.0
        while size > 1e-8 and logistic_log_density(theta + size * step, x, y, weight, prior) < here:
            size /= 2
        theta = theta + size * step
        if step.norm() < 1e-12:
            break
    return theta, torch.linalg.cholesky(torch.linalg.inv(precision))
