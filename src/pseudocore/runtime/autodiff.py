"""Derivatives, in whichever of several equivalent ways suits the current execution.

`torch.func.grad` makes every gradient differentiable once more, for which torch takes the backward
of some layers apart. That of instance norm becomes a dozen passes over the activations instead of
two. Most gradients here are not differentiated again, and are taken by `torch.autograd.grad`.
Inside another transform, which may need that derivative, and compiled, where fused kernels save as
much, they are taken by the former. Networks with custom kernels know their gradient, how they
change along a direction (forward mode), and the gradient of that.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._pytree import tree_map_only

from pseudocore.core.problem import Problem
from pseudocore.runtime.execution import is_eager, repeated, uses_kernels, without_kernels

Slope = tuple[Tensor, Tensor, Tensor]
"""Gradients in theta and x of a slope, and the slope."""


@runtime_checkable
class NetworkEnergy(Protocol):
    """An energy that is a function `of` the `outputs` of a problem's network."""

    @property
    def problem(self) -> Problem: ...
    def __call__(self, theta: Tensor, x: Tensor) -> Tensor: ...
    def outputs(self, theta: Tensor, x: Tensor) -> Tensor: ...
    def of(self, outputs: Tensor) -> Tensor: ...


class EnergyWithAux(NetworkEnergy, Protocol):
    """Such an energy, with other differentiable functions of theta and x beside it."""

    def with_aux(self, theta: Tensor, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]: ...


def grad(
    function: Callable[..., Any],
    argnums: int | tuple[int, ...] = 0,
    *,
    has_aux: bool = False,
    pure: bool = True,
    create_graph: bool = False,
) -> Callable[..., Any]:
    """`torch.func.grad(function, argnums, has_aux)` for tensors, with a result that has no
    derivative of its own.

    Args:
        function: Tensors to a scalar.
        argnums: The arguments to differentiate in.
        has_aux: Whether the function returns (value, aux); then so does the result.
        pure: Whether the function depends on its arguments alone, not on tensors it holds that
            change from one step to the next.
        create_graph: Keep the derivative of the result in tensors the function holds.
    """

    def transformed(*arguments: Any) -> Any:
        return torch.func.grad(function, argnums, has_aux)(*arguments)

    def derived(*arguments: Any) -> Any:
        derivative = repeated(transformed, through_network=True) if pure else transformed
        if derivative is not transformed or not is_eager():
            return derivative(*arguments)
        places = (argnums,) if isinstance(argnums, int) else argnums
        with torch.enable_grad(), without_kernels() if create_graph else nullcontext():
            given = [
                one.detach().requires_grad_() if place in places else one
                for place, one in enumerate(arguments)
            ]
            value, aux = function(*given) if has_aux else (function(*given), None)
            gradients = torch.autograd.grad(
                value,
                [given[place] for place in places],
                create_graph=create_graph,
                materialize_grads=True,
            )
        gradient = gradients[0] if isinstance(argnums, int) else gradients
        if not has_aux:
            return gradient
        return gradient, aux if create_graph else tree_map_only(Tensor, Tensor.detach, aux)

    return derived


def value_and_grad(
    function: Callable[..., Tensor], argnums: int | tuple[int, ...] = 0, *, pure: bool = True
) -> Callable[..., Any]:
    """The value of a function, then its gradient as by `grad`."""

    def doubled(*arguments: Any) -> tuple[Tensor, Tensor]:
        value = function(*arguments)
        return value, value

    def derived(*arguments: Any) -> tuple[Tensor, Any]:
        gradient, value = grad(doubled, argnums, has_aux=True, pure=pure)(*arguments)
        return value, gradient

    return derived


def vjp(
    function: Callable[..., Tensor], x: Tensor, *held: Any, pure: bool = True
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """`function(x, *held)`, and the map from a gradient in it to one in x.

    A `pure` function, which depends on its arguments alone, may be called again on the way back.
    """
    pull = repeated(_pull) if pure else _pull
    if pull is not _pull:
        value = repeated(function)(x, *held)
        return value, lambda gradient: pull(function, x, held, gradient)
    if not is_eager():
        value, back = torch.func.vjp(lambda x: function(x, *held), x)[:2]
        return value, lambda gradient: back(gradient)[0]
    with torch.enable_grad():
        given = x.detach().requires_grad_()
        value = function(given, *held)
    return value.detach(), lambda gradient: torch.autograd.grad(
        value, given, gradient, materialize_grads=True
    )[0]


def _pull(function: Callable[..., Tensor], x: Tensor, held: Any, gradient: Tensor) -> Tensor:
    pulled: Tensor = torch.func.vjp(lambda x: function(x, *held), x)[1](gradient)[0]
    return pulled


def directional_grad(
    energy: Callable[[Tensor, Tensor], Tensor],
) -> Callable[[Tensor, Tensor, Tensor], Slope]:
    """For (theta, x, direction): the gradients in theta and x of the slope
    <direction, gradient of energy(theta, x) in theta>, and that slope.

    Both say how the gradient of the energy changes along the direction. Through custom kernels that
    is reverse mode over forward mode; compiled, forward mode over reverse mode; else reverse mode
    twice, which has half as many calls.
    """
    if isinstance(energy, NetworkEnergy) and uses_kernels(energy.problem):
        return partial(_reverse_over_forward, energy)

    def forward_over_reverse(theta: Tensor, x: Tensor, direction: Tensor) -> Slope:
        here, change = torch.func.jvp(
            lambda theta: torch.func.grad(energy, argnums=(0, 1))(theta, x), (theta,), (direction,)
        )[:2]
        return *change, (here[0] * direction).sum()

    derive: Callable[..., Slope] = repeated(forward_over_reverse)
    if derive is forward_over_reverse and is_eager():
        return partial(_reverse_twice, energy)
    return derive


def grad_through_gradient(
    energy: EnergyWithAux, compare: Callable[..., Tensor], *, reads_aux: bool = True
) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    r"""For (theta, x): the value of `compare(g, *aux)`, and its gradient in x, where $g =
    \nabla_\theta E(\theta, x)$ and aux are those of the energy.

    It is differentiated as it is, or, through custom kernels, by the slope $\langle \nabla_g D,
    \nabla_\theta E(\theta, x) \rangle$ with $\nabla_g D$ held fixed. There `reads_aux` saves a pass
    where `compare` reads the gradient alone.
    """

    def with_aux_at(x: Tensor) -> Callable[[Tensor], tuple[Tensor, tuple[Tensor, ...]]]:
        return lambda theta: energy.with_aux(theta, x)

    def as_it_is(theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        def compared(x: Tensor) -> Tensor:
            derivative = grad(with_aux_at(x), has_aux=True, pure=False, create_graph=True)
            gradient, aux = derivative(theta)
            return compare(gradient, *aux)

        value, in_x = value_and_grad(compared, pure=False)(x)
        return value, in_x

    def by_slope(theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        gradient, aux = grad(with_aux_at(x), has_aux=True, pure=False)(theta)
        places = tuple(range(1 + len(aux)))
        value, (direction, *pulls) = value_and_grad(compare, places, pure=False)(gradient, *aux)
        in_x = _reverse_over_forward(energy, theta, x, direction)[1]
        if reads_aux:
            in_x = in_x + grad(lambda x: _dot(pulls, energy.with_aux(theta, x)[1]), pure=False)(x)
        return value, in_x

    return by_slope if uses_kernels(energy.problem) else as_it_is


def _reverse_over_forward(
    energy: NetworkEnergy, theta: Tensor, x: Tensor, direction: Tensor
) -> Slope:
    """Forward mode through the network, reverse mode over the slope. Of the energy torch's own
    forward mode, which changes values it has kept for the way back (that of log_softmax does, in
    torch 2.13), is not needed.
    """
    with torch.enable_grad():
        theta, x = theta.detach().requires_grad_(), x.detach().requires_grad_()
        with forward_ad.dual_level():
            moving = forward_ad.make_dual(theta, direction)  # type: ignore[no-untyped-call]
            outputs = energy.outputs(moving, x)
            value, change = forward_ad.unpack_dual(outputs)  # type: ignore[no-untyped-call]
        (pull,) = torch.autograd.grad(energy.of(value), value, create_graph=True)
        slope = (pull * change).sum()
        in_theta, in_x = torch.autograd.grad(slope, (theta, x))
    return in_theta, in_x, slope.detach()


def nested() -> AbstractContextManager[None]:
    """Where a method takes derivatives of derivatives by torch.func itself: custom kernels, which
    know their first derivative alone, stay out.
    """
    return without_kernels()


def _reverse_twice(
    energy: Callable[[Tensor, Tensor], Tensor], theta: Tensor, x: Tensor, direction: Tensor
) -> Slope:
    with torch.enable_grad(), without_kernels():
        theta, x = theta.detach().requires_grad_(), x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(energy(theta, x), theta, create_graph=True)
        slope = (gradient * direction).sum()
        in_theta, in_x = torch.autograd.grad(slope, (theta, x), materialize_grads=True)
    return in_theta, in_x, slope.detach()


def _dot(ones: Any, others: Any) -> Tensor:
    products = [
        torch.vdot(one.flatten(), other.flatten()) for one, other in zip(ones, others, strict=True)
    ]
    return torch.stack(products).sum()
