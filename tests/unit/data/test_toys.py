"""Exact posteriors against joint-Gaussian conditioning, autograd and independent quadrature."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import grad, jacrev

from pseudocore.core.errors import ConfigError
from pseudocore.data import logistic, moons
from pseudocore.data.toys import (
    GaussianLocation,
    LinearRegression,
    logistic_log_density,
    logistic_posterior_moments,
)

WEIGHT = torch.tensor([0.5, 3.0, 1.0, 0.1, 2.0, 7.0], dtype=torch.float64)


def conditioned(
    design: np.ndarray, targets: np.ndarray, variances: np.ndarray, prior: float
) -> tuple[np.ndarray, np.ndarray]:
    """N(0, prior²I) on theta given design @ theta + noise = targets, by conditioning the joint
    covariance of (theta, targets).
    """
    theta = prior**2 * np.eye(design.shape[1])
    cross = theta @ design.T
    gain = cross @ np.linalg.inv(design @ theta @ design.T + np.diag(variances))
    return gain @ targets, theta - gain @ cross.T


def test_gaussian_location_posterior_is_the_conditioned_joint() -> None:
    toy = GaussianLocation(dim=3, num_points=6, noise=0.7, prior=1.5)
    x = toy.points(seed=1)
    design = np.tile(np.eye(3), (6, 1))
    expected = conditioned(design, x.numpy().ravel(), np.repeat(0.7**2 / WEIGHT.numpy(), 3), 1.5)
    for ours, reference in zip(toy.posterior(x, WEIGHT), expected, strict=True):
        np.testing.assert_allclose(ours.numpy(), reference, rtol=1e-10, atol=1e-12)


def test_linear_regression_posterior_is_the_conditioned_joint() -> None:
    toy = LinearRegression(dim=3, num_points=6, noise=0.3, prior=2.0)
    x, y = toy.points(seed=1)
    expected = conditioned(x.numpy(), y.numpy(), 0.3**2 / WEIGHT.numpy(), 2.0)
    for ours, reference in zip(toy.posterior(x, y, WEIGHT), expected, strict=True):
        np.testing.assert_allclose(ours.numpy(), reference, rtol=1e-9, atol=1e-11)


def test_log_densities_have_mode_and_curvature_of_the_posteriors() -> None:
    location = GaussianLocation(dim=3, num_points=6, noise=0.7, prior=1.5)
    regression = LinearRegression(dim=3, num_points=6, noise=0.3, prior=2.0)
    x = location.points()
    inputs, targets = regression.points()

    def check(posterior: tuple[Tensor, Tensor], density) -> None:
        mean, covariance = posterior
        assert grad(density)(mean).abs().max() < 1e-9
        torch.testing.assert_close(jacrev(grad(density))(mean), -torch.linalg.inv(covariance))

    check(location.posterior(x, WEIGHT), lambda theta: location.log_density(theta, x, WEIGHT))
    check(
        regression.posterior(inputs, targets, WEIGHT),
        lambda theta: regression.log_density(theta, inputs, targets, WEIGHT),
    )


def test_log_densities_take_many_thetas_and_count_the_prior_once() -> None:
    toy = GaussianLocation(dim=2, num_points=4, noise=0.5, prior=3.0)
    x, weight = toy.points(), torch.ones(4, dtype=torch.float64)
    theta = torch.randn(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    normal = torch.distributions.Normal
    expected = normal(theta[:, None], 0.5).log_prob(x).sum((1, 2)) + normal(0, 3.0).log_prob(
        theta
    ).sum(1)
    constant = toy.log_density(theta, x, weight) - expected
    torch.testing.assert_close(constant, constant[:1].expand(5))
    torch.testing.assert_close(
        toy.log_density(theta[2], x, weight), toy.log_density(theta, x, weight)[2]
    )


def test_points_depend_on_the_seed_alone_and_follow_the_model() -> None:
    toy = GaussianLocation(dim=2, num_points=20_000, noise=0.5)
    x = toy.points(seed=3)
    assert torch.equal(x, toy.points(seed=3))
    assert not torch.equal(x, toy.points(seed=4))
    assert (x.std(0) - 0.5).abs().max() < 0.02
    with pytest.raises(ConfigError, match=r"noise = 0.0 must be above 0"):
        GaussianLocation(noise=0.0)


def test_logistic_moments_match_a_plain_grid() -> None:
    data = logistic(num=30, seed=2)
    weight = torch.linspace(0.2, 2, 30, dtype=torch.float64)
    mean, covariance = logistic_posterior_moments(data.train.x, data.train.y, weight, prior=1.3)
    axis = np.linspace(-7, 9, 641)
    theta = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    margin = (2 * data.train.y.numpy() - 1) * (theta @ data.train.x.double().numpy().T)
    log_density = -np.logaddexp(0, -margin) @ weight.numpy() - (theta**2).sum(1) / (2 * 1.3**2)
    density = np.exp(log_density - log_density.max())
    density /= density.sum()
    np.testing.assert_allclose(mean, density @ theta, atol=1e-7)
    np.testing.assert_allclose(covariance, np.cov(theta.T, aweights=density, bias=True), atol=1e-7)


def test_logistic_posterior_without_data_is_the_prior() -> None:
    x, y = torch.randn(4, 2, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 0, 1])
    mean, covariance = logistic_posterior_moments(x, y, torch.zeros(4), prior=2.0)
    torch.testing.assert_close(mean, torch.zeros(2, dtype=torch.float64), atol=1e-9, rtol=0)
    torch.testing.assert_close(covariance, 4 * torch.eye(2, dtype=torch.float64))
    with pytest.raises(ConfigError, match="two-dimensional"):
        logistic_posterior_moments(torch.zeros(4, 3), y, torch.ones(4))


def test_logistic_log_density_is_the_weighted_bernoulli_likelihood() -> None:
    data = logistic(num=20)
    theta, weight = torch.tensor([0.3, -1.2]), torch.linspace(0, 1, 20)
    likelihood = torch.distributions.Bernoulli(logits=data.train.x @ theta).log_prob(
        data.train.y.float()
    )
    expected = (weight * likelihood).sum() - theta.square().sum() / 8
    torch.testing.assert_close(
        logistic_log_density(theta, data.train.x, data.train.y, weight, prior=2.0), expected
    )


def test_moons_lie_on_their_half_circles() -> None:
    data = moons(num=50, noise=0.0, seed=1)
    x, y = data.train
    centre = torch.tensor([[0.0, 0.0], [1.0, 0.5]])[y]
    torch.testing.assert_close((x - centre).norm(dim=1), torch.ones(50))
    assert (((x - centre)[:, 1] >= -1e-6) == (y == 0)).all()
    assert data.class_counts.tolist() == [25, 25]
    assert moons(seed=1).fingerprint == moons(seed=1).fingerprint != moons(seed=2).fingerprint
    with pytest.raises(ConfigError, match="at least 2"):
        moons(num=1)
