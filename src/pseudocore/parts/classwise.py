"""What methods that match the data class by class share: settings, real batches, the matching itself, the network it is done under.

A step draws some real images of every class, shows them and the pseudo-images of that class to one network under one augmentation
("siamese"), and moves the pseudo-images towards giving what the real ones give: gradients (`dc`, `dsa`, `lcmat-c`) or features (`dm`,
`cafe`). But in `cafe`, classes do not meet in a loss, so the memory of a step is that of one class.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor
from torch.func import grad, grad_and_value

from pseudocore.core.config import Count, Fraction, Positive
from pseudocore.core.errors import DataError
from pseudocore.core.problem import Problem, label_log_likelihood
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.parts import formation, trajectory
from pseudocore.parts.gradients import LastLayer
from pseudocore.parts.initial import Initial
from pseudocore.parts.trajectory import Info
from pseudocore.parts.unroll import View

__all__ = ["Against", "Info", "Mismatch", "Real", "Settings", "State", "aged", "begin", "check_classes", "draw", "match", "move", "slope",
           "under"]  # fmt: skip

Statistics = Mapping[str, Tensor] | None
Mismatch = Callable[[Tensor], Tensor]
"""Pseudo-images of a class, as shown to a network, to their loss."""
Against = Callable[[Tensor, int], Mismatch]
"""Real images of a class, as shown to that network, and its label, to what pseudo-images lose against them."""

MIXED = 16
"""Real images of each class behind the statistics of batch norm and the size of real images."""

RUNAWAY = 1000
"""Times the size of real images at which pseudo-images have diverged: behind a norm they could grow for ever and nothing would tell."""


class Real(NamedTuple):
    """The real images of a step."""

    batches: list[Tensor]  # indices, one batch a class
    statistics: Statistics  # what batch norm, if there is any, normalises both sides by: those of real images of all classes
    size: Tensor  # () mean absolute value


class State(NamedTuple):
    images: trajectory.State
    theta: Tensor  # (P,) the network that matching is done under
    age: Tensor  # () matching steps done under it


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the methods that match class by class have in common."""

    per_class: Count = 10
    """Pseudo-images per class."""
    num_steps: Count = 10_000
    """Matching steps."""
    batch_size: Count = 256
    """Real images of each class per step; of a class that has fewer, all."""
    image_lr: Positive = 0.1
    """Step size of SGD on images, in normalised units."""
    image_momentum: Fraction = 0.5
    """Share of the last change of the images that is kept."""
    initial: Initial = "noise"
    """Start from real images, from mixes of two of a class, or from noise."""
    formation: Count = 1
    """Images that a stored one holds along each side; 1 stores them one by one."""

    in_pieces: ClassVar[bool] = True
    """A step is passes of every class through the network, written out: captured in seconds, compiled whole in many minutes."""


def begin(method: Settings, problem: Problem, rng: Rng) -> trajectory.State:
    """Initial images, ordered by class, at rest."""
    x, y = formation.begin(problem, method.per_class, method.initial, rng("images"), factor=method.formation)
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
    """`size` training points of every class, drawn without replacement; all points of a class that has fewer."""
    chance = rng.uniform(problem.num_train, device=problem.device, dtype=torch.float64)
    order = (problem.train_y + chance).argsort()  # by class, and at random within it
    batches = [members[:size] for members in torch.split(order, problem.data.class_counts.tolist())]
    x, _ = problem.batch(torch.cat([batch[:MIXED] for batch in batches]))
    return Real(batches, problem.model.statistics(theta, x) or None, x.abs().mean())


def match(method: Settings, problem: Problem, view: View, x: Tensor, real: Real, against: Against, rng: Rng) -> tuple[Tensor, Tensor]:
    """Gradient in the images x, ordered by class, of the sum over classes of what `against` says; and that sum."""

    def shown(own: Tensor, rng: Rng) -> Tensor:
        return view(formation.split(own, method.formation), rng)

    gradients, total = [], x.new_zeros(())
    for label, (own, batch) in enumerate(zip(x.chunk(len(real.batches)), real.batches, strict=True)):
        stream = rng("augment", label)  # one for both sides: the same augmentation
        gradient, loss = _towards(against(view(problem.batch(batch)[0], stream), label), shown, own, stream)
        gradients.append(gradient)
        total = total + loss
    return torch.cat(gradients), total


def slope(problem: Problem, theta: Tensor, x: Tensor, label: int, statistics: Statistics = None) -> tuple[list[Tensor], LastLayer]:
    """The gradient in theta, tensor by tensor, of the mean loss of images of one class, and what the last layer sees of them."""
    model, y = cast(Any, problem.model), torch.full((len(x),), label, device=x.device)

    def loss(theta: Tensor) -> tuple[Tensor, LastLayer]:
        with problem.fast():
            features = model.features(theta, x, statistics)
        features = features.to(x.dtype)
        weight, bias = model.head(theta)
        log_probs = (features @ weight.T + bias).log_softmax(1)
        return -label_log_likelihood(log_probs, y).mean(), LastLayer(features, log_probs, y)

    gradient, layer = grad(loss, has_aux=True)(theta)
    return model.tensors(gradient), layer


def move(method: Settings, images: trajectory.State, real: Real, gradient: Tensor, loss: Tensor) -> tuple[trajectory.State, Info]:
    """One step of SGD with momentum on the images."""
    velocity = method.image_momentum * images.velocity + gradient
    x = images.x - method.image_lr * velocity
    mean_abs = x.abs().mean()
    x = torch.where(mean_abs <= RUNAWAY * real.size, x, torch.nan)  # which the loop calls diverged
    return trajectory.State(x, images.y, velocity), Info(loss, gradient.norm(), mean_abs)


def aged(problem: Problem, theta: Tensor, age: Tensor, rng: Rng, *, max_age: int) -> tuple[Tensor, Tensor]:
    """The network and its age after one more step, or a fresh one of age 0 in its place when that is `max_age`."""
    fresh = problem.model.init(rng, device=problem.device, dtype=problem.dtype)
    keep = age + 1 < max_age  # a tensor, not a branch: a captured graph must take both ways
    return torch.where(keep, theta, fresh), torch.where(keep, age + 1, 0)


def _towards(mismatch: Mismatch, shown: View, own: Tensor, rng: Rng) -> tuple[Tensor, Tensor]:
    """Gradient of the loss in the images of a class, and the loss."""
    gradient, loss = grad_and_value(lambda own: mismatch(shown(own, rng)))(own)
    return gradient, loss.detach()
