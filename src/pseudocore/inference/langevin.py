r"""Stochastic gradient Langevin dynamics (Welling & Teh 2011): mini-batch gradients and noise of
matching size.

$$ \theta \leftarrow \theta + \tfrac\varepsilon2 \nabla_\theta \log\hat\pi(\theta) + \mathcal N(0,
\varepsilon T) $$

$\log\hat\pi$ is an unbiased estimate of the log-posterior from a batch (`density.estimated`). There
is no Metropolis test, so draws are off by the batches' noise and by $O(\varepsilon)$: on a Gaussian
of precision κ the variance is $T / \kappa(1 -
\varepsilon\kappa/4)$ and not $T/\kappa$.

Cost: `num_inner` gradients on at most `batch_size` points a draw and chain.

Deviations: the step size is constant; Welling & Teh let it fall, which trades the bias above for
slower mixing.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

from torch import Tensor

from pseudocore.core.config import Count, Range
from pseudocore.core.problem import Problem
from pseudocore.core.registry import inferences
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, LogDensity
from pseudocore.inference import density
from pseudocore.inference.chain import StochasticSettings, sample
from pseudocore.inference.choose import by_split
from pseudocore.inference.draws import Draws
from pseudocore.inference.predict import Predictive

RELATIVE = 0.02
"""Default step size times the coreset's total weight: curvature grows with the weight, and so must
the step size shrink.
"""


class State(NamedTuple):
    theta: Tensor  # (chains, parameters)


class Info(NamedTuple):
    """After the last inner step, (chains,) each."""

    log_density: Tensor  # estimated, before that step
    gradient_norm: Tensor


@inferences.register("sgld", kind="sampler", paper="Welling & Teh 2011")
@dataclass(frozen=True, kw_only=True)
class SGLD(StochasticSettings):
    """Stochastic gradient Langevin dynamics on mini-batches."""

    num_inner: Count = 20
    """Gradient steps between draws."""
    step_size: Annotated[float | None, Range(above=0)] = None
    """Step size on the summed log-posterior; unless told, 0.02 over the total weight of the
    coreset.
    """
    batch_size: Count = 256
    """Points per step and chain; coresets up to this size are used whole."""

    def init(self, log_density: LogDensity, theta: Tensor, rng: Rng) -> State:
        return State(theta)

    def step(self, log_density: LogDensity, state: State, rng: Rng) -> tuple[State, Info]:
        theta, size = state.theta, self.step_size or RELATIVE
        for number in range(self.num_inner):
            inner = rng("inner", number)
            gradient, here = density.uphill(log_density, theta, inner("density"))
            noise = inner("noise").normal(*theta.shape, device=theta.device, dtype=theta.dtype)
            theta = theta + size / 2 * gradient + (size * self.temperature) ** 0.5 * noise
        return State(theta), Info(here, gradient.norm(dim=-1))

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
        scaled = replace(self, step_size=self.step_size or RELATIVE / float(coreset.weight.sum()))
        return sample(scaled, log_density, problem, coreset, rng, **options)

    def advice(self, draws: Draws) -> str | None:
        return None

    def on_divergence(self) -> str:
        return f"a step size of {self.step_size or RELATIVE:.3g} is too long for this posterior, try {(self.step_size or RELATIVE) / 10:.1g}"
