"""Chains on a CUDA device: climbed side by side inside one captured graph, they make the draws of
chains climbed in turn.
"""

import pytest
import torch

from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.tree import clone
from pseudocore.data import digits
from pseudocore.data import preprocessing as whiten
from pseudocore.inference import density
from pseudocore.inference.hmc import HMC
from pseudocore.models.convnet import ConvNet
from pseudocore.runtime.steps import StepRunner

pytestmark = pytest.mark.gpu


def test_captured_chains_side_by_side_are_those_in_turn() -> None:
    data, device = digits(), torch.device("cuda")
    model = ConvNet(width=16).build(data.shape, data.num_classes)
    problem = Problem(data, model, whiten.make("standard", data, device=device), device=device)
    coreset = problem.subset(torch.arange(40))
    log_density = density.exact(
        problem, coreset, density.log_prior(problem, "fan-in", 4.0, 40), Rng(0)
    )
    assert isinstance(log_density, density.PerChain)
    hmc = HMC(
        num_chains=5, num_leapfrog=4, step_size=1e-4, target_accept=0, temperature=1
    )  # adapted steps would amplify rounding
    theta = model.init(Rng(0), num=5, device=device)
    ends = []
    for how in ("auto", "off"):
        state, stepper = (
            hmc.init(log_density, theta, Rng(0)),
            StepRunner(lambda _, state, rng: hmc.step(log_density, state, rng), problem, how),
        )  # type: ignore[arg-type]
        for number in range(12):
            state, _ = stepper(state, Rng(1)("step", number))
        assert stepper.note == ""
        ends.append(clone(state))
    assert not torch.allclose(ends[1].theta, theta)
    torch.testing.assert_close(ends[0].theta, ends[1].theta, rtol=1e-3, atol=1e-4)
