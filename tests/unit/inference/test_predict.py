"""Averages over draws: streamed equals naive, and entropies add up."""

import math

import pytest
import torch
from torch import Tensor

from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.inference.draws import MemoryDraws
from pseudocore.inference.predict import Predictive


@pytest.fixture
def draws(problem: Problem) -> MemoryDraws:
    """Six draws of three chains."""
    kept = MemoryDraws()
    for number in range(6):
        kept.append(4 * problem.model.init(Rng(number), num=3, dtype=torch.float64), {})
    return kept


@pytest.fixture
def predictive(problem: Problem, draws: MemoryDraws) -> Predictive:
    return Predictive(problem, draws, problem.inputs(problem.data.train.x))


def probabilities(problem: Problem, draws: MemoryDraws) -> Tensor:
    """All at once, (networks, test, classes)."""
    thetas = torch.cat([draws[number] for number in range(len(draws))])
    return problem.model.logits(thetas, problem.inputs(problem.data.test.x)).softmax(-1)


@pytest.mark.parametrize("batch_size", [7, 256])
def test_streamed_is_naive(
    problem: Problem, draws: MemoryDraws, predictive: Predictive, batch_size: int
) -> None:
    naive = probabilities(problem, draws).mean(0).log()
    streamed = torch.cat([predictive(batch) for batch in problem.data.test.x.split(batch_size)])
    assert (streamed - naive).abs().max() < 1e-6
    assert torch.equal(
        predictive.log_probs(problem.data.test.x[:7]), predictive(problem.data.test.x[:7])
    )


@pytest.mark.parametrize("batch_size", [7, 256])
def test_uncertainty_is_naive(
    problem: Problem, draws: MemoryDraws, predictive: Predictive, batch_size: int
) -> None:
    each = probabilities(problem, draws)
    mean = each.mean(0)
    entropy = -(mean * mean.log()).sum(1)
    divergence = (
        (each * (each.log() - mean.log())).sum(2).mean(0)
    )  # mutual information as the mean KL to the average
    parts = [predictive.uncertainty(batch) for batch in problem.data.test.x.split(batch_size)]
    assert (torch.cat([part.entropy for part in parts]) - entropy).abs().max() < 1e-6
    assert (torch.cat([part.mutual_information for part in parts]) - divergence).abs().max() < 1e-6
    assert divergence.max() > 0.05


def test_bounds(problem: Problem, predictive: Predictive) -> None:
    entropy, information = predictive.uncertainty(problem.data.test.x)
    assert (information >= 0).all()
    assert (information <= entropy).all()
    assert (entropy <= math.log(2) + 1e-12).all()


def test_equal_draws_disagree_about_nothing(problem: Problem) -> None:
    theta = problem.model.init(Rng(0), dtype=torch.float64).expand(5, -1)
    entropy, information = Predictive(
        problem, theta, problem.inputs(problem.data.train.x)
    ).uncertainty(problem.data.test.x)
    assert information.max() < 1e-12
    assert entropy.min() > 0.1


def test_certain_draws_that_contradict_each_other(problem: Problem) -> None:
    """Each is sure, and they are evenly split: one bit of entropy, all of it disagreement."""
    theta = torch.zeros(2, problem.model.num_parameters, dtype=torch.float64)
    theta[0, -1], theta[1, -2] = 800.0, 800.0  # the biases of the two classes
    entropy, information = Predictive(
        problem, theta, problem.inputs(problem.data.train.x)
    ).uncertainty(problem.data.test.x)
    assert torch.allclose(entropy, torch.full_like(entropy, math.log(2)))
    assert torch.allclose(information, entropy)


def test_thetas_may_come_as_a_tensor(
    problem: Problem, draws: MemoryDraws, predictive: Predictive
) -> None:
    thetas = torch.cat([draws[number] for number in range(6)])
    flat = Predictive(problem, thetas, problem.inputs(problem.data.train.x))
    assert torch.allclose(flat(problem.data.test.x), predictive(problem.data.test.x), rtol=1e-12)
