"""Optimisers as pure functions of a gradient and its moments: SGD and Adam (Kingma & Ba 2015).

Both take a tensor or a tree, a NamedTuple of tensors. The moments of a tree are a tree of the same
type with the moments of each part, and its step sizes one for all parts or one for each.
"""

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor

Step = Callable[..., tuple[Any, Any]]


class Moments(NamedTuple):
    first: Tensor  # running mean of the gradient
    second: Tensor  # running mean of its square
    steps: Tensor  # steps taken, as float: () or one per row


def tree_map(function: Callable[..., Any], first: Any, *others: Any) -> Any:
    """`function` of a tensor, or of each part of trees of one type."""
    if isinstance(first, Tensor):
        return function(first, *others)
    return type(first)(*(tree_map(function, *parts) for parts in zip(first, *others, strict=True)))


def start(like: Any, steps: Tensor | None = None) -> Any:
    """Moments of Adam before the first step, for parameters `like` these."""

    def zero(part: Tensor) -> Moments:
        none = torch.zeros((), dtype=part.dtype, device=part.device) if steps is None else steps
        return Moments(torch.zeros_like(part), torch.zeros_like(part), none)

    return tree_map(zero, like)


def _by_part(step: Step) -> Step:
    """Apply the step of an optimiser to each part of trees."""

    @wraps(step)
    def applied(gradient: Any, moments: Any, step_size: Any, **options: Any) -> tuple[Any, Any]:
        if isinstance(gradient, Tensor):
            return step(gradient, moments, step_size, **options)
        sizes = step_size if isinstance(step_size, tuple | list) else [step_size] * len(gradient)
        parts = zip(gradient, moments, sizes, strict=True)
        changes, after = zip(*(applied(*part, **options) for part in parts), strict=True)
        return type(gradient)(*changes), type(gradient)(*after)

    return applied


@_by_part
def adam(
    gradient: Tensor,
    moments: Moments,
    step_size: Tensor | float,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
) -> tuple[Tensor, Moments]:
    """One step of Adam: the change to subtract from the parameters, and the new moments."""
    steps = moments.steps + 1
    first = betas[0] * moments.first + (1 - betas[0]) * gradient
    second = betas[1] * moments.second + (1 - betas[1]) * gradient.square()
    corrected = (second / (1 - betas[1] ** steps)).sqrt() + eps
    return step_size * (first / (1 - betas[0] ** steps)) / corrected, Moments(first, second, steps)


@_by_part
def sgd(
    gradient: Tensor,
    velocity: Tensor,
    step_size: Tensor | float,
    *,
    momentum: float = 0.0,
    nesterov: bool = False,
) -> tuple[Tensor, Tensor]:
    r"""One step of SGD: the change to subtract from the parameters, and the new velocity.

    $v \leftarrow \mu v + g$; the change is $\eta v$, with Nesterov momentum $\eta(g + \mu v)$.
    Without momentum the velocity is not used.
    """
    if not momentum:
        return step_size * gradient, velocity
    velocity = momentum * velocity + gradient
    return step_size * (gradient + momentum * velocity if nesterov else velocity), velocity


def decayed(gradient: Tensor, theta: Tensor, weight_decay: float) -> Tensor:
    """The gradient with weight decay: g + λθ."""
    return gradient + weight_decay * theta if weight_decay else gradient


def cosine(step: Tensor, num_steps: int, *, floor: float = 0.0) -> Tensor:
    """From 1 at step 0 down to `floor` at `num_steps` along half a cosine."""
    return floor + (1 - floor) * 0.5 * (1 + torch.cos(math.pi * step / num_steps))
