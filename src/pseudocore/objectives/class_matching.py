"""What methods that match the data class by class share: settings, real batches, the matching, and
the network it is done under.

A step draws some real images of every class. It shows them and the pseudo-images of that class to
one network under one augmentation ("siamese"), and moves the pseudo-images towards what the real
ones give: gradients (`dc`, `dsa`, `lcmat-c`) or features (`dm`, `cafe`). Except in `cafe`, classes
do not meet in a loss, so a step takes the memory of one class, or of the few that a GPU passes
through at once.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from pseudocore.core.config import Count, Positive
from pseudocore.core.errors import DataError
from pseudocore.core.problem import Problem, label_log_likelihood
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, Statistics
from pseudocore.objectives import multiformation, unroll
from pseudocore.objectives.image_sgd import ImageSGDSettings, ImagesInfo, ImagesState, coreset
from pseudocore.objectives.initial import ImageSettings, Initial
from pseudocore.objectives.trajectory import MeanLoss, tiled
from pseudocore.objectives.unroll import View, augment_vjp
from pseudocore.runtime import autodiff
from pseudocore.runtime.execution import map_independent
from pseudocore.selection.last_layer_gradients import LastLayer

Mismatch = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Pseudo-images of a class, as shown to a network, to their loss and its gradient."""
Against = Callable[[Tensor, int], Mismatch]
"""Real images of a class, as shown to that network, and its label, to the mismatch with them."""
Compare = Callable[[list[Tensor], LastLayer], Tensor]
"""The gradient in theta of the loss of pseudo-images, tensor by tensor, and what the last layer
sees of them, to the loss of their mismatch.
"""

MAX_REFERENCE_IMAGES = 16
"""Real images of each class for the statistics of batch norm and the size of real images."""

MAX_RELATIVE_SIZE = 1000
"""Times the size of real images at which pseudo-images have diverged: behind a norm they can grow
without any effect on the loss.
"""


class RealImages(NamedTuple):
    """The real images of a step."""

    batches: list[Tensor]
    """Training indices, one batch a class."""
    statistics: Statistics | None
    """What batch norm normalises both sides by: those of real images of all classes."""
    size: Tensor
    """Mean absolute value, ()."""


class MatchingState(NamedTuple):
    images: ImagesState
    theta: Tensor
    """The network that matching is done under, (P,)."""
    age: Tensor
    """Matching steps done under it, ()."""


@dataclass(frozen=True, kw_only=True)
class MatchingSettings(ImageSGDSettings):
    """Fields of the methods that match class by class."""

    num_steps: Count = 10_000
    """Matching steps."""
    batch_size: Count = 256
    """Real images of each class per step; of a class that has fewer, all."""
    initial: Initial = "noise"

    repeats_passes: ClassVar[bool] = True
    """A step passes every class through the network."""

    def matched(
        self, images: ImagesState, real: RealImages, gradient: Tensor, loss: Tensor
    ) -> tuple[ImagesState, ImagesInfo]:
        """The images after one step, which are NaN where they have outgrown the real ones."""
        return self.moved(images, gradient, loss, MAX_RELATIVE_SIZE * real.size)


@dataclass(frozen=True, kw_only=True)
class TrainedMatchingSettings(MatchingSettings):
    """Fields of the methods that train the network between matching steps."""

    max_age: Count = 10
    """Matching steps after which the network is replaced by a fresh one."""
    num_inner_steps: Count = 50
    """Training steps of the network on the pseudo-images after each matching step."""
    inner_lr: Positive = 0.01
    """Step size of that training."""

    def init(self, problem: Problem, rng: Rng) -> Any:
        """Initial images under a fresh network."""
        images = super().init(problem, rng)
        theta = problem.model.init(rng("network"), device=problem.device, dtype=problem.dtype)
        age = torch.zeros((), dtype=torch.int64, device=problem.device)
        return MatchingState(images, theta, age)

    def coreset(self, problem: Problem, state: Any) -> Coreset:
        """The images and their weights."""
        return coreset(problem, self, state.images.x, state.images.y)

    def trained(
        self, problem: Problem, view: View, images: ImagesState, theta: Tensor, rng: Rng
    ) -> Tensor:
        """The network after training on the pseudo-images; as it is where it is replaced anyway."""
        if self.max_age == 1:
            return theta
        x, y = multiformation.decode(images.x, images.y, factor=self.formation)
        weight = self.relative_weights(problem, images.x)
        energy = MeanLoss(problem, y, weight=multiformation.repeat_weight(weight, self.formation))
        options: Any = {"num_steps": self.num_inner_steps, "step_size": self.inner_lr}
        return unroll.descend(energy, view, theta, x, rng, **options)

    def aged(self, problem: Problem, theta: Tensor, age: Tensor, rng: Rng) -> tuple[Tensor, Tensor]:
        """The network and its age after one more step, or a fresh one of age 0 after `max_age`."""
        fresh = problem.model.init(rng("fresh"), device=problem.device, dtype=problem.dtype)
        keep = age + 1 < self.max_age  # a tensor, not a branch: a graph takes both ways
        return torch.where(keep, theta, fresh), torch.where(keep, age + 1, 0)


def check_classes(method: MatchingSettings, problem: Problem) -> None:
    """Refuse a problem without gradients to match."""
    if problem.num_classes < 2:
        raise DataError(
            f"{methods.name_of(method)} matches gradients of a classification loss, which are 0 "
            f"for a single class; {problem.data.name!r} has {problem.num_classes}, two or more "
            "would work",
            code="single-class",
            method=methods.name_of(method),
        )


def draw(problem: Problem, theta: Tensor, size: int, rng: Rng) -> RealImages:
    """`size` training points of every class, drawn without replacement; all points of a class that
    has fewer.
    """
    chance = rng.uniform(problem.num_train, device=problem.device, dtype=torch.float64)
    order = (problem.train_y + chance).argsort()  # by class, and at random within it
    by_class = torch.split(order, problem.data.class_counts.tolist())
    batches = [indices[:size] for indices in by_class]
    x, _ = problem.batch(torch.cat([batch[:MAX_REFERENCE_IMAGES] for batch in batches]))
    return RealImages(batches, problem.model.statistics(theta, x) or None, x.abs().mean())


def match(
    method: ImageSettings,
    problem: Problem,
    view: View,
    x: Tensor,
    real: RealImages,
    against: Against,
    rng: Rng,
) -> tuple[Tensor, Tensor]:
    """Gradient in the images x, ordered by class, of the sum over classes of the mismatches; and
    that sum.
    """
    own_view, pulls = tiled(view, method.formation), []

    def towards(theirs: Tensor, ours: Tensor, label: int) -> tuple[Tensor, Tensor]:
        return against(theirs, label)(ours)

    def calls() -> Iterator[Callable[[], tuple[Tensor, Tensor]]]:
        """Draws are made before the calls, images for as many classes as are passed at once."""
        own = torch.split(x, method.counts(problem))
        for label, (images, batch) in enumerate(zip(own, real.batches, strict=True)):
            stream = rng("augment", label)  # one for both sides: the same augmentation
            theirs = view(problem.batch(batch)[0], stream)
            ours, pull = augment_vjp(own_view, images, stream)
            pulls.append(pull)
            yield functools.partial(towards, theirs, ours, label)

    losses, gradients = zip(*map_independent(calls()), strict=True)
    pulled = [pull(gradient) for pull, gradient in zip(pulls, gradients, strict=True)]
    return torch.cat(pulled), torch.stack(losses).sum()


@dataclass(frozen=True)
class ClassLoss:
    """The mean loss of images of one class, an `autodiff.EnergyWithAux`; beside it what the last
    layer sees of them.
    """

    problem: Problem
    label: int
    statistics: Statistics | None = None

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
        features = self.problem.features(theta, x, self.statistics)
        weight, bias = self.problem.model.head(theta)
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
