"""What methods that learn from expert trajectories share: settings, the piece of a trajectory, the
loss of pseudo-images and what networks are shown of them.

An expert is a network trained on all data and kept at every epoch. A step takes a random expert at
a random early epoch and trains it on the pseudo-images instead (`objectives/unroll.py`). It then
compares the result with the expert at a later epoch, and moves the images.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from pseudocore.core.config import Count, Positive
from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.objectives import multiformation
from pseudocore.objectives.image_sgd import ImageSGDSettings, ImagesState
from pseudocore.objectives.initial import ImageSettings
from pseudocore.objectives.unroll import Drawn, Energy, View
from pseudocore.runtime.execution import repeated
from pseudocore.training.losses import Loss, per_example


@dataclass(frozen=True, kw_only=True)
class ExpertSettings(ImageSettings):
    """Fields of the methods that learn from experts."""

    max_start: Count = 20
    """Experts are taken at a random epoch below this."""
    num_experts: Count = 20
    """Experts to train when none are given."""

    repeats_passes: ClassVar[bool] = True
    """A step is some hundred passes through the network."""

    @property
    def expert_epochs(self) -> int:
        """The last epoch of an expert that a step can read."""
        return max(1, self.max_start - 1)

    @property
    def expert_loss(self) -> Loss:
        """The loss that experts are trained on when none are given."""
        return "cross-entropy"

    def expert_path(self, problem: Problem, rng: Rng, *, horizon: int, stride: int = 1) -> Tensor:
        """A random expert from a random start to `horizon` epochs later, every `stride` epochs,
        (horizon / stride + 1, P).
        """
        experts, device = problem.experts, problem.device
        assert experts is not None  # as `init` checks
        expert = rng("expert").integers(experts.num_experts, 1, device=device)
        start = rng("start").integers(self.max_start, 1, device=device)
        epochs = start + torch.arange(0, horizon + 1, stride, device=device)
        return experts.at(expert.expand(len(epochs)), epochs)


@dataclass(frozen=True, kw_only=True)
class TrajectorySettings(ExpertSettings, ImageSGDSettings):
    """Fields of the trajectory methods; the defaults are those for ten images per class."""

    num_steps: Count = 5000
    image_lr: Positive = 1000.0
    num_inner_steps: Count = 30
    """Training steps on the pseudo-images."""

    def init(self, problem: Problem, rng: Rng) -> Any:
        """Initial images at rest; refused without experts that reach far enough."""
        check_experts(self, problem)
        return super().init(problem, rng)

    def energy_and_view(
        self, problem: Problem, images: ImagesState, loss: Loss = "cross-entropy"
    ) -> tuple[Energy, View]:
        """What training on the images takes: the weighted mean loss, and what networks see."""
        weight = self.relative_weights(problem, images.x)
        return energy_and_view(problem, images.y, loss, factor=self.formation, weight=weight)


@dataclass(frozen=True, kw_only=True)
class HorizonSettings(TrajectorySettings):
    """Fields of the methods that compare with the expert at a later epoch."""

    horizon: Count = 1
    """Epochs from the start to where the expert is taken."""

    @property
    def expert_epochs(self) -> int:
        return self.max_start - 1 + self.horizon

    def expert_ends(self, problem: Problem, rng: Rng) -> tuple[Tensor, Tensor]:
        """A random expert at a random start and `horizon` epochs later."""
        start, end = self.expert_path(problem, rng, horizon=self.horizon, stride=self.horizon)
        return start, end


@dataclass(frozen=True)
class MeanLoss:
    """The mean loss of parameters (P,), or of several (draws, P), on images shown to the network
    with labels y; `weight` (M,), of mean 1, weighs the images.
    """

    problem: Problem
    y: Tensor
    loss: Loss = "cross-entropy"
    weight: Tensor | None = None

    def __call__(self, theta: Tensor, x: Tensor) -> Tensor:
        return self.of(self.outputs(theta, x))

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        return self.problem.logits(theta, x)

    def of(self, outputs: Tensor) -> Tensor:
        losses = per_example(self.loss, outputs, self.y)
        return (losses if self.weight is None else self.weight * losses).mean()


@dataclass(frozen=True)
class Tiles:
    """The augmented tiles of stored images; a `Drawn` view."""

    factor: int
    augment: Drawn | None

    def __call__(self, x: Tensor, rng: Rng) -> Tensor:
        tiles: Tensor = repeated(self.apply)(x, self.draw(rng, len(x), x.device))
        return tiles

    def draw(self, rng: Rng, num: int, device: torch.device | str) -> Any:
        """Decide for all tiles of `num` stored images."""
        num_tiles = num * self.factor**2
        return None if self.augment is None else self.augment.draw(rng, num_tiles, device)

    def apply(self, x: Tensor, draw: Any) -> Tensor:
        tiles = multiformation.split(x, self.factor)
        return tiles if self.augment is None else self.augment.apply(tiles, draw)


def tiled(augment: View | None, factor: int) -> View:
    """The tiles of stored images, augmented or not; the images themselves where `factor` is 1."""
    if factor == 1:
        return augment or (lambda x, _: x)
    if augment is None or isinstance(augment, Drawn):
        return Tiles(factor, augment)
    return lambda x, rng: augment(multiformation.split(x, factor), rng)


def view_of(problem: Problem, *, factor: int = 1) -> View:
    """`tiled` under the problem's augmentation."""
    return tiled(problem.augment, factor)


def energy_and_view(
    problem: Problem,
    y: Tensor,
    loss: Loss = "cross-entropy",
    *,
    factor: int,
    weight: Tensor | None = None,
) -> tuple[Energy, View]:
    """What training on stored images with labels y takes: the loss on all tiles, and the view;
    `weight`, of mean 1, is that of the images.
    """
    energy = MeanLoss(
        problem,
        multiformation.repeat(y, factor),
        loss,
        multiformation.repeat_weight(weight, factor),
    )
    return energy, view_of(problem, factor=factor)


def near(theta: Tensor, noise: float, rng: Rng, *, num: int, batch: int = 1) -> Iterator[Tensor]:
    """`num` draws from N(theta, noise² I), one by one (P,) or `batch` at a time (b, P): the same
    whatever the batch, and at every call.
    """
    like: Any = {"device": theta.device, "dtype": theta.dtype}
    for first in range(0, num, batch):
        numbers = range(first, min(first + batch, num))
        draws = [theta + noise * rng(number).normal(len(theta), **like) for number in numbers]
        yield draws[0] if batch == 1 else torch.stack(draws)


def check_experts(method: ExpertSettings, problem: Problem) -> None:
    """Refuse a problem without experts that reach as far as the method reads."""
    name, needed, experts = methods.name_of(method), method.expert_epochs, problem.experts
    command = (
        f"pseudocore experts {problem.data.name} --num {method.num_experts} --epochs {needed} "
        "--out DIR"
    )
    if experts is None:
        raise ConfigError(
            f"{name} learns from experts and was given none; train them with `{command}` and name "
            "them with --experts DIR",
            code="experts-missing",
            method=name,
        )
    if experts.num_epochs < needed:
        raise ConfigError(
            f"{name} as configured reads experts up to epoch {needed}, but these were kept for "
            f"{experts.num_epochs}; train them further with `{command}`, or lower max_start",
            code="experts-too-short",
            method=name,
            needed=needed,
            num_epochs=experts.num_epochs,
        )
