"""PSVI against exact posteriors, finite differences of the exact KL, and the analytic optimum."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal
from torch.distributions.kl import kl_divergence
from torch.func import grad, jacrev
from torch.nn.functional import one_hot

from pseudocore.assembly import Setup, build
from pseudocore.assembly.contracts import unconverged
from pseudocore.core.errors import ConfigError, DataError
from pseudocore.core.problem import GaussianPrior, Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, Dataset, Examples
from pseudocore.data import logistic
from pseudocore.data.toys import (
    GaussianLocation,
    LinearRegression,
    logistic_posterior_moments,
)
from pseudocore.methods.bayes import psvi
from pseudocore.methods.bayes.psvi import PSVI, condense
from pseudocore.models.dense import MLP
from pseudocore.objectives import factored_softmax, small_models, softmax_mode
from pseudocore.objectives.kl_gradient import Points, gradient
from pseudocore.objectives.small_models import (
    Gaussian,
    Location,
    Quadratic,
    Regression,
    SmallModel,
    Softmax,
    draw,
    expand,
    kl,
    posterior,
    root,
    wasserstein,
)
from pseudocore.runtime.loop import run

MakeProblem = Callable[..., Problem]
Differentiate = Callable[[Callable[[Tensor], float], Tensor], Tensor]

DOUBLE = torch.float64
LOCATION, REGRESSION = (
    GaussianLocation(dim=3, num_points=30, noise=0.8, prior=1.5),
    LinearRegression(dim=3, num_points=30, noise=0.7),
)


def ones(x: Tensor) -> Tensor:
    return torch.ones(len(x), dtype=DOUBLE)


class Exact:
    """A conjugate model: the toys' own posterior formula, and the small model under test."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.model: SmallModel
        if kind == "location":
            self.model = Location(noise=LOCATION.noise, prior=LOCATION.prior)
            x = LOCATION.points(1)
            self.data = Examples(x, torch.zeros(len(x), dtype=torch.int64))
        else:
            self.model = Regression(noise=REGRESSION.noise, prior=REGRESSION.prior)
            x, y = REGRESSION.points(1)
            self.data = Examples(x, y.unsqueeze(1))
        self.target = self.posterior(Points(*self.data, ones(x)))

    def posterior(self, points: Points) -> Gaussian:
        if self.kind == "location":
            return Gaussian(*LOCATION.posterior(points.x, points.weight))
        return Gaussian(*REGRESSION.posterior(points.x, points.y.squeeze(1), points.weight))

    def kl(self, points: Points) -> float:
        """Reverse KL by torch.distributions."""
        one, other = (MultivariateNormal(*part) for part in (self.posterior(points), self.target))
        return float(kl_divergence(one, other))

    def points(self, num: int = 4) -> Points:
        rng = Rng(5)
        y = self.data.y[:num] + (0.3 if self.data.y.is_floating_point() else 0)
        weight = 0.5 + 4 * rng("weight").uniform(num, dtype=DOUBLE)
        return Points(self.data.x[:num] + rng("x").normal(num, 3, dtype=DOUBLE), y, weight)


@pytest.fixture(params=["location", "regression"])
def exact(request: pytest.FixtureRequest) -> Exact:
    return Exact(request.param)


# --- posteriors


def test_one_newton_step_is_the_exact_posterior_of_a_gaussian_model(exact: Exact) -> None:
    points = exact.points()
    ours, theirs = (
        posterior(exact.model, *points, start=torch.full((3,), 7.0, dtype=DOUBLE), num_newton=1),
        exact.posterior(points),
    )
    assert torch.allclose(ours.mean, theirs.mean, atol=1e-12)
    assert torch.allclose(ours.covariance, theirs.covariance, atol=1e-12)


def test_laplace_is_the_mode_and_the_curvature_there() -> None:
    """Against autograd alone, with weights, three classes and a start at which an undamped Newton
    step would overshoot.
    """
    rng, model = Rng(0), Softmax(num_classes=3, prior=2.0)
    x, y, weight = (
        3 * rng("x").normal(12, 2, dtype=DOUBLE),
        torch.arange(12) % 3,
        20 * rng("w").uniform(12, dtype=DOUBLE),
    )

    def log_posterior(theta: Tensor) -> Tensor:
        logits = x @ theta.view(3, 3)[:, :2].mT + theta.view(3, 3)[:, 2]
        value: Tensor = weight @ logits.log_softmax(1)[
            torch.arange(12), y
        ] - theta.square().sum() / (2 * 2.0**2)
        return value

    q = posterior(
        model, x, y, weight, start=5 * rng("start").normal(9, dtype=DOUBLE), num_newton=30
    )
    at = q.mean.clone().requires_grad_()
    (slope,) = torch.autograd.grad(log_posterior(at), at)
    hessian = jacrev(grad(log_posterior))(q.mean)
    assert slope.abs().max() < 1e-9
    assert torch.allclose(torch.linalg.inv(-hessian), q.covariance, atol=1e-10)


def test_laplace_is_near_the_true_moments_of_a_logistic_posterior() -> None:
    """By quadrature in two dimensions; the prior of a difference of two class vectors has twice the
    variance.
    """
    x, y = logistic(1000).train
    mean, covariance = logistic_posterior_moments(x, y, ones(x), prior=math.sqrt(2), num_grid=61)
    q = posterior(Softmax(), x.double(), y, ones(x), num_newton=20)
    difference = q.mean.view(2, 3)[1] - q.mean.view(2, 3)[0]
    assert torch.allclose(difference[:2], mean, atol=0.03)
    block = q.covariance.view(2, 3, 2, 3)
    spread = block[1, :, 1] + block[0, :, 0] - block[1, :, 0] - block[0, :, 1]
    assert torch.allclose(spread[:2, :2], covariance, rtol=0.1, atol=3e-4)


def test_an_expansion_is_taylors() -> None:
    """Slope and Hessian of the weighted sum by autograd alone."""
    rng, model = Rng(1), Softmax(num_classes=3)
    x, y, weight = (
        rng("x").normal(12, 2, dtype=DOUBLE),
        torch.arange(12) % 3,
        rng("w").uniform(12, dtype=DOUBLE),
    )
    at = rng("at").normal(9, dtype=DOUBLE)

    def total(theta: Tensor) -> Tensor:
        logits = x @ theta.view(3, 3)[:, :2].mT + theta.view(3, 3)[:, 2]
        value: Tensor = weight @ logits.log_softmax(1)[torch.arange(12), y]
        return value

    expansion, near = (
        expand(model, x, y, weight, at),
        at + 1e-4 * rng("near").normal(9, dtype=DOUBLE),
    )
    assert torch.allclose(expansion.slope, grad(total)(at), atol=1e-12)
    assert torch.allclose(-expansion.curvature, jacrev(grad(total))(at), atol=1e-12)
    assert torch.allclose(expansion.slope_at(near), grad(total)(near), atol=1e-7)
    assert not torch.allclose(expansion.slope, grad(total)(near), atol=1e-5)


def test_a_root_has_nothing_where_the_covariance_has_nothing() -> None:
    """Of rank 2 in 4 dimensions, scales a million apart."""
    factor = Rng(0).normal(4, 2, dtype=DOUBLE) * torch.tensor([1.0, 1e-3], dtype=DOUBLE)
    columns = root(factor @ factor.mT)
    assert torch.allclose(columns @ columns.mT, factor @ factor.mT, atol=1e-15)
    assert int((columns.norm(dim=0) > 0).sum()) == 2
    gram = columns.mT @ columns
    assert torch.allclose(gram, gram.diagonal().diag(), atol=1e-15)


def test_divergences_between_gaussians() -> None:
    """KL by torch.distributions; W₂² from matrix square roots by eigenvectors."""
    rng = Rng(3)

    def some(name: str) -> Gaussian:
        factor = rng(name, "factor").normal(4, 4, dtype=DOUBLE)
        return Gaussian(
            rng(name, "mean").normal(4, dtype=DOUBLE),
            factor @ factor.mT + 0.1 * torch.eye(4, dtype=DOUBLE),
        )

    def root(matrix: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(matrix)
        result: Tensor = vectors * values.sqrt() @ vectors.mT
        return result

    one, other = some("one"), some("other")
    assert math.isclose(
        kl(one, other),
        kl_divergence(MultivariateNormal(*one), MultivariateNormal(*other)),
        rel_tol=1e-10,
    )
    cross = root(root(one.covariance) @ other.covariance @ root(one.covariance))
    expected = (one.mean - other.mean).square().sum() + (
        one.covariance + other.covariance - 2 * cross
    ).trace()
    assert math.isclose(wasserstein(one, other), expected, rel_tol=1e-10)


# --- the gradient


def test_the_exact_gradient_is_that_of_the_exact_kl(
    exact: Exact, differentiate: Differentiate
) -> None:
    """Eq. (4) from moments against finite differences, in points, weights and targets."""
    points = exact.points()
    slopes, _ = gradient(exact.model, points, exact.data, 1.0, exact.posterior(points), None)
    scale = max(1.0, float(slopes.x.abs().max()))
    for part in ("x", "weight", *(["y"] if exact.kind == "regression" else [])):
        expected = differentiate(
            lambda value: exact.kl(points._replace(**{part: value})), getattr(points, part)
        )
        assert (getattr(slopes, part) - expected).abs().max() < 1e-8 * scale


def test_the_gradient_over_draws_is_unbiased(exact: Exact) -> None:
    """Within 4 standard errors of the exact one, over 400 estimates of 20 draws."""
    points, q = exact.points(), exact.posterior(exact.points())
    wanted, spread = gradient(exact.model, points, exact.data, 1.0, q, None)
    runs = [
        gradient(exact.model, points, exact.data, 1.0, q, draw(q, 20, Rng(0)("draws", number)))
        for number in range(400)
    ]
    for name in ("x", "weight"):
        estimates = torch.stack([getattr(slopes, name) for slopes, _ in runs])
        error = estimates.std(0) / math.sqrt(len(runs))
        assert ((estimates.mean(0) - getattr(wanted, name)).abs() < 4 * error).all()
    spreads = torch.stack([value for _, value in runs])
    assert abs(spreads.mean() - spread) < 4 * spreads.std() / math.sqrt(len(runs))


def test_covariances_over_draws_divide_by_one_less_than_their_number(exact: Exact) -> None:
    """D2, where it matters most: three draws, by numpy's covariance of log-likelihoods."""
    points, q = exact.points(), exact.posterior(exact.points())
    draws = draw(q, 3, Rng(1))
    each = exact.model.log_likelihood(draws, points.x, points.y)  # (S, M)
    rest = exact.model.log_likelihood(draws, *exact.data).sum(1) - each @ points.weight
    together = np.cov(torch.cat([each, rest[:, None]], 1).numpy(), rowvar=False)
    slopes, spread = gradient(exact.model, points, exact.data, 1.0, q, draws)
    np.testing.assert_allclose(slopes.weight.numpy(), -together[:-1, -1], rtol=1e-9)
    assert float(spread) == pytest.approx(together[-1, -1], rel=1e-9)


def test_a_batch_of_real_examples_changes_the_gradient_by_noise_alone(
    make_problem: MakeProblem,
) -> None:
    """Steps from one state with the same draws of the posterior; |z| < 4, and a batch that stood
    for itself alone would be seen.
    """
    problem = make_problem()
    options: dict[str, Any] = {"per_class": 2, "covariance": "draws", "num_draws": 20}
    whole, some = PSVI(**options), PSVI(**options, batch_size=15)
    state = whole.init(problem, Rng(0))

    def slopes(method: PSVI) -> Tensor:
        """Of points and weights; Adam's first moment after a first step is a share of them."""
        moments = [method.step(problem, state, Rng(n))[0].moments for n in range(150)]
        return torch.stack([torch.cat([m.x.first.flatten(), m.weight.first]) for m in moments])

    by_whole, by_batch = slopes(whole), slopes(some)
    noise = by_batch - by_whole
    error = noise.std(0) / math.sqrt(len(noise))
    assert (noise.mean(0) / error).abs().max() < 4
    assert ((1 - 15 / 45) * by_whole.mean(0) / error).abs().max() > 6


def test_the_gradient_vanishes_where_the_posteriors_are_one(exact: Exact) -> None:
    """The data themselves are a perfect coreset: no draw can tell the two apart."""
    points = Points(*exact.data, ones(exact.data.x))
    for draws in (None, draw(exact.target, 10, Rng(0))):
        slopes, spread = gradient(exact.model, points, exact.data, 1.0, exact.target, draws)
        assert max(float(slope.abs().max()) for slope in slopes) < 1e-9
        assert spread < 1e-18


def test_a_batch_stands_for_the_whole(exact: Exact) -> None:
    """Twice half of a doubled set is the set."""
    points = exact.points()
    q = exact.posterior(points)
    doubled = Examples(*(torch.cat([part, part]) for part in exact.data))
    for draws in (None, draw(q, 10, Rng(0))):
        half, _ = gradient(exact.model, points, exact.data, 2.0, q, draws)
        whole, _ = gradient(exact.model, points, doubled, 1.0, q, draws)
        assert all(
            torch.allclose(one, other, atol=1e-10) for one, other in zip(half, whole, strict=True)
        )


def test_an_expansion_stands_for_the_data(exact: Exact) -> None:
    """Where log-likelihoods are quadratic, one around any point says what the data say."""
    points = exact.points()
    q = exact.posterior(points)
    around = Rng(2).normal(len(q.mean), dtype=DOUBLE)
    slopes, spread = gradient(exact.model, points, exact.data, 1.0, q, None)
    again, same = gradient(
        exact.model,
        points,
        expand(exact.model, *exact.data, ones(exact.data.x), around),
        1.0,
        q,
        None,
    )
    assert all(
        torch.allclose(one, other, rtol=1e-9, atol=1e-9)
        for one, other in zip(slopes, again, strict=True)
    )
    assert torch.isclose(spread, same, rtol=1e-9)
    elsewhere = Quadratic(
        around, *expand(exact.model, *exact.data, ones(exact.data.x), 0 * around)[1:]
    )
    assert not torch.allclose(
        gradient(exact.model, points, elsewhere, 1.0, q, None)[0].x, slopes.x, rtol=1e-3
    )


def test_from_an_expansion_the_gradient_is_that_of_the_kl_between_laplace_posteriors(
    differentiate: Differentiate,
) -> None:
    """Finite differences, with a mode that moves and takes the curvature along: four points of
    three classes leave most unsaid.
    """
    rng, model = Rng(6), Softmax(num_classes=3)
    x, y = 2 * rng("x").normal(40, 2, dtype=DOUBLE), torch.arange(40) % 3
    full = posterior(model, x, y, ones(x), num_newton=30)
    points = Points(
        x[:4] + rng("u").normal(4, 2, dtype=DOUBLE),
        y[:4],
        2 + 10 * rng("w").uniform(4, dtype=DOUBLE),
    )
    slopes, _ = gradient(
        model,
        points,
        expand(model, x, y, ones(x), full.mean),
        1.0,
        posterior(model, *points, num_newton=30),
        None,
    )

    def divergence(points: Points) -> float:
        return float(kl(posterior(model, *points, num_newton=30), full))

    for part in ("x", "weight"):
        expected = differentiate(
            lambda value: divergence(points._replace(**{part: value})), getattr(points, part)
        )
        assert (getattr(slopes, part) - expected).abs().max() < 1e-5 * expected.abs().max()


def test_logistic_gradients_agree_where_the_posterior_is_narrow(make_problem: MakeProblem) -> None:
    """Moments are second order; on many data they come near the covariance over many draws."""
    x, y = make_problem(num=90).batch(torch.arange(90))
    model, points = (
        Softmax(num_classes=3),
        Points(x[:30] + 0.3, y[:30], torch.full((30,), 100.0, dtype=DOUBLE)),
    )
    q = posterior(model, *points, num_newton=30)
    (by_moments, _), (by_draws, _) = (
        gradient(model, points, Examples(x, y), 40.0, q, draws)
        for draws in (None, draw(q, 20000, Rng(0)))
    )
    for name in ("x", "weight"):
        one, other = (getattr(slopes, name).flatten() for slopes in (by_moments, by_draws))
        assert torch.cosine_similarity(one, other, dim=0) > 0.95


# --- the optimum


@pytest.mark.parametrize("covariance", ["draws", "moments"])
def test_a_location_is_said_by_one_point_as_well_as_by_all(covariance: Any) -> None:
    """The analytic optimum: any points whose weights sum to N and whose weighted mean is that of
    the data.
    """
    exact = Exact("location")
    method = PSVI(num_steps=250, covariance=covariance, num_draws=20, point_lr=0.05, weight_lr=0.03)
    for num in (1, 4):
        coreset = condense(method, exact.model, *exact.data, num)
        points = Points(coreset.x, coreset.y, coreset.weight)
        assert exact.kl(points) < 1e-2
        assert math.isclose(coreset.weight.sum(), len(exact.data.x), rel_tol=0.02)
        assert torch.allclose(
            coreset.weight @ coreset.x / coreset.weight.sum(), exact.data.x.mean(0), atol=0.02
        )


def test_a_regression_needs_as_many_points_as_parameters() -> None:
    """Two points leave one of three parameters to the prior; six points, with targets of their own,
    say all that the data say.
    """
    exact = Exact("regression")
    method = PSVI(num_steps=500, covariance="moments", point_lr=0.05, weight_lr=0.03)
    divergences = []
    for num in (2, 6):
        coreset = condense(method, exact.model, *exact.data, num)
        assert coreset.y.shape == (num, 1)
        divergences.append(exact.kl(Points(coreset.x, coreset.y, coreset.weight)))
    assert divergences[0] > 10
    assert divergences[1] < 0.05


def test_weights_that_would_be_negative_are_zero() -> None:
    """Of two points held still on the same side of the mean, the farther one is worth nothing."""
    x, y = Rng(0).normal(30, 1, dtype=DOUBLE), torch.zeros(30, dtype=torch.int64)
    starts = {seed: x[Rng(seed)("init").permutation(30)[:2]].flatten() for seed in range(100)}
    seed = next(
        seed
        for seed, two in starts.items()
        if two.min() > x.mean() + 0.3 and (two[0] - two[1]).abs() > 0.3
    )
    coreset = condense(
        PSVI(num_steps=200, point_lr=0, weight_lr=0.1, covariance="moments"),
        Location(),
        x,
        y,
        2,
        seed=seed,
    )
    assert torch.equal(coreset.x.flatten(), starts[seed])
    near, far = coreset.weight[coreset.x.flatten().argsort()].tolist()
    assert far == 0
    assert near > 0


def test_turning_the_inputs_turns_the_coreset(exact: Exact) -> None:
    """The posterior and the KL do not know one axis from another; nor do the steps, unlike Adam's
    along the axes.
    """
    turn, _ = torch.linalg.qr(Rng(4).normal(3, 3, dtype=DOUBLE))
    method = PSVI(num_steps=40, point_lr=0.05, jitter=0)
    one, other = (
        condense(method, exact.model, x, exact.data.y, 4)
        for x in (exact.data.x, exact.data.x @ turn)
    )
    assert torch.allclose(one.x @ turn, other.x, atol=1e-6)
    assert torch.allclose(one.weight, other.weight, atol=1e-6)
    assert not torch.allclose(one.x, exact.data.x[Rng(0)("init").permutation(30)[:4]], atol=0.1)


class Rare:
    """Two groups of eight categories as ones and zeros, the rarest in 5 of 3,000 examples: scales
    far apart, two directions without any.
    """

    def __init__(self) -> None:
        rng, shares = Rng(0), 0.5 ** torch.arange(1, 9)
        edges = (shares.cumsum(0) / shares.sum())[:-1]
        x = torch.cat(
            [one_hot(torch.bucketize(rng(group).uniform(3000), edges), 8) for group in "ab"], 1
        ).float()
        y = (rng("y").uniform(3000) < (x @ rng("theta").normal(16)).sigmoid()).long()
        self.problem = build(
            Setup(model="linear", preprocess="none", prior="isotropic", prior_scale=1.0),
            Dataset("rare", Examples(x, y), Examples(x, y), 2),
            device="cpu",
        )
        self.full = posterior(Softmax(), x.double(), y, ones(x), num_newton=20)

    def condense(self, num: int, **options: Any) -> tuple[Coreset, float, float]:
        """With reverse and forward KL between Laplace posteriors."""
        coreset = run(
            PSVI(per_class=num // 2, num_steps=400, **options), self.problem, seed=0
        ).coreset
        q = posterior(
            Softmax(), coreset.x.double(), coreset.y, coreset.weight.double(), num_newton=30
        )
        return coreset, float(kl(q, self.full)), float(kl(self.full, q))


def test_rare_features_are_said_too() -> None:
    """More points than directions reach both KL of 0, in a start that has every direction; points
    stay among the data's categories.
    """
    rare = Rare()
    coreset, reverse, forward = rare.condense(40)
    assert max(reverse, forward) < 0.1
    assert all(
        torch.allclose(group.sum(1), torch.ones(40), atol=1e-4) for group in coreset.x.chunk(2, 1)
    )
    assert rare.condense(40, jitter=0)[1] > 10 * reverse


def test_few_points_come_near_the_least_that_they_can_reach() -> None:
    """Of all but M directions M points of two classes say nothing: there their posterior is the
    prior, and what that costs is a bound.
    """
    rare = Rare()
    precision = (1 / torch.linalg.eigvalsh(rare.full.covariance)).sort().values.clamp_min(1)[:-8]
    least = float(0.5 * (precision - 1 - precision.log()).sum())
    _, reverse, _ = rare.condense(8)
    assert least < reverse < 4 * least


def test_on_a_classifier_it_beats_the_points_it_began_with(make_problem: MakeProblem) -> None:
    """Reverse and forward KL between Laplace posteriors, weights positive, labels kept."""
    problem = make_problem(num=300)
    x, y = problem.batch(torch.arange(300))
    model = Softmax(num_classes=3)
    full = posterior(model, x, y, ones(x), num_newton=20)

    def divergence(method: PSVI) -> tuple[float, float]:
        coreset = run(method, problem, seed=0).coreset
        assert coreset.weight.min() >= 0
        q = posterior(model, problem.inputs(coreset.x), coreset.y, coreset.weight, num_newton=20)
        return float(kl(q, full)), float(kl(full, q))

    began = divergence(PSVI(per_class=5, num_steps=1, point_lr=0, weight_lr=0))
    for covariance in ("draws", "moments"):
        ended = divergence(
            PSVI(per_class=5, num_steps=200, covariance=covariance, num_draws=60, point_lr=0.05)
        )
        assert ended[0] < 0.1 * began[0]
        assert ended[1] < 0.5 * began[1]


def test_it_says_when_the_mode_is_not_that_of_the_data(make_problem: MakeProblem) -> None:
    """Against modes of many Newton steps and the Hessian by autograd, after too few steps; and
    silence after enough.
    """
    problem = make_problem(num=300)
    model = psvi.small_model(problem, True, 15)
    x, y = problem.batch(torch.arange(300))
    early = run(PSVI(per_class=5, num_steps=3), problem, seed=0).coreset
    at = posterior(model, x, y, ones(x), num_newton=30).mean
    found = (
        posterior(model, problem.inputs(early.x), early.y, early.weight, num_newton=30).mean - at
    )

    def energy(theta: Tensor) -> Tensor:
        return (
            0.5 * theta.square().sum() / model.prior**2
            - model.log_likelihood(theta[None], x.double(), y).sum()
        )

    hessian = torch.autograd.functional.hessian(energy, at)  # type: ignore[no-untyped-call]
    shift = float((found @ hessian @ found / len(at)).sqrt())
    assert early.provenance["mode_shift"] == pytest.approx(shift, rel=1e-3)
    assert early.provenance["mode_length"] == pytest.approx(
        float((found + at).norm() / at.norm()), rel=1e-3
    )
    late = run(PSVI(per_class=5, num_steps=300), problem, seed=0).coreset
    assert late.provenance["mode_shift"] < 0.1
    (sentence,) = unconverged(early)
    assert "psvi had not converged: the mode on these points is 4.3" in sentence
    assert unconverged(late) == []


def test_the_prior_is_the_problems(make_problem: MakeProblem) -> None:
    problem = make_problem()
    tight = dataclasses.replace(problem, prior=GaussianPrior(0.1))
    one, other = (
        run(PSVI(per_class=2, num_steps=5), each, seed=0).coreset for each in (problem, tight)
    )
    assert not torch.equal(one.x, other.x)


# --- refusals


def test_networks_are_refused(make_problem: MakeProblem) -> None:
    with pytest.raises(
        ConfigError,
        match=r"psvi needs --model linear, .* the network is mlp with [\d,]+",
    ):
        run(PSVI(per_class=2), make_problem(MLP(width=8, depth=1)), seed=0)


@pytest.mark.parametrize(
    ("num_features", "settings", "number"),
    [
        (2000, {"covariance": "draws"}, "4,002"),
        (4000, {}, "8,002"),
        (2000, {"per_class": 2000}, "4,002"),
    ],
    ids=["draws", "too many", "many points"],
)
def test_large_logistic_regressions_are_refused(
    num_features: int, settings: dict[str, Any], number: str
) -> None:
    problem = build(Setup(model="linear"), logistic(4004), device="cpu")
    wide = torch.arange(4004.0)[:, None].expand(4004, num_features)
    train = Examples(wide, torch.arange(4004) % 2)
    data = dataclasses.replace(problem.data, train=train, test=Examples(wide[:2], train.y[:2]))
    problem = build(Setup(model="linear", preprocess="none"), data, device="cpu")
    with pytest.raises(ConfigError, match=rf"at most 3,000 parameters, .* linear with {number}"):
        run(PSVI(**{"per_class": 2, **settings}), problem, seed=0)


def wide_softmax() -> tuple[Softmax, Examples, Points]:
    """More parameters than points × classes."""
    rng = Rng(3)
    x = rng("x").normal(150, 12, dtype=DOUBLE)
    y = rng("y").integers(4, 150)
    u, labels = rng("u").normal(5, 12, dtype=DOUBLE), torch.tensor([0, 1, 2, 3, 1])
    weight = 40 * rng("w").uniform(5, dtype=DOUBLE)
    return Softmax(num_classes=4, prior=0.7), Examples(x, y), Points(u, labels, weight)


def test_a_factored_posterior_is_the_dense_one() -> None:
    model, _, points = wide_softmax()
    dense = posterior(model, *points, num_newton=6)
    factored = factored_softmax.posterior(model, *points, num_newton=6)
    assert torch.allclose(factored.mean, dense.mean, atol=1e-12)
    columns = [factored.times(one) for one in torch.eye(len(dense.mean), dtype=DOUBLE)]
    assert torch.allclose(torch.stack(columns), dense.covariance, atol=1e-13)


@pytest.mark.parametrize("soft", [False, True])
def test_the_mode_without_a_hessian_is_newtons(soft: bool) -> None:
    model, (x, y), _ = wide_softmax()
    x = x * torch.linspace(0.1, 9, 12, dtype=DOUBLE)  # of uneven scales
    y = (0.1 + one_hot(y, 4).double()) / 1.4 if soft else y
    dense = small_models.mode(model, x, y, ones(x), num_newton=20)
    assert torch.allclose(softmax_mode.mode(model, x, y), dense, atol=1e-9)


def test_the_gradient_from_factors_is_that_from_dense_covariances() -> None:
    model, data, points = wide_softmax()
    every = (*data, ones(data.x))
    expansion = expand(model, *every, posterior(model, *every, num_newton=8).mean)
    of_dense, of_factors = (
        gradient(model, points, expansion, 1.0, one.posterior(model, *points, num_newton=6), None)
        for one in (small_models, factored_softmax)
    )
    for dense, factored in zip(of_dense[0], of_factors[0], strict=True):
        assert torch.allclose(factored, dense, rtol=1e-9, atol=1e-9)
    assert torch.allclose(of_factors[1], of_dense[1], rtol=1e-10)


def test_a_run_by_factors_is_a_run_by_dense_covariances(monkeypatch: pytest.MonkeyPatch) -> None:
    model, data, _ = wide_softmax()
    method = PSVI(num_steps=30)
    dense = condense(method, model, *data, 5)
    monkeypatch.setattr(psvi, "FACTORED_FROM", 1)
    factored = condense(method, model, *data, 5)
    assert torch.allclose(factored.x, dense.x, atol=1e-6)
    assert torch.allclose(factored.weight, dense.weight, rtol=1e-6)
    assert not torch.equal(factored.x, dense.x)  # by rounding


def test_augmentation_is_refused() -> None:
    with pytest.raises(ConfigError, match="takes no augmentation"):
        run(
            PSVI(per_class=2),
            build(Setup(data="digits", model="linear", augment="flip"), device="cpu"),
            seed=0,
        )


def test_wrong_sizes_are_refused() -> None:
    x = torch.zeros(5, 2, dtype=DOUBLE)
    with pytest.raises(ConfigError, match="6 of 5 points were asked for"):
        condense(PSVI(), Location(), x, torch.zeros(5, dtype=torch.int64), 6)
    with pytest.raises(DataError, match="5 inputs but 4 targets"):
        condense(PSVI(), Regression(), x, torch.zeros(4, 1, dtype=DOUBLE), 2)
    with pytest.raises(ConfigError, match=r"noise = 0\.0 must be a positive number"):
        Location(noise=0.0)


# --- numbers that leave no posterior


@pytest.mark.parametrize("covariance", ["moments", "draws"])
@pytest.mark.parametrize(("prior_scale", "jitter"), [(1e12, 0.5), (1.0, 1e12), (1.0, 1e25)])
def test_a_beginning_that_cannot_be_inverted_says_what_to_change(
    covariance: Any, prior_scale: float, jitter: float
) -> None:
    problem = build(Setup(data="moons", model="linear", prior_scale=prior_scale))
    with pytest.raises(ConfigError, match=r"cannot invert .* smaller values would work"):
        PSVI(per_class=2, jitter=jitter, covariance=covariance).init(problem, Rng(0))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"weight_lr": 1e20}, "weights must be non-negative and not all zero"),
        ({"point_lr": 1e8, "covariance": "draws"}, "far outside the data"),
    ],
)
def test_steps_too_long_are_a_divergence_with_its_last_good_points(
    options: dict[str, Any], reason: str
) -> None:
    problem = build(Setup(data="moons", model="linear"))
    outcome = run(PSVI(per_class=2, num_steps=5, **options), problem, seed=0)
    assert outcome.status == "diverged"
    assert reason in outcome.reason
