r"""Training on pseudo-points, unrolled: $L_u$ steps of full-batch (noisy) gradient descent, as
values or with their gradient.

$$ \theta_{t+1} = \theta_t - \eta\, \nabla_\theta E(\theta_t, A_t(u)) + \tau \epsilon_t, \qquad t =
0 \dots L_u - 1 $$

$E$ is an energy (a mean loss) and $A_t$ the augmentation drawn for step t. `descend` gives
$\theta_{L_u}$ and keeps nothing else. `differentiate` gives the gradient of an objective of
the path in $u$ and $\eta$ (at $\tau = 0$): it keeps the parameters of every step, and walks back
with the adjoint $\lambda_t = dJ / d\theta_t$. With $s_t = \langle\lambda_{t+1}, \nabla_\theta
E(\theta_t, A_t(u))\rangle$,

$$ \lambda_t = \frac{\partial J}{\partial\theta_t} + \lambda_{t+1} - \eta\, \nabla_\theta s_t,
   \qquad \frac{dJ}{du} = -\eta \sum_t \nabla_u s_t, \qquad \frac{dJ}{d\eta} = -\sum_t s_t, $$

one step at a time: the memory of one step and $L_u$ parameter vectors, however long the path. Both
gradients of $s_t$ are how $\nabla_{\theta, u} E$ changes as theta moves along $\lambda_{t+1}$
(`autodiff.directional_grad`).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.func import grad

from pseudocore.core.rng import Rng
from pseudocore.runtime import autodiff

Energy = Callable[[Tensor, Tensor], Tensor]
"""Parameters (P,) and points (M, ...) to one number."""
View = Callable[[Tensor, Rng], Tensor]
"""Points to what a network is shown of them: the augmentation, or the points themselves."""
Objective = Callable[[Sequence[Tensor]], Tensor]
"""The parameters along a path, or its last ones alone, to one number."""


@runtime_checkable
class Drawn(Protocol):
    """A view that keeps chance and change apart, as `DSA` does: the change is a pure function."""

    def draw(self, rng: Rng, num: int, device: torch.device | str) -> Any: ...
    def apply(self, x: Tensor, draw: Any) -> Tensor: ...


class Pulled(NamedTuple):
    """An objective of a path and its gradient."""

    x: Tensor
    """Gradient in the points."""
    step_size: Tensor
    """Gradient in the step size."""
    value: Tensor


def path(
    energy: Energy,
    view: View,
    theta: Tensor,
    x: Tensor,
    rng: Rng,
    *,
    num_steps: int,
    step_size: Tensor | float,
    noise: float = 0.0,
) -> Iterator[Tensor]:
    """Parameters before and after each of `num_steps` steps; `noise` is the standard deviation τ of
    what each step adds (0 draws nothing).
    """
    yield theta
    for number in range(num_steps):
        theta = theta - step_size * autodiff.grad(energy)(theta, view(x, rng("view", number)))
        if noise > 0:
            like: Any = {"device": theta.device, "dtype": theta.dtype}
            theta = theta + noise * rng("noise", number).normal(*theta.shape, **like)
        yield theta


def descend(
    energy: Energy, view: View, theta: Tensor, x: Tensor, rng: Rng, **options: Any
) -> Tensor:
    """The end of a `path`, with its options."""
    for end in path(energy, view, theta, x, rng, **options):
        theta = end
    return theta


def augment_vjp(view: View, x: Tensor, rng: Rng) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """The view of the points, and the map from a gradient in it to one in the points."""
    if not isinstance(view, Drawn):
        return autodiff.vjp(lambda x: view(x, rng), x, pure=False)
    return autodiff.vjp(view.apply, x, view.draw(rng, len(x), x.device))


def differentiate(
    objective: Objective,
    energy: Energy,
    view: View,
    theta: Tensor,
    x: Tensor,
    step_size: Tensor,
    rng: Rng,
    *,
    num_steps: int,
    whole: bool = False,
    recompute: bool = True,
) -> Pulled:
    """Gradient in x and step_size of `objective` at the end of the path from theta, or at the
    `whole` path.

    Without `recompute` the graphs of all steps are kept, which is the same gradient with fewer
    passes and `num_steps` times the memory.
    """

    def walked(x: Tensor, step_size: Tensor) -> list[Tensor]:
        steps = path(energy, view, theta, x, rng, num_steps=num_steps, step_size=step_size)
        return list(steps)

    def valued(thetas: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        value = objective(thetas)
        return value, value

    first = 0 if whole else -1
    if not recompute:
        in_both = grad(lambda *both: valued(walked(*both)[first:]), argnums=(0, 1), has_aux=True)
        (in_x, in_size), value = in_both(x, step_size)
        return Pulled(in_x, in_size, value.detach())
    thetas = walked(x, step_size)
    ends = thetas[first:]
    in_ends = grad(lambda *ends: valued(ends), argnums=tuple(range(len(ends))), has_aux=True)
    direct, value = in_ends(*ends)
    adjoint, in_x, in_size = direct[-1], torch.zeros_like(x), torch.zeros_like(step_size)
    derive = autodiff.directional_grad(energy)
    for number in reversed(range(num_steps)):
        images, pull = augment_vjp(view, x, rng("view", number))
        in_theta, in_images, slope = derive(thetas[number], images, adjoint)
        in_x = in_x - step_size * pull(in_images)
        in_size = in_size - slope
        adjoint = adjoint - step_size * in_theta
        if whole:
            adjoint = adjoint + direct[number]
    return Pulled(in_x, in_size, value.detach())
