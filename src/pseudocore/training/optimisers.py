"""Adam (Kingma & Ba 2015) as a pure function of gradient and moments, and the step-size schedule it
is used with.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Moments(NamedTuple):
    first: Tensor
    second: Tensor
    steps: Tensor  # taken so far, as float: () or one per row


def start(like: Tensor, steps: Tensor | None = None) -> Moments:
    """Moments of something that has not moved yet."""
    zeros = torch.zeros_like(like)
    return Moments(
        zeros,
        zeros.clone(),
        torch.zeros((), dtype=like.dtype, device=like.device) if steps is None else steps,
    )


def adam(
    gradient: Tensor,
    moments: Moments,
    step_size: Tensor | float,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
) -> tuple[Tensor, Moments]:
    """The change to subtract from the parameters, and the moments after it."""
    steps = moments.steps + 1
    first = betas[0] * moments.first + (1 - betas[0]) * gradient
    second = betas[1] * moments.second + (1 - betas[1]) * gradient.square()
    corrected = (second / (1 - betas[1] ** steps)).sqrt() + eps
    return step_size * (first / (1 - betas[0] ** steps)) / corrected, Moments(first, second, steps)


def cosine(step: Tensor, num_steps: int, *, floor: float = 0.0) -> Tensor:
    """From 1 at step 0 down to `floor` at `num_steps` along half a cosine."""
    return floor + (1 - floor) * 0.5 * (1 + torch.cos(math.pi * step / num_steps))


def adam_each(
    parameters: Any, gradient: Any, moments: Any, step_sizes: Sequence[Tensor | float]
) -> tuple[Any, Any]:
    """NamedTuples of parameters and of their moments after one step of Adam, each parameter with a
    step size of its own.
    """
    parts = zip(parameters, gradient, moments, step_sizes, strict=True)
    changes = [(one, *adam(g, moment, size)) for one, g, moment, size in parts]
    kind = type(parameters)
    return kind(*(one - change for one, change, _ in changes)), kind(*(new for *_, new in changes))


def start_each(parameters: Any) -> Any:
    """A NamedTuple like `parameters` of their moments before the first step."""
    return type(parameters)(*map(start, parameters))
