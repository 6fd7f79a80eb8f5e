r"""Bayesian linear regression on last-layer features, exact under the problem's prior and noise.

With features $\phi$ (a 1 appended), weights $w$, noise $\sigma$ (of standardised targets) and the
prior $\mathcal N(0, \sigma_0^2 I)$ on the last layer, the posterior is that of
`objectives/last_layer_gaussian.py` with $\rho = 1/\sigma_0^2$ and $r = \sigma^2/\sigma_0^2$.
"""

from typing import Any

import torch
from torch import Tensor

from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Statistics
from pseudocore.inference.regression import GaussianRegression
from pseudocore.objectives import last_layer_gaussian as gaussian
from pseudocore.objectives.last_layer_gaussian import LastLayer


def with_one(features: Tensor) -> Tensor:
    """Features (n, h) with a 1 appended, which the bias multiplies."""
    return torch.cat([features, features.new_ones(len(features), 1)], 1)


def head_scale(problem: Problem) -> Tensor:
    """Standard deviation of the prior on the last layer's parameters, ()."""
    return problem.prior_moments()[1][-1]


def fit(
    problem: Problem, features: Tensor, y: Tensor, weight: Tensor, *, scale: Any = None
) -> LastLayer:
    """The posterior given features (M, h) without a 1, standardised targets (M, 1) and weights;
    `scale` is the prior's standard deviation where it is not the problem's.
    """
    rows = with_one(features)
    variance = (head_scale(problem) if scale is None else scale) ** 2
    prior_variance = gaussian.typical_norm(rows, weight) * variance
    ridge = problem.gaussian.relative_noise**2 / prior_variance
    return gaussian.fit(rows, y, ridge=ridge, prior_variance=prior_variance, weight=weight)


def posterior(
    problem: Problem,
    theta: Tensor,
    statistics: Statistics | None,
    head: LastLayer,
    *,
    temperature: float = 1.0,
    selected_settings: dict[str, float] | None = None,
) -> GaussianRegression:
    """Predictions of a network's features under a Gaussian over its last layer."""

    def features(x: Tensor) -> Tensor:
        return with_one(problem.model.features(theta, x, statistics).double())

    def outputs(x: Tensor) -> tuple[Tensor, Tensor]:
        mean, variance = gaussian.predict(head, features(x))
        return mean, temperature * variance

    def heads(num: int, rng: Rng) -> Tensor:
        errors = gaussian.draw(head, num, rng) - head.mean
        drawn: Tensor = head.mean + temperature**0.5 * errors
        return drawn

    return GaussianRegression(
        problem,
        outputs=outputs,
        features=features,
        heads=heads,
        selected_settings=selected_settings,
    )
