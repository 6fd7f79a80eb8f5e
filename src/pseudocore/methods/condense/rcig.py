r"""RCIG: points learned by implicit gradients through a convex training.

Loo, Hasani, Lechner, Rus (2023), "Dataset Distillation with Convexified Implicit Gradients".
A network of a pool, of parameters $\theta_0$, is replaced by its tangent, $f_\delta(x) = f(x) +
J(x)\,\delta$ with $J = \partial f / \partial\theta_0$. Training that on the points $u$ with targets
$\hat Y$ is ridge regression, whose end is unique,

$$ \delta^* = \operatorname*{argmin}_\delta\; \tfrac12 \sum_m w_m \lVert f_\delta(u_m) - \hat y_m
   \rVert^2 + \tfrac\lambda2 \lVert\delta\rVert^2, \qquad
   \min_{u, \hat Y}\; \mathcal L_B(\delta^*)
   = \tfrac1{2|B|} \sum_{(x, y) \in B} \lVert f_{\delta^*}(x) - \bar y \rVert^2 . $$

By the implicit function theorem nothing need be unrolled: with the Hessian $H$ of the inner
objective $\mathcal L_u$,

$$ \frac{d\mathcal L_B}{d(u, \hat Y)} = -\frac{\partial}{\partial(u, \hat Y)}
   \big\langle v,\ \nabla_\delta\mathcal L_u(\delta^*) \big\rangle, \qquad
   H v = \nabla_\delta \mathcal L_B(\delta^*), \qquad H = J_u^\top W J_u + \lambda I . $$

Both systems are solved by conjugate gradients, without a matrix.

| paper | here | | paper | here |
|---|---|---|---|---|
| model pool | `pool_size`, `max_age`, `pool_lr` | | inner and implicit steps | `num_inner_steps` |
| $\lambda$ | `ridge`, relative | | batch | `batch_size` |

Cost per step: $4$ `num_inner_steps` passes of the M points, two of the real batch; the memory of a
few.

Deviations:
  D1. Both systems are solved by conjugate gradients in all parameters at once; the paper takes
      steps of Adam and solves the last layer in closed form.
  D2. $\lambda$ is `ridge` times the mean squared feature norm of the points.
  D3. The outer loss is squared error. A logit scale is fitted to the same batches; it moves nothing
      else and only makes predictions probabilities.
  D4. The networks of the pool are trained on the points as they are (`objectives/pool.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad, vjp

from pseudocore.core.config import Count, Positive
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.objectives import kernel_regression, multiformation, pool
from pseudocore.objectives.image_regression import ImageRegression, RegressionPoints
from pseudocore.objectives.kernel_regression import RegressionInfo
from pseudocore.objectives.pool import Pool, PoolSettings
from pseudocore.runtime.autodiff import nested
from pseudocore.training.optimisers import adam, cosine, start, tree_map

Network = Callable[[Tensor, Tensor], Tensor]
"""Parameters (P,) and points (n, ...) to outputs (n, classes)."""


class RCIGState(NamedTuple):
    learned: RegressionPoints
    moments: Any  # Adam's, an RegressionPoints of Moments
    pool: Pool
    step: Tensor  # () steps taken


@methods.register(
    "rcig",
    kind="condense",
    paper="Loo et al. 2023, arXiv 2302.06755",
    targets="function",
    weights="no",
)
@dataclass(frozen=True, kw_only=True)
class RCIG(ImageRegression, PoolSettings):
    """Points learned by implicit gradients through a convex training."""

    image_lr: Positive = 0.01
    """Adam's step size on (normalised) images and the logit scale; falls to 0 along a cosine."""
    num_inner_steps: Count = 20
    """Steps of conjugate gradients, for the training and for its derivative each."""

    def init(self, problem: Problem, rng: Rng) -> RCIGState:
        learned = self.begin(problem, rng)
        networks = pool.fill(problem, rng("pool"), size=self.pool_size, max_age=self.max_age)
        return RCIGState(learned, start(learned), networks, learned.x.new_zeros(()))

    def step(
        self, problem: Problem, state: RCIGState, rng: Rng
    ) -> tuple[RCIGState, RegressionInfo]:
        learned, networks = state.learned, state.pool
        index = rng("batch").integers(problem.num_train, self.batch_size, device=problem.device)
        real, y = problem.batch(index)
        real = real if problem.augment is None else problem.augment(real, rng("augment"))
        place = pool.pick(networks, rng("pick"))
        theta = networks.theta.index_select(0, place)[0]
        relative = self.relative_weights(problem, learned.y)
        weight = multiformation.repeat_weight(relative, self.formation)

        def network(theta: Tensor, x: Tensor) -> Tensor:
            return problem.logits(theta, x)

        def shown(learned: RegressionPoints) -> tuple[Tensor, Tensor]:
            x, targets = multiformation.decode(learned.x, learned.y, factor=self.formation)
            return x, targets

        (x, targets), pull = vjp(shown, learned)[:2]
        with torch.no_grad():
            features = problem.features(theta, x)
            ridge = self.ridge * features.square().sum(1).mean()
        centred = kernel_regression.centred(y, problem.num_classes, x.dtype)
        with nested():
            *gradients, mean = implicit(
                network, theta, x, targets, real, centred, weight, ridge, self.num_inner_steps
            )
        (gradient,) = pull(tuple(gradients))

        def fitted(log_scale: Tensor) -> Tensor:
            return kernel_regression.loss(mean, y, log_scale)[0]

        value, log_probs = kernel_regression.loss(mean, y, learned.log_scale)
        gradient = gradient._replace(log_scale=grad(fitted)(learned.log_scale))
        decay = cosine(state.step, self.num_steps)
        rates = [decay * rate for rate in (self.image_lr, self.label_lr, self.image_lr)]
        change, moments = adam(gradient, state.moments, rates)
        new: RegressionPoints = tree_map(torch.sub, learned, change)
        x, targets = (part.detach() for part in shown(new))
        networks = pool.advance(
            networks,
            place,
            problem,
            x,
            targets,
            rng("fresh"),
            step_size=self.pool_lr,
            max_age=self.max_age,
            weight=weight,
        )
        accuracy = (log_probs.argmax(1) == y).to(value.dtype).mean()
        info = RegressionInfo(value, accuracy, new.log_scale.exp())
        return RCIGState(new, moments, networks, state.step + 1), info

    def coreset(self, problem: Problem, state: RCIGState) -> Coreset:
        return self.ended(problem, state.learned)


def implicit(
    network: Network,
    theta: Tensor,
    x: Tensor,
    targets: Tensor,
    real: Tensor,
    real_targets: Tensor,
    weight: Tensor | None,
    ridge: Tensor,
    num_steps: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the loss on the real points in x and targets, and predictions for the real
    points: the equations above.
    """
    rows = x.new_ones(len(x), 1) if weight is None else weight.unsqueeze(1)
    with torch.enable_grad():
        x, targets = x.detach().requires_grad_(), targets.detach().requires_grad_()
        own, others = Tangent(network, theta, x), Tangent(network, theta, real)

        def hessian(direction: Tensor) -> Tensor:
            return own.pull(rows * own.push(direction)) + ridge * direction

        right = own.pull(rows * (targets - own.outputs).detach())
        change = conjugate_gradients(hessian, right, num_steps)
        mean = (others.outputs + others.push(change)).detach()
        outer = others.pull((mean - real_targets) / len(real))
        adjoint = conjugate_gradients(hessian, outer, num_steps)
        moved = own.outputs + own.push(change, create_graph=True) - targets
        pairing = -(rows * moved * own.push(adjoint, create_graph=True)).sum()
        in_x, in_targets = torch.autograd.grad(pairing, (x, targets), materialize_grads=True)
    return in_x, in_targets, mean


class Tangent:
    """Products with the Jacobian J of a network's outputs for some points in its parameters.

    `Jᵀu` is linear in u, so its own derivative along a direction gives J of that: reverse mode
    twice, whose graph serves every product. (Forward mode has no formula for some layouts of
    norms.)
    """

    def __init__(self, network: Network, theta: Tensor, x: Tensor) -> None:
        self._theta = theta.detach().requires_grad_()
        self.outputs = network(self._theta, x)
        self._u = torch.zeros_like(self.outputs).requires_grad_()
        (self._back,) = torch.autograd.grad(self.outputs, self._theta, self._u, create_graph=True)

    def pull(self, rows: Tensor) -> Tensor:
        """J⊤ of rows (n, classes), (P,)."""
        return torch.autograd.grad(self.outputs, self._theta, rows, retain_graph=True)[0]

    def push(self, direction: Tensor, *, create_graph: bool = False) -> Tensor:
        """J of a direction (P,), (n, classes)."""
        options: Any = {"retain_graph": True, "create_graph": create_graph}
        return torch.autograd.grad(self._back, self._u, direction, **options)[0]


def conjugate_gradients(
    matrix: Callable[[Tensor], Tensor], right: Tensor, num_steps: int
) -> Tensor:
    """The solution of a positive definite system, from 0; once it is exact it stays."""
    solution, residual, direction = torch.zeros_like(right), right, right
    squared = residual.square().sum()
    for _ in range(num_steps):
        image = matrix(direction)
        curved = direction @ image
        step = torch.where(curved > 0, squared / curved, 0)
        solution, residual = solution + step * direction, residual - step * image
        after = residual.square().sum()
        direction = residual + torch.where(squared > 0, after / squared, 0) * direction
        squared = after
    return solution
