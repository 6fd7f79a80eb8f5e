"""Marginal likelihoods against multivariate normals and dense determinants; their optima against
searches and against the truth.
"""

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from pseudocore.core.rng import Rng
from pseudocore.inference.evidence import (
    RIDGES,
    Relative,
    best_gaussian,
    best_precision,
    log_evidence,
)

M, H, K = 12, 5, 3


def regression(seed: int = 0, num: int = M, classes: int = K) -> tuple[Tensor, Tensor, Tensor]:
    """Features, targets drawn from prior variance 0.5 of a weight and noise variance 0.2 over the
    weight, and the weights.
    """
    rng = Rng(seed)
    features = rng("features").normal(num, H, dtype=torch.float64)
    weight = 0.5 + rng("weight").uniform(num, dtype=torch.float64)
    noise = (0.2 / weight).sqrt()[:, None] * rng("noise").normal(num, classes, dtype=torch.float64)
    return (
        features,
        features @ (0.5**0.5 * rng("beta").normal(H, classes, dtype=torch.float64)) + noise,
        weight,
    )


def dense(
    features: Tensor, y: Tensor, weight: Tensor, prior_variance: float, noise_variance: float
) -> float:
    """log p(y) of Bayesian linear regression with variances of a weight and of a point of weight 1,
    from the n × n covariance.
    """
    covariance = prior_variance * features @ features.mT + torch.diag(noise_variance / weight)
    normal = MultivariateNormal(torch.zeros(len(y), dtype=torch.float64), covariance)
    return float(normal.log_prob(y.mT).sum())


@pytest.mark.parametrize("at", [Relative(0.01, 0.01), Relative(0.4, 2.0), Relative(7.0, 30.0)])
def test_the_gaussian_evidence_is_that_of_a_multivariate_normal(at: Relative) -> None:
    """Ours is of targets scaled by √w, whose density has one more factor of √w a target."""
    features, y, weight = regression()
    typical = float((weight * features.square().sum(1)).sum() / weight.sum())
    variance = at.prior_variance / typical
    expected = dense(features, y, weight, variance, variance * at.ridge * typical)
    assert log_evidence(features, y, at, weight) == pytest.approx(
        expected - K * float(weight.log().sum()) / 2, rel=1e-10
    )


@pytest.mark.parametrize("ridge", [0.003, 0.4])
def test_the_prior_variance_is_the_exact_optimum(ridge: float) -> None:
    features, y, weight = regression()
    best = best_gaussian(features, y, weight, ridge=ridge)
    assert best.ridge == ridge

    def evidence(factor: float) -> float:
        return log_evidence(features, y, Relative(ridge, factor * best.prior_variance), weight)

    assert evidence(1.0) > max(evidence(0.999), evidence(1.001))
    slope = (evidence(1 + 1e-5) - evidence(1 - 1e-5)) / 2e-5
    assert abs(slope) < 1e-6


def test_no_point_of_a_grid_is_better() -> None:
    features, y, weight = regression()
    best = best_gaussian(features, y, weight)
    assert RIDGES[0] < best.ridge < RIDGES[-1]
    top = log_evidence(features, y, best, weight)
    grid = [10 ** (power / 10) for power in range(-30, 20)]
    assert all(
        log_evidence(features, y, Relative(ridge, variance), weight) <= top + 1e-3
        for ridge in grid
        for variance in grid
    )


def test_the_truth_is_found_with_enough_targets() -> None:
    """400 points of 300 outputs pin both variances down to a few percent."""
    features, y, weight = regression(num=400, classes=300)
    typical = float((weight * features.square().sum(1)).sum() / weight.sum())
    best = best_gaussian(features, y, weight)
    assert best.prior_variance / typical == pytest.approx(0.5, rel=0.1)
    assert best.prior_variance * best.ridge == pytest.approx(0.2, rel=0.1)


@pytest.mark.parametrize("temperature", [1.0, 0.05])
def test_laplaces_precision_maximises_the_dense_evidence(temperature: float) -> None:
    rng = Rng(3)
    u = rng("u").normal(9, 14, dtype=torch.float64)
    head = rng("head").normal(14, dtype=torch.float64)

    def evidence(precision: float) -> float:
        """log N(β | 0, T/δ) + ½ log det of the covariance T (UᵀU + δI)⁻¹, which is all that depends
        on δ.
        """
        hessian = (u.mT @ u + precision * torch.eye(14, dtype=torch.float64)) / temperature
        log_prior = 7 * math.log(precision / temperature) - precision * float(
            head.square().sum()
        ) / (2 * temperature)
        return log_prior - 0.5 * float(torch.logdet(hessian))

    best = best_precision(torch.linalg.eigvalsh(u @ u.mT), float(head.square().sum()), temperature)
    factors = [10 ** (power / 20) for power in range(-60, 61)]
    assert max(factors, key=lambda factor: evidence(factor * best)) == 1
    slope = (evidence(best * (1 + 1e-5)) - evidence(best * (1 - 1e-5))) / 2e-5
    assert abs(slope) < 1e-6


def test_a_network_without_curvature_has_a_precision_all_the_same() -> None:
    assert 0 < best_precision(torch.zeros(4), 2.0, 1.0) < 1e-12
