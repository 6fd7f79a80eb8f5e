"""Every sampler against posteriors that are known exactly, moment by moment.

Chains are many and independent, so the spread of their own means is the standard error: no
effective sample size of ours has a part in a verdict. Samplers without a Metropolis test are held
to their exact discretised law where there is one: their bias is part of the formula.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from scipy import linalg, special
from torch import Tensor

from pseudocore.core.rng import Rng
from pseudocore.core.types import LogDensity
from pseudocore.data import logistic
from pseudocore.data.toys import (
    GaussianLocation,
    LinearRegression,
    logistic_log_density,
    logistic_posterior_moments,
)
from pseudocore.inference.hmc import HMC, leapfrog
from pseudocore.inference.langevin import SGLD
from pseudocore.inference.sghmc import SGHMC, AlteredSGHMC

NUM_CHAINS = 128


class Law(NamedTuple):
    """A log-density and the moments of what it describes: mean, variance and third central moment
    of each coordinate.
    """

    log_density: LogDensity
    mean: Tensor
    variance: Tensor
    third: Tensor
    precision: Tensor | None = None  # of a Gaussian

    @property
    def dim(self) -> int:
        return len(self.mean)


def gaussian(log_density: LogDensity, mean: Tensor, covariance: Tensor) -> Law:
    return Law(
        log_density,
        mean,
        covariance.diagonal(),
        torch.zeros_like(mean),
        torch.linalg.inv(covariance),
    )


def location() -> Law:
    model = GaussianLocation(dim=10, num_points=100)
    x, weight = model.points(), torch.ones(100, dtype=torch.float64)
    return gaussian(
        lambda theta, rng: model.log_density(theta, x, weight), *model.posterior(x, weight)
    )


def regression() -> Law:
    model = LinearRegression(dim=5, num_points=40, noise=0.7, prior=1.3)
    (x, y), weight = model.points(), torch.linspace(0.2, 2, 40, dtype=torch.float64)
    return gaussian(
        lambda theta, rng: model.log_density(theta, x, y, weight), *model.posterior(x, y, weight)
    )


def log_gamma(shape: float = 2.0) -> Law:
    """θ = log g with g ~ Gamma(shape): skewed left, with polygamma functions as cumulants."""
    moments = (
        torch.tensor([float(special.polygamma(order, shape))], dtype=torch.float64)
        for order in range(3)
    )
    return Law(lambda theta, rng: (shape * theta - theta.exp()).sum(-1), *moments)


def standard_normal() -> Law:
    one = torch.ones(1, dtype=torch.float64)
    return gaussian(lambda theta, rng: -0.5 * theta.square().sum(-1), 0 * one, one.diag())


LAWS: dict[str, Callable[[], Law]] = {
    "location": location,
    "regression": regression,
    "log-gamma": log_gamma,
}
every_law = pytest.mark.parametrize(
    "law", [pytest.param(make(), id=name) for name, make in LAWS.items()]
)
gaussian_law = pytest.mark.parametrize(
    "law", [pytest.param(location(), id="location"), pytest.param(regression(), id="regression")]
)


def draws(sampler: Any, law: Law, *, num_chains: int = NUM_CHAINS, seed: int = 0) -> Tensor:
    """Run a sampler as the loop would, from around the mean; (draws, chains, dim)."""
    rng = Rng(seed)
    theta = law.mean + 2 * law.variance.sqrt() * rng("theta").normal(
        num_chains, law.dim, dtype=torch.float64
    )
    state, kept = sampler.init(law.log_density, theta, rng("init")), []
    for number in range(sampler.num_burn + sampler.num_draws):
        state, _ = sampler.step(law.log_density, state, rng("step", number))
        if number >= sampler.num_burn:
            kept.append(state.theta)
    return torch.stack(kept)


def z_scores(values: Tensor, law: Law) -> Tensor:
    """Of mean, variance and third central moment of every coordinate, (3, dim)."""
    centred = values - law.mean
    powers = torch.stack([centred, centred.square(), centred**3])  # (3, draws, chains, dim)
    exact = torch.stack([torch.zeros_like(law.mean), law.variance, law.third])
    by_chain = powers.mean(1)  # (3, chains, dim)
    return (by_chain.mean(1) - exact) / (by_chain.std(1) / math.sqrt(values.shape[1]))


# --- HMC: exact


@every_law
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum_scale": 0.3},
        {"jitter": 0.5},
        {"num_leapfrog": 1},
        {"target_accept": 0.0, "jitter": 0.0},
    ],
    ids=["default", "light", "jittery", "one leap", "fixed"],
)
def test_hmc_draws_from_the_posterior(law: Law, options: dict[str, Any]) -> None:
    settings = {
        "temperature": 1.0,
        "num_draws": 150,
        "num_burn": 100,
        "num_leapfrog": 7,
        "step_size": 0.3 * float(law.variance.min()) ** 0.5,
        **options,
    }
    assert z_scores(draws(HMC(**settings), law), law).abs().max() < 4


def test_the_published_kinetic_sign_fails_the_same_test() -> None:
    law, settings = (
        standard_normal(),
        {
            "temperature": 1.0,
            "num_draws": 300,
            "num_burn": 50,
            "num_leapfrog": 7,
            "step_size": 0.2,
            "target_accept": 0.0,
        },
    )
    right, wrong = (draws(HMC(**settings, flip_kinetic=flip), law) for flip in (False, True))  # type: ignore[arg-type]
    assert z_scores(right, law).abs().max() < 4
    assert z_scores(wrong, law)[1].abs() > 20
    assert float(wrong.var()) == pytest.approx(0.34, abs=0.03)


def test_the_published_momentum_fails_the_same_test() -> None:
    """Momentum of scale σ_r under unit mass has too little energy for the posterior's width."""
    law, settings = (
        standard_normal(),
        {
            "temperature": 1.0,
            "num_draws": 300,
            "num_burn": 50,
            "num_leapfrog": 7,
            "step_size": 0.2,
            "momentum_scale": 0.3,
        },
    )
    right, wrong = (
        draws(HMC(**settings, mismatched_momentum=mismatch), law) for mismatch in (False, True)
    )  # type: ignore[arg-type]
    assert z_scores(right, law).abs().max() < 4
    assert float(wrong.var()) < 0.5


def test_hmc_on_logistic_regression_against_quadrature() -> None:
    x, y = logistic(num=30).train
    x, weight = x.double(), torch.ones(30, dtype=torch.float64)
    mean, covariance = logistic_posterior_moments(x, y, weight)
    law = Law(
        lambda theta, rng: logistic_log_density(theta, x, y, weight),
        mean,
        covariance.diagonal(),
        torch.zeros(2),
    )
    values = draws(
        HMC(temperature=1.0, num_draws=150, num_burn=80, num_leapfrog=7, step_size=0.1), law
    )
    assert z_scores(values, law)[:2].abs().max() < 4
    products = ((values[..., 0] - mean[0]) * (values[..., 1] - mean[1])).mean(0)
    assert abs(products.mean() - covariance[0, 1]) < 4 * products.std() / math.sqrt(NUM_CHAINS)


def test_leapfrog_is_reversible_and_conserves_energy_to_second_order() -> None:
    x, y = logistic(num=30).train
    x, weight = x.double(), torch.ones(30, dtype=torch.float64)

    def climb(theta: Tensor) -> tuple[Tensor, Tensor]:
        theta = theta.detach().requires_grad_()
        value = logistic_log_density(theta, x, y, weight)
        return torch.autograd.grad(value.sum(), theta)[0], value.detach()

    theta, momentum = (
        Rng(1).normal(64, 2, dtype=torch.float64),
        Rng(2).normal(64, 2, dtype=torch.float64),
    )
    gradient, before = climb(theta)
    errors = []
    for num_steps in (8, 16, 32):
        size = torch.full((64,), 1.6 / num_steps, dtype=torch.float64)
        there, speed, slope, after = leapfrog(
            climb, theta, momentum, gradient, size, num_steps, 1.7
        )
        errors.append(((speed**2 - momentum**2).sum(-1) / 3.4 - (after - before)).abs().mean())
        back, returned, *_ = leapfrog(climb, there, -speed, slope, size, num_steps, 1.7)
        assert (back - theta).abs().max() < 1e-10
        assert (returned + momentum).abs().max() < 1e-10
        assert (there - theta).abs().max() > 0.1
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.15)
    assert errors[1] / errors[2] == pytest.approx(4, rel=0.05)


@pytest.mark.parametrize("target", [0.6, 0.8, 0.9])
@pytest.mark.parametrize("guess", [1e-4, 10.0])
def test_burn_in_finds_the_step_size_of_the_target_acceptance(target: float, guess: float) -> None:
    scale, rng = torch.linspace(0.3, 1, 100, dtype=torch.float64), Rng(3)
    log_density: LogDensity = lambda theta, rng: -0.5 * (theta / scale).square().sum(-1)  # noqa: E731
    settings: Any = {"num_burn": 150, "num_leapfrog": 10, "mass": "fan-in"}
    hmc = HMC(step_size=guess, target_accept=target, **settings)
    state = hmc.init(log_density, 0.1 * rng("theta").normal(32, 100, dtype=torch.float64), rng)
    accept, sizes = [], []
    for number in range(210):
        state, info = hmc.step(log_density, state, rng("step", number))
        accept.append(info.accept)
        sizes.append(state.adaptation.log_step)
    assert float(torch.stack(accept[150:]).mean()) == pytest.approx(target, abs=0.1)
    assert torch.equal(sizes[149], sizes[-1])  # and stays there
    assert not torch.equal(sizes[148], sizes[149])


def test_a_proposal_without_a_density_is_refused_and_leaves_no_trace() -> None:
    """NaN at the end of a trajectory: the chain stays, and its step size only shortens."""

    def log_density(theta: Tensor, _: Rng) -> Tensor:
        inside = theta.abs().amax(-1) < 1
        return torch.where(inside, -0.5 * theta.square().sum(-1), torch.nan)

    sampler = HMC(num_burn=20, num_leapfrog=3, step_size=5.0)
    state = sampler.init(log_density, torch.full((4, 2), 0.1, dtype=torch.float64), Rng(0))
    first, info = sampler.step(log_density, state, Rng(0)("step"))
    assert torch.equal(first.theta, state.theta)
    assert torch.equal(first.gradient, state.gradient)
    assert info.accept.tolist() == info.accepted.tolist() == [0.0] * 4
    assert info.energy_error.tolist() == [math.inf] * 4
    for number in range(40):
        first, info = sampler.step(log_density, first, Rng(0)("step", number))
    assert first.theta.abs().max() < 1
    assert (first.theta != 0.1).all(), "shorter steps are taken"
    assert info.step_size.max() < 5


def test_chains_do_not_interact() -> None:
    law, hmc = location(), HMC(num_leapfrog=3, step_size=0.05)
    starts = [law.mean + shift * Rng(4).normal(3, 10, dtype=torch.float64) for shift in (0.1, 0.3)]
    starts[1][1:] = starts[0][1:]
    after = []
    for theta in starts:
        state = hmc.init(law.log_density, theta, Rng(5))
        for number in range(5):
            state, _ = hmc.step(law.log_density, state, Rng(6)("step", number))
        after.append(state.theta)
    assert torch.equal(after[0][1:], after[1][1:])
    assert not torch.equal(after[0][0], after[1][0])


# --- Langevin: its own discretised law


@gaussian_law
@pytest.mark.parametrize("temperature", [1.0, 0.2])
def test_sgld_draws_from_its_discretised_law(law: Law, temperature: float) -> None:
    """On precision H it is AR(1) with stationary covariance T H⁻¹(I − εH/4)⁻¹: a step of a tenth of
    the width is well off the posterior.
    """
    assert law.precision is not None
    size = 0.5 / float(torch.linalg.matrix_norm(law.precision, 2))
    identity = torch.eye(law.dim, dtype=torch.float64)
    covariance = temperature * torch.linalg.inv(
        law.precision @ (identity - size / 4 * law.precision)
    )
    exact = law._replace(variance=covariance.diagonal())
    values = draws(
        SGLD(num_draws=150, num_burn=50, num_inner=5, step_size=size, temperature=temperature),
        exact,
    )
    assert z_scores(values, exact).abs().max() < 4
    assert z_scores(values, law._replace(variance=temperature * law.variance))[1].abs().max() > 4


def test_sgld_on_a_skewed_density() -> None:
    """The stationary law in one dimension by power iteration of the transition density."""
    size, law = 0.2, log_gamma()
    grid = torch.linspace(-9, 5, 1200, dtype=torch.float64)
    centre = grid + size / 2 * (2 - grid.exp())
    kernel = torch.exp(-(grid - centre[:, None]).square() / (2 * size)).T
    kernel = kernel / kernel.sum(0)
    p = torch.linalg.matrix_power(kernel, 1024)[:, 800]
    mean = p @ grid
    exact = Law(
        law.log_density, mean[None], (p @ (grid - mean) ** 2)[None], (p @ (grid - mean) ** 3)[None]
    )
    assert (
        z_scores(
            draws(
                SGLD(temperature=1.0, num_draws=200, num_burn=50, num_inner=5, step_size=size),
                exact,
            ),
            exact,
        )
        .abs()
        .max()
        < 4
    )


# --- SGHMC: likewise


def stationary_variance(
    precision: float, size: float, friction: float, temperature: float
) -> float:
    """Var θ in (θ, r) ← (θ + εr, (1 − α)r − εκ(θ + εr) + noise) by the Lyapunov equation."""
    move = np.array([[1, size], [-size * precision, 1 - friction - size**2 * precision]])
    return float(
        linalg.solve_discrete_lyapunov(move, np.diag([0, 2 * friction * temperature]))[0, 0]
    )


@gaussian_law
@pytest.mark.parametrize("sampler", [SGHMC, AlteredSGHMC])
@pytest.mark.parametrize("temperature", [1.0, 0.2])
def test_sghmc_draws_from_its_discretised_law(
    law: Law, sampler: type[SGHMC], temperature: float
) -> None:
    assert law.precision is not None
    eigenvalues, vectors = torch.linalg.eigh(law.precision)
    size, friction = 0.8 / float(eigenvalues[-1]) ** 0.5, 0.3
    modes = torch.tensor(
        [stationary_variance(float(k), size, friction, temperature) for k in eigenvalues],
        dtype=torch.float64,
    )
    exact = law._replace(variance=vectors.square() @ modes)
    way = sampler(
        num_draws=150,
        num_burn=30,
        num_inner=10,
        step_size=size,
        friction=friction,
        temperature=temperature,
    )
    values = draws(way, exact)
    assert z_scores(values, exact).abs().max() < 4
    assert z_scores(values, law._replace(variance=temperature * law.variance))[1].abs().max() > 4


def test_sghmc_on_a_skewed_density() -> None:
    """No closed form here: steps and friction so small that the bias, of order ε²/4 and α/2 in the
    variance, is below a standard error.
    """
    law = log_gamma()
    values = draws(
        SGHMC(
            temperature=1.0, num_draws=60, num_burn=20, num_inner=60, step_size=0.05, friction=0.01
        ),
        law,
    )
    assert z_scores(values, law).abs().max() < 4
    by_chain = (values - law.mean).square().mean(0)
    assert float(by_chain.std() / math.sqrt(NUM_CHAINS) / law.variance) > 0.005


# --- temperature


@pytest.mark.parametrize("temperature", [0.05, 0.5, 4.0])
def test_hmc_at_a_temperature(temperature: float) -> None:
    """π^{1/T} of a Gaussian is a Gaussian of T times the variance; of the log-gamma, another
    log-gamma, shifted.
    """
    law = standard_normal()
    settings = {
        "num_draws": 150,
        "num_burn": 100,
        "num_leapfrog": 7,
        "step_size": 0.1,
        "temperature": temperature,
    }
    warm = law._replace(variance=temperature * law.variance)
    assert z_scores(draws(HMC(**settings), warm), warm).abs().max() < 4  # type: ignore[arg-type]
    shape = 2 / temperature
    skewed = log_gamma(shape)._replace(log_density=log_gamma(2.0).log_density)
    skewed = skewed._replace(mean=skewed.mean + math.log(temperature))
    assert z_scores(draws(HMC(**settings), skewed), skewed).abs().max() < 4  # type: ignore[arg-type]
