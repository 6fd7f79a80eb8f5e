r"""Fidelity against closed forms: predictive KL and TV of conjugate models, KL and W₂ of parameters,
rank correlation against scipy's definition by hand, and the bootstrap's coverage by simulation.

A density on a fine grid is a categorical distribution: with cells of width h the categorical KL and
TV converge to those of the densities as h².
"""

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from pseudocore.core.rng import Rng
from pseudocore.evaluation import fidelity
from pseudocore.inference.full_posterior import FullPredictions
from pseudocore.objectives import last_layer_gaussian
from pseudocore.objectives.small_models import Gaussian, Location, Regression, draw, posterior

GRID = torch.linspace(-40, 40, 20_001, dtype=torch.float64)


def on_grid(mean: Tensor, sd: Tensor) -> Tensor:
    """Log-probabilities (n, cells) of normal densities with means and deviations (n,)."""
    return Normal(mean.unsqueeze(1), sd.unsqueeze(1)).log_prob(GRID).log_softmax(1)


def normal_kl(mean: Tensor, sd: Tensor, other_mean: Tensor, other_sd: Tensor) -> Tensor:
    ratio = (sd / other_sd).square()
    return 0.5 * (ratio + ((mean - other_mean) / other_sd).square() - 1 - ratio.log())


def gaussian_posterior(
    model: Location | Regression, x: Tensor, y: Tensor, weight: Tensor
) -> Gaussian:
    return posterior(model, x, y, weight, num_newton=1)


def test_kl_and_tv_of_a_gaussian_location_model() -> None:
    rng, model = Rng(0), Location(noise=1.5, prior=4.0)
    x = 2 + 1.5 * rng("x").normal(60, 1, dtype=torch.float64)
    full = gaussian_posterior(model, x, x[:, 0], torch.ones(60, dtype=torch.float64))
    # mass weights and a mean of its own: the posterior has the same variance, by conjugacy
    own = gaussian_posterior(model, x[:3], x[:3, 0], torch.full((3,), 20, dtype=torch.float64))
    sd = (full.covariance[0] + 1.5**2).sqrt()
    torch.testing.assert_close((own.covariance[0] + 1.5**2).sqrt(), sd)
    found = fidelity.distance(on_grid(full.mean, sd), on_grid(own.mean, sd))
    shift = float((full.mean - own.mean).abs() / sd)
    assert shift > 0.1
    assert found["kl"] == pytest.approx(shift**2 / 2, rel=1e-6)
    assert found["reverse_kl"] == pytest.approx(shift**2 / 2, rel=1e-6)
    assert found["tv"] == pytest.approx(math.erf(shift / 2 / math.sqrt(2)), rel=1e-4)


def test_kl_and_tv_of_linear_regression() -> None:
    rng, model = Rng(1), Regression(noise=0.8, prior=2.0)
    x = rng("x").normal(50, 3, dtype=torch.float64)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64)
    y = y + 0.8 * rng("y").normal(50, 1, dtype=torch.float64)
    test = rng("test").normal(7, 3, dtype=torch.float64)
    tables, moments = [], []
    for num in (50, 5):
        weight = torch.full((num,), 50 / num, dtype=torch.float64)
        q = gaussian_posterior(model, x[:num], y[:num], weight)
        sd = ((test @ q.covariance * test).sum(1) + 0.8**2).sqrt()
        moments.append((test @ q.mean, sd))
        tables.append(on_grid(test @ q.mean, sd))
    found = fidelity.distance(*tables)
    forward = normal_kl(*moments[0], *moments[1])
    backward = normal_kl(*moments[1], *moments[0])
    assert found["kl"] == pytest.approx(float(forward.mean()), rel=1e-6)
    assert found["reverse_kl"] == pytest.approx(float(backward.mean()), rel=1e-6)
    assert abs(found["kl"] - found["reverse_kl"]) > 1e-4  # the two directions are told apart
    each = fidelity.point_distances(*tables)
    torch.testing.assert_close(each["kl"], forward, rtol=1e-6, atol=1e-9)


def test_kl_and_tv_of_a_gaussian_last_layer() -> None:
    """With two classes, the difference of an input's logits is Gaussian: the KL of averaged draws
    against that of the two integrals, up to Monte-Carlo error.
    """
    rng = Rng(2)
    features = rng("f").normal(80, 4, dtype=torch.float64)
    score = features[:, 0] + 0.5 * rng("noise").normal(80, dtype=torch.float64)
    y = torch.stack([score, -score], 1).sign() / 2
    test = rng("t").normal(6, 4, dtype=torch.float64)
    exact, drawn = [], []
    for number, num in enumerate((80, 8)):
        weight = torch.full((num,), 80 / num, dtype=torch.float64)
        layer = last_layer_gaussian.fit(
            features[:num], y[:num], ridge=1.0, prior_variance=1.0, weight=weight
        )
        mean, variance = last_layer_gaussian.predict(layer, test)
        gap, sd = 3 * (mean[:, 0] - mean[:, 1]), 3 * (2 * variance).sqrt()
        noise = Normal(0.0, 1.0).icdf(torch.linspace(0, 1, 4002, dtype=torch.float64)[1:-1])
        p = torch.sigmoid(gap[:, None] + sd[:, None] * noise).mean(1)
        exact.append(torch.stack([p, 1 - p], 1))
        logits = mean + variance.sqrt()[:, None] * rng("draw", number).normal(
            4000, 6, 2, dtype=torch.float64
        )
        drawn.append((3 * logits).softmax(-1).mean(0))
    truth = (exact[0] * (exact[0] / exact[1]).log()).sum(1).mean()
    found = fidelity.distance(drawn[0].log(), drawn[1].log())
    assert truth > 0.005
    assert found["kl"] == pytest.approx(float(truth), rel=0.1)
    assert found["tv"] == pytest.approx(
        float((exact[0] - exact[1]).abs().sum(1).mean() / 2), rel=0.1
    )


def test_parameter_distances_are_those_of_the_gaussians() -> None:
    rng, model = Rng(3), Regression(noise=0.8, prior=2.0)
    x = rng("x").normal(50, 3, dtype=torch.float64)
    y = x.sum(1, keepdim=True) + 0.8 * rng("y").normal(50, 1, dtype=torch.float64)
    full, own = (
        gaussian_posterior(model, x[:n], y[:n], torch.full((n,), 50 / n, dtype=torch.float64))
        for n in (50, 12)
    )
    draws = [draw(q, 40_000, rng("draw", place)) for place, q in enumerate((full, own))]
    found = fidelity.parameter_distance(*draws)
    shift = own.mean - full.mean
    precision = own.covariance.inverse()
    exact = 0.5 * float(
        (precision @ full.covariance).trace()
        + shift @ precision @ shift
        - 3
        + own.covariance.logdet()
        - full.covariance.logdet()
    )
    assert found["parameter_kl"] == pytest.approx(exact, rel=0.05)
    root = torch.linalg.eigh(full.covariance)
    half = root.eigenvectors @ root.eigenvalues.sqrt().diag() @ root.eigenvectors.T
    cross = torch.linalg.eigvalsh(half @ own.covariance @ half).sqrt().sum()
    squared = shift @ shift + full.covariance.trace() + own.covariance.trace() - 2 * cross
    assert found["parameter_w2"] == pytest.approx(float(squared.sqrt()), rel=0.05)
    assert fidelity.parameter_distance(draws[0][:5], draws[1]) == {}


def test_rank_correlation_by_hand() -> None:
    one = torch.tensor([10.0, 20.0, 20.0, 40.0, 5.0])  # ranks 2, 3.5, 3.5, 5, 1
    other = torch.tensor([1.0, 3.0, 2.0, 5.0, 4.0])  # ranks 1, 3, 2, 5, 4
    a = torch.tensor([2, 3.5, 3.5, 5, 1]) - 3
    b = torch.tensor([1.0, 3, 2, 5, 4]) - 3
    expected = float((a @ b) / (a @ a * (b @ b)).sqrt())
    assert fidelity.spearman(one, other) == pytest.approx(expected)
    assert fidelity.spearman(one, one.exp()) == pytest.approx(1)
    assert fidelity.spearman(one, -one) == pytest.approx(-1)


def test_the_interval_covers_as_often_as_it_says() -> None:
    """Of the mean difference of paired, skewed losses: 600 worlds of 60 pairs, intervals of 90 %.
    By the normal approximation skewness costs a little coverage at this size.
    """
    rng, covered, num = Rng(4), 0, 600
    for world in range(num):
        common = rng("common", world).normal(60, dtype=torch.float64).exp()
        gap = 0.3 + 0.5 * rng("own", world).normal(60, dtype=torch.float64)
        full, own = common, common + gap  # losses that share most of their spread
        low, high = fidelity.bootstrap(own - full, rng("resample", world), confidence=0.9, num=300)
        covered += low <= 0.3 <= high
    assert 0.9 - 3 * (0.09 / num) ** 0.5 - 0.02 < covered / num < 0.9 + 3 * (0.09 / num) ** 0.5


def test_resampled_means_spread_by_fits_and_inputs() -> None:
    rng = Rng(5)
    values = rng("v").normal(4, 1, dtype=torch.float64) + 0.3 * rng("w").normal(
        4, 50, dtype=torch.float64
    )
    means = fidelity.resampled_means(values, rng("r"), 20_000)
    by_fits = values.mean(1).var(correction=0) / 4
    by_inputs = values.mean(0).var(correction=0) / 50
    assert float(means.mean()) == pytest.approx(float(values.mean()), abs=0.02)
    total = float(by_fits + by_inputs)
    assert float(means.var()) == pytest.approx(total, rel=0.15)
    alone = fidelity.resampled_means(values[:1], rng("r"), 20_000)
    assert float(alone.var()) == pytest.approx(float(values[0].var(correction=0) / 50), rel=0.05)


def test_means_are_over_pairs_of_fits_and_the_floor_over_ordered_pairs() -> None:
    rng = Rng(6)
    full = [rng("full", n).normal(9, 3, dtype=torch.float64).log_softmax(1) for n in range(3)]
    own, y = rng("own").normal(9, 3, dtype=torch.float64).log_softmax(1), torch.arange(9) % 3
    found = fidelity.measure_seed(FullPredictions(full, "fits", full), own, y)

    def kl(p: Tensor, q: Tensor) -> float:
        return float((p.exp() * (p - q)).sum(1).mean())

    assert found["fidelity_kl"] == pytest.approx(sum(kl(p, own) for p in full) / 3)
    assert found["fidelity_reverse_kl"] == pytest.approx(sum(kl(own, p) for p in full) / 3)
    floor = [kl(full[a], full[b]) for a in range(3) for b in range(3) if a != b]
    assert found["fidelity_floor_kl"] == pytest.approx(sum(floor) / 6)
    nll = [-float(p[torch.arange(9), y].mean()) for p in (own, *full)]
    assert found["fidelity_nll_gap"] == pytest.approx(nll[0] - sum(nll[1:]) / 3)
    agreement = sum(float((p.argmax(1) == own.argmax(1)).float().mean()) for p in full) / 3
    assert found["fidelity_agreement"] == pytest.approx(agreement)


def test_impossible_classes() -> None:
    p = torch.tensor([[0.0, -math.inf]], dtype=torch.float64)
    q = torch.tensor([[0.5, 0.5]], dtype=torch.float64).log()
    found = fidelity.distance(p, q)
    assert found["kl"] == pytest.approx(math.log(2))
    assert found["reverse_kl"] == math.inf
    assert found["tv"] == 0.5
