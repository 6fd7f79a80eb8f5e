"""Log-densities against the problem's own log-posterior and priors written out by hand."""

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.inference import density


def thetas(problem: Problem, num: int = 3) -> Tensor:
    return 2 * problem.model.init(Rng(1), num=num, dtype=torch.float64)


@pytest.mark.parametrize("scale", [None, 0.3])
def test_the_exact_density_is_the_log_posterior(
    problem: Problem, coreset: Coreset, scale: float | None
) -> None:
    theta, prior = thetas(problem), density.log_prior(problem, "problem", scale, 12)
    ours = density.exact(problem, coreset, prior, Rng(0))(theta, Rng(0))
    own = problem.prior if scale is None else dataclasses.replace(problem.prior, scale=scale)
    own_problem = dataclasses.replace(problem, prior=own)
    theirs = torch.stack([own_problem.log_posterior(one, coreset) for one in theta])
    assert torch.allclose(ours - ours[0], theirs - theirs[0], rtol=1e-12)  # up to a constant


def test_one_chain_is_one_of_several(problem: Problem, coreset: Coreset) -> None:
    theta = thetas(problem)
    log_density = density.exact(
        problem, coreset, density.log_prior(problem, "fan-in", None, 12), Rng(0)
    )
    alone = torch.cat([log_density(theta[i : i + 1], Rng(0)) for i in range(3)])
    assert torch.allclose(log_density(theta, Rng(0)), alone, rtol=1e-12)


def test_priors_by_hand(problem: Problem) -> None:
    """The network has 2 inputs, 5 hidden units and 2 outputs: 15 parameters of fan-in 2, then 12 of
    fan-in 5.
    """
    theta = thetas(problem)
    squares = theta.square()
    fan_in = -(2 * squares[:, :15].sum(1) + 5 * squares[:, 15:].sum(1)) / (2 * 0.3**2)
    assert torch.allclose(density.log_prior(problem, "fan-in", 0.3, 12)(theta), fan_in, rtol=1e-6)
    assert torch.allclose(
        density.log_prior(problem, "isotropic", 0.3, 12)(theta), -squares.sum(1) / 0.18, rtol=1e-12
    )
    published = -12 * squares.sum(1).sqrt() * 1.5  # λ = 1.5 is a scale of 1/√3
    assert torch.allclose(
        density.log_prior(problem, "unsquared", 1 / math.sqrt(3), 12)(theta), published, rtol=1e-12
    )


def test_estimates_are_unbiased_and_chains_have_their_own(
    problem: Problem, coreset: Coreset
) -> None:
    theta = thetas(problem, 1).expand(4000, -1)
    prior = density.log_prior(problem, "fan-in", None, 12)
    whole = density.exact(problem, coreset, prior, Rng(0))(theta[:1], Rng(0))
    estimates = density.estimated(problem, coreset, prior, batch_size=3)(theta, Rng(7))
    assert abs(estimates.mean() - whole) < 4 * estimates.std() / math.sqrt(4000)
    assert len(estimates.unique()) > 100
    assert torch.equal(
        estimates, density.estimated(problem, coreset, prior, batch_size=3)(theta, Rng(7))
    )


def test_a_coreset_that_fits_in_a_batch_is_used_whole(problem: Problem, coreset: Coreset) -> None:
    theta, prior = thetas(problem), density.log_prior(problem, "fan-in", None, 12)
    whole = density.exact(problem, coreset, prior, Rng(0))(theta, Rng(0))
    assert torch.allclose(
        density.estimated(problem, coreset, prior, batch_size=12)(theta, Rng(3)), whole, rtol=1e-12
    )


def test_soft_labels(problem: Problem, coreset: Coreset) -> None:
    """A distribution over labels is the mixture of the log-likelihoods it mixes."""
    theta, prior = thetas(problem), density.log_prior(problem, "isotropic", None, 12)

    def value(y: Tensor) -> Tensor:
        return density.exact(problem, dataclasses.replace(coreset, y=y), prior, Rng(0))(
            theta, Rng(0)
        )

    zeros, ones = torch.zeros(12, dtype=torch.int64), torch.ones(12, dtype=torch.int64)
    soft = torch.tensor([0.3, 0.7], dtype=torch.float64).expand(12, 2)
    assert torch.allclose(value(soft), 0.3 * value(zeros) + 0.7 * value(ones), rtol=1e-10)


def test_augmentation_is_drawn_once_for_an_exact_density_and_each_time_for_an_estimate(
    problem: Problem, coreset: Coreset
) -> None:
    noisy = dataclasses.replace(
        problem, augment=lambda x, rng: x + 0.3 * rng.normal(*x.shape, dtype=x.dtype)
    )
    theta, prior = thetas(problem), density.log_prior(problem, "isotropic", None, 12)
    exact = density.exact(noisy, coreset, prior, Rng(5))
    assert torch.equal(exact(theta, Rng(0)), exact(theta, Rng(1)))
    x = problem.inputs(coreset.x)
    copies = [
        x + 0.3 * Rng(5)("copy", n).normal(*x.shape, dtype=x.dtype)
        for n in range(density.NUM_COPIES)
    ]
    by_hand = torch.stack(
        [noisy.log_likelihood(theta, one, coreset.y) @ coreset.weight for one in copies]
    ).mean(0) + prior(theta)
    assert torch.allclose(exact(theta, Rng(0)), by_hand, rtol=1e-12)
    for batch_size in (5, 100):
        estimate = density.estimated(noisy, coreset, prior, batch_size)
        assert not torch.equal(estimate(theta, Rng(0)), estimate(theta, Rng(1)))


@pytest.mark.parametrize("num", [1, 3])
def test_chains_may_be_batched_or_not(problem: Problem, coreset: Coreset, num: int) -> None:
    prior, theta = density.log_prior(problem, "fan-in", 2.0, 12), thetas(problem, num)
    found = []
    for per_chain in (False, True, None):
        log_density = density.exact(problem, coreset, prior, Rng(0), per_chain=per_chain)
        found.append(density.grad_log_density(log_density, theta, Rng(0)))
    for gradient, value in found[1:]:
        assert torch.allclose(gradient, found[0][0], rtol=1e-10)
        assert torch.allclose(value, found[0][1], rtol=1e-12)
