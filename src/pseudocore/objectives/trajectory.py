"""What methods that learn from expert trajectories share: their settings, the piece of a
trajectory, and SGD on the images.

An expert is a network trained on all data and kept at every epoch. A step takes a random expert at
a random early epoch, trains it on the pseudo-images instead (`objectives/unroll.py`), compares
where that leads with where the expert itself went, and moves the images.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from pseudocore.core.config import Count, Fraction, Positive
from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.objectives import multiformation as formation
from pseudocore.objectives.initial import ImageSettings
from pseudocore.objectives.unroll import Drawn, Energy, View
from pseudocore.runtime.execution import repeated
from pseudocore.training.losses import Loss, per_example


class State(NamedTuple):
    x: Tensor  # network inputs (M, ...)
    y: Tensor  # labels (M,)
    velocity: Tensor  # of x


@dataclass(frozen=True)
class Tiles:
    """What stored images show of themselves, augmented or not; a `Drawn` view, so that both
    together are one compiled function.
    """

    factor: int
    augment: Drawn | None

    def __call__(self, x: Tensor, rng: Rng) -> Tensor:
        tiles: Tensor = repeated(self.apply)(x, self.draw(rng, len(x), x.device))
        return tiles

    def draw(self, rng: Rng, num: int, device: torch.device | str) -> Any:
        """Decide for all tiles of `num` stored images."""
        return (
            None if self.augment is None else self.augment.draw(rng, num * self.factor**2, device)
        )

    def apply(self, x: Tensor, draw: Any) -> Tensor:
        tiles = formation.split(x, self.factor)
        return tiles if self.augment is None else self.augment.apply(tiles, draw)


class Info(NamedTuple):
    loss: Tensor
    """What the step is about, before it: Eq. (20) or (11), for the reverse KL how far the
    likelihood of the images is above the data's.
    """
    gradient_norm: Tensor
    mean_abs: Tensor
    """Mean size of a network input, about .8 for real images; when it runs away the step size on
    images is too large.
    """


@dataclass(frozen=True, kw_only=True)
class Settings(ImageSettings):
    """What the trajectory methods have in common; the defaults are those for ten images per class."""

    num_steps: Count = 5000
    image_lr: Positive = 1000.0
    """Step size of SGD on images, in normalised units."""
    image_momentum: Fraction = 0.5
    """Share of the last change of the images that is kept."""
    max_start: Count = 20
    """Inner training starts at an expert's epoch below this."""
    num_inner_steps: Count = 30
    """Training steps on the pseudo-images."""
    num_experts: Count = 20
    """Experts to train when none are given."""

    repeats_passes: ClassVar[bool] = True
    """A step is some hundred passes through the network."""

    @property
    def expert_epochs(self) -> int:
        """The last epoch of an expert that can be asked for."""
        return max(1, self.max_start - 1)

    @property
    def expert_loss(self) -> Loss:
        """The loss that experts are trained on when none are given."""
        return "cross-entropy"


def begin(method: Settings, problem: Problem, rng: Rng) -> State:
    """Initial images at rest, once the experts are known to be there and to reach far enough."""
    _check_experts(method, problem)
    x, y = formation.begin(
        problem, method.per_class, method.initial, rng("images"), factor=method.formation
    )
    return State(x, y, torch.zeros_like(x))


def expert_path(
    method: Settings, problem: Problem, rng: Rng, *, horizon: int, stride: int
) -> Tensor:
    """A random expert from a random start to `horizon` epochs later, every `stride` epochs,
    (horizon / stride + 1, P).
    """
    experts, device = problem.experts, problem.device
    assert experts is not None  # `begin` has seen to it
    expert = rng("expert").integers(experts.num_experts, 1, device=device)
    start = rng("start").integers(method.max_start, 1, device=device)
    epochs = start + torch.arange(0, horizon + 1, stride, device=device)
    return experts.at(expert.expand(len(epochs)), epochs)


@dataclass(frozen=True)
class MeanLoss:
    """The mean loss of parameters (P,), or of several (draws, P), on images shown to the network
    with labels y.
    """

    problem: Problem
    y: Tensor
    loss: Loss

    def __call__(self, theta: Tensor, x: Tensor) -> Tensor:
        return self.of(self.outputs(theta, x))

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        with self.problem.fast():
            logits = self.problem.model.logits(theta, x)
        return logits.to(x.dtype)

    def of(self, outputs: Tensor) -> Tensor:
        return per_example(self.loss, outputs, self.y).mean()


def energy_on(problem: Problem, y: Tensor, loss: Loss = "cross-entropy") -> MeanLoss:
    return MeanLoss(problem, y, loss)


def view_of(problem: Problem, *, factor: int = 1) -> View:
    """The problem's augmentation, or none; of the tiles, where a stored image holds several."""
    return tiled(problem.augment, factor)


def tiled(augment: View | None, factor: int) -> View:
    """What stored images of `factor` by `factor` tiles show of themselves, augmented or not."""
    if factor == 1:
        return augment or (lambda x, _: x)
    if augment is None or isinstance(augment, Drawn):
        return Tiles(factor, augment)
    return lambda x, rng: augment(formation.split(x, factor), rng)


def energy_and_view(
    problem: Problem, y: Tensor, loss: Loss = "cross-entropy", *, factor: int
) -> tuple[Energy, View]:
    """What training on stored images with labels y needs: `energy_on` all that they show, and
    `view_of` it.
    """
    return energy_on(problem, formation.repeat(y, factor), loss), view_of(problem, factor=factor)


def near(theta: Tensor, noise: float, rng: Rng, *, num: int, batch: int = 1) -> Iterator[Tensor]:
    """`num` draws from N(theta, noise² I), `batch` at a time (b, P), or one by one (P,); the same
    whatever the batch, and every time.
    """
    for first in range(0, num, batch):
        numbers = range(first, min(first + batch, num))
        draws = [
            theta + noise * rng(number).normal(len(theta), device=theta.device, dtype=theta.dtype)
            for number in numbers
        ]
        yield draws[0] if batch == 1 else torch.stack(draws)


def move(method: Settings, state: State, gradient: Tensor, loss: Tensor) -> tuple[State, Info]:
    """One step of SGD with momentum on the images."""
    velocity = method.image_momentum * state.velocity + gradient
    x = state.x - method.image_lr * velocity
    return State(x, state.y, velocity), Info(loss, gradient.norm(), x.abs().mean())


def coreset(
    problem: Problem, x: Tensor, y: Tensor, *, factor: int = 1, **learned: float
) -> Coreset:
    """The images in pixel units with weight one each, and the numbers learned beside them; `factor`
    is that of multi-formation.
    """
    provenance = {
        **({"posterior": learned} if learned else {}),
        **formation.provenance(factor=factor),
    }
    return Coreset(
        problem.pixels(x).cpu(), y.cpu(), torch.ones(len(y), dtype=x.dtype), provenance=provenance
    )


def _check_experts(method: Settings, problem: Problem) -> None:
    name, needed, experts = methods.name_of(method), method.expert_epochs, problem.experts
    command = f"pseudocore experts {problem.data.name} --num {method.num_experts} --epochs {needed} --out DIR"
    if experts is None:
        raise ConfigError(
            f"{name} learns from experts and was given none; train them with `{command}` and name them with --experts DIR"
        )
    if experts.num_epochs < needed:
        raise ConfigError(
            f"{name} as configured reads experts up to epoch {needed}, but these were kept for {experts.num_epochs}; "
            f"train them further with `{command}`, or lower max_start"
        )
