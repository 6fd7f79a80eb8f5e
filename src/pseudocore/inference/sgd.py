r"""Plain training on a coreset: stochastic gradient descent with momentum, one network or an
ensemble of them.

`sgd` maximises the weighted mean log-likelihood, of hard labels or soft, from a fresh network:

$$ v \leftarrow \mu v + \eta_t \left(\nabla_\theta \sum_m \bar w_m \log p(y_m \mid x_m, \theta)
   - \delta\,\theta\right), \qquad \theta \leftarrow \theta + v, \qquad
   \bar w_m = w_m / \textstyle\sum w $$

with $\eta_t$ falling from `step_size` to 0 along a cosine, or by steps. With `regulariser` = prior
$\nabla_\theta \log p(\theta) / \sum w$ takes the place of $-\delta\,\theta$: the maximum is that of
the problem's posterior. `ensemble` does it from
`num_members` starting points at once and averages the predicted probabilities (Lakshminarayanan et
al. 2017).

Cost: `num_steps` gradients on at most `batch_size` points, times `num_members`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor

from pseudocore.core.config import Count, Fraction, NonNegative, Positive, Range
from pseudocore.core.errors import ConfigError
from pseudocore.core.likelihood import BOTH
from pseudocore.core.problem import Problem
from pseudocore.core.registry import inferences
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, LogDensity
from pseudocore.inference.draws_posterior import DrawsPosterior
from pseudocore.inference.regression import posterior_of_draws
from pseudocore.runtime import autodiff
from pseudocore.training.cutmix import mixed
from pseudocore.training.loop import FitSettings, random_batch, train
from pseudocore.training.optimisers import cosine, decayed, sgd


class SGDMoments(NamedTuple):
    velocity: Tensor  # (networks, parameters), or (parameters,) for one network
    steps: Tensor  # steps taken, as float


@dataclass(frozen=True, kw_only=True)
class Training(FitSettings, ABC):
    """How a network is trained, whatever its step sizes."""

    tasks = BOTH

    step_size: Positive = 0.01
    """Initial step size."""
    momentum: Fraction = 0.9
    """Share of the last change that is kept."""
    weight_decay: NonNegative = 5e-4
    """Weight decay."""
    regulariser: Literal["decay", "prior"] = "decay"
    """What keeps parameters small: weight decay, or the problem's prior in its place, so that
    training maximises the log-posterior.
    """
    cutmix: Annotated[float, Range(low=0, high=1)] = 0.0
    """Probability that images of a step hold a box of another image, and its label in the box's
    share.
    """

    def train(
        self,
        problem: Problem,
        coreset: Coreset,
        rng: Rng,
        *,
        num: int | None = None,
        on_step: Callable[[int, Tensor], None] = lambda number, theta: None,
    ) -> Tensor:
        """Theta (parameters,) of a trained network, or (num, parameters) of several."""
        if self.cutmix > 0 and not problem.data.is_images:
            name, shape = problem.data.name, problem.data.shape
            raise ConfigError(
                f"cutmix mixes images, but {name!r} has features of shape {shape}; leave it at 0",
                code="not-images",
                option="cutmix",
            )
        log_density = _mean_log_likelihood(problem, coreset, self.batch_size, self.cutmix)
        options: Any = {"device": problem.device, "dtype": problem.dtype}
        theta = problem.model.init(rng("theta"), num=num, **options)

        is_map, total = self.regulariser == "prior", float(coreset.weight.sum())
        # Of a regression the squared noise times that: step sizes are for half the squared error.
        unit = problem.gaussian.relative_noise**2 if problem.task == "regression" else 1.0

        def loss(theta: Tensor, rng: Rng) -> Tensor:
            value = log_density(theta, rng)
            if is_map:
                value = value + problem.log_prior(theta, normalised=False) / total
            return -unit * value.sum()  # over networks, whose gradients do not interact

        def gradient(theta: Tensor, _: Tensor, rng: Rng) -> tuple[Tensor, None]:
            return autodiff.grad(lambda theta: loss(theta, rng))(theta), None

        def optimiser(
            gradient: Tensor, moments: SGDMoments, theta: Tensor
        ) -> tuple[Tensor, SGDMoments]:
            force = gradient if is_map else decayed(gradient, theta, self.weight_decay)
            step_size = self.step_size * self.share(moments.steps)
            # The velocity holds step sizes: a falling one does not slow down earlier changes.
            change, velocity = sgd(step_size * force, moments.velocity, 1.0, momentum=self.momentum)
            return change, SGDMoments(velocity, moments.steps + 1)

        moments = SGDMoments(torch.zeros_like(theta), torch.zeros((), **options))
        return train(
            gradient,
            optimiser,
            theta,
            moments,
            problem,
            rng,
            num_steps=self.num_steps,
            on_step=on_step,
        )

    @abstractmethod
    def share(self, step: Tensor) -> Tensor:
        """Of the initial step size, at a step."""


@dataclass(frozen=True, kw_only=True)
class PlainTraining(Training):
    """How one network is trained to the end, or each of an ensemble."""

    schedule: Literal["cosine", "steps"] = "cosine"
    """How the step size falls: to 0 along a cosine, or to a fifth after two thirds of the steps and
    again after five sixths.
    """

    def share(self, step: Tensor) -> Tensor:
        if self.schedule == "cosine":
            return cosine(step, self.num_steps)
        second, third = 3 * step >= 2 * self.num_steps, 6 * step >= 5 * self.num_steps
        return 0.2 ** (second.to(step) + third.to(step))


@inferences.register("sgd", kind="point", paper="plain training")
@dataclass(frozen=True, kw_only=True)
class SGD(PlainTraining):
    """Plain training of one network."""

    num_moments: Annotated[int | None, Range(low=1)] = None
    """Published fault: evaluate --published also reports the best test accuracy of this many
    moments of training, evenly spaced. Defaults to none.
    """

    def fit(self, problem: Problem, coreset: Coreset, rng: Rng) -> DrawsPosterior:
        num, kept = self.num_moments or 1, list[Tensor]()
        moments = {self.num_steps * moment // num - 1 for moment in range(1, num)}

        def keep(number: int, theta: Tensor) -> None:
            if number in moments:
                kept.append(theta.cpu().unsqueeze(0).clone())  # there may be hundreds

        theta = self.train(problem, coreset, rng, on_step=keep).unsqueeze(0)
        posterior = posterior_of_draws(problem, theta, coreset)
        posterior.earlier = tuple(
            posterior_of_draws(problem, one, coreset, reduced_precision=True) for one in kept
        )
        return posterior


@inferences.register(
    "ensemble", kind="ensemble", paper="Lakshminarayanan et al. 2017, arXiv 1612.01474"
)
@dataclass(frozen=True, kw_only=True)
class Ensemble(PlainTraining):
    """Plain training of several networks, predictions averaged."""

    num_members: Count = 5
    """Networks."""

    def fit(self, problem: Problem, coreset: Coreset, rng: Rng) -> DrawsPosterior:
        num = self.num_members if self.num_members > 1 else None  # one is trained as by sgd
        theta = self.train(problem, coreset, rng, num=num)
        return posterior_of_draws(problem, theta.view(self.num_members, -1), coreset)


def _mean_log_likelihood(
    problem: Problem, coreset: Coreset, batch_size: int, cutmix: float = 0.0
) -> LogDensity:
    """Weighted mean log-likelihood on the coreset, estimated on a random batch when it is larger
    than one; on mixed images with probability `cutmix`.
    """
    x, y = problem.inputs(coreset.x), problem.targets(coreset.targets)
    weight = (coreset.weight / coreset.weight.mean()).to(problem.device, problem.dtype)

    def outputs(theta: Tensor, inputs: Tensor) -> Tensor:
        with problem.fast():
            logits = problem.model.logits(theta, inputs)
        return logits.to(theta.dtype)

    def log_density(theta: Tensor, rng: Rng) -> Tensor:
        inputs, labels, weights = random_batch(problem, batch_size, rng, x, y, weight)
        if cutmix == 0:
            return (weights * problem.likelihood.log_prob(outputs(theta, inputs), labels)).mean(-1)
        mix = mixed(inputs, cutmix, rng("cutmix"))
        predicted = outputs(theta, mix.x)
        own, other = (
            weights[which] * problem.likelihood.log_prob(predicted, labels[which])
            for which in (slice(None), mix.partner)
        )
        return torch.lerp(own, other, mix.share).mean(-1)

    return log_density
