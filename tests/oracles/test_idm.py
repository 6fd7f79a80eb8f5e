"""IDM's step against its objective written out with autograd."""

import pytest
import torch
from torch import nn

from pseudocore.core.rng import Rng
from pseudocore.methods.condense.idm import IDM
from pseudocore.objectives import class_matching
from pseudocore.testing.problems import small_problem


@pytest.mark.parametrize("weight", [0.0, 0.7])
def test_a_step_follows_the_gradient_of_its_objective(weight: float) -> None:
    problem = small_problem(dtype=torch.float64, experts=True)
    method = IDM(per_class=2, max_start=3, batch_size=5, image_lr=0.1, regularisation=weight)
    state, rng = method.init(problem, Rng(0)), Rng(1)
    after, info = method.step(problem, state, rng)
    (theta,) = method.expert_path(problem, rng, horizon=0)
    batches = class_matching.draw(problem, theta, 5, rng("batch")).batches
    x = state.x.clone().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for label, own in enumerate(x.split(2)):
        real = problem.features(theta, problem.batch(batches[label])[0]).mean(0)
        total = total + (problem.features(theta, own).mean(0) - real).square().sum()
        logits, labels = problem.logits(theta, own), torch.tensor([label, label])
        total = total + weight * nn.functional.cross_entropy(logits, labels)
    (gradient,) = torch.autograd.grad(total, x)
    torch.testing.assert_close(info.loss, total.detach())
    torch.testing.assert_close(after.x, state.x - 0.1 * gradient)
