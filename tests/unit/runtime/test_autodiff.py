"""Derivatives without a graph against `torch.func`, alone and inside it."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import jvp, vmap

from pseudocore.core.rng import Rng
from pseudocore.models.convnet import ConvNet
from pseudocore.runtime import autodiff
from pseudocore.runtime.execution import kernels_allowed

MODEL = ConvNet(width=3, depth=2).build((1, 8, 8), 4)
THETA, X = MODEL.init(Rng(0), dtype=torch.float64), Rng(1).normal(5, 1, 8, 8, dtype=torch.float64)

close: Any = {"rtol": 1e-9, "atol": 1e-12}


def loss(theta: Tensor, x: Tensor) -> Tensor:
    return MODEL.logits(theta, x).square().sum()


class Energy:
    """Through a softmax; `with_aux` with the logits beside it."""

    def __init__(self) -> None:
        self.problem: Any = SimpleNamespace(device=torch.device("cpu"), model=MODEL)
        self.y = torch.tensor([0, 3, 1, 1, 2])

    def __call__(self, theta: Tensor, x: Tensor) -> Tensor:
        return self.of(self.outputs(theta, x))

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        return MODEL.logits(theta, x)

    def of(self, outputs: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(outputs, self.y)

    def with_aux(self, theta: Tensor, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        outputs = self.outputs(theta, x)
        return self.of(outputs), (outputs,)


@pytest.mark.parametrize("argnums", [0, 1, (0, 1), (1,)])
def test_it_is_the_gradient(argnums: int | tuple[int, ...]) -> None:
    ours = autodiff.grad(loss, argnums)(THETA, X)
    theirs = torch.func.grad(loss, argnums)(THETA, X)
    assert isinstance(ours, tuple) == isinstance(argnums, tuple)
    torch.testing.assert_close(ours, theirs, **close)
    assert not any(one.requires_grad for one in (ours if isinstance(ours, tuple) else [ours]))


def test_the_value_and_what_else_the_function_returns_come_without_a_graph() -> None:
    gradient, (value, words) = autodiff.grad(
        lambda theta, x: (loss(theta, x), (loss(theta, x), "kept")), has_aux=True
    )(THETA, X)
    assert words == "kept"
    assert not value.requires_grad
    torch.testing.assert_close(gradient, torch.func.grad(loss)(THETA, X), **close)
    value, gradient = autodiff.value_and_grad(loss, 1)(THETA, X)
    assert torch.equal(value, loss(THETA, X))
    assert torch.equal(gradient, autodiff.grad(loss, 1)(THETA, X))


def test_what_does_not_matter_has_gradient_zero() -> None:
    in_theta, in_x = autodiff.grad(lambda theta, x: theta.sum(), (0, 1))(THETA, X)
    assert (in_theta == 1).all()
    assert not in_x.any()


def test_under_no_grad_it_is_the_same() -> None:
    with torch.no_grad():
        assert autodiff.grad(loss)(THETA, X).abs().max() > 0


def test_inside_a_transform_it_can_be_differentiated() -> None:
    def length(theta: Tensor, derive: Any) -> Tensor:
        total: Tensor = derive(loss)(theta, X).square().sum()
        return total

    ours, theirs = (
        torch.func.grad(length)(THETA, derive) for derive in (autodiff.grad, torch.func.grad)
    )
    assert torch.equal(ours, theirs)
    thetas = MODEL.init(Rng(2), num=3, dtype=torch.float64)
    mapped = vmap(lambda theta: autodiff.grad(loss)(theta, X))(thetas)
    torch.testing.assert_close(mapped[1], torch.func.grad(loss)(thetas[1], X), **close)


def test_with_a_graph_it_can_be_differentiated_in_what_the_function_holds() -> None:
    """As the gradients that are matched are, in the images; against `torch.func.grad` twice."""

    def length(x: Tensor, **options: bool) -> Tensor:
        derived, value = autodiff.grad(
            lambda theta: (loss(theta, x), loss(theta, x)), has_aux=True, **options
        )(THETA)
        total: Tensor = derived.square().sum() + value
        return total

    value, ours = autodiff.value_and_grad(lambda x: length(x, create_graph=True), pure=False)(X)
    torch.testing.assert_close(ours, torch.func.grad(length)(X), **close)
    torch.testing.assert_close(value, length(X), **close)
    assert not ours.requires_grad


@pytest.mark.parametrize("inside", [False, True])
def test_the_way_back_through_a_function(inside: bool) -> None:
    def pulled(x: Tensor) -> Tensor:
        value, pull = autodiff.vjp(lambda x, power: x**power, x, 3)
        return pull(value)

    found = vmap(pulled)(X) if inside else pulled(X)
    torch.testing.assert_close(found, 3 * X**5, **close)


def test_kernels_that_know_one_derivative_are_not_asked_for_two() -> None:
    """A network may have them in some of its blocks alone."""
    asked: list[bool] = []

    def energy(theta: Tensor, x: Tensor) -> Tensor:
        asked.append(kernels_allowed())
        return loss(theta, x)

    autodiff.directional_grad(energy)(THETA, X, THETA)
    autodiff.grad(energy, create_graph=True)(THETA, X)
    autodiff.grad(energy)(THETA, X)
    assert asked == [False, False, True]
    assert kernels_allowed()


@pytest.mark.parametrize("kernels", [False, True])
def test_the_gradient_of_a_slope_is_the_slope_of_the_gradient(
    kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reverse mode over forward mode, or over itself, against forward mode over reverse mode."""
    monkeypatch.setattr(autodiff, "uses_kernels", lambda _: kernels)
    energy, direction = Energy(), Rng(2).normal(*THETA.shape, dtype=torch.float64)
    gradients = torch.func.grad(energy, (0, 1))
    here, change = jvp(lambda theta: gradients(theta, X), (THETA,), (direction,))[:2]
    found = autodiff.directional_grad(energy)(THETA, X, direction)
    torch.testing.assert_close(found, (*change, here[0] @ direction), **close)
    assert not any(one.requires_grad for one in found)


@pytest.mark.parametrize("kernels", [False, True])
def test_a_loss_of_a_gradient_is_differentiated_in_the_points(
    kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autodiff, "uses_kernels", lambda _: kernels)
    energy = Energy()

    def compare(gradient: Tensor, outputs: Tensor) -> Tensor:
        return gradient.square().sum() + outputs.sin().sum()

    def expected(x: Tensor) -> Tensor:
        return compare(
            *torch.func.grad(energy.with_aux, has_aux=True)(THETA, x)[:1], energy.outputs(THETA, x)
        )

    value, gradient = autodiff.grad_through_gradient(energy, compare)(THETA, X)
    torch.testing.assert_close(value, expected(X), **close)
    torch.testing.assert_close(gradient, torch.func.grad(expected)(X), **close)
