r"""Hamiltonian Monte Carlo (Neal 2011; Algorithm 2 of Kim et al. 2022), several chains at once.

$$ H(\theta, r) = -\tfrac1T \log\pi(\theta \mid S) + \tfrac{1}{2\sigma_r^2}\lVert r\rVert^2, \qquad
r \sim \mathcal N(0, \sigma_r^2 I) $$

A proposal is `num_leapfrog` steps of size $\varepsilon$ along $\dot\theta = r/\sigma_r^2$, $\dot r
= -\partial_\theta H$, taken with probability $\min(1, e^{H(\theta, r) - H(\hat\theta, \hat r)})$:
momentum, mass and Metropolis test are those of one energy.

| Kim et al. | here |
|---|---|
| N − burn, burn | `num_draws`, `num_burn` |
| m, ε | `num_leapfrog`, `step_size` · √T |
| σ_θ, σ_r | `init_scale`, `momentum_scale` (mass σ_r²) |
| λ | `prior_scale` = 1/√(2λ) with `prior` isotropic |

Cost: one gradient on the whole coreset for every leapfrog step of a draw and chain.

Deviations:
1. The step size is adapted during burn-in (`step_size.py`), if that is 10 draws or more;
   `target_accept` = 0 keeps it fixed, as published. So are the length of trajectories
   (`trajectory_length.py`), unless `num_leapfrog` fixes how many steps they take, and the mass of
   each parameter (`metric.py`), unless `mass` is another.
2. Every trajectory's step size varies by ±`jitter`, which breaks resonance with the posterior's own
   periods; 0 as published.
3. Parameters move in units of 1/√(fan-in) of their layer (`mass` = adapted or fan-in): the same
   posterior, whose layers then have the same stiffness; `mass` = equal as published.
4. Algorithm 2 prints the Metropolis ratio upside down, $e^{H(\hat\theta, \hat r) - H(\theta, r)}$.
   The authors ran it with the potential the right way and the kinetic energy the wrong way round;
   `flip_kinetic` does so. It does not sample the posterior (N(0, 1) comes out with variance 0.34).
5. The authors draw momentum with scale $\sigma_r$ but move and test with unit mass;
   `mismatched_momentum` does so.
6. The authors' prior norm is unsquared: `prior` = unsquared (`density.py`).
7. The prior is the problem's, by default scaled by fan-in; as published a fixed λ and isotropic.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor

from pseudocore.core.config import Count, Fraction, Positive, Range, Whole
from pseudocore.core.problem import Problem
from pseudocore.core.registry import inferences
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, LogDensity
from pseudocore.inference import density, metric, trajectory_length
from pseudocore.inference.chain import ChainSampler, Units
from pseudocore.inference.draws import Draws
from pseudocore.inference.metric import Metric
from pseudocore.inference.step_size import Adaptation, adapt, begin, restart
from pseudocore.inference.trajectory_length import Length, squared_distance

MIN_BURN_TO_ADAPT = 10
"""Burnt draws below which the step size is not adapted: the first few only swing around it."""

GradLogDensity = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Thetas (chains, parameters) to the gradient of the log-density there and its value (chains,)."""


class HMCState(NamedTuple):
    theta: Tensor  # (chains, parameters)
    log_density: Tensor  # at temperature T, (chains,)
    gradient: Tensor  # of the log-density, (chains, parameters)
    step: Tensor  # proposals made, as float
    adaptation: Adaptation  # of the step size
    length: Length  # of trajectories
    metric: Metric


class HMCInfo(NamedTuple):
    log_density: Tensor  # at temperature T after the proposal, (chains,)
    accept: Tensor  # acceptance probability, (chains,)
    accepted: Tensor  # 1 where the proposal was accepted, else 0, (chains,)
    energy_error: Tensor  # H after the trajectory minus H before, (chains,)
    step_size: Tensor  # of the leapfrog steps, (chains,)


@inferences.register("hmc", kind="sampler", paper="Neal 2011, arXiv 1206.1901")
@dataclass(frozen=True, kw_only=True)
class HMC(ChainSampler):
    """Hamiltonian Monte Carlo, Metropolis-corrected, with adapted steps and trajectories."""

    num_draws: Count = 100
    num_burn: Whole = 200
    num_chains: Count = 4
    num_leapfrog: Annotated[int | None, Range(low=1)] = None
    """Leapfrog steps a proposal. Defaults to those of a trajectory whose length burn-in adapts."""
    step_size: Positive = 0.05
    """Leapfrog step size at temperature 1; the first guess when it is adapted. At T it is √T of
    that, as the posterior is √T as wide.
    """
    target_accept: Fraction = 0.8
    """Acceptance rate that burn-in adapts the step size to; 0 keeps the step size fixed."""
    jitter: Fraction = 0.1
    """Every trajectory's step size is drawn within this share of the adapted one."""
    mass: Literal["adapted", "fan-in", "equal"] = "adapted"
    """What parameters move in units of: one over the root of their layer's fan-in, times standard
    deviations that burn-in finds, or alone; or all alike.
    """
    momentum_scale: Positive = 1.0
    """Standard deviation of the momentum in those units; its square is the mass."""
    flip_kinetic: bool = False
    """Published fault: kinetic energy enters the Metropolis test with the wrong sign."""
    mismatched_momentum: bool = False
    """Published fault: momentum has momentum_scale, but dynamics and energy have unit mass."""

    def init(self, log_density: LogDensity, theta: Tensor, rng: Rng) -> HMCState:
        """`log_density` must be the same function at every call."""
        gradient, value = self._gradient(log_density, rng)(theta)
        step = torch.zeros((), dtype=theta.dtype, device=theta.device)
        adaptation = begin(self.step_size * self.temperature**0.5, value)
        length = trajectory_length.begin(theta)
        return HMCState(theta, value, gradient, step, adaptation, length, metric.begin(theta))

    def step(self, log_density: LogDensity, state: HMCState, rng: Rng) -> tuple[HMCState, HMCInfo]:
        gradient_at = self._gradient(log_density, rng)
        mass = 1.0 if self.mismatched_momentum else self.momentum_scale**2
        like: Any = {"device": state.theta.device, "dtype": state.theta.dtype}
        momentum = self.momentum_scale * rng("momentum").normal(*state.theta.shape, **like)
        uniform = 2 * rng("jitter").uniform(len(state.theta), **like) - 1
        step_size = state.adaptation.log_step.exp() * (1 + self.jitter * uniform)
        num, burning = self.num_leapfrog, False
        if num is None:  # read back, so that the step runs eagerly
            burning = bool(state.step < self.num_burn) and self.num_burn >= MIN_BURN_TO_ADAPT
            uniform = rng("length").uniform(1, **like)[0]
            num = trajectory_length.num_steps(state.length, uniform, burning=burning)
        scale, distances = state.metric.scale, list[Tensor]()

        def gradient_here(measured: Tensor) -> tuple[Tensor, Tensor]:
            theta = measured * scale
            if burning:
                distances.append(squared_distance(theta, state.metric.centre, scale))
            gradient, value = gradient_at(theta)
            return gradient * scale, value

        theta, after, gradient, value = leapfrog(
            gradient_here,
            state.theta / scale,
            momentum,
            state.gradient * scale,
            step_size,
            num,
            mass,
        )
        theta, gradient = theta * scale, gradient / scale
        # K after − K before
        kinetic = (after.square().sum(-1) - momentum.square().sum(-1)) / (2 * mass)
        energy_error = state.log_density - value + (-kinetic if self.flip_kinetic else kinetic)
        accept = (-energy_error).exp().clamp(max=1).nan_to_num(0.0)
        accepted = rng("accept").uniform(len(theta), **like) < accept
        step, adaptation = state.step + 1, state.adaptation
        if self.target_accept > 0 and self.num_burn >= MIN_BURN_TO_ADAPT:
            adaptation = self._adapted(adaptation, accept, step)
        length = state.length
        if burning:
            began = squared_distance(state.theta, state.metric.centre, scale)
            length = trajectory_length.adapt(length, torch.stack(distances) - began, accept)
        per_chain = accepted.unsqueeze(-1)
        theta = torch.where(per_chain, theta, state.theta)
        gradient = torch.where(per_chain, gradient, state.gradient)
        value = torch.where(accepted, value, state.log_density)
        adapted = self._adapted_metric(state.metric, theta, step)
        energy_error = energy_error.nan_to_num(torch.inf)
        info = HMCInfo(value, accept, accepted.to(value), energy_error, step_size)
        return HMCState(theta, value, gradient, step, adaptation, length, adapted), info

    def log_density(self, problem: Problem, coreset: Coreset, rng: Rng) -> LogDensity:
        prior = density.log_prior(problem, self.prior, self.prior_scale, len(coreset))
        return density.exact(problem, coreset, prior, rng("copies"))

    def units(self, problem: Problem) -> Units | None:
        if self.mass == "equal":
            return None
        return Units(*problem.model.layer_scale(device=problem.device, dtype=problem.dtype))

    def advice(self, draws: Draws) -> str | None:
        accepted, step_size = draws.trace("accepted"), draws.trace("step_size").double()
        if accepted.any():
            return None
        last = float(step_size.mean()) / self.temperature**0.5
        smaller = f"{last / 10:.1g}"
        if self.target_accept > 0:
            smaller = f"a first guess of {smaller} and a longer num_burn"
        return (
            f"every one of {accepted.numel()} proposals was rejected: a step size of {last:.3g} is "
            f"too long for this posterior; try {smaller}"
        )

    def on_divergence(self) -> str:
        if self.init_scale is None:
            return (
                "the network's own start has no finite log-density on these points: try "
                "preprocess = 'standard' or init_scale = 0.01"
            )
        return (
            "the start itself has no finite log-density: try a smaller init_scale than "
            f"{self.init_scale:g}, or the network's own"
        )

    def _gradient(self, log_density: LogDensity, rng: Rng) -> GradLogDensity:
        cold = density.rewrap(
            log_density, lambda theta, rng: log_density(theta, rng) / self.temperature
        )
        return lambda theta: density.grad_log_density(cold, theta, rng("density"))

    def _adapted(self, adaptation: Adaptation, accept: Tensor, step: Tensor) -> Adaptation:
        """Adapt while burning in, anew where the scale is refreshed; from the last burnt draw on,
        the average.
        """
        since = step
        if self.mass == "adapted":
            last = metric.refreshed(step, self.num_burn)
            since, restarts = step - last, (step == last + 1) & (step > 1)
            pairs = zip(restart(adaptation), adaptation, strict=True)
            adaptation = Adaptation(*(torch.where(restarts, *pair) for pair in pairs))
        new = adapt(adaptation, accept, since, self.target_accept)
        log_step = torch.where(step < self.num_burn, new.log_step, new.log_average)
        pairs = zip(new._replace(log_step=log_step), adaptation, strict=True)
        return Adaptation(*(torch.where(step <= self.num_burn, *pair) for pair in pairs))

    def _adapted_metric(self, before: Metric, theta: Tensor, step: Tensor) -> Metric:
        if self.num_burn < MIN_BURN_TO_ADAPT:
            return before
        new = metric.adapt(before, theta, step, self.num_burn)
        if self.mass != "adapted":
            new = new._replace(scale=before.scale)
        pairs = zip(new, before, strict=True)
        return Metric(*(torch.where(step <= self.num_burn, *pair) for pair in pairs))


def leapfrog(
    gradient_at: GradLogDensity,
    theta: Tensor,
    momentum: Tensor,
    gradient: Tensor,
    step_size: Tensor,
    num_steps: int,
    mass: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Theta, momentum, gradient and log-density after `num_steps` steps of size (chains,);
    reversible and volume-preserving.
    """
    size = step_size.unsqueeze(-1)
    momentum = momentum + size / 2 * gradient
    for number in range(num_steps):
        theta = theta + size / mass * momentum
        gradient, value = gradient_at(theta)
        momentum = momentum + (size if number + 1 < num_steps else size / 2) * gradient
    return theta, momentum, gradient, value
