"""What methods that match the data class by class share: settings, real batches, the matching
itself, the network it is done under.

A step draws some real images of every class, shows them and the pseudo-images of that class to one
network under one augmentation ("siamese"), and moves the pseudo-images towards giving what the real
ones give: gradients (`dc`, `dsa`, `lcmat-c`) or features (`dm`, `cafe`). But in `cafe`, classes do
not meet in a loss, so the memory of a step is that of one class, or of the few that go side by side
in a captured graph.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from pseudocore.core.config import Count, Fraction, Positive
from pseudocore.core.errors import DataError
from pseudocore.core.problem import Problem, label_log_likelihood
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.objectives import multiformation as formation
from pseudocore.objectives import trajectory
from pseudocore.objectives.initial import ImageSettings, Initial
from pseudocore.objectives.trajectory import Info
from pseudocore.objectives.unroll import View, augment_vjp
from pseudocore.runtime import autodiff
from pseudocore.runtime.execution import map_independent
from pseudocore.selection.last_layer_gradients import LastLayer

Statistics = Mapping[str, Tensor] | None
Mismatch = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Pseudo-images of a class, as shown to a network, to their loss and its gradient."""
Against = Callable[[Tensor, int], Mismatch]
"""Real images of a class, as shown to that network, and its label, to what pseudo-images lose
against them.
"""
Compare = Callable[[list[Tensor], LastLayer], Tensor]
"""The gradient in theta of the loss of pseudo-images, tensor by tensor, and what the last layer
sees of them, to what they lose.
"""

MIXED = 16
"""Real images of each class behind the statistics of batch norm and the size of real images."""

RUNAWAY = 1000
"""Times the size of real images at which pseudo-images have diverged: behind a norm they could grow
for ever and nothing would tell.
"""


class Real(NamedTuple):
    """The real images of a step."""

    batches: list[Tensor]  # indices, one batch a class
    # what batch norm, if there is any, normalises both sides by: those of real images of all
    # classes
    statistics: Statistics
    size: Tensor  # () mean absolute value


class State(NamedTuple):
    images: trajectory.State
    theta: Tensor  # (P,) the network that matching is done under
    age: Tensor  # () matching steps done under it


@dataclass(frozen=True, kw_only=True)
class Settings(ImageSettings):
    """What the methods that match class by class have in common."""

    num_steps: Count = 10_000
    """Matching steps."""
    batch_size: Count = 256
    """Real images of each class per step; of a class that has fewer, all."""
    image_lr: Positive = 0.1
    """Step size of SGD on images, in normalised units."""
    image_momentum: Fraction = 0.5
    """Share of the last change of the images that is kept."""
    initial: Initial = "noise"

    repeats_passes: ClassVar[bool] = True
    """A step passes every class through the network."""


def begin(method: Settings, problem: Problem, rng: Rng) -> trajectory.State:
    """Initial images, ordered by class, at rest."""
    x, y = formation.begin(
        problem, method.per_class, method.initial, rng("images"), factor=method.formation
    )
    return trajectory.State(x, y, torch.zeros_like(x))


def under(problem: Problem, images: trajectory.State, rng: Rng) -> State:
    """The images with a fresh network."""
    theta = problem.model.init(rng("network"), device=problem.device, dtype=problem.dtype)
    return State(images, theta, torch.zeros((), dtype=torch.int64, device=problem.device))


def check_classes(method: Settings, problem: Problem) -> None:
    """Refuse what has no gradient to match."""
    if problem.num_classes < 2:
        raise DataError(
            f"{methods.name_of(method)} matches gradients of a classification loss, which are 0 where there is but one class; "
            f"{problem.data.name!r} has {problem.num_classes}, two or more would work"
        )


def draw(problem: Problem, theta: Tensor, size: int, rng: Rng) -> Real:
    """`size` training points of every class, drawn without replacement; all points of a class that
    has fewer.
    """
    chance = rng.uniform(problem.num_train, device=problem.device, dtype=torch.float64)
    order = (problem.train_y + chance).argsort()  # by class, and at random within it
    batches = [members[:size] for members in torch.split(order, problem.data.class_counts.tolist())]
    x, _ = problem.batch(torch.cat([batch[:MIXED] for batch in batches]))
    return Real(batches, problem.model.statistics(theta, x) or None, x.abs().mean())


def match(
    method: Settings,
    problem: Problem,
    view: View,
    x: Tensor,
    real: Real,
    against: Against,
    rng: Rng,
) -> tuple[Tensor, Tensor]:
    """Gradient in the images x, ordered by class, of the sum over classes of what `against` says;
    and that sum.
    """

    own_view, pulls = trajectory.tiled(view, method.formation), []

    def calls() -> Iterator[Callable[[], tuple[Tensor, Tensor]]]:
        """What chance decides comes before the branches; images are made for as many classes as go
        side by side.
        """
        for label, (own, batch) in enumerate(
            zip(x.chunk(len(real.batches)), real.batches, strict=True)
        ):
            stream = rng("augment", label)  # one for both sides: the same augmentation
            theirs = view(problem.batch(batch)[0], stream)
            ours, pull = augment_vjp(own_view, own, stream)
            pulls.append(pull)
            yield functools.partial(_towards, against, theirs, ours, label)

    losses, gradients = zip(*map_independent(calls()), strict=True)
    return torch.cat(
        [pull(gradient) for pull, gradient in zip(pulls, gradients, strict=True)]
    ), torch.stack(losses).sum()


def _towards(against: Against, theirs: Tensor, ours: Tensor, label: int) -> tuple[Tensor, Tensor]:
    return against(theirs, label)(ours)


@dataclass(frozen=True)
class ClassLoss:
    """The mean loss of images of one class, an `autodiff.EnergyWithAux`; beside it what the last
    layer sees of them.
    """

    problem: Problem
    label: int
    statistics: Statistics = None

    def __call__(self, theta: Tensor, x: Tensor) -> Tensor:
        return self.of(self.outputs(theta, x))

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        return self._last_layer(theta, x)[1]

    def of(self, outputs: Tensor) -> Tensor:
        return self._mean(outputs.log_softmax(1))

    def with_aux(self, theta: Tensor, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        features, logits = self._last_layer(theta, x)
        log_probs = logits.log_softmax(1)
        return self._mean(log_probs), (features, log_probs)

    def layer(self, features: Tensor, log_probs: Tensor) -> LastLayer:
        return LastLayer(features, log_probs, self._labels(log_probs))

    def _mean(self, log_probs: Tensor) -> Tensor:
        return -label_log_likelihood(log_probs, self._labels(log_probs)).mean()

    def _labels(self, log_probs: Tensor) -> Tensor:
        return torch.full((len(log_probs),), self.label, device=log_probs.device)

    def _last_layer(self, theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features, which reduced precision may be used for, and logits."""
        model = self.problem.model
        with self.problem.fast():
            features = model.features(theta, x, self.statistics)
        features = features.to(x.dtype)
        weight, bias = model.head(theta)
        return features, features @ weight.T + bias


def slope(loss: ClassLoss, theta: Tensor, x: Tensor) -> tuple[list[Tensor], LastLayer]:
    """The gradient of the loss in theta, tensor by tensor, and what the last layer sees of x."""
    gradient, aux = autodiff.grad(lambda theta: loss.with_aux(theta, x), has_aux=True, pure=False)(
        theta
    )
    return loss.problem.model.tensors(gradient), loss.layer(*aux)


def slope_mismatch(
    loss: ClassLoss, theta: Tensor, compare: Compare, *, by_layer: bool = False
) -> Mismatch:
    """Of a loss of the network's own gradient and, `by_layer`, of what its last layer sees."""

    def compared(gradient: Tensor, *aux: Tensor) -> Tensor:
        return compare(loss.problem.model.tensors(gradient), loss.layer(*aux))

    towards = autodiff.grad_through_gradient(loss, compared, reads_aux=by_layer)
    return lambda own: towards(theta, own)


def move(
    method: Settings, images: trajectory.State, real: Real, gradient: Tensor, loss: Tensor
) -> tuple[trajectory.State, Info]:
    """One step of SGD with momentum on the images."""
    velocity = method.image_momentum * images.velocity + gradient
    x = images.x - method.image_lr * velocity
    mean_abs = x.abs().mean()
    x = torch.where(mean_abs <= RUNAWAY * real.size, x, torch.nan)  # which the loop calls diverged
    return trajectory.State(x, images.y, velocity), Info(loss, gradient.norm(), mean_abs)


def aged(
    problem: Problem, theta: Tensor, age: Tensor, rng: Rng, *, max_age: int
) -> tuple[Tensor, Tensor]:
    """The network and its age after one more step, or a fresh one of age 0 in its place when that
    is `max_age`.
    """
    fresh = problem.model.init(rng, device=problem.device, dtype=problem.dtype)
    keep = age + 1 < max_age  # a tensor, not a branch: a captured graph must take both ways
    return torch.where(keep, theta, fresh), torch.where(keep, age + 1, 0)
