r"""The contrast of two sets of parameters on the same points, the gradient of every forward KL
divergence from an energy-based posterior.

With $\pi_u(\theta) \propto e^{-E(\theta, u)}\pi_0(\theta)$ and any $\pi_x$,

$$ \nabla_u D_{KL}[\pi_x \| \pi_u]
   = \mathbb E_{\theta^+\sim\pi_x}[\nabla_u E(\theta^+, u)]
   - \mathbb E_{\theta^-\sim\pi_u}[\nabla_u E(\theta^-, u)], $$

Kim et al. (2022), Eq. (17), and Tiwary et al. (2023), Eq. (10). Nothing follows how $\theta^-$ came
to depend on $u$.
"""

from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor

from pseudocore.objectives.unroll import Energy
from pseudocore.runtime import autodiff
from pseudocore.runtime.execution import map_independent


def contrast(
    energy: Energy, x: Tensor, pairs: Iterable[tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Gradient in x of the mean of E(θ⁺, x) − E(θ⁻, x), and that mean.

    Pairs are (θ⁺, θ⁻), single (P,) or several at once (b, P), where `energy` is the mean over them.
    The memory is that of one side of one pair, on a GPU of a few side by side.
    """
    gradient, value, num = torch.zeros_like(x), x.new_zeros(()), 0

    def side(sign: int, theta: Tensor) -> tuple[int, Tensor, Tensor]:
        size = len(theta) if theta.ndim == 2 else 1
        return sign * size, *autodiff.value_and_grad(energy, argnums=1)(theta, x)

    for size, height, slope in map_independent(
        partial(side, sign, theta)
        for pair in pairs
        for sign, theta in zip((1, -1), pair, strict=True)
    ):
        gradient = gradient + size * slope
        value = value + size * height
        num += max(size, 0)
    return gradient / num, value / num
