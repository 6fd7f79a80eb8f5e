"""On a CUDA device: chains that go through a captured graph at once make the draws of chains taken
in turn, and plain training follows the precision of its problem.
"""

from dataclasses import replace

import pytest
import torch

from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.tree import clone
from pseudocore.data import digits
from pseudocore.data import preprocessing as whiten
from pseudocore.inference import HMC, SGD, density
from pseudocore.models.convnet import ConvNet
from pseudocore.runtime.steps import StepRunner

pytestmark = pytest.mark.gpu


@pytest.fixture
def problem() -> Problem:
    data, device = digits(), torch.device("cuda")
    model = ConvNet(width=16).build(data.shape, data.num_classes)
    return Problem(data, model, whiten.make("standard", data, device=device), device=device)


def test_captured_chains_at_once_are_those_in_turn(problem: Problem) -> None:
    coreset, prior = problem.subset(torch.arange(40)), density.log_prior(problem, "fan-in", 4.0, 40)
    log_density = density.exact(problem, coreset, prior, Rng(0))
    assert isinstance(log_density, density.PerChain)
    # adapted step sizes would amplify rounding
    hmc = HMC(num_chains=5, num_leapfrog=4, step_size=1e-4, target_accept=0, temperature=1)
    theta = problem.model.init(Rng(0), num=5, device=problem.device)
    ends = []
    for how in ("auto", "off"):
        state = hmc.init(log_density, theta, Rng(0))
        runner = StepRunner(lambda _, state, rng: hmc.step(log_density, state, rng), problem, how)  # type: ignore[arg-type]
        for number in range(12):
            state, _ = runner(state, Rng(1)("step", number))
        assert runner.note == ""
        ends.append(clone(state))
    assert not torch.allclose(ends[1].theta, theta)
    torch.testing.assert_close(ends[0].theta, ends[1].theta, rtol=1e-3, atol=1e-4)


def test_a_network_is_trained_in_the_precision_of_its_problem(problem: Problem) -> None:
    coreset, sgd = problem.subset(torch.arange(100)), SGD(num_steps=200, step_size=0.05)
    x, y = problem.data.test
    thetas, accuracies = [], []
    for one in (problem, replace(problem, precision="bf16")):
        predictive = sgd.fit(one, coreset, Rng(0))
        thetas.append(predictive.draws[0])
        labels = predictive(x).argmax(1).cpu()
        accuracies.append((labels == y).double().mean().item())
    assert thetas[1].dtype == torch.float32
    assert not torch.equal(*thetas)
    assert accuracies[0] > 0.6  # learned
    assert abs(accuracies[0] - accuracies[1]) < 0.05
