"""Mean-field VI and SWAG where the answer is known: linear regression, whose posterior is Gaussian
and on which SGD of constant step has a stationary law.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import pseudocore as pc
from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import GaussianPrior, Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.inference.mean_field_vi import MeanFieldVI
from pseudocore.inference.swag import SWAG, Collection


def made(correlation: float, *, uneven: bool = False) -> tuple[Problem, Coreset]:
    """Weighted points of two features and their problem, in float64; with `uneven` errors that grow
    along a diagonal.
    """
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, generator=rng, dtype=torch.float64)
    x[:, 1] = correlation * x[:, 0] + (1 - correlation**2) ** 0.5 * x[:, 1]
    error = 0.5 * torch.randn(60, generator=rng, dtype=torch.float64)
    y = 1 + 2 * x[:, 0] - x[:, 1] + error * ((x[:, 0] + x[:, 1]).square() if uneven else 1)
    run = pc.reduce("full", pc.dataset(x, y, name="plane"), model="linear")
    weight = torch.linspace(0.2, 3, len(run.coreset), dtype=torch.float64)
    return replace(run.problem, dtype=torch.float64), replace(run.coreset, weight=weight)


def rows(problem: Problem, coreset: Coreset) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs with a 1 appended, standardised targets (n,) and weights."""
    x, (y, weight) = problem.inputs(coreset.x), problem.targets_and_weight(coreset)
    return torch.cat([x, torch.ones(len(x), 1).double()], 1), y[:, 0], weight


@pytest.mark.parametrize(
    ("correlation", "temperature", "total"), [(0.0, 1.0, 4.0), (0.9, 0.1, 100.0)]
)
def test_mean_field_is_the_nearest_gaussian_of_independent_parts(
    correlation: float, temperature: float, total: float
) -> None:
    problem, coreset = made(correlation)
    problem = replace(problem, prior=GaussianPrior(0.3))
    coreset = replace(coreset, weight=total * coreset.weight / coreset.weight.sum())
    x, y, weight = rows(problem, coreset)
    noise, prior = problem.gaussian.relative_noise, problem.prior_moments()[1]
    precision = x.mT @ (weight[:, None] * x) / noise**2 + prior.square().reciprocal().diag()
    mean = torch.linalg.solve(precision, x.mT @ (weight * y)) / noise**2
    way = MeanFieldVI(num_steps=1600, num_samples=8, temperature=temperature)
    q = way.gaussian(problem, coreset, Rng(0))
    sd = (temperature / precision.diagonal()).sqrt()
    assert (q.sd / sd - 1).abs().max() < 0.05
    assert ((q.mean - mean) / sd).abs().max() < 0.25
    if correlation:  # far narrower than the posterior's own marginals
        assert (q.sd[:2] < 0.6 * torch.linalg.inv(precision).diagonal()[:2].sqrt()).all()


def stationary(problem: Problem, coreset: Coreset, step_size: float, batch: int) -> Tensor:
    """Mean (p,) and covariance (p, p), stacked, of SGD on batches drawn with replacement: exactly,
    the noise of curvature included.
    """
    x, y, weight = rows(problem, coreset)
    share = weight / weight.mean()
    prior = problem.gaussian.relative_noise**2 / problem.prior_moments()[1].square() / weight.sum()
    each = share[:, None, None] * x[:, :, None] * x[:, None, :]
    curvature = each.mean(0) + prior.diag()
    mean = torch.linalg.solve(curvature, (share * y) @ x / len(x))
    errors = (share * (x @ mean - y))[:, None] * x
    force = (errors.mT @ errors / len(x) - torch.outer(errors.mean(0), errors.mean(0))) / batch
    # vec(Σ) = E[(1 − εM) ⊗ (1 − εM)] vec(Σ) + ε² vec(Cov of the force)
    one, kron = torch.eye(3).double(), torch.kron
    fluctuation = torch.stack([kron(a, a) for a in each]).mean(0) - kron(each.mean(0), each.mean(0))
    move = kron(one - step_size * curvature, one - step_size * curvature)
    move = move + step_size**2 / batch * fluctuation
    covariance = torch.linalg.solve(torch.eye(9).double() - move, step_size**2 * force.flatten())
    return torch.cat([mean[None], covariance.view(3, 3)])


def test_swag_has_the_stationary_law_of_sgd() -> None:
    problem, coreset = made(0.0, uneven=True)
    way = SWAG(
        num_steps=4000, collect=0.98, num_collected=4000, rank=4000, batch_size=4, momentum=0.0,
        step_size=0.2, collect_step_size=0.2,
    )  # fmt: skip
    mean, *covariance = stationary(problem, coreset, 0.2, 4)
    exact = torch.stack(covariance)
    found = way.collected(problem, coreset, Rng(0))
    sd = exact.diagonal().sqrt()
    assert ((found.mean - mean) / sd).abs().max() < 0.15
    assert (found.sd / sd - 1).abs().max() < 0.12
    together = torch.stack(found.deviations)
    correlations = (together.mT @ together / (len(together) - 1)) / sd / sd[:, None]
    assert (correlations - exact / sd / sd[:, None]).abs().max() < 0.15
    assert abs(float(exact[0, 1] / sd[0] / sd[1])) > 0.3  # far from what its parts alone would be


def test_draws_are_half_diagonal_and_half_low_rank() -> None:
    rng, passed = Rng(0), Collection(rank=4)
    thetas = rng("thetas").normal(7, 3, dtype=torch.float64) * torch.tensor([1.0, 3.0, 0.2]) + 5
    for theta in thetas:
        passed.add(theta)
    assert torch.allclose(passed.mean, thetas.mean(0))
    assert torch.allclose(passed.sd, thetas.std(0, correction=0))
    running = thetas.cumsum(0) / torch.arange(1, 8).double()[:, None]
    last = (thetas - running)[-4:]
    exact = 0.5 * thetas.var(0, correction=0).diag() + last.mT @ last / (2 * 3)
    drawn = passed.draw(100_000, rng("draws"))
    scale = exact.diagonal().sqrt()
    assert ((drawn.mean(0) - passed.mean) / scale).abs().max() < 0.02
    assert ((drawn.mT.cov() - exact) / scale / scale[:, None]).abs().max() < 0.03


def test_swag_says_when_its_batches_have_no_noise() -> None:
    problem, coreset = made(0.0)
    noisy, whole = (
        SWAG(num_steps=20, batch_size=size).fit(problem, coreset, Rng(0)) for size in (8, 48)
    )
    assert noisy.warnings == []
    assert "hold all 48 points" in whole.warnings[0]
    steady = SWAG(num_steps=20, collect=1.0, step_size=0.1, collect_step_size=0.05)
    assert steady.share(torch.tensor(7.0)) == 0.5
    with pytest.raises(ConfigError, match="collects 1 network of 20 steps"):
        SWAG(num_steps=20, collect=0.05).fit(problem, coreset, Rng(0))
