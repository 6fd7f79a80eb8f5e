r"""Stochastic gradient Hamiltonian Monte Carlo (Chen et al. 2014), and its altered form for a
coreset (Kim et al. 2022, Algorithm 3).

$$ \theta \leftarrow \theta + \varepsilon r, \qquad
   r \leftarrow (1 - \alpha) r + \varepsilon \nabla_\theta \log\hat\pi(\theta)
   + \mathcal N(0, 2\alpha T) $$

Friction $\alpha$ and noise $2\alpha T$ balance, so that the posterior to the power $1/T$ is left
invariant up to $O(\varepsilon^2)$, $O(\alpha)$ and the noise of the estimate. There is no
Metropolis test. With $v = \varepsilon r$ and $\eta = \varepsilon^2$ this is Eq. (15) of Chen et al.

`sghmc` estimates $\log\pi$ on a random batch; `a-sghmc` holds the whole coreset and takes a fresh
augmentation at every step.

| Kim et al. | here |
|---|---|
| N − burn, burn | `num_draws`, `num_burn` |
| m, ε, α, T | `num_inner`, `step_size`, `friction`, `temperature` |
| σ_θ, σ_r | `init_scale`, `momentum_scale` |
| λ | `prior_scale` = 1/√(2λ) with `prior` isotropic |

Cost: `num_inner` gradients on at most `batch_size` points a draw and chain; a-sghmc: on all points.

Deviations:
1. The momentum starts at its stationary scale √T; `momentum_scale` starts it elsewhere, as
   published.
2. No estimate of the gradient's own noise is subtracted from the friction term (Chen et al. set it
   to zero as well).
3. The authors' prior norm is unsquared: `prior` = unsquared (`density.py`).
"""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from torch import Tensor

from pseudocore.core.config import Count, Fraction, Range
from pseudocore.core.registry import inferences
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, LogDensity
from pseudocore.inference.langevin import StochasticSampler, noisy_gradient


class SGHMCState(NamedTuple):
    theta: Tensor  # (chains, parameters)
    momentum: Tensor  # r, (chains, parameters)


class SGHMCInfo(NamedTuple):
    log_density: Tensor  # estimated, at the last inner step, (chains,)
    kinetic: Tensor  # mean squared momentum, (chains,); T in equilibrium, up to the discretisation


@dataclass(frozen=True, kw_only=True)
class MomentumSampler(StochasticSampler):
    """Chains with a momentum that friction wears out and noise renews."""

    friction: Fraction = 0.1
    """Share of the momentum lost at every step."""
    momentum_scale: Annotated[float | None, Range(low=0)] = None
    """Standard deviation of the first momentum. Defaults to the root of the temperature."""

    relative_step_size, weight_power = 0.1, 0.5

    def first_momentum(self, theta: Tensor, rng: Rng) -> Tensor:
        scale = self.temperature**0.5 if self.momentum_scale is None else self.momentum_scale
        noise = rng("momentum").normal(*theta.shape, device=theta.device, dtype=theta.dtype)
        return scale * noise


@inferences.register("a-sghmc", kind="sampler", paper="Kim et al. 2022, arXiv 2210.06205")
@dataclass(frozen=True, kw_only=True)
class AlteredSGHMC(MomentumSampler):
    """Stochastic gradient Hamiltonian Monte Carlo on the whole coreset, freshly augmented at every
    step.
    """

    def init(self, log_density: LogDensity, theta: Tensor, rng: Rng) -> SGHMCState:
        return SGHMCState(theta, self.first_momentum(theta, rng))

    def step(
        self, log_density: LogDensity, state: SGHMCState, rng: Rng
    ) -> tuple[SGHMCState, SGHMCInfo]:
        theta, momentum = state
        for number in range(self.num_inner):
            theta, momentum, value = moved(
                log_density,
                theta,
                momentum,
                self.size,
                self.friction,
                self.temperature,
                rng("inner", number),
            )
        return SGHMCState(theta, momentum), SGHMCInfo(value, momentum.square().mean(-1))

    def points_per_step(self, coreset: Coreset) -> int:
        return len(coreset)


@inferences.register("sghmc", kind="sampler", paper="Chen et al. 2014, arXiv 1402.4102")
@dataclass(frozen=True, kw_only=True)
class SGHMC(AlteredSGHMC):
    """Stochastic gradient Hamiltonian Monte Carlo on mini-batches."""

    batch_size: Count = 256
    """Points per step and chain; coresets up to this size are used whole."""

    def points_per_step(self, coreset: Coreset) -> int:
        return self.batch_size


def moved(
    log_density: LogDensity,
    theta: Tensor,
    momentum: Tensor,
    size: float | Tensor,
    friction: float,
    temperature: float | Tensor,
    rng: Rng,
) -> tuple[Tensor, Tensor, Tensor]:
    """Theta and momentum after one step, and the estimated log-density (chains,)."""
    theta = theta + size * momentum
    force, noise, value = noisy_gradient(log_density, theta, rng)
    spread = (2 * friction * temperature) ** 0.5
    return theta, (1 - friction) * momentum + size * force + spread * noise, value
