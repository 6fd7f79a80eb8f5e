r"""objectives/last_layer_gaussian.py, which solves in the smaller of two spaces, against the h × h
forms it stands for.

The reference is Bayesian linear regression in the paper's own parameters, written out densely:
noise precision γ/β_S, prior precision ρ, $V = (\rho I + \frac{\gamma}{\beta_S}\Phi^\top
W\Phi)^{-1}$ and $m = \frac{\gamma}{\beta_S} V\Phi^\top W\hat Y$.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from pseudocore.core.rng import Rng
from pseudocore.objectives import last_layer_gaussian as gaussian

GAMMA, RHO, BETA = 3.0, 0.7, 0.4
RELATIVE: dict[str, Any] = {"ridge": 0.03, "prior_variance": 0.2}
NUM_CLASSES, NUM_TEST = 3, 5
TOLERANCE = 1e-8

Differentiate = Callable[[Callable[[Tensor], float], Tensor], Tensor]


class Case(NamedTuple):
    features: Tensor  # Φ (M, h)
    y: Tensor  # (M, classes)
    weight: Tensor | None
    test: Tensor  # (n, h)


class Dense(NamedTuple):
    mean: Tensor  # m (h, classes)
    covariance: Tensor  # V (h, h)


CASES = [
    pytest.param((num, size, weighted), id=f"M={num},h={size}{',weighted' if weighted else ''}")
    for num, size in ((3, 12), (12, 4), (6, 6), (2, 5))
    for weighted in (False, True)
]


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    num, size, weighted = request.param
    rng = Rng(num * 100 + size)
    features, test = (
        rng(name).normal(n, size, dtype=torch.float64)
        for name, n in (("features", num), ("test", NUM_TEST))
    )
    y = rng("y").normal(num, NUM_CLASSES, dtype=torch.float64)
    return Case(
        features,
        y,
        0.2 + 3 * rng("weight").uniform(num, dtype=torch.float64) if weighted else None,
        test,
    )


def dense(case: Case, noise_precision: float = GAMMA / BETA, rho: float = RHO) -> Dense:
    weighted = case.features * (1 if case.weight is None else case.weight[:, None])  # W Φ
    precision = (
        rho * torch.eye(case.features.shape[1], dtype=torch.float64)
        + noise_precision * case.features.T @ weighted
    )
    covariance = torch.linalg.inv(precision)
    return Dense(noise_precision * covariance @ weighted.T @ case.y, covariance)


def fit(case: Case) -> gaussian.LastLayer:
    """Ours at the absolute γ, ρ, β_S: both relative numbers are multiples of one norm, which a fit
    at ones reveals.
    """
    typical = gaussian.fit(
        case.features, case.y, ridge=1.0, prior_variance=1.0, weight=case.weight
    ).ridge
    ridge, variance = RHO * BETA / GAMMA / typical, typical / RHO
    return gaussian.fit(
        case.features, case.y, ridge=ridge, prior_variance=variance, weight=case.weight
    )


def distance(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


def test_hyperparameters_are_relative_to_the_mean_squared_feature_norm(case: Case) -> None:
    weight = torch.ones(len(case.y), dtype=torch.float64) if case.weight is None else case.weight
    typical = sum(
        float(w) * float(phi @ phi) for w, phi in zip(weight, case.features, strict=True)
    ) / float(weight.sum())
    posterior = gaussian.fit(case.features, case.y, weight=case.weight, **RELATIVE)
    assert float(posterior.ridge) == pytest.approx(0.03 * typical, rel=1e-14)
    assert float(posterior.precision) == pytest.approx(typical / 0.2, rel=1e-14)


def test_scaling_the_features_changes_no_prediction(case: Case) -> None:
    """What the relative numbers are for: a network whose features are ten times as large predicts
    the same.
    """
    one = gaussian.fit(case.features, case.y, weight=case.weight, **RELATIVE)
    ten = gaussian.fit(10 * case.features, case.y, weight=case.weight, **RELATIVE)
    for ours, theirs in zip(
        gaussian.predict(ten, 10 * case.test), gaussian.predict(one, case.test), strict=True
    ):
        assert distance(ours, theirs) < TOLERANCE


def test_mean(case: Case) -> None:
    posterior, reference = fit(case), dense(case)
    assert distance(posterior.mean, reference.mean) < TOLERANCE
    assert (
        distance(gaussian.predict(posterior, case.test)[0], case.test @ reference.mean) < TOLERANCE
    )


def test_covariance(case: Case) -> None:
    """The diagonal of V from unit vectors, the rest by polarisation: V_ij = ½(Σ(e_i + e_j) − Σ(e_i)
    − Σ(e_j)).
    """
    posterior, reference = fit(case), dense(case)
    unit = torch.eye(case.features.shape[1], dtype=torch.float64)
    variance = gaussian.predict(posterior, unit)[1]
    pairs = gaussian.predict(posterior, (unit[:, None] + unit[None]).flatten(0, 1))[1].view(
        len(unit), len(unit)
    )
    assert distance(variance, reference.covariance.diagonal()) < TOLERANCE
    assert distance(0.5 * (pairs - variance - variance[:, None]), reference.covariance) < TOLERANCE


def test_predictive_variance(case: Case) -> None:
    quadratic = torch.einsum("ni,ij,nj->n", case.test, dense(case).covariance, case.test)
    assert distance(gaussian.predict(fit(case), case.test)[1], quadratic) < TOLERANCE


def test_variance_is_never_negative() -> None:
    """At a training point of near-zero noise the subtraction cancels; rounding must not leave a
    negative variance.
    """
    features = Rng(0).normal(8, 4)
    posterior = gaussian.fit(features, torch.zeros(8, 2), ridge=1e-6, prior_variance=1.0)
    assert (gaussian.predict(posterior, 100 * features)[1] >= 0).all()


def test_kl(case: Case) -> None:
    posterior, reference = fit(case), dense(case)
    size = case.features.shape[1]
    prior = MultivariateNormal(
        torch.zeros(size, dtype=torch.float64), torch.eye(size, dtype=torch.float64) / RHO
    )
    expected = torch.stack(
        [
            kl_divergence(MultivariateNormal(m, reference.covariance), prior)
            for m in reference.mean.T
        ]
    )
    assert distance(gaussian.kl(posterior), expected) < TOLERANCE


def test_a_weight_is_a_repetition_when_the_hyperparameters_are_absolute() -> None:
    rng = Rng(5)
    features, y = (rng(size).normal(4, size, dtype=torch.float64) for size in (7, 3))
    times = torch.tensor([1, 3, 2, 1])
    weighted = fit(Case(features, y, times.double(), features))
    repeated = fit(
        Case(features.repeat_interleave(times, 0), y.repeat_interleave(times, 0), None, features)
    )
    test = rng("test").normal(5, 7, dtype=torch.float64)
    for ours, theirs in zip(
        gaussian.predict(weighted, test), gaussian.predict(repeated, test), strict=True
    ):
        assert distance(ours, theirs) < TOLERANCE
    assert distance(gaussian.kl(weighted), gaussian.kl(repeated)) < TOLERANCE


def test_a_weight_is_a_repetition() -> None:
    """With the relative numbers too: the typical norm of a weighted coreset is that of the points
    it stands for.
    """
    rng = Rng(5)
    features, y = (rng(size).normal(4, size, dtype=torch.float64) for size in (7, 3))
    times = torch.tensor([1, 3, 2, 1])
    weighted = gaussian.fit(features, y, weight=times.double(), **RELATIVE)
    repeated = gaussian.fit(
        features.repeat_interleave(times, 0), y.repeat_interleave(times, 0), **RELATIVE
    )
    test = rng("test").normal(5, 7, dtype=torch.float64)
    for ours, theirs in zip(
        gaussian.predict(weighted, test), gaussian.predict(repeated, test), strict=True
    ):
        assert distance(ours, theirs) < TOLERANCE


def test_both_spaces_give_the_same_posterior(case: Case) -> None:
    """Points without weight add rows and nothing else: with enough of them the feature space is the
    smaller one, as it is not without.
    """
    few, num = case._replace(features=case.features[:2], y=case.y[:2]), len(case.features[0]) + 1
    weight = None if case.weight is None else case.weight[:2]
    ones = torch.ones(2, dtype=torch.float64) if weight is None else weight
    padded = Case(
        torch.cat([few.features, Rng(1).normal(num, num - 1, dtype=torch.float64)]),
        torch.cat([few.y, Rng(2).normal(num, NUM_CLASSES, dtype=torch.float64)]),
        torch.cat([ones, torch.zeros(num, dtype=torch.float64)]),
        case.test,
    )
    short, long = fit(few._replace(weight=weight)), fit(padded)
    assert (len(short.features), len(long.features)) == (2, 0)
    assert distance(long.mean, short.mean) < TOLERANCE
    for one, other in zip(
        gaussian.predict(short, case.test), gaussian.predict(long, case.test), strict=True
    ):
        assert distance(one, other) < TOLERANCE
    assert distance(gaussian.kl(short), gaussian.kl(long)) < TOLERANCE


def test_an_intercept_is_a_feature_with_a_prior_of_its_own(case: Case) -> None:
    """Of intercept² times the prior variance of an output at a typical point."""
    shifted = case._replace(features=case.features + 2, test=case.test + 2)
    numbers = gaussian.fit(shifted.features, case.y, weight=case.weight, **RELATIVE)
    fitted = gaussian.fit(shifted.features, case.y, weight=case.weight, intercept=3.0, **RELATIVE)
    # As columns of ones, scaled so that the prior is ρ for all.
    scale = (9 * 0.2 * numbers.precision).sqrt()
    ones = [scale * torch.ones(len(x), 1, dtype=x.dtype) for x in (shifted.features, shifted.test)]
    wide = Case(
        torch.cat([shifted.features, ones[0]], 1),
        case.y,
        case.weight,
        torch.cat([shifted.test, ones[1]], 1),
    )
    rho = float(numbers.precision)
    reference = dense(wide, rho / float(numbers.ridge), rho)
    mean, variance = gaussian.predict(fitted, shifted.test)
    assert distance(mean, wide.test @ reference.mean) < TOLERANCE
    expected = torch.einsum("ni,ij,nj->n", wide.test, reference.covariance, wide.test)
    assert distance(variance, expected) < TOLERANCE
    assert distance(gaussian.with_constant(fitted, shifted.test), wide.test) < TOLERANCE


def test_leaving_one_out_is_fitting_without_it(case: Case) -> None:
    weight = torch.ones(len(case.y), dtype=torch.float64) if case.weight is None else case.weight
    whole = fit(case._replace(weight=weight))
    mean, variance = gaussian.leave_one_out(whole, case.features, case.y, weight)
    for place in range(len(case.y)):
        kept = torch.arange(len(case.y)) != place
        reference = dense(Case(case.features[kept], case.y[kept], weight[kept], case.test))
        at = case.features[place]
        assert distance(mean[place], at @ reference.mean) < TOLERANCE
        assert float(variance[place]) == pytest.approx(float(at @ reference.covariance @ at))


@pytest.mark.parametrize("intercept", [0.0, 2.0])
def test_one_decomposition_serves_all_ridges(case: Case, intercept: float) -> None:
    weight = torch.ones(len(case.y), dtype=torch.float64) if case.weight is None else case.weight
    options: dict[str, Any] = {"prior_variance": 0.2, "weight": weight, "intercept": intercept}
    ridges = (0.01, 0.3)
    each = gaussian.fit_each(case.features, case.y, ridges=ridges, **options)
    for ridge, ours in zip(ridges, each, strict=True):
        alone = gaussian.fit(case.features, case.y, ridge=ridge, **options)
        assert distance(ours.mean, alone.mean) < TOLERANCE
        spread, expected = (gaussian.predict(one, case.test)[1] for one in (ours, alone))
        assert distance(spread, expected) < TOLERANCE


@pytest.mark.parametrize(
    ("what", "wrt"),
    [
        *((what, "features") for what in ("mean", "variance", "kl", "log_probs")),
        *((what, "y") for what in ("mean", "kl", "log_probs")),
        *((what, "test") for what in ("mean", "variance", "log_probs")),
    ],
)
def test_gradients(case: Case, what: str, wrt: str, differentiate: Differentiate) -> None:
    """Ours through the Cholesky factor against differences of the dense forms; r and ρ move with
    the features.
    """
    cotangents = Rng(9).normal(NUM_TEST, NUM_CLASSES, dtype=torch.float64)
    point = getattr(case, wrt).clone().requires_grad_()
    (gradient,) = torch.autograd.grad(
        _scalar(_ours(case._replace(**{wrt: point})), what, cotangents), point
    )
    expected = differentiate(
        lambda at: float(_scalar(_theirs(case._replace(**{wrt: at})), what, cotangents)),
        getattr(case, wrt),
    )
    assert distance(gradient, expected) < TOLERANCE


def test_log_probs_are_the_probit_formula() -> None:
    rng = Rng(3)
    mean, variance = (
        rng("mean").normal(4, 3, dtype=torch.float64),
        rng("variance").uniform(4, dtype=torch.float64),
    )
    for scale in (1.0, 10.0):
        ours = gaussian.log_probs(mean, variance, scale)
        for n in range(4):
            logits = [
                scale * float(m) / math.sqrt(1 + math.pi / 8 * scale**2 * float(variance[n]))
                for m in mean[n]
            ]
            total = sum(math.exp(value) for value in logits)
            for column, value in enumerate(logits):
                assert float(ours[n, column]) == pytest.approx(
                    math.log(math.exp(value) / total), rel=1e-12, abs=1e-14
                )


class Quantities(NamedTuple):
    mean: Tensor
    variance: Tensor
    kl: Tensor


def _ours(case: Case) -> Quantities:
    posterior = gaussian.fit(case.features, case.y, weight=case.weight, **RELATIVE)
    return Quantities(*gaussian.predict(posterior, case.test), gaussian.kl(posterior))


def _theirs(case: Case) -> Quantities:
    numbers = gaussian.fit(
        case.features, case.y, weight=case.weight, **RELATIVE
    )  # for r and ρ, which have tests of their own
    ridge, rho = float(numbers.ridge), float(numbers.precision)
    mean, covariance = dense(case, rho / ridge, rho)
    sign, log_det = torch.linalg.slogdet(rho * covariance)
    assert sign == 1
    kl = 0.5 * (rho * covariance.trace() + rho * mean.square().sum(0) - len(covariance) - log_det)
    return Quantities(
        case.test @ mean, torch.einsum("ni,ij,nj->n", case.test, covariance, case.test), kl
    )


def _scalar(quantities: Quantities, what: str, cotangents: Tensor) -> Tensor:
    """One number of a quantity, in which every entry has its own random weight."""
    if what == "log_probs":
        shrunk = 2 * quantities.mean / (1 + math.pi / 8 * 4 * quantities.variance).sqrt()[:, None]
        return (cotangents * shrunk.log_softmax(1)).sum()
    value: Tensor = getattr(quantities, what)
    weights = {"mean": cotangents, "variance": cotangents[:, 0], "kl": cotangents[0]}[what]
    return (weights * value).sum()
