"""RCIG's implicit gradient against autograd through ridge regression, and through training that is
unrolled until it converges.
"""

import pytest
import torch
from torch import Tensor

from pseudocore.core.rng import Rng
from pseudocore.methods.condense.rcig import conjugate_gradients, implicit
from pseudocore.testing.problems import small_problem

NUM, REAL, WIDE, CLASSES, RIDGE = 5, 9, 4, 3, 0.3


def normal(name: str, *shape: int) -> Tensor:
    return Rng(0)(name).normal(*shape, dtype=torch.float64)


def linear(theta: Tensor, x: Tensor) -> Tensor:
    return x @ theta.view(WIDE, CLASSES)


def curved(theta: Tensor, x: Tensor) -> Tensor:
    """Not linear in the parameters: what is trained is its tangent."""
    return torch.tanh(x @ theta[: WIDE * 6].view(WIDE, 6)) @ theta[WIDE * 6 :].view(6, CLASSES)


def case(network: object) -> tuple[Tensor, ...]:
    theta = 0.5 * normal("theta", WIDE * CLASSES if network is linear else WIDE * 6 + 6 * CLASSES)
    x, y = normal("x", NUM, WIDE), normal("y", NUM, CLASSES)
    weight = 0.5 + Rng(0)("weight").uniform(NUM, dtype=torch.float64)
    return theta, x, y, normal("real", REAL, WIDE), normal("real y", REAL, CLASSES), weight


@pytest.mark.parametrize("network", [linear, curved])
def test_it_is_the_gradient_through_the_closed_form(network: object) -> None:
    """The tangent's Jacobian as a matrix, and the ridge regression on it solved."""
    theta, x, y, real, real_y, weight = case(network)
    jacobian = torch.func.jacrev(network)

    def loss(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        j, rows = jacobian(theta, x).flatten(0, 1), weight.repeat_interleave(CLASSES)
        right = j.T @ (rows * (y - network(theta, x)).flatten())  # type: ignore[operator]
        hessian = j.T @ (rows.unsqueeze(1) * j) + RIDGE * torch.eye(len(theta), dtype=x.dtype)
        change = torch.linalg.solve(hessian, right)
        mean = network(theta, real) + jacobian(theta, real) @ change  # type: ignore[operator]
        return 0.5 * (mean - real_y).square().sum(1).mean(), mean

    (in_x, in_y), mean = torch.func.grad(loss, argnums=(0, 1), has_aux=True)(x, y)
    ridge = torch.tensor(RIDGE, dtype=torch.float64)
    found = implicit(network, theta, x, y, real, real_y, weight, ridge, 60)  # type: ignore[arg-type]
    for one, exact in zip(found, (in_x, in_y, mean), strict=True):
        torch.testing.assert_close(one, exact, rtol=1e-7, atol=1e-9)


def test_it_is_the_gradient_of_training_unrolled_until_it_converges() -> None:
    theta, x, y, real, real_y, weight = case(linear)
    images, targets = x.clone().requires_grad_(), y.clone().requires_grad_()
    trained = theta
    for _ in range(1500):
        slope = images.T @ (weight.unsqueeze(1) * (images @ trained.view(WIDE, CLASSES) - targets))
        trained = trained - 0.05 * (slope.flatten() + RIDGE * (trained - theta))
    loss = 0.5 * (real @ trained.view(WIDE, CLASSES) - real_y).square().sum(1).mean()
    in_x, in_y = torch.autograd.grad(loss, (images, targets))
    ridge = torch.tensor(RIDGE, dtype=torch.float64)
    found = implicit(linear, theta, x, y, real, real_y, weight, ridge, 60)
    torch.testing.assert_close(found[0], in_x, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(found[1], in_y, rtol=1e-6, atol=1e-8)


def test_conjugate_gradients_solve_in_as_many_steps_as_dimensions_and_then_stay() -> None:
    root, right = normal("root", 6, 6), normal("right", 6)
    matrix = root @ root.T + torch.eye(6, dtype=torch.float64)
    exact = torch.linalg.solve(matrix, right)
    for num_steps in (6, 40):
        found = conjugate_gradients(lambda v: matrix @ v, right, num_steps)
        torch.testing.assert_close(found, exact, rtol=1e-8, atol=1e-10)
    assert not conjugate_gradients(lambda v: matrix @ v, 0 * right, 3).any()


def test_norms_and_layouts_of_images_make_no_difference() -> None:
    """Images of one channel may pass for another layout, in which norms have no forward mode."""
    problem = small_problem(norm="instance", dtype=torch.float64)
    theta = problem.model.init(Rng(0), dtype=torch.float64)
    x, y = problem.batch(torch.arange(6))
    targets, ridge = torch.eye(10, dtype=torch.float64)[y], torch.tensor(1.0, dtype=torch.float64)
    found = []
    for layout in (torch.contiguous_format, torch.channels_last):
        own = x.clone(memory_format=layout)
        found.append(implicit(problem.logits, theta, own, targets, own, targets, None, ridge, 5))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
        assert one.abs().max() > 1e-6
