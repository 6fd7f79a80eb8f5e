r"""The contrast of two sets of parameters on the same points, the gradient of every forward KL divergence from an energy-based posterior.

With $\pi_u(\theta) \propto e^{-E(\theta, u)}\pi_0(\theta)$ and any $\pi_x$,

$$ \nabla_u D_{KL}[\pi_x \| \pi_u]
   = \mathbb E_{\theta^+\sim\pi_x}[\nabla_u E(\theta^+, u)] - \mathbb E_{\theta^-\sim\pi_u}[\nabla_u E(\theta^-, u)], $$

Kim et al. (2022), Eq. (17), and Tiwary et al. (2023), Eq. (10). Nothing follows how $\theta^-$ came to depend on $u$.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from pseudocore.core.compile import fused
from pseudocore.core.gradient import gradient_and_value_of
from pseudocore.parts.unroll import Energy

__all__ = ["contrast"]


def contrast(energy: Energy, x: Tensor, pairs: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Gradient in x of the mean of E(θ⁺, x) − E(θ⁻, x), and that mean, one pair at a time.

    Pairs are (θ⁺, θ⁻), single (P,) or several at once (b, P), where `energy` is the mean over them; the memory is that of one side of
    one pair.
    """
    gradient, value, num = torch.zeros_like(x), x.new_zeros(()), 0
    for positive, negative in pairs:
        size = len(positive) if positive.ndim == 2 else 1
        for sign, theta in ((1, positive), (-1, negative)):
            slope, height = fused(gradient_and_value_of(energy, argnums=1))(theta, x)
            gradient = gradient + sign * size * slope
            value = value + sign * size * height
        num += size
    return gradient / num, value / num
