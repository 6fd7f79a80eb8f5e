"""Optimisers as pure functions of a gradient and its moments: SGD and Adam (Kingma & Ba 2015).

Both take one tensor or a tree, a (nested) NamedTuple of tensors.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

Tree = TypeVar("Tree")
"""A tensor, or a (nested) NamedTuple of tensors."""


class Moments(NamedTuple):
    first: Any
    """Running mean of the gradient; a tree like it."""
    second: Any
    """Running mean of its square."""
    steps: Tensor
    """Steps taken, as float: () or one per row."""


def tree_map(function: Callable[..., Tensor], first: Tree, *others: Any) -> Tree:
    """`function` of each tensor of trees with the same structure."""
    if isinstance(first, Tensor):
        return function(first, *others)  # type: ignore[return-value]
    parts = zip(*(tuple(tree) for tree in (first, *others)), strict=True)
    return type(first)(*(tree_map(function, *part) for part in parts))


def start(like: Any, steps: Tensor | None = None) -> Moments:
    """Moments before the first step, for parameters `like` these."""
    if steps is None:
        leaf = like
        while not isinstance(leaf, Tensor):
            leaf = leaf[0]
        steps = torch.zeros((), dtype=leaf.dtype, device=leaf.device)
    return Moments(tree_map(torch.zeros_like, like), tree_map(torch.zeros_like, like), steps)


def adam(
    gradient: Tree,
    moments: Moments,
    step_size: Tensor | float,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
) -> tuple[Tree, Moments]:
    """One step of Adam: the change to subtract from the parameters, and the new moments."""
    steps = moments.steps + 1

    def change(first: Tensor, second: Tensor) -> Tensor:
        corrected = (second / (1 - betas[1] ** steps)).sqrt() + eps
        return step_size * (first / (1 - betas[0] ** steps)) / corrected

    first = tree_map(lambda m, g: betas[0] * m + (1 - betas[0]) * g, moments.first, gradient)
    second = tree_map(
        lambda m, g: betas[1] * m + (1 - betas[1]) * g.square(), moments.second, gradient
    )
    changes: Tree = tree_map(change, first, second)
    return changes, Moments(first, second, steps)


def sgd(
    gradient: Tree,
    velocity: Tree,
    step_size: Tensor | float,
    *,
    momentum: float = 0.0,
    nesterov: bool = False,
) -> tuple[Tree, Tree]:
    r"""One step of SGD: the change to subtract from the parameters, and the new velocity.

    $v \leftarrow \mu v + g$; the change is $\eta v$, with Nesterov momentum $\eta(g + \mu v)$.
    Without momentum the velocity is not used.
    """
    if not momentum:
        return tree_map(lambda g: step_size * g, gradient), velocity
    velocity = tree_map(lambda v, g: momentum * v + g, velocity, gradient)
    if nesterov:
        return tree_map(lambda v, g: step_size * (g + momentum * v), velocity, gradient), velocity
    return tree_map(lambda v: step_size * v, velocity), velocity


def decayed(gradient: Tree, theta: Tree, weight_decay: float) -> Tree:
    """The gradient with weight decay added: g + λθ."""
    if not weight_decay:
        return gradient
    return tree_map(lambda g, t: g + weight_decay * t, gradient, theta)


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
