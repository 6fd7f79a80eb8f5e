r"""The mode of a large softmax regression by Newton's method, whose Hessian is applied and never built.

Each step solves $H d = \nabla$ by conjugate gradients (Nocedal & Wright 2006, Algorithm 7.1). With N
points, class probabilities P and inputs $\tilde X$ with a 1 appended,

$$ H V = \left(P \circ U - P \circ (P \circ U) 1 1^\top\right)^\top \tilde X + \sigma_0^{-2} V, \qquad
   U = \tilde X V^\top . $$

They are preconditioned by Böhning's (1992) bound $\frac12 (I - 11^\top / k) \otimes \tilde X^\top
\tilde X + \sigma_0^{-2} I \succeq H$, which one eigendecomposition of $\tilde X^\top \tilde X$
inverts.

Cost: 4Np a product; p × p is never held.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from pseudocore.objectives.small_models import NUM_HALVINGS, Softmax, with_one

MAX_PRODUCTS = 200
"""With the Hessian in a Newton step."""


def mode(
    model: Softmax,
    x: Tensor,
    y: Tensor,
    *,
    num_newton: int = 30,
    tolerance: float = 1e-9,
) -> Tensor:
    """Theta (p,) of the largest log-posterior, to a relative error of about `tolerance`."""
    inputs, k, prior = with_one(x), model.num_classes, model.prior**-2
    labels = y if y.is_floating_point() else one_hot(y, k).to(x)
    values, vectors = torch.linalg.eigh(inputs.mT @ inputs)
    bound = 0.5 * values.clamp_min(0) + prior

    def bounded(v: Tensor) -> Tensor:  # B⁻¹ of (k, h)
        mean = v.mean(0)
        apart: Tensor = ((v - mean) @ vectors / bound) @ vectors.mT
        return apart + mean / prior

    def height(theta: Tensor) -> Tensor:
        fit = (labels * (inputs @ theta.mT).log_softmax(1)).sum()
        return fit - 0.5 * prior * theta.square().sum()

    theta = x.new_zeros(k, inputs.shape[1])
    for _ in range(num_newton):
        p = (inputs @ theta.mT).softmax(1)
        slope = (labels - p).mT @ inputs - prior * theta

        def curved(v: Tensor, p: Tensor = p) -> Tensor:
            along = p * (inputs @ v.mT)
            return (along - p * along.sum(1, keepdim=True)).mT @ inputs + prior * v

        step = solved(curved, slope, bounded)
        tried = [theta + 0.5**number * step for number in range(NUM_HALVINGS)]
        theta = tried[int(torch.stack([height(one) for one in tried]).argmax())]
        if step.norm() <= tolerance * theta.norm():
            break
    return theta.flatten()


def solved(
    product: Callable[[Tensor], Tensor], right: Tensor, precondition: Callable[[Tensor], Tensor]
) -> Tensor:
    """The solution by preconditioned conjugate gradients; the nearer zero the right-hand side, the
    more exactly.
    """
    found, residual = torch.zeros_like(right), right
    better = precondition(residual)
    direction, size = better, (residual * better).sum()
    target = size * 1e-8
    for _ in range(MAX_PRODUCTS):
        curved = product(direction)
        length = size / (direction * curved).sum()
        found, residual = found + length * direction, residual - length * curved
        better = precondition(residual)
        size, before = (residual * better).sum(), size
        if size <= target:
            break
        direction = better + size / before * direction
    return found
