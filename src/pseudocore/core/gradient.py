"""Gradients that are followed, and differentiated by nothing.

`torch.func.grad` makes every gradient differentiable once more, for which torch takes the backward of some layers apart: that of
instance norm becomes a dozen passes over the activations instead of two. Most gradients here are only followed.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from pseudocore.core.compile import fused, is_plain

__all__ = ["gradient_and_value_of", "gradient_of"]


def gradient_of(function: Callable[..., Any], argnums: int | tuple[int, ...] = 0, *, has_aux: bool = False) -> Callable[..., Any]:
    """`torch.func.grad(function, argnums, has_aux)` for arguments that are tensors, with a result that has no derivative of its own.

    Inside another transform, which may want that derivative, and compiled, where fused kernels save as much, it is the former.
    """

    def transformed(*arguments: Any) -> Any:
        return torch.func.grad(function, argnums, has_aux)(*arguments)

    def derived(*arguments: Any) -> Any:
        piece = fused(transformed, is_pass=True)
        if piece is not transformed or not is_plain():
            return piece(*arguments)
        places = (argnums,) if isinstance(argnums, int) else argnums
        with torch.enable_grad():
            given = [one.detach().requires_grad_() if place in places else one for place, one in enumerate(arguments)]
            value, aux = function(*given) if has_aux else (function(*given), None)
            gradients = torch.autograd.grad(value, [given[place] for place in places], materialize_grads=True)
        gradient = gradients[0] if isinstance(argnums, int) else gradients
        return (gradient, tree_map_only(Tensor, Tensor.detach, aux)) if has_aux else gradient

    return derived


def gradient_and_value_of(function: Callable[..., Tensor], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """As `gradient_of`, with the value itself."""

    def twice(*arguments: Any) -> tuple[Tensor, Tensor]:
        value = function(*arguments)
        return value, value

    return gradient_of(twice, argnums, has_aux=True)
