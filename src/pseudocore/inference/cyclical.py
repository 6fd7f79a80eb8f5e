r"""Cyclical stochastic gradient Hamiltonian Monte Carlo (Zhang et al. 2020): a step size that falls
and begins anew, so that one chain sees several modes.

Inner step k of a cycle of K takes

$$ \varepsilon_k = \varepsilon_0 \cos\frac{\pi k}{2K}, \qquad
   \theta \leftarrow \theta + \varepsilon_k r, \qquad
   r \leftarrow (1 - \alpha) r + \varepsilon_k \nabla_\theta \log\hat\pi(\theta)
   + \mathcal N(0, 2\alpha T_k) $$

which is their $\alpha_k = \frac{\alpha_0}2 (1 + \cos\frac{\pi k}K)$ with $\alpha_k =
\varepsilon_k^2$. A cycle explores first, $T_k = 0$: long steps leave a mode, shorter ones find
another. Then it samples, $T_k = T$, and these draws are kept.

| Zhang et al. | here |
|---|---|
| M | `num_cycles` |
| β | `num_burn` / (`num_burn` + `num_draws` / `num_cycles`) |
| $\alpha_0$ | `step_size` squared |
| 1 − β of momentum | `friction` |

Cost: `num_inner` gradients on at most `batch_size` points a draw and chain, of (`num_burn` ·
`num_cycles` + `num_draws`) draws.

Deviations:
1. Every cycle counts the same in the average, whatever mass its mode has; within a mode draws are
   from the posterior up to the errors of `sghmc`.
2. The momentum is kept where a cycle ends. Its stationary scale √T does not depend on the step
   size, as that of the authors' v = εr does.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pseudocore.core.config import Count, Whole
from pseudocore.core.registry import inferences
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, LogDensity
from pseudocore.inference.sghmc import MomentumSampler, moved


class CyclicalState(NamedTuple):
    theta: Tensor  # (chains, parameters)
    momentum: Tensor  # r, (chains, parameters)
    step: Tensor  # draws made, as float


class CyclicalInfo(NamedTuple):
    log_density: Tensor  # estimated, at the last inner step, (chains,)
    kinetic: Tensor  # mean squared momentum, (chains,)
    step_size: Tensor  # of the last inner step, (chains,)


@inferences.register("cyclical-sghmc", kind="sampler", paper="Zhang et al. 2020, arXiv 1902.03932")
@dataclass(frozen=True, kw_only=True)
class CyclicalSGHMC(MomentumSampler):
    """Stochastic gradient Hamiltonian Monte Carlo in cycles of falling steps, each to a mode."""

    num_burn: Whole = 40
    """Draws discarded at the beginning of each cycle, where it explores without noise."""
    num_cycles: Count = 4
    """Cycles that share the kept draws evenly; the last may end early."""

    batch_size: Count = 256
    """Points per step and chain; coresets up to this size are used whole."""

    relative_step_size = 0.5

    @property
    def kept_per_cycle(self) -> int:
        return math.ceil(self.num_draws / self.num_cycles)

    @property
    def cycle(self) -> int:
        """Draws of a whole cycle."""
        return self.num_burn + self.kept_per_cycle

    @property
    def num_rounds(self) -> int:
        whole, rest = divmod(self.num_draws, self.kept_per_cycle)
        return whole * self.cycle + (self.num_burn + rest if rest else 0)

    def num_kept(self, done: int) -> int:
        whole, rest = divmod(done, self.cycle)
        return whole * self.kept_per_cycle + max(0, rest - self.num_burn)

    def init(self, log_density: LogDensity, theta: Tensor, rng: Rng) -> CyclicalState:
        step = torch.zeros((), dtype=theta.dtype, device=theta.device)
        return CyclicalState(theta, self.first_momentum(theta, rng), step)

    def step(
        self, log_density: LogDensity, state: CyclicalState, rng: Rng
    ) -> tuple[CyclicalState, CyclicalInfo]:
        theta, momentum, step = state
        place = step % self.cycle
        temperature = self.temperature * (place >= self.num_burn).to(step)
        for number in range(self.num_inner):
            share = (place + number / self.num_inner) / self.cycle
            size = self.size * torch.cos(math.pi / 2 * share)
            theta, momentum, value = moved(
                log_density, theta, momentum, size, self.friction, temperature, rng("inner", number)
            )
        info = CyclicalInfo(value, momentum.square().mean(-1), size.expand(len(theta)))
        return CyclicalState(theta, momentum, step + 1), info

    def points_per_step(self, coreset: Coreset) -> int:
        return self.batch_size
