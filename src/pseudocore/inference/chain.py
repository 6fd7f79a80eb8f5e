"""What every sampler has in common: settings of its chains, and `fit`.

The chains are thetas (chains, parameters), which go through the one loop of `runtime/loop.py`. With
`Checkpoints` and draws on disk, a chain that is killed and run again makes the same draws, bit for
bit.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Self

from torch import Tensor

from pseudocore.core.config import Count, Positive, Range, Whole
from pseudocore.core.errors import ConfigError, RunError
from pseudocore.core.likelihood import BOTH
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, LogDensity
from pseudocore.inference.choose import COLD, FACTORS, Setting, by_split
from pseudocore.inference.density import Prior, rewrap
from pseudocore.inference.draws import Draws, MemoryDraws
from pseudocore.inference.draws_posterior import DrawsPosterior
from pseudocore.inference.regression import posterior_of_draws
from pseudocore.runtime.loop import Checkpoints, drive
from pseudocore.runtime.reporting import report


@dataclass(frozen=True, kw_only=True)
class ChainSampler(ABC):
    """Settings of chains of draws, and how they are run.

    The state of a sampler holds `theta` (chains, parameters), and its info numbers (chains,).
    """

    tasks = BOTH

    num_draws: Count = 40
    """Draws kept of each chain."""
    num_burn: Whole = 40
    """Draws discarded first."""
    num_chains: Count = 2
    """Chains, each from its own start."""
    temperature: Positive = 1.0
    """T: draws are from the posterior to the power 1/T; below 1 is a cold posterior."""
    prior: Prior = "problem"
    """The problem's own prior, or another: Gaussian on all parameters alike, Gaussian by each
    layer's fan-in, or the authors' unsquared norm.
    """
    prior_scale: Annotated[float | None, Range(above=0)] = None
    """Scale of the prior: in units of one over the root of the fan-in, or for isotropic of the
    parameters themselves. Defaults to the problem's own.
    """
    select: Literal["none", "scale", "cold"] = "none"
    """What short chains select by their scores on held-out training points. `none`: nothing.
    `scale`: the scale of the prior, within a factor of 4. `cold`: a temperature of .1 or .001 with
    a scale of 2, 4 or 8.
    """
    init_scale: Annotated[float | None, Range(above=0)] = None
    """Standard deviation of the normal numbers that chains start at. Defaults to the network's own
    initialisation.
    """

    @property
    def num_rounds(self) -> int:
        """Draws made in all, kept or not."""
        return self.num_burn + self.num_draws

    def num_kept(self, done: int) -> int:
        """Draws kept of the first `done`."""
        return max(0, done - self.num_burn)

    @abstractmethod
    def init(self, log_density: LogDensity, theta: Tensor, rng: Rng) -> Any:
        """The state of chains that start at theta."""

    @abstractmethod
    def step(self, log_density: LogDensity, state: Any, rng: Rng) -> tuple[Any, Any]:
        """The state after one more draw of each chain, and its info."""

    @abstractmethod
    def log_density(self, problem: Problem, coreset: Coreset, rng: Rng) -> LogDensity:
        """The log-posterior on the coreset, or an estimate of it."""

    @abstractmethod
    def on_divergence(self) -> str:
        """What would work when a chain has run away to infinity."""

    def candidates(self, problem: Problem, coreset: Coreset) -> list[Setting]:
        """Settings to select from on held-out points; empty when there is nothing to select."""
        if self.select == "none":
            return []
        if self.select == "scale":
            scale = self.prior_scale or problem.prior.scale
            return [{"prior_scale": factor * scale, "select": "none"} for factor in FACTORS]
        if self.temperature != 1:
            raise ConfigError(
                f"select = 'cold' selects the temperature; leave out temperature = "
                f"{self.temperature:g}, or give prior_scale with it and no select",
                code="conflicting-options",
                options=["select", "temperature"],
            )
        prior = "fan-in" if self.prior == "problem" else self.prior
        pairs = dict.fromkeys((cold, self.prior_scale or scale) for cold, scale in COLD)
        settings: list[Setting] = [
            {"temperature": cold, "prior_scale": scale, "prior": prior, "select": "none"}
            for cold, scale in pairs
        ]
        return settings if len(coreset) < problem.num_train else settings[:1]

    def advice(self, draws: Draws) -> str | None:
        """Why draws cannot be used and what would work; None when they can."""
        return None

    def units(self, problem: Problem) -> "Units | None":
        """What the sampler measures parameters in. Defaults to what the network has them in."""
        return None

    def fitted_to(self, problem: Problem, coreset: Coreset) -> Self:
        """The sampler with defaults that depend on problem and coreset written out."""
        return self

    def fit(self, problem: Problem, coreset: Coreset, rng: Rng) -> DrawsPosterior:
        return self.sample(problem, coreset, rng)

    def sample(
        self, problem: Problem, coreset: Coreset, rng: Rng, **options: Any
    ) -> DrawsPosterior:
        """As `fit`, with the options of `run_chains`: where draws and checkpoints go."""
        if candidates := self.candidates(problem, coreset):
            return by_split(self, candidates, problem, coreset, rng, **options)
        log_density, units = self.log_density(problem, coreset, rng), self.units(problem)
        sampler = self.fitted_to(problem, coreset)
        return run_chains(sampler, log_density, problem, coreset, rng, units=units, **options)


class Units(NamedTuple):
    """Units of parameters: the distance from the centre of their prior, in its scale for their
    layer.
    """

    centre: Tensor  # (parameters,)
    scale: Tensor  # (parameters,)

    def measured(self, theta: Tensor) -> Tensor:
        return (theta - self.centre) / self.scale

    def theta(self, measured: Tensor) -> Tensor:
        return self.centre + self.scale * measured

    def density(self, log_density: LogDensity) -> LogDensity:
        return rewrap(log_density, lambda measured, rng: log_density(self.theta(measured), rng))


def run_chains(
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
) -> DrawsPosterior:
    """Run the chains and predict with their draws; `options` are those of `runtime.loop.drive`.

    With `units` the sampler works on theta measured in them: the same posterior, in which no layer
    is stiffer than another. Raises RunError, with advice, when a chain runs away or its draws
    cannot be used.
    """
    kept: Draws = MemoryDraws() if draws is None else draws
    theta = _start(sampler, problem, rng("theta"))
    if units is not None:
        log_density, theta = units.density(log_density), units.measured(theta)
    kept.reserve(sampler.num_draws, theta.numel() * theta.element_size())

    def keep(done: int, state: Any, info: Any) -> None:
        report("sampling", done, sampler.num_rounds)
        if sampler.num_kept(done) > sampler.num_kept(done - 1):
            theta = state.theta if units is None else units.theta(state.theta)
            traces = {name: value for name, value in info._asdict().items() if value.ndim}
            kept.append(theta, traces)

    ending = drive(
        lambda _, state, rng: sampler.step(log_density, state, rng),
        sampler.init(log_density, theta, rng("init")),
        problem,
        rng,
        num_steps=sampler.num_rounds,
        repeats_passes=True,
        checkpoints=checkpoints,
        on_start=lambda done: kept.truncate(sampler.num_kept(done)),
        on_step=keep,
        on_log=on_log,
        **options,
    )
    if ending.status == "interrupted":
        raise KeyboardInterrupt(ending.reason)
    if ending.status == "diverged":
        raise RunError(
            f"the chain diverged: {ending.reason}; {sampler.on_divergence()}", code="chain-diverged"
        )
    if (complaint := sampler.advice(kept)) is not None:
        raise RunError(complaint, code="draws-unusable")
    return posterior_of_draws(problem, kept, coreset)


def _start(sampler: ChainSampler, problem: Problem, rng: Rng) -> Tensor:
    """Where the chains begin, (chains, parameters)."""
    options: Any = {"device": problem.device, "dtype": problem.dtype}
    if sampler.init_scale is None:
        return problem.model.init(rng, num=sampler.num_chains, **options)
    shape = (sampler.num_chains, problem.model.num_parameters)
    return sampler.init_scale * rng.normal(*shape, **options)
