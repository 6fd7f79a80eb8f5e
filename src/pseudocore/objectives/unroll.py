r"""Training on pseudo-points, unrolled: $L_u$ steps of full-batch (noisy) gradient descent, as
values or with their gradient.

$$ \theta_{t+1} = \theta_t - \eta\, \nabla_\theta E(\theta_t, A_t(u)) + \tau \epsilon_t, \qquad t =
0 \dots L_u - 1 $$

$E$ is an energy (a mean loss) and $A_t$ the augmentation drawn for step t. `descend` gives
$\theta_{L_u}$ and keeps nothing on the way. `differentiate` gives the gradient of an objective of
the path in $u$ and $\eta$ (at $\tau = 0$): it keeps the parameters of every step, and walks back
with the adjoint $\lambda_t = dJ / d\theta_t$; with $s_t = \langle\lambda_{t+1}, \nabla_\theta
E(\theta_t, A_t(u))\rangle$,

$$ \lambda_t = \frac{\partial J}{\partial\theta_t} + \lambda_{t+1} - \eta\, \nabla_\theta s_t, \qquad
   \frac{dJ}{du} = -\eta \sum_t \nabla_u s_t, \qquad \frac{dJ}{d\eta} = -\sum_t s_t, $$

one step at a time: the memory of one step and $L_u$ parameter vectors, however long the path. Both
gradients of $s_t$ are how $\nabla_{\theta, u} E$ changes as theta moves along $\lambda_{t+1}$
(`autodiff.directional_grad`).
"""

from collections.abc import Callable, Sequence
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
    step_size: Tensor
    value: Tensor


def descend(
    energy: Energy,
    view: View,
    theta: Tensor,
    x: Tensor,
    rng: Rng,
    *,
    num_steps: int,
    step_size: Tensor | float,
    noise: float = 0.0,
) -> Tensor:
    """Parameters after `num_steps` steps; `noise` is the standard deviation τ of what each step
    adds (0 draws nothing).
    """
    for number in range(num_steps):
        theta = theta - step_size * autodiff.grad(energy)(theta, view(x, rng("view", number)))
        if noise > 0:
            theta = theta + noise * rng("noise", number).normal(
                *theta.shape, device=theta.device, dtype=theta.dtype
            )
    return theta


def path(
    energy: Energy,
    view: View,
    theta: Tensor,
    x: Tensor,
    rng: Rng,
    *,
    num_steps: int,
    step_size: Tensor | float,
) -> list[Tensor]:
    """Parameters before and after each of `num_steps` steps, (num_steps + 1) of them."""
    thetas = [theta]
    for number in range(num_steps):
        gradient = autodiff.grad(energy)(thetas[-1], view(x, rng("view", number)))
        thetas.append(thetas[-1] - step_size * gradient)
    return thetas


def augment_vjp(view: View, x: Tensor, rng: Rng) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """What a network is shown of the points, and the way back from a gradient in that to one in the
    points.
    """
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
    """Gradient in x and step_size of `objective` at the path from theta, of which it sees the end
    alone unless `whole`.

    Without `recompute` the graphs of all steps are kept, which is the same gradient with fewer
    passes and `num_steps` times the memory.
    """

    def seen(thetas: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(thetas if whole else thetas[-1:])

    if not recompute:

        def unrolled(x: Tensor, step_size: Tensor) -> tuple[Tensor, Tensor]:
            value = objective(
                seen(path(energy, view, theta, x, rng, num_steps=num_steps, step_size=step_size))
            )
            return value, value

        (pulled_x, pulled_size), value = grad(unrolled, argnums=(0, 1), has_aux=True)(x, step_size)
        return Pulled(pulled_x, pulled_size, value.detach())
    thetas = path(energy, view, theta, x, rng, num_steps=num_steps, step_size=step_size)
    direct, value = grad(
        lambda *thetas: (objective(thetas),) * 2,
        argnums=tuple(range(len(seen(thetas)))),
        has_aux=True,
    )(*seen(thetas))
    pulled_x, pulled_size = _walk_back(energy, view, thetas, direct, x, step_size, rng)
    return Pulled(pulled_x, pulled_size, value.detach())


def _walk_back(
    energy: Energy,
    view: View,
    thetas: list[Tensor],
    direct: Sequence[Tensor],
    x: Tensor,
    step_size: Tensor,
    rng: Rng,
) -> tuple[Tensor, Tensor]:
    """The adjoint's way from the end of the path to its start; `direct` are the objective's
    gradients in the last parameters of it.
    """
    adjoint = direct[-1]
    pulled_x, pulled_size = torch.zeros_like(x), torch.zeros_like(step_size)

    derive = autodiff.directional_grad(energy)
    for number in reversed(range(len(thetas) - 1)):
        images, pull = augment_vjp(view, x, rng("view", number))
        in_theta, in_images, slope = derive(thetas[number], images, adjoint)
        pulled_x = pulled_x - step_size * pull(in_images)
        pulled_size = pulled_size - slope
        adjoint = adjoint - step_size * in_theta
        if len(direct) > 1:
            adjoint = adjoint + direct[number]
    return pulled_x, pulled_size
