"""Gradients that are followed, and differentiated by nothing.

`torch.func.grad` makes every gradient differentiable once more, for which torch takes the backward
of some layers apart: that of instance norm becomes a dozen passes over the activations instead of
two. Most gradients here are only followed. Where a second derivative is asked for, of a network
with kernels of our own, those know how they move (forward mode) and the gradient of that.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._pytree import tree_map_only

from pseudocore.core.problem import own_kernels
from pseudocore.runtime.steps import compile_region, is_eager


def gradient_of(
    function: Callable[..., Any],
    argnums: int | tuple[int, ...] = 0,
    *,
    has_aux: bool = False,
    is_piece: bool = True,
    create_graph: bool = False,
) -> Callable[..., Any]:
    """`torch.func.grad(function, argnums, has_aux)` for arguments that are tensors, with a result
    that has no derivative of its own.

    Inside another transform, which may want that derivative, and compiled, where fused kernels save
    as much, it is the former. A function that holds numbers which change is no piece to compile.
    `create_graph` keeps the derivative in tensors the function holds.
    """

    def transformed(*arguments: Any) -> Any:
        return torch.func.grad(function, argnums, has_aux)(*arguments)

    def derived(*arguments: Any) -> Any:
        piece = compile_region(transformed, is_pass=True) if is_piece else transformed
        if piece is not transformed or not is_eager():
            return piece(*arguments)
        places = (argnums,) if isinstance(argnums, int) else argnums
        with torch.enable_grad(), _without_own_kernels() if create_graph else nullcontext():
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
    function: Callable[..., Tensor], argnums: int | tuple[int, ...] = 0, *, is_piece: bool = True
) -> Callable[..., Any]:
    """As `gradient_of`, with the value itself."""

    def twice(*arguments: Any) -> tuple[Tensor, Tensor]:
        value = function(*arguments)
        return value, value

    return gradient_of(twice, argnums, has_aux=True, is_piece=is_piece)


def directional_grad(
    outputs: Callable[..., Tensor], energy: Callable[[Tensor], Tensor]
) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """For (theta, x, direction): the slope of energy(outputs(theta, x)) along a direction of theta,
    behind its gradients in theta and x.

    The outputs are differentiated by forward mode, the slope by reverse mode. Of the energy torch's
    own forward mode, which changes values it has kept for the way back (that of log_softmax does,
    in torch 2.13), is not needed.
    """

    def derived(theta: Tensor, x: Tensor, direction: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with torch.enable_grad():
            theta, x = theta.detach().requires_grad_(), x.detach().requires_grad_()
            with forward_ad.dual_level():
                moving = forward_ad.make_dual(theta, direction)  # type: ignore[no-untyped-call]
                value, change = forward_ad.unpack_dual(outputs(moving, x))  # type: ignore[no-untyped-call]
            (pull,) = torch.autograd.grad(energy(value), value, create_graph=True)
            slope = (pull * change).sum()
            in_theta, in_x = torch.autograd.grad(slope, (theta, x))
        return in_theta, in_x, slope.detach()

    return derived


def slope_by_reverse_mode(
    energy: Callable[[Tensor, Tensor], Tensor],
) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """What `directional_grad` gives, of any energy(theta, x), by reverse mode twice: the fewest
    calls where each is launched alone.
    """

    def derived(theta: Tensor, x: Tensor, direction: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with torch.enable_grad(), _without_own_kernels():
            theta, x = theta.detach().requires_grad_(), x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(energy(theta, x), theta, create_graph=True)
            slope = (gradient * direction).sum()
            in_theta, in_x = torch.autograd.grad(slope, (theta, x), materialize_grads=True)
        return in_theta, in_x, slope.detach()

    return derived


@contextmanager
def _without_own_kernels() -> Iterator[None]:
    """Some blocks of a network may have kernels of our own where others have none; a kernel knows
    its gradient, not that one's.
    """
    token = own_kernels.set(False)
    try:
        yield
    finally:
        own_kernels.reset(token)
