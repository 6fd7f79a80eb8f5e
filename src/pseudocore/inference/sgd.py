r"""Plain training on a coreset: stochastic gradient descent with momentum, one network or an
ensemble of them.

`sgd` climbs the weighted mean log-likelihood, hard labels or soft, from a fresh network:

$$ v \leftarrow \mu v + \eta_t \left(\nabla_\theta \sum_m \bar w_m \log p(y_m \mid x_m, \theta) - \delta\,\theta\right), \qquad
   \theta \leftarrow \theta + v, \qquad \bar w_m = w_m / \textstyle\sum w $$

with $\eta_t$ falling from `step_size` to 0 along a cosine, or by steps. `ensemble` does it from
`num_members` starting points at once and averages the predicted probabilities (Lakshminarayanan et
al. 2017). `sgd` follows the Sampler protocol: an optimiser is a chain at temperature zero.

Cost: `num_steps` gradients on at most `batch_size` points, times `num_members`.
"""

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from pseudocore.core.config import Count, Fraction, NonNegative, Positive, Range
from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Problem, label_log_likelihood
from pseudocore.core.registry import inferences
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, LogDensity
from pseudocore.inference.predict import Predictive, averaged
from pseudocore.runtime import autodiff
from pseudocore.runtime.steps import StepRunner
from pseudocore.training.cutmix import mixed
from pseudocore.training.optimisers import cosine


class State(NamedTuple):
    theta: Tensor  # (parameters,) or (members, parameters)
    velocity: Tensor
    step: Tensor


class Info(NamedTuple):
    gradient_norm: Tensor


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What one network and an ensemble have in common."""

    num_steps: Count = 1000
    """Gradient steps."""
    step_size: Positive = 0.01
    """Initial step size."""
    momentum: Fraction = 0.9
    """Share of the last change that is kept."""
    weight_decay: NonNegative = 5e-4
    """Pull towards zero."""
    batch_size: Count = 256
    """Points per step; coresets up to this size are used whole."""
    schedule: Literal["cosine", "steps"] = "cosine"
    """How the step size falls: to 0 along a cosine, or to a fifth after two thirds of the steps and
    again after five sixths.
    """
    cutmix: Annotated[float, Range(low=0, high=1)] = 0.0
    """Probability that a step shows images with a box of another image in them, and their labels in
    its share.
    """


@inferences.register("sgd", kind="point", paper="plain training")
@dataclass(frozen=True, kw_only=True)
class SGD(Settings):
    """Plain training of one network."""

    num_moments: Annotated[int | None, Range(low=1)] = None
    """Moments of the training, evenly spaced, whose best test accuracy is reported beside the last
    one's by evaluate --published, as
    published evaluators do; unless told, none."""

    def init(self, log_density: LogDensity, theta: Tensor, rng: Rng) -> State:
        return State(
            theta, torch.zeros_like(theta), torch.zeros((), dtype=theta.dtype, device=theta.device)
        )

    def step(self, log_density: LogDensity, state: State, rng: Rng) -> tuple[State, Info]:
        """One step up `log_density`, which for a batch of thetas is a vector whose entries do not
        interact.
        """
        uphill = autodiff.grad(lambda theta: log_density(theta, rng).sum())(state.theta)
        force = uphill - self.weight_decay * state.theta
        step_size = self.step_size * self._share(state.step)
        velocity = self.momentum * state.velocity + step_size * force
        return State(state.theta + velocity, velocity, state.step + 1), Info(uphill.norm())

    def fit(self, problem: Problem, coreset: Coreset, rng: Rng) -> Predictive:
        return _train(self, problem, coreset, rng, num_members=1)

    def _share(self, step: Tensor) -> Tensor:
        """Of the initial step size, at a step."""
        if self.schedule == "cosine":
            return cosine(step, self.num_steps)
        falls = (3 * step >= 2 * self.num_steps).to(step) + (6 * step >= 5 * self.num_steps).to(
            step
        )
        return 0.2**falls


@inferences.register(
    "ensemble", kind="ensemble", paper="Lakshminarayanan et al. 2017, arXiv 1612.01474"
)
@dataclass(frozen=True, kw_only=True)
class Ensemble(Settings):
    """Plain training of several networks, predictions averaged."""

    num_members: Count = 5
    """Networks."""

    def fit(self, problem: Problem, coreset: Coreset, rng: Rng) -> Predictive:
        shared = {name: getattr(self, name) for name in Settings.__dataclass_fields__}
        return _train(SGD(**shared), problem, coreset, rng, num_members=self.num_members)


def _train(
    sgd: SGD, problem: Problem, coreset: Coreset, rng: Rng, *, num_members: int
) -> Predictive:
    if sgd.cutmix > 0 and not problem.data.is_images:
        raise ConfigError(
            f"cutmix mixes images, but {problem.data.name!r} has features of shape {problem.data.shape}; leave it at 0"
        )
    x, log_density = (
        problem.inputs(coreset.x),
        _mean_log_likelihood(problem, coreset, sgd.batch_size, sgd.cutmix),
    )
    theta = problem.model.init(
        rng("theta"), num=num_members, device=problem.device, dtype=problem.dtype
    )
    state = sgd.init(log_density, theta[0] if num_members == 1 else theta, rng)
    step_once = StepRunner(lambda _, state, rng: sgd.step(log_density, state, rng), problem)
    num_moments, kept = sgd.num_moments or 1, list[Tensor]()
    moments = {sgd.num_steps * moment // num_moments - 1 for moment in range(1, num_moments)}
    for number in range(sgd.num_steps):
        state, _ = step_once(state, rng("step", number))
        if number in moments:
            kept.append(
                state.theta.cpu().view(num_members, -1).clone()
            )  # off the device: there may be hundreds
    predictive = averaged(problem, state.theta.clone().view(num_members, -1), x)
    predictive.earlier = tuple(averaged(problem, thetas, x, rough=True) for thetas in kept)
    return predictive


def _mean_log_likelihood(
    problem: Problem, coreset: Coreset, batch_size: int, chance: float = 0.0
) -> LogDensity:
    """Weighted mean log-likelihood on the coreset, estimated on a random batch when it is larger
    than one; mixed with some chance.
    """
    x, y = problem.inputs(coreset.x), coreset.targets.to(problem.device)
    y = y.to(problem.dtype) if y.is_floating_point() else y
    weight = (coreset.weight / coreset.weight.mean()).to(problem.device, problem.dtype)

    def log_probs(theta: Tensor, inputs: Tensor) -> Tensor:
        with problem.fast():
            logits = problem.model.logits(theta, inputs)
        return logits.to(theta.dtype).log_softmax(-1)

    def log_density(theta: Tensor, rng: Rng) -> Tensor:
        part: Tensor | slice = slice(None)
        if len(x) > batch_size:
            part = rng("batch").integers(len(x), batch_size, device=x.device)
        inputs = x[part] if problem.augment is None else problem.augment(x[part], rng("augment"))
        labels, weights = y[part], weight[part]
        if chance == 0:
            return (weights * label_log_likelihood(log_probs(theta, inputs), labels)).mean(-1)
        mix = mixed(inputs, chance, rng("cutmix"))
        predicted = log_probs(theta, mix.x)
        own, other = (
            weights[which] * label_log_likelihood(predicted, labels[which])
            for which in (slice(None), mix.partner)
        )
        return torch.lerp(own, other, mix.share).mean(-1)

    return log_density
