"""Several chains from start to draws: what every sampler's `fit` has in common.

The chains run side by side as thetas (chains, parameters), through the one loop of
`runtime/loop.py`: with a `Checkpoints` and a place for draws that outlives the process, a chain
that is killed and run again makes the same draws, bit for bit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Protocol

from torch import Tensor

from pseudocore.core.config import Count, Positive, Range, Whole
from pseudocore.core.errors import ConfigError, RunError
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, LogDensity
from pseudocore.inference.choose import FACTORS, Setting
from pseudocore.inference.density import Prior, like
from pseudocore.inference.draws import Draws, MemoryDraws
from pseudocore.inference.predict import Predictive
from pseudocore.runtime.loop import Checkpoints, drive


@dataclass(frozen=True, kw_only=True)
class ChainSettings:
    """What every chain of draws has."""

    num_draws: Count = 40
    """Draws kept of each chain."""
    num_burn: Whole = 40
    """Draws thrown away first."""
    num_chains: Count = 2
    """Chains, each from its own start."""
    prior: Prior = "fan-in"
    """Gaussian on all parameters alike, Gaussian by each layer's fan-in, or the authors' unsquared
    norm.
    """
    init_scale: Annotated[float | None, Range(above=0)] = None
    """Chains start at this times standard normal numbers; unless told, at the network's own
    initialisation.
    """


@dataclass(frozen=True, kw_only=True)
class StochasticSettings(ChainSettings):
    """What chains without a Metropolis test have besides."""

    temperature: Positive = 0.1
    """T: draws are from the posterior to the power 1/T; below 1 is a cold posterior."""
    prior_scale: Positive = 8.0
    """Scale of the prior: in units of one over the root of the fan-in, or for isotropic of the
    parameters themselves.
    """
    choose_prior: Literal["given", "split"] = "given"
    """Whether prior_scale is used as it is, or chosen within a factor of 4 by short chains scored
    on held-out training points.
    """

    def settings_to_try(self) -> list[Setting]:
        """Where the prior's scale is to be chosen, those to choose from."""
        factors = FACTORS if self.choose_prior == "split" else ()
        return [
            {"prior_scale": factor * self.prior_scale, "choose_prior": "given"}
            for factor in factors
        ]


class ChainSampler(Protocol):
    """A Sampler of thetas (chains, parameters) whose state holds `theta` and whose info holds
    numbers (chains,).
    """

    @property
    def num_draws(self) -> int: ...
    @property
    def num_burn(self) -> int: ...
    @property
    def num_chains(self) -> int: ...
    @property
    def init_scale(self) -> float | None: ...
    def init(self, log_density: LogDensity, theta: Tensor, rng: Rng) -> Any: ...
    def step(self, log_density: LogDensity, state: Any, rng: Rng) -> tuple[Any, Any]: ...
    def advice(self, draws: Draws) -> str | None:
        """What is wrong with all draws at once and what would work, in a sentence; None when they
        can be used.
        """

    def on_divergence(self) -> str:
        """What would work when the chain has run away to infinity."""


class Units(NamedTuple):
    """What parameters are measured in: from the centre of their prior, in its scale for their
    layer.
    """

    centre: Tensor  # (parameters,)
    scale: Tensor

    @classmethod
    def of(cls, problem: Problem) -> "Units":
        if not hasattr(problem.model, "layer_scale"):
            raise ConfigError(
                "mass = 'fan-in' needs a network that knows the inputs of its layers; use mass = 'equal' for this one"
            )
        return cls(*problem.model.layer_scale(device=problem.device, dtype=problem.dtype))

    def measured(self, theta: Tensor) -> Tensor:
        return (theta - self.centre) / self.scale

    def theta(self, measured: Tensor) -> Tensor:
        return self.centre + self.scale * measured

    def density(self, log_density: LogDensity) -> LogDensity:
        return like(log_density, lambda measured, rng: log_density(self.theta(measured), rng))


def start(settings: ChainSettings | ChainSampler, problem: Problem, rng: Rng) -> Tensor:
    """Where the chains begin, (chains, parameters)."""
    if settings.init_scale is None:
        return problem.model.init(
            rng, num=settings.num_chains, device=problem.device, dtype=problem.dtype
        )
    shape = (settings.num_chains, problem.model.num_parameters)
    return settings.init_scale * rng.normal(*shape, device=problem.device, dtype=problem.dtype)


def sample(
    sampler: ChainSampler,
    log_density: LogDensity,
    problem: Problem,
    coreset: Coreset,
    rng: Rng,
    *,
    draws: Draws | None = None,
    checkpoints: Checkpoints | None = None,
    units: Units | None = None,
    on_log: Callable[[int, dict[str, float]], None] = lambda step, values: None,
    **options: Any,
) -> Predictive:
    """Run the chains and predict with their draws; `options` are those of `core.loop.drive`.

    With `units` the sampler walks on theta measured in them: the same posterior, in which no layer
    is stiffer than another.

    Raises RunError, with advice, when a chain runs away or not one proposal is accepted.
    """
    kept: Draws = MemoryDraws() if draws is None else draws
    theta = start(sampler, problem, rng("theta"))
    walked, place = (
        (log_density, theta)
        if units is None
        else (units.density(log_density), units.measured(theta))
    )
    kept.reserve(sampler.num_draws, theta.numel() * theta.element_size())

    def keep(done: int, state: Any, info: Any) -> None:
        if done > sampler.num_burn:
            theta = state.theta if units is None else units.theta(state.theta)
            kept.append(
                theta, {name: value for name, value in info._asdict().items() if value.ndim}
            )

    ending = drive(
        lambda _, state, rng: sampler.step(walked, state, rng),
        sampler.init(walked, place, rng("init")),
        problem,
        rng,
        num_steps=sampler.num_burn + sampler.num_draws,
        repeats_passes=True,
        checkpoints=checkpoints,
        on_start=lambda done: kept.truncate(max(0, done - sampler.num_burn)),
        on_step=keep,
        on_log=on_log,
        **options,
    )
    if ending.status == "interrupted":
        raise KeyboardInterrupt(ending.reason)
    if ending.status == "diverged":
        raise RunError(f"the chain diverged: {ending.reason}; {sampler.on_divergence()}")
    if (complaint := sampler.advice(kept)) is not None:
        raise RunError(complaint)
    return Predictive(problem, kept, problem.inputs(coreset.x))
