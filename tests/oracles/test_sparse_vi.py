"""SparseVI, the quasi-Newton coreset and Coreset MCMC against exact divergences and their optima."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from pseudocore.assembly import Setup, build
from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Dataset, Examples
from pseudocore.data.toys import GaussianLocation
from pseudocore.methods.select import sparse_vi
from pseudocore.methods.select.coreset_mcmc import CoresetMCMC
from pseudocore.methods.select.sparse_vi import Fit, QuasiNewton, SparseVI, View
from pseudocore.objectives.point_likelihoods import PointModel, point_model
from pseudocore.objectives.small_models import AffineRegression, Gaussian, Location, Softmax, kl
from pseudocore.objectives.small_models import posterior as laplace
from pseudocore.runtime.loop import run
from pseudocore.testing import few_digits


def noise(num: int, p: int) -> Tensor:
    """Of mean 0 and covariance I exactly, under which means of quadratics are exact."""
    z = Rng(0)("noise").normal(num, p, dtype=torch.float64)
    z = z - z.mean(0)
    return z @ torch.linalg.inv(torch.linalg.cholesky(z.mT @ z / num)).mT


def regression(n: int = 40) -> Problem:
    rng = Rng(4)
    x = rng("x").normal(n + 10, 2)
    y = x @ torch.tensor([[1.0], [-2.0]]) + 0.5 + rng("y").normal(n + 10, 1)
    data = Dataset("line", Examples(x[:n], y[:n]), Examples(x[n:], y[n:]), 1, task="regression")
    setup = Setup(model="linear", preprocess="none", task="regression", target_noise=1.0)
    return build(setup, data, device="cpu")


def divergence(points: PointModel, index: Tensor, weight: Tensor) -> Tensor:
    """The reverse KL of exact posteriors."""
    x, y = points.examples(index)
    return kl(laplace(points.model, x, y, weight, num_newton=1), points.of_all())


def least(points: PointModel, index: Tensor) -> float:
    """The reverse KL of the best weights for some points."""

    def value_and_slope(weight: np.ndarray) -> tuple[float, np.ndarray]:
        leaf = torch.tensor(weight, requires_grad=True)
        value = divergence(points, index, leaf)
        value.backward()  # type: ignore[no-untyped-call]
        return float(value.detach()), leaf.grad.numpy()  # type: ignore[union-attr]

    start = np.full(len(index), len(points.x) / len(index))
    bounds = [(0, None)] * len(index)
    return float(minimize(value_and_slope, start, jac=True, bounds=bounds, tol=1e-12).fun)


def test_the_gradient_is_that_of_the_exact_divergence() -> None:
    """For a Gaussian likelihood, where the bound is the KL but for its sign and a constant."""
    points = point_model(regression(), QuasiNewton(), Rng(0), name="quasi-newton")
    index, weight = (
        torch.tensor([0, 3, 5, 9, 11]),
        torch.tensor([1.0, 12.0, 4.0, 0.0, 20.0]).double(),
    )
    fit = Fit(index, weight, points.posterior(index, weight), 1.0)
    view = View(noise(20, 3), torch.arange(40), 1.0)
    before, slope = sparse_vi._ascent(points, fit, view)
    leaf = weight.clone().requires_grad_()
    value = divergence(points, index, leaf)
    value.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(slope, -leaf.grad)
    other = torch.full((5,), 8.0).double()
    after = sparse_vi._bound(points, points.posterior(index, other), view)
    torch.testing.assert_close(after - before, value.detach() - divergence(points, index, other))


def test_on_softmax_regression_the_gradient_is_that_of_the_bound() -> None:
    rng = Rng(2)
    x, y = rng("x").normal(30, 3, dtype=torch.float64), rng("y").integers(3, 30)
    points = PointModel(Softmax(num_classes=3), x, y)
    index, weight = torch.arange(4), torch.tensor([3.0, 1.0, 6.0, 2.0]).double()
    view = View(rng("noise").normal(40, 12).double(), torch.arange(0, 30, 2), 2.0)
    fit = Fit(index, weight, points.posterior(index, weight), 1.0)
    _, slope = sparse_vi._ascent(points, fit, view)
    for place, step in enumerate(torch.eye(4).double() * 1e-3):
        above, below = (
            sparse_vi._bound(points, points.posterior(index, moved), view)
            for moved in (weight + step, weight - step)
        )
        assert float(slope[place]) == pytest.approx(float(above - below) / 2e-3, abs=1e-4)


def test_quasi_newton_finds_the_best_weights() -> None:
    problem = regression()
    points = point_model(problem, QuasiNewton(), Rng(0), name="quasi-newton")
    for num in (3, 6):
        coreset = QuasiNewton(points=num).select(problem, Rng(1))
        assert coreset.indices is not None
        found = float(divergence(points, coreset.indices, coreset.weight.double()))
        best = least(points, coreset.indices)
        assert best - 1e-6 < found < best + max(0.02 * best, 0.01)


def test_sparse_vi_adds_the_points_of_highest_correlation() -> None:
    """Its first point is that of the largest correlation under draws from the prior."""
    problem = regression()
    points = point_model(problem, SparseVI(), Rng(0), name="sparse-vi")
    coreset = SparseVI(points=1, num_projections=200).select(problem, Rng(0))
    view = SparseVI(num_projections=200)._view(points, Rng(0)("point", 0, "select"))
    prior = Gaussian(torch.zeros(3).double(), points.model.prior**2 * torch.eye(3).double())
    found = points.log_likelihood(prior.mean + points.model.prior * view.noise).numpy()
    scores = [np.corrcoef(one, found.sum(0))[0, 1] for one in found]
    assert coreset.indices is not None
    assert coreset.indices.tolist() == [int(np.argmax(scores))]


def test_sparse_vi_on_a_gaussian_mean_needs_few_points() -> None:
    toy = GaussianLocation(dim=3, num_points=40, noise=0.8, prior=1.5)
    points = PointModel(Location(noise=toy.noise, prior=toy.prior), toy.points(1), torch.zeros(40))
    problem = regression()  # of as many examples, of which only their number counts
    fit = SparseVI(points=8).fit(problem, points, Rng(0))
    exact, own = (
        Gaussian(*toy.posterior(*part))
        for part in ((points.x, torch.ones(40).double()), (points.x[fit.places], fit.weight))
    )
    assert float(kl(own, exact)) < 0.01


def test_a_batch_of_the_data_does_nearly_as_well() -> None:
    problem = regression()
    points = point_model(problem, SparseVI(), Rng(0), name="sparse-vi")
    whole, part = (
        SparseVI(points=5, data_batch=size).select(problem, Rng(0)) for size in (None, 20)
    )
    of_whole, of_part = (
        float(divergence(points, one.indices, one.weight.double()))  # type: ignore[arg-type]
        for one in (whole, part)
    )
    assert of_whole < of_part < 20


def test_coreset_mcmc_comes_near_the_best_weights() -> None:
    problem = regression()
    points = point_model(problem, QuasiNewton(), Rng(0), name="coreset-mcmc")
    coreset = run(
        CoresetMCMC(points=5, num_steps=250, weight_lr=0.1, num_warmup=30), problem, seed=0
    ).coreset
    assert coreset.indices is not None
    assert isinstance(points.model, AffineRegression)
    found = float(divergence(points, coreset.indices, coreset.weight.double()))
    even = float(divergence(points, coreset.indices, torch.full((5,), 8.0).double()))
    best = least(points, coreset.indices)
    assert found - best < 0.25 * (even - best)


def test_a_last_layer_too_large_for_draws_is_refused() -> None:
    problem = build(Setup(model="mlp", width=400), few_digits(), device="cpu")
    for method in (SparseVI(), QuasiNewton()):
        with pytest.raises(ConfigError) as caught:
            method.select(problem, Rng(0))
        assert caught.value.code == "no-log-likelihood-draws"


def test_too_few_draws_are_warned_of_with_their_error() -> None:
    with pytest.warns(UserWarning, match=r"by 2 draws, which leave .* by [\d.]+ nats; more num_p"):
        QuasiNewton(points=8, num_projections=2).select(regression(), Rng(0))
