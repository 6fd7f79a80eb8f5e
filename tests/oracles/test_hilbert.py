"""Hilbert coresets against naive walks, non-negative least squares and an exact posterior."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.optimize import nnls
from torch import Tensor

from pseudocore.assembly import Setup, build
from pseudocore.core.errors import ConfigError
from pseudocore.core.rng import Rng
from pseudocore.core.types import Dataset, Examples
from pseudocore.data.toys import GaussianLocation
from pseudocore.methods.select.hilbert import (
    GIGA,
    FrankWolfe,
    Room,
    Walk,
    frank_wolfe,
    geodesic_ascent,
    least_error,
)
from pseudocore.objectives.point_likelihoods import PointModel, centred, projections
from pseudocore.objectives.small_models import Gaussian, Location, Softmax, kl, posterior
from pseudocore.testing import few_digits, small_problem

Algorithm = Callable[[Tensor, Room], Walk]
ALGORITHMS = pytest.mark.parametrize("algorithm", [frank_wolfe, geodesic_ascent])


def vectors(n: int = 12, draws: int = 5, seed: int = 0) -> Tensor:
    """Around a common direction, so that their sum is in the cone of a few."""
    rng = Rng(seed)
    lengths = 0.2 + rng("lengths").uniform(n, 1, dtype=torch.float64)
    return lengths * (1 + rng("vectors").normal(n, draws, dtype=torch.float64))


def one_room(n: int, num: int) -> Room:
    return Room(torch.zeros(n, dtype=torch.int64), [num])


def naive_geodesic_ascent(g: np.ndarray, num: int) -> tuple[list[int], np.ndarray]:
    """The walk as the paper describes it, its line search by brute force."""
    norms, goal = np.linalg.norm(g, axis=1), g.sum(0)
    units, wanted = g / norms[:, None], goal / np.linalg.norm(goal)
    share, order = np.zeros(len(g)), list[int]()
    while len(order) < num:
        now = share @ units
        if not share.any():
            best = int((units @ wanted).argmax())
            share[best] = 1
        else:
            directions = units - (units @ now)[:, None] * now
            directions /= np.maximum(np.linalg.norm(directions, axis=1), 1e-9)[:, None]
            best = int((directions @ (wanted - (wanted @ now) * now)).argmax())
            low, high = 0.0, 1.0
            for _ in range(200):  # the objective along the geodesic has one maximum
                thirds = low + (high - low) / 3, high - (high - low) / 3
                one, other = (((1 - s) * now + s * units[best]) for s in thirds)
                if wanted @ one / np.linalg.norm(one) < wanted @ other / np.linalg.norm(other):
                    low = thirds[0]
                else:
                    high = thirds[1]
            share = (1 - low) * share
            share[best] += low
            share /= np.linalg.norm(share @ units)
        order += [best] if best not in order else []
    weight = share / norms
    found = weight @ g
    return order, (weight * (found @ goal) / (found @ found))[order]


def naive_frank_wolfe(g: np.ndarray, num: int) -> tuple[list[int], np.ndarray]:
    norms, goal = np.linalg.norm(g, axis=1), g.sum(0)
    weight, order = np.zeros(len(g)), list[int]()
    while len(order) < num:
        best = int((g / norms[:, None] @ (goal - weight @ g)).argmax())
        corner = np.zeros(len(g))
        corner[best] = norms.sum() / norms[best]
        shares = np.linspace(0, 1, 2_000_001) if weight.any() else np.ones(1)
        now, towards = goal - weight @ g, (corner - weight) @ g
        squares = now @ now - 2 * shares * (now @ towards) + shares**2 * (towards @ towards)
        share = shares[squares.argmin()]
        weight = (1 - share) * weight + share * corner
        order += [best] if best not in order else []
    return order, weight[order]


def test_inner_products_are_unbiased_covariances() -> None:
    """By numpy, with three draws, where dividing by one less matters most."""
    values = Rng(0).normal(5, 3, dtype=torch.float64)
    vectors = centred(values)
    np.testing.assert_allclose((vectors @ vectors.mT).numpy(), np.cov(values.numpy()), rtol=1e-12)


@pytest.mark.parametrize(
    ("algorithm", "naive"),
    [(geodesic_ascent, naive_geodesic_ascent), (frank_wolfe, naive_frank_wolfe)],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_walk_is_that_of_the_paper(
    algorithm: Algorithm, naive: Callable[..., tuple[list[int], np.ndarray]], seed: int
) -> None:
    g = vectors(seed=seed)
    walk = algorithm(g, one_room(len(g), 4))
    order, weight = naive(g.numpy(), 4)
    assert walk.order.tolist() == order
    np.testing.assert_allclose(walk.weight.numpy(), weight, rtol=1e-4, atol=1e-5)


@ALGORITHMS
def test_the_error_never_grows_and_is_that_of_the_weights(algorithm: Algorithm) -> None:
    g = vectors(60, 20)
    walk = algorithm(g, one_room(60, 25))
    assert all(np.diff(walk.errors) <= 1e-9)
    left = (g.sum(0) - walk.weight @ g[walk.order]).norm()
    assert float(left) == pytest.approx(walk.errors[-1], rel=1e-9)
    assert len(walk.errors) >= 25
    assert (walk.weight >= 0).all()


def test_frank_wolfe_keeps_its_bound() -> None:
    """Theorem 4.4 of Campbell & Broderick (2019): error ≤ σ η / √m after m + 1 steps, η ≤ 2."""
    g = Rng(3).normal(200, 40, dtype=torch.float64)
    walk = frank_wolfe(g, one_room(200, 60))
    sigma = float(g.norm(dim=1).sum())
    for number, error in enumerate(walk.errors[1:], 1):
        assert error <= 2 * sigma / number**0.5


@ALGORITHMS
def test_weights_are_those_of_least_squares(algorithm: Algorithm) -> None:
    """Against scipy; and no subset of as many points does better than the best of all subsets."""
    g = vectors()
    walk = algorithm(g, one_room(len(g), 3))
    weight = least_error(g, walk.order)
    expected, error = nnls(g[walk.order].numpy().T, g.sum(0).numpy())
    np.testing.assert_allclose(weight.numpy(), expected, atol=1e-8)
    every = [
        nnls(g[list(subset)].numpy().T, g.sum(0).numpy())[1]
        for subset in itertools.combinations(range(len(g)), 3)
    ]
    rank = sum(other < error - 1e-12 for other in every)
    assert rank < 0.1 * len(every)  # greedy, not exhaustive: among the best tenth
    assert error <= float((g.sum(0) - walk.weight @ g[walk.order]).norm()) + 1e-12


@ALGORITHMS
def test_on_a_gaussian_mean_few_points_are_exact(algorithm: Algorithm) -> None:
    """Log-likelihoods span as many dimensions as there are parameters, and one."""
    toy = GaussianLocation(dim=3, num_points=40, noise=0.8, prior=1.5)
    x = toy.points(1)
    model = PointModel(Location(noise=toy.noise, prior=toy.prior), x, torch.zeros(40))
    found = projections(model, 50, Rng(2))
    walk = algorithm(found.vectors, one_room(40, 12))
    weight = least_error(found.vectors, walk.order)
    exact, own = (
        Gaussian(*toy.posterior(points, weight))
        for points, weight in ((x, torch.ones(40).double()), (x[walk.order], weight))
    )
    assert float(kl(own, exact)) < 1e-9
    assert float((weight @ found.fresh[walk.order] - found.fresh.sum(0)).norm()) < 1e-6


def test_vectors_are_covariances() -> None:
    toy = GaussianLocation(dim=2, num_points=5)
    x = toy.points(0)
    model = PointModel(Location(), x, torch.zeros(5))
    posterior = model.of_all()
    found = projections(model, 200_000, Rng(0)).vectors
    # f = θ·x − ‖θ‖²/2 + const for θ ~ N(m, s I): Cov = s (x − m)·(x' − m) + d s²/2
    offset, s = x - posterior.mean, posterior.covariance[0, 0]
    expected = s * offset @ offset.mT + s**2
    assert torch.allclose(found @ found.mT, expected, atol=0.02 * float(expected.abs().max()))


def logistic(n: int = 300) -> Dataset:
    rng = Rng(0)
    x = rng("x").normal(n + 50, 3)
    y = (rng("y").uniform(n + 50) < (2 * x[:, 0] - x[:, 1]).sigmoid()).long()
    return Dataset("logistic", Examples(x[:n], y[:n]), Examples(x[n:], y[n:]), 2)


def test_on_logistic_regression_the_posterior_comes_close() -> None:
    problem = build(Setup(model="linear", preprocess="none"), logistic(), device="cpu")
    train = problem.data.train
    model = Softmax(prior=float(problem.prior_moments()[1][0]))
    full = posterior(model, train.x.double(), train.y, torch.ones(300).double(), num_newton=30)
    for method in (GIGA, FrankWolfe):
        coreset = method(points=30).select(problem, Rng(0))
        x, weight = coreset.x.double(), coreset.weight.double()
        own = posterior(model, x, coreset.y, weight, num_newton=30)
        assert float(kl(own, full)) < 0.3


def test_too_few_draws_are_warned_of_with_their_error() -> None:
    problem = build(Setup(model="linear", preprocess="none"), logistic(), device="cpu")
    with pytest.warns(UserWarning, match=r"3 draws with a relative error of .*more num_proj"):
        coreset = GIGA(per_class=5, num_projections=3).select(problem, Rng(0))
    error = coreset.provenance["projection_error"]
    assert error["fitted"] < 1e-6
    assert error["fresh"] > 0.1


def test_a_last_layer_too_large_for_draws_is_refused() -> None:
    data = few_digits()
    problem = build(Setup(model="mlp", width=400), data, device="cpu")
    with pytest.raises(ConfigError) as caught:
        GIGA().select(problem, Rng(0))
    assert caught.value.code == "no-log-likelihood-draws"
    assert caught.value.fields["num_parameters"] == 4010


def test_without_a_reference_its_draws_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        GIGA(draws="reference").select(small_problem(), Rng(0))
    assert caught.value.code == "needs-reference"
