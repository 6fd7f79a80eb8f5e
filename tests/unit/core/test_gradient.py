"""Gradients without a graph against `torch.func.grad`, alone and inside it."""

import pytest
import torch
from torch import Tensor
from torch.func import grad, jvp, vmap

from pseudocore.core.problem import own_kernels
from pseudocore.core.rng import Rng
from pseudocore.models.convnet import ConvNet
from pseudocore.runtime.autodiff import (
    directional_grad,
    gradient_of,
    slope_by_reverse_mode,
    value_and_grad,
)

MODEL = ConvNet(width=3, depth=2).build((1, 8, 8), 4)
THETA, X = MODEL.init(Rng(0), dtype=torch.float64), Rng(1).normal(5, 1, 8, 8, dtype=torch.float64)


def loss(theta: Tensor, x: Tensor) -> Tensor:
    return MODEL.logits(theta, x).square().sum()


@pytest.mark.parametrize("argnums", [0, 1, (0, 1), (1,)])
def test_it_is_the_gradient(argnums: int | tuple[int, ...]) -> None:
    ours, theirs = gradient_of(loss, argnums)(THETA, X), grad(loss, argnums)(THETA, X)
    assert isinstance(ours, tuple) == isinstance(argnums, tuple)
    for one, other in zip(
        *((found if isinstance(argnums, tuple) else (found,)) for found in (ours, theirs)),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
        assert not one.requires_grad


def test_aux_comes_out_without_a_graph() -> None:
    gradient, (value, words) = gradient_of(
        lambda theta, x: (loss(theta, x), (loss(theta, x), "kept")), has_aux=True
    )(THETA, X)
    assert words == "kept"
    assert not value.requires_grad
    assert torch.equal(value, loss(THETA, X))
    torch.testing.assert_close(gradient, grad(loss)(THETA, X), rtol=1e-10, atol=1e-12)


def test_the_value_comes_beside_it() -> None:
    gradient, value = value_and_grad(loss, 1)(THETA, X)
    assert torch.equal(value, loss(THETA, X))
    assert torch.equal(gradient, gradient_of(loss, 1)(THETA, X))


def test_what_does_not_matter_has_gradient_zero() -> None:
    in_theta, in_x = gradient_of(lambda theta, x: theta.sum(), (0, 1))(THETA, X)
    assert (in_theta == 1).all()
    assert not in_x.any()


def test_under_no_grad_it_is_the_same() -> None:
    with torch.no_grad():
        assert gradient_of(loss)(THETA, X).abs().max() > 0


def test_inside_a_transform_it_can_be_differentiated() -> None:
    def length(theta: Tensor, derive: object) -> Tensor:
        return derive(loss)(theta, X).square().sum()  # type: ignore[operator]

    ours, theirs = (
        grad(lambda theta, derive=derive: length(theta, derive))(THETA)
        for derive in (gradient_of, grad)
    )
    assert torch.equal(ours, theirs)
    thetas = MODEL.init(Rng(2), num=3, dtype=torch.float64)
    torch.testing.assert_close(
        vmap(lambda theta: gradient_of(loss)(theta, X))(thetas)[1],
        grad(loss)(thetas[1], X),
        rtol=1e-10,
        atol=1e-12,
    )


def test_once_more_it_can_be_differentiated_in_what_the_function_holds() -> None:
    """As the gradients that are matched are, in the images; against `torch.func.grad` twice."""

    def length(x: Tensor, **options: bool) -> Tensor:
        derived, value = gradient_of(
            lambda theta: (loss(theta, x), loss(theta, x)), has_aux=True, **options
        )(THETA)
        return derived.square().sum() + value

    ours, value = value_and_grad(lambda x: length(x, create_graph=True), is_piece=False)(X)
    theirs = grad(length)(X)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(value, length(X), rtol=1e-10, atol=1e-12)
    assert not ours.requires_grad


def test_kernels_that_know_one_derivative_are_not_asked_for_two() -> None:
    """A network may have them in some of its blocks alone."""
    asked: list[bool] = []

    def energy(theta: Tensor, x: Tensor) -> Tensor:
        asked.append(own_kernels.get())
        return loss(theta, x)

    slope_by_reverse_mode(energy)(THETA, X, THETA)
    gradient_of(energy, create_graph=True)(THETA, X)
    gradient_of(energy)(THETA, X)
    assert asked == [False, False, True]
    assert own_kernels.get()


@pytest.mark.parametrize("twice_reverse", [False, True])
def test_the_gradient_of_a_slope_is_the_slope_of_the_gradient(twice_reverse: bool) -> None:
    """Reverse mode over forward mode, or over itself, against forward mode over reverse mode,
    through a softmax.
    """
    y, direction = torch.tensor([0, 3, 1, 1, 2]), Rng(2).normal(*THETA.shape, dtype=torch.float64)

    def energy(logits: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(logits, y)

    def composed(theta: Tensor, x: Tensor) -> Tensor:
        return energy(MODEL.logits(theta, x))

    here, change = jvp(lambda theta: grad(composed, (0, 1))(theta, X), (THETA,), (direction,))[:2]
    derive = (
        slope_by_reverse_mode(composed) if twice_reverse else directional_grad(MODEL.logits, energy)
    )
    in_theta, in_x, slope = derive(THETA, X, direction)
    torch.testing.assert_close(in_theta, change[0], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(in_x, change[1], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(slope, here[0] @ direction, rtol=1e-9, atol=1e-12)
    assert not any(found.requires_grad for found in (in_theta, in_x, slope))
