r"""Stochastic gradient Hamiltonian Monte Carlo (Chen et al. 2014), and its altered form for a
coreset (Kim et al. 2022, Algorithm 3).

$$ \theta \leftarrow \theta + \varepsilon r, \qquad
   r \leftarrow (1 - \alpha) r + \varepsilon \nabla_\theta \log\hat\pi(\theta) + \mathcal N(0, 2\alpha T) $$

Friction $\alpha$ and noise $2\alpha T$ balance, so that the posterior to the power $1/T$ is left
invariant up to $O(\varepsilon^2)$, $O(\alpha)$ and the noise of the estimate; there is no
Metropolis test. With $v = \varepsilon r$ and $\eta =
\varepsilon^2$ this is Eq. (15) of Chen et al.

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

from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

from torch import Tensor

from pseudocore.core.config import Count, Fraction, Range
from pseudocore.core.problem import Problem
from pseudocore.core.registry import inferences
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, LogDensity
from pseudocore.inference import density
from pseudocore.inference.chain import StochasticSettings, sample
from pseudocore.inference.choose import by_split
from pseudocore.inference.draws import Draws
from pseudocore.inference.predict import Predictive

RELATIVE = 0.1
"""Default step size times the root of the coreset's total weight: curvature grows with the weight,
and ε² must shrink with it.
"""


class State(NamedTuple):
    theta: Tensor  # (chains, parameters)
    momentum: Tensor


class Info(NamedTuple):
    """After the last inner step, (chains,) each."""

    log_density: Tensor  # estimated
    kinetic: Tensor  # mean squared momentum; T in equilibrium, up to the discretisation


@dataclass(frozen=True, kw_only=True)
class Settings(StochasticSettings):
    """What mini-batches and augmented coresets have in common."""

    num_inner: Count = 20
    """Gradient steps between draws."""
    step_size: Annotated[float | None, Range(above=0)] = None
    """Step size on the summed log-posterior; unless told, 0.1 over the root of the coreset's total
    weight.
    """
    friction: Fraction = 0.1
    """Share of the momentum lost at every step."""
    momentum_scale: Annotated[float | None, Range(low=0)] = None
    """Standard deviation of the first momentum; unless told, the root of the temperature."""


@inferences.register("sghmc", kind="sampler", paper="Chen et al. 2014, arXiv 1402.4102")
@dataclass(frozen=True, kw_only=True)
class SGHMC(Settings):
    """Stochastic gradient Hamiltonian Monte Carlo on mini-batches."""

    batch_size: Count = 256
    """Points per step and chain; coresets up to this size are used whole."""

    def init(self, log_density: LogDensity, theta: Tensor, rng: Rng) -> State:
        return _init(self, theta, rng)

    def step(self, log_density: LogDensity, state: State, rng: Rng) -> tuple[State, Info]:
        return _step(self, log_density, state, rng)

    def fit(self, problem: Problem, coreset: Coreset, rng: Rng) -> Predictive:
        return self.sample(problem, coreset, rng)

    def sample(self, problem: Problem, coreset: Coreset, rng: Rng, **options: Any) -> Predictive:
        """As `fit`, with the options of `chain.sample`: where draws and checkpoints go."""
        if settings := self.settings_to_try():
            return by_split(self, settings, problem, coreset, rng, **options)
        log_density = density.estimated(
            problem,
            coreset,
            density.log_prior(problem, self.prior, self.prior_scale, len(coreset)),
            self.batch_size,
        )
        return sample(
            replace(self, step_size=_step_size(self, coreset)),
            log_density,
            problem,
            coreset,
            rng,
            **options,
        )

    def advice(self, draws: Draws) -> str | None:
        return None

    def on_divergence(self) -> str:
        return _on_divergence(self)


@inferences.register("a-sghmc", kind="sampler", paper="Kim et al. 2022, arXiv 2210.06205")
@dataclass(frozen=True, kw_only=True)
class AlteredSGHMC(Settings):
    """Stochastic gradient Hamiltonian Monte Carlo on the whole coreset, freshly augmented at every
    step.
    """

    def init(self, log_density: LogDensity, theta: Tensor, rng: Rng) -> State:
        return _init(self, theta, rng)

    def step(self, log_density: LogDensity, state: State, rng: Rng) -> tuple[State, Info]:
        return _step(self, log_density, state, rng)

    def fit(self, problem: Problem, coreset: Coreset, rng: Rng) -> Predictive:
        return self.sample(problem, coreset, rng)

    def sample(self, problem: Problem, coreset: Coreset, rng: Rng, **options: Any) -> Predictive:
        """As `fit`, with the options of `chain.sample`: where draws and checkpoints go."""
        if settings := self.settings_to_try():
            return by_split(self, settings, problem, coreset, rng, **options)
        log_density = density.estimated(
            problem,
            coreset,
            density.log_prior(problem, self.prior, self.prior_scale, len(coreset)),
            len(coreset),
        )
        return sample(
            replace(self, step_size=_step_size(self, coreset)),
            log_density,
            problem,
            coreset,
            rng,
            **options,
        )

    def advice(self, draws: Draws) -> str | None:
        return None

    def on_divergence(self) -> str:
        return _on_divergence(self)


def _init(settings: Settings, theta: Tensor, rng: Rng) -> State:
    scale = (
        settings.temperature**0.5 if settings.momentum_scale is None else settings.momentum_scale
    )
    return State(
        theta, scale * rng("momentum").normal(*theta.shape, device=theta.device, dtype=theta.dtype)
    )


def _step(
    settings: Settings, log_density: LogDensity, state: State, rng: Rng
) -> tuple[State, Info]:
    """`num_inner` steps; the log-density may be a new estimate at each."""
    (theta, momentum), size = state, settings.step_size or RELATIVE
    spread = (2 * settings.friction * settings.temperature) ** 0.5
    for number in range(settings.num_inner):
        inner = rng("inner", number)
        theta = theta + size * momentum
        gradient, here = density.uphill(log_density, theta, inner("density"))
        noise = inner("noise").normal(*theta.shape, device=theta.device, dtype=theta.dtype)
        momentum = (1 - settings.friction) * momentum + size * gradient + spread * noise
    return State(theta, momentum), Info(here, momentum.square().mean(-1))


def _step_size(settings: Settings, coreset: Coreset) -> float:
    return settings.step_size or RELATIVE / float(coreset.weight.sum()) ** 0.5


def _on_divergence(settings: Settings) -> str:
    size = settings.step_size or RELATIVE
    return f"a step size of {size:.3g} is too long for this posterior, try {size / 3:.1g}"
