"""parts/pretrain.py against torch's own layers and optimiser."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.data import digits, whiten
from pseudocore.models.convnet import ConvNetWide
from pseudocore.models.dense import MLP
from pseudocore.parts.pretrain import feature_map, network_features, pretrain

MakeProblem = Callable[..., Problem]

WIDTH = 5


@pytest.fixture
def problem(make_problem: MakeProblem) -> Problem:
    return make_problem(MLP(width=WIDTH, depth=1))


def module(theta: Tensor) -> nn.Sequential:
    """The same network built by hand, its parameters filled in theta's documented order."""
    network = nn.Sequential(nn.Linear(6, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 3)).double()
    nn.utils.vector_to_parameters(theta.clone(), network.parameters())
    return network


def by_torch(problem: Problem, rng: Rng, num_steps: int, augment: Callable[[Tensor, Rng], Tensor] = lambda x, _: x) -> nn.Sequential:
    network = module(problem.model.init(rng("theta"), dtype=torch.float64))
    optimiser = torch.optim.Adam(network.parameters(), lr=0.01)
    for step in range(num_steps):
        x, y = problem.batch(rng("step", step)("batch").integers(problem.num_train, 8))
        optimiser.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(network(augment(x, rng("step", step)("augment"))), y))
        optimiser.step()
    return network


def test_training_is_adam_on_cross_entropy(problem: Problem) -> None:
    theta = pretrain(problem, Rng(1), num_steps=25, step_size=0.01, batch_size=8)
    expected = nn.utils.parameters_to_vector(by_torch(problem, Rng(1), 25).parameters())
    torch.testing.assert_close(theta, expected.detach(), rtol=1e-9, atol=1e-10)


def test_batches_are_augmented(problem: Problem) -> None:
    def shaken(x: Tensor, rng: Rng) -> Tensor:
        return x + rng.normal(*x.shape, dtype=x.dtype)

    theta = pretrain(replace(problem, augment=shaken), Rng(1), num_steps=5, step_size=0.01, batch_size=8)
    expected = nn.utils.parameters_to_vector(by_torch(problem, Rng(1), 5, shaken).parameters())
    torch.testing.assert_close(theta, expected.detach(), rtol=1e-9, atol=1e-10)


def test_features_are_what_the_head_sees(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pseudocore.parts.pretrain.BATCH", 4)  # ten points in three passes
    theta, index = pretrain(problem, Rng(2), num_steps=3), torch.tensor([40, 3, 3, 17, 0, 1, 2, 44, 8, 9])
    features = network_features(problem, theta, Rng(3))(index)
    with torch.no_grad():
        torch.testing.assert_close(features, module(theta)[:2](problem.batch(index)[0]))


def test_a_point_has_the_same_features_in_any_company_under_batch_norm() -> None:
    data = digits()
    model = ConvNetWide(width=4, norm="batch").build(data.shape, data.num_classes)
    features = feature_map(Problem(data, model, whiten.make("standard", data)), "network", Rng(0), num_steps=2)
    torch.testing.assert_close(features(torch.arange(30))[:5], features(torch.arange(5)))


def test_inputs_are_the_networks(problem: Problem) -> None:
    index = torch.tensor([7, 2])
    assert torch.equal(feature_map(problem, "inputs", Rng(0), num_steps=1)(index), problem.batch(index)[0])
