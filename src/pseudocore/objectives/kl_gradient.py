r"""The gradient of the reverse KL from a posterior on weighted points to that on data, Eq. (4) of
Kim et al. (2022), for small models: over draws, or from moments (`methods/bayes/psvi.py`).
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import grad

from pseudocore.core.types import Examples
from pseudocore.objectives import factored_softmax
from pseudocore.objectives.factored_softmax import FactoredGaussian
from pseudocore.objectives.small_models import (
    Gaussian,
    Quadratic,
    SmallModel,
    Softmax,
    expand,
)


class Points(NamedTuple):
    x: Tensor  # model inputs (M, ...)
    y: Tensor  # labels (M,), or targets (M, 1)
    weight: Tensor  # (M,)


def gradient(
    model: SmallModel,
    points: Points,
    data: Examples | Quadratic,
    scale: float,
    q: Gaussian | FactoredGaussian,
    draws: Tensor | None,
) -> tuple[Points, Tensor]:
    """Eq. (4) in points, targets (0 for labels) and weights; and the variance of P.

    `scale` times the sum over `data` is the full data's, unless it is an expansion. `draws` (S, p)
    are of `q`, whose moments are used when they are None or `data` is an expansion.
    """
    if isinstance(q, FactoredGaussian):
        assert isinstance(model, Softmax)
        assert isinstance(data, Quadratic)
        covariance, spread = _from_factors(model, points, data, q)
    elif draws is not None and not isinstance(data, Quadratic):
        covariance, spread = _over_draws(model, points, data, scale, draws)
    else:
        if not isinstance(data, Quadratic):
            data = expand(model, *data, data.x.new_full((len(data.x),), scale), q.mean)
        covariance, spread = _from_moments(model, points, data, q)

    def objective(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        return -covariance(Points(x, y, weight))

    if points.y.is_floating_point():
        return Points(*grad(objective, argnums=(0, 1, 2))(*points)), spread
    x, weight = grad(objective, argnums=(0, 2))(*points)
    return Points(x, torch.zeros_like(weight), weight), spread


Covariance = Callable[[Points], Tensor]
"""Cov[Σ w f(u, θ), P(θ)] as a function of the points, with P fixed."""


def _over_draws(
    model: SmallModel, points: Points, data: Examples, scale: float, draws: Tensor
) -> tuple[Covariance, Tensor]:
    def total(points: Points) -> Tensor:
        return model.log_likelihood(draws, points.x, points.y) @ points.weight  # (S,)

    rest = scale * model.log_likelihood(draws, *data).sum(1) - total(points)
    rest, num = rest - rest.mean(), len(draws) - 1  # D2; centring one of the two is enough
    return lambda points: total(points) @ rest / num, rest @ rest / num


def _from_moments(
    model: SmallModel, points: Points, data: Quadratic, q: Gaussian
) -> tuple[Covariance, Tensor]:
    own = expand(model, *points, q.mean)
    slope, curvature = data.slope_at(q.mean) - own.slope, data.curvature - own.curvature  # of P
    right = q.covariance @ curvature @ q.covariance
    bend: Tensor = grad(lambda theta: 0.5 * (model.curvature(theta, *points) * right).sum())(q.mean)

    def covariance(points: Points) -> Tensor:
        own = expand(model, *points, q.mean)
        return own.slope @ q.covariance @ (slope + bend) + 0.5 * (own.curvature * right).sum()

    return covariance, slope @ q.covariance @ slope + 0.5 * (curvature * right).sum()


def _from_factors(
    model: Softmax, points: Points, data: Quadratic, q: FactoredGaussian
) -> tuple[Covariance, Tensor]:
    of_parts, spread = factored_softmax.covariance(model, *points, data, q)
    return lambda points: of_parts(*points), spread
