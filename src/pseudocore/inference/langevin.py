r"""Stochastic gradient Langevin dynamics (Welling & Teh 2011): mini-batch gradients and noise of
matching size.

$$ \theta \leftarrow \theta + \tfrac\varepsilon2 \nabla_\theta \log\hat\pi(\theta) + \mathcal N(0,
\varepsilon T) $$

$\log\hat\pi$ is an unbiased estimate of the log-posterior from a batch (`density.estimated`). There
is no Metropolis test, so draws are off by the batches' noise and by $O(\varepsilon)$: on a Gaussian
of precision κ the variance is $T / \kappa(1 - \varepsilon\kappa/4)$ and not $T/\kappa$.

Cost: `num_inner` gradients on at most `batch_size` points a draw and chain.

Deviations: the step size is constant; Welling & Teh let it fall, which trades the bias above for
slower mixing.
"""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, NamedTuple, Self

from torch import Tensor

from pseudocore.core.config import Count, Range
from pseudocore.core.problem import Problem
from pseudocore.core.registry import inferences
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, LogDensity
from pseudocore.inference import density
from pseudocore.inference.chain import ChainSampler


@dataclass(frozen=True, kw_only=True)
class StochasticSampler(ChainSampler):
    """Chains on estimates of the log-posterior, without a Metropolis test."""

    num_inner: Count = 20
    """Gradient steps between draws."""
    step_size: Annotated[float | None, Range(above=0)] = None
    """Step size on the summed log-posterior. Defaults to .02 over the coreset's total weight for
    sgld, to .1 over its root for sghmc and a-sghmc, .5 for cyclical-sghmc, which begins cycles with
    it; of a regression, over the squared noise.
    """

    relative_step_size: ClassVar[float]
    weight_power: ClassVar[float]
    """The default step size is the relative one over the total weight to this power: curvature
    grows with the weight.
    """

    @abstractmethod
    def points_per_step(self, coreset: Coreset) -> int:
        """Points behind each gradient; coresets up to this size are used whole."""

    @property
    def size(self) -> float:
        """The step size, for a total weight of 1 when it is left to default."""
        return self.step_size or self.relative_step_size

    def log_density(self, problem: Problem, coreset: Coreset, rng: Rng) -> LogDensity:
        prior = density.log_prior(problem, self.prior, self.prior_scale, len(coreset))
        return density.estimated(problem, coreset, prior, self.points_per_step(coreset))

    def fitted_to(self, problem: Problem, coreset: Coreset) -> Self:
        total = float(coreset.weight.sum())
        if problem.task == "regression":
            total /= problem.gaussian.relative_noise**2
        usual = self.relative_step_size / total**self.weight_power
        return replace(self, step_size=self.step_size or usual)

    def on_divergence(self) -> str:
        smaller = self.size / 10**self.weight_power
        return f"a step size of {self.size:.3g} is too long for this posterior, try {smaller:.1g}"


class SGLDState(NamedTuple):
    theta: Tensor  # (chains, parameters)


class SGLDInfo(NamedTuple):
    log_density: Tensor  # estimated, before the last inner step, (chains,)
    gradient_norm: Tensor  # of the last inner step, (chains,)


@inferences.register("sgld", kind="sampler", paper="Welling & Teh 2011")
@dataclass(frozen=True, kw_only=True)
class SGLD(StochasticSampler):
    """Stochastic gradient Langevin dynamics on mini-batches."""

    batch_size: Count = 256
    """Points per step and chain; coresets up to this size are used whole."""

    relative_step_size, weight_power = 0.02, 1.0

    def init(self, log_density: LogDensity, theta: Tensor, rng: Rng) -> SGLDState:
        return SGLDState(theta)

    def step(
        self, log_density: LogDensity, state: SGLDState, rng: Rng
    ) -> tuple[SGLDState, SGLDInfo]:
        theta, size = state.theta, self.size
        spread = (size * self.temperature) ** 0.5
        for number in range(self.num_inner):
            force, noise, value = noisy_gradient(log_density, theta, rng("inner", number))
            theta = theta + size / 2 * force + spread * noise
        return SGLDState(theta), SGLDInfo(value, force.norm(dim=-1))

    def points_per_step(self, coreset: Coreset) -> int:
        return self.batch_size


def noisy_gradient(
    log_density: LogDensity, theta: Tensor, rng: Rng
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient of a log-density, standard normal noise like it, and the log-density (chains,)."""
    gradient, value = density.grad_log_density(log_density, theta, rng("density"))
    noise = rng("noise").normal(*theta.shape, device=theta.device, dtype=theta.dtype)
    return gradient, noise, value
