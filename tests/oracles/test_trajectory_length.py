"""Adapted trajectory lengths and scales, against Gaussians whose best ones are known."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from pseudocore.core.rng import Rng
from pseudocore.inference import diagnostics
from pseudocore.inference.hmc import HMC
from pseudocore.inference.metric import SHRINKAGE
from pseudocore.inference.trajectory_length import adapt, begin, num_steps

DOUBLE = torch.float64


def run(sampler: HMC, sd: Tensor, num_chains: int = 4) -> tuple[Any, Tensor, int]:
    """On independent Gaussians, from their own law: the last state, the draws (draws, chains, dim), and
    the gradients taken after burn-in.
    """
    rng, gradients = Rng(0), 0

    def log_density(theta: Tensor, _: Rng) -> Tensor:
        nonlocal gradients
        gradients += 1
        return -0.5 * (theta / sd).square().sum(-1)

    theta = sd * rng("theta").normal(num_chains, len(sd), dtype=DOUBLE)
    state, kept = sampler.init(log_density, theta, rng("init")), list[Tensor]()
    for number in range(sampler.num_burn + sampler.num_draws):
        if number == sampler.num_burn:
            gradients = 0
        state, _ = sampler.step(log_density, state, rng("step", number))
        if number >= sampler.num_burn:
            kept.append(state.theta)
    return state, torch.stack(kept), gradients


@pytest.mark.parametrize("sd", [0.2, 3.0])
def test_it_finds_the_best_length(sd: float) -> None:
    """On N(0, sd² I) the criterion after a length t is sin²(t / sd) up to a factor."""
    sampler = HMC(num_burn=300, num_draws=1, step_size=0.02)
    state, _, _ = run(sampler, torch.full((20,), sd, dtype=DOUBLE))
    size = state.adaptation.log_step.exp().mean()
    assert float(state.length.best * size) / sd == pytest.approx(math.pi / 2, rel=0.25)


def test_the_best_number_of_steps_has_changed_most() -> None:
    length, steps = begin(torch.zeros((), dtype=DOUBLE)), torch.arange(1, 31, dtype=DOUBLE)
    changes = torch.where(steps <= 7, steps.square(), 49 - 0.1 * steps)
    both = torch.stack([changes, -changes, torch.where(steps > 5, torch.nan, 1e9)], 1)
    accept = torch.tensor([1.0, 0.5, 0.0], dtype=DOUBLE)  # the last one left for infinity
    for _ in range(200):
        length = adapt(length, both, accept)
    assert float(length.best) == pytest.approx(7)
    assert length.trips[:30].unique().numel() == 1
    assert length.trips[30:].unique().tolist() == [0]
    once = adapt(length, torch.full((100, 3), 1e9, dtype=DOUBLE), accept)
    assert float(once.best) < 30, "one trajectory that went further is no evidence"


def test_trajectories_go_further_in_burn_in_and_vary_after_it() -> None:
    length = begin(torch.zeros((), dtype=DOUBLE))
    half, one = (torch.tensor(value, dtype=DOUBLE) for value in (0.5, 1.0))
    assert num_steps(length, half, burning=True) == 15
    assert num_steps(length, half, burning=False) == 10
    assert num_steps(length, one, burning=False) == 14
    assert num_steps(length, 0 * one, burning=False) == 6
    for best, num in ((0.1, 1), (99.0, 100)):
        assert num_steps(length._replace(best=best * one), half, burning=True) == num


def test_scales_are_standard_deviations_of_mean_one() -> None:
    sd = torch.logspace(-2, 0, 16, dtype=DOUBLE)
    state, _, _ = run(HMC(num_burn=400, num_draws=1), sd)
    expected = (1 - SHRINKAGE) * (sd.log() - sd.log().mean())
    assert float(state.metric.scale.log().mean()) == pytest.approx(0)
    assert float((state.metric.scale.log() - expected).abs().max()) < 0.3
    kept, _, _ = run(HMC(num_burn=400, num_draws=1, mass="fan-in"), sd)
    assert kept.metric.scale.unique().tolist() == [1.0]


def test_worth_of_a_gradient() -> None:
    """Effective draws per gradient, at least three times those of the former fixed ten steps, where
    scales differ by a hundred, as those of small networks do.
    """
    sd = torch.logspace(-2, 0, 16, dtype=DOUBLE)
    worth = {}
    for name, sampler in {
        "adapted": HMC(num_burn=300, num_draws=200),
        "fixed": HMC(num_burn=100, num_draws=600, num_leapfrog=10, mass="fan-in"),
    }.items():
        _, draws, gradients = run(sampler, sd)
        worth[name] = float(diagnostics.ess_bulk(draws.square()).min()) / gradients
    assert worth["adapted"] > 3 * worth["fixed"]
