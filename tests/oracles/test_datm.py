"""DATM: its gradient in images and labels, which starts it draws, and what it leaves out."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pseudocore.core.errors import ConfigError
from pseudocore.core.rng import Rng
from pseudocore.methods.condense.datm import DATM, SoftLoss, packed_view
from pseudocore.objectives import unroll
from pseudocore.testing.problems import small_problem

FEW: dict[str, Any] = {
    "per_class": 2,
    "max_start": 3,
    "horizon": 1,
    "num_inner_steps": 3,
    "num_steps": 8,
}


def test_the_gradient_in_images_and_labels_is_that_through_training() -> None:
    problem = small_problem(dtype=torch.float64)
    theta, end = problem.model.init(Rng(0), num=2, dtype=torch.float64)
    x, _ = problem.batch(torch.arange(4))
    points = torch.cat([x.flatten(1), Rng(1).normal(4, 10, dtype=torch.float64)], 1)

    def distance(student: Tensor) -> Tensor:
        return (student - end).square().sum()

    pulled = unroll.differentiate(
        lambda thetas: distance(thetas[-1]),
        SoftLoss(problem, None, 1),
        packed_view(problem, 1),
        theta,
        points,
        torch.tensor(0.1, dtype=torch.float64),
        Rng(2),
        num_steps=3,
    )
    images, logits = x.clone().requires_grad_(), points[:, -10:].clone().requires_grad_()
    student = theta.clone().requires_grad_()
    for _ in range(3):
        log_p = problem.model.logits(student, images).log_softmax(1)
        loss = -(logits.softmax(1) * log_p).sum(1).mean()
        (slope,) = torch.autograd.grad(loss, student, create_graph=True)
        student = student - 0.1 * slope
    of_images, of_logits = torch.autograd.grad(distance(student), (images, logits))
    torch.testing.assert_close(pulled.x, torch.cat([of_images.flatten(1), of_logits], 1))
    assert float(of_logits.norm()) > 1e-6


class Epochs:
    """Experts whose parameters are the number of their epoch."""

    num_experts, num_epochs = 2, 9

    def at(self, expert: Tensor, epoch: Tensor) -> Tensor:
        return epoch.double().unsqueeze(1)


def test_starts_move_from_easy_to_hard() -> None:
    problem = replace(small_problem(), experts=Epochs())  # type: ignore[arg-type]
    method = DATM(min_start=2, max_start=7, horizon=2, num_steps=100, ramp=0.5)
    for step, latest in ((0, 2), (25, 4), (50, 6), (99, 6)):
        drawn = [method._piece(problem, torch.tensor(float(step)), Rng(seed)) for seed in range(99)]
        starts = {float(piece[0]) for piece in drawn}
        assert starts == set(range(2, latest + 1)), step
        assert all(float(piece[1] - piece[0]) == 2 for piece in drawn)
        share = sum(float(piece[0]) == latest for piece in drawn) / len(drawn)
        assert share == pytest.approx(1 / (latest - 1), abs=0.1)  # all of them alike
    at_once = replace(method, ramp=0.0)
    drawn = [at_once._piece(problem, torch.tensor(0.0), Rng(seed)) for seed in range(99)]
    assert {float(piece[0]) for piece in drawn} == set(range(2, 7))
    with pytest.raises(ConfigError, match="leaves no epoch"):
        DATM(min_start=3, **FEW).init(small_problem(experts=True), Rng(0))


def test_labels_start_between_the_expert_and_the_truth_and_stay_distributions() -> None:
    problem = small_problem(experts=True)
    method = DATM(**FEW)
    state = method.init(problem, Rng(0))
    y = state.log_y.exp()
    assert torch.equal(y.argmax(1), state.images.y)
    torch.testing.assert_close(y.sum(1), torch.ones(20))
    assert ((y > 0.5) & (y < 1)).sum() == 20
    for step in range(4):
        state, _ = method.step(problem, state, Rng(step))
    coreset = method.coreset(problem, state)
    torch.testing.assert_close(coreset.y.sum(1), torch.ones(20))
    assert not torch.equal(coreset.y, y)


def test_skipped_layers_do_not_count() -> None:
    """Without the last layers, too, everything is left out, and nothing moves."""
    problem = small_problem(experts=True)
    found = {}
    for skip in (0.0, 0.6):
        method = DATM(**FEW, skip=skip)
        _, info = method.step(problem, method.init(problem, Rng(0)), Rng(1))
        path = method._piece(problem, torch.tensor(0.0), Rng(1))
        first = int(skip * problem.model.num_parameters)
        start, end = path[0][first:], path[1][first:]
        found[skip] = float(info.loss), float((start - end).square().sum())
    assert found[0.0][0] != pytest.approx(found[0.6][0])
    assert found[0.6][1] < found[0.0][1]
