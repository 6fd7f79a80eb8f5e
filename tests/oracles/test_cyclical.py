"""Cyclical SGHMC against its own discretised law, and on two modes that no small step connects."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from pseudocore.core.rng import Rng
from pseudocore.core.types import LogDensity
from pseudocore.data.toys import LinearRegression
from pseudocore.inference.cyclical import CyclicalSGHMC
from pseudocore.inference.sghmc import SGHMC

NUM_CHAINS = 128


class Law(NamedTuple):
    log_density: LogDensity
    mean: Tensor
    covariance: Tensor


def regression() -> Law:
    model = LinearRegression(dim=5, num_points=40, noise=0.7, prior=1.3)
    (x, y), weight = model.points(), torch.linspace(0.2, 2, 40, dtype=torch.float64)
    return Law(
        lambda theta, rng: model.log_density(theta, x, y, weight), *model.posterior(x, y, weight)
    )


def draws(sampler: CyclicalSGHMC | SGHMC, log_density: LogDensity, theta: Tensor) -> Tensor:
    """The kept draws, (draws, chains, dim)."""
    rng, kept = Rng(0), []
    state = sampler.init(log_density, theta, rng("init"))
    for number in range(sampler.num_rounds):
        state, _ = sampler.step(log_density, state, rng("step", number))
        if sampler.num_kept(number + 1) > sampler.num_kept(number):
            kept.append(state.theta)
    assert len(kept) == sampler.num_draws
    return torch.stack(kept)


def exact_covariances(way: CyclicalSGHMC, law: Law, start: Tensor) -> Tensor:
    """Of every kept draw, (draws, dim, dim): Gaussians stay Gaussian under linear steps."""
    dim, precision = len(law.mean), torch.linalg.inv(law.covariance)
    one = torch.eye(dim, dtype=torch.float64)
    joint = torch.block_diag(start, way.temperature * one)
    kept, per_cycle = [], way.num_burn + way.num_draws // way.num_cycles
    for number in range(way.num_cycles * per_cycle):
        place = number % per_cycle
        for inner in range(way.num_inner):
            share = (place + inner / way.num_inner) / per_cycle
            # Zhang et al.'s step size is the square of ours.
            squared = way.size**2 / 2 * (1 + torch.cos(torch.pi * torch.tensor(share).double()))
            size = squared.sqrt()
            move = torch.cat(
                [
                    torch.cat([one, size * one], 1),
                    torch.cat(
                        [-size * precision, (1 - way.friction) * one - squared * precision], 1
                    ),
                ]
            )
            noise = 2 * way.friction * way.temperature * (place >= way.num_burn)
            joint = move @ joint @ move.mT + torch.block_diag(0 * one, noise * one)
        if place >= way.num_burn:
            kept.append(joint[:dim, :dim])
    return torch.stack(kept)


@pytest.mark.parametrize("temperature", [1.0, 0.2])
def test_draws_follow_the_law_of_falling_steps(temperature: float) -> None:
    law = regression()
    largest = float(torch.linalg.eigvalsh(torch.linalg.inv(law.covariance))[-1])
    way = CyclicalSGHMC(
        num_draws=40, num_burn=4, num_cycles=4, num_inner=5, step_size=1.2 / largest**0.5,
        friction=0.3, temperature=temperature,
    )  # fmt: skip
    start = 4 * law.covariance.diagonal().diag()
    noise = Rng(1).normal(NUM_CHAINS, len(law.mean), dtype=torch.float64)
    values = draws(way, law.log_density, law.mean + noise @ start.sqrt())
    exact = exact_covariances(way, law, start).diagonal(dim1=1, dim2=2)[:, None]  # (draws, 1, dim)
    centred = values - law.mean
    for found in (centred, centred.square() - exact):
        by_chain = found.mean(0)
        z = by_chain.mean(0) / (by_chain.std(0) / NUM_CHAINS**0.5)
        assert z.abs().max() < 4
    # Within the cycle too: narrow at its start, where no noise was, and then wider.
    share = (centred.square() / exact).mean(1).view(4, 10, -1).mean((0, 2))
    assert (share - 1).abs().max() < 0.15


def two_modes(theta: Tensor, rng: Rng) -> Tensor:
    """Standard normals around -5 and 5: a barrier of 12 nats."""
    return torch.logaddexp(*(-0.5 * (theta - mode).square().sum(-1) for mode in (-5.0, 5.0)))


def test_every_chain_sees_both_modes() -> None:
    theta = torch.full((NUM_CHAINS, 1), 5.0, dtype=torch.float64)
    settings = {"num_draws": 80, "num_inner": 5, "friction": 0.1}
    cyclical = CyclicalSGHMC(**settings, num_burn=30, num_cycles=8, step_size=2.0)  # type: ignore[arg-type]
    values = draws(cyclical, two_modes, theta)[..., 0]
    assert ((values > 0).any(0) & (values < 0).any(0)).double().mean() > 0.95
    assert abs(float((values > 0).double().mean()) - 0.5) < 0.1
    assert abs(float((values.abs() - 5).std()) - 1) < 0.2
    # A step that is stable everywhere never leaves the mode it starts in.
    assert (draws(SGHMC(**settings, num_burn=20, step_size=0.5), two_modes, theta) > 0).all()  # type: ignore[arg-type]


def test_draws_are_shared_among_cycles() -> None:
    way = CyclicalSGHMC(num_draws=10, num_burn=3, num_cycles=4)
    kept = [way.num_kept(done) for done in range(way.num_rounds + 1)]
    assert kept == [0, 0, 0, 0, 1, 2, 3, 3, 3, 3, 4, 5, 6, 6, 6, 6, 7, 8, 9, 9, 9, 9, 10]
    few = CyclicalSGHMC(num_draws=2, num_burn=1, num_cycles=5)
    assert few.num_rounds == 4
    assert few.num_kept(few.num_rounds) == 2
