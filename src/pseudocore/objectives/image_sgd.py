"""SGD with momentum on pseudo-images: what methods that move images by it share."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pseudocore.core.config import Fraction, Positive
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.objectives import multiformation
from pseudocore.objectives.initial import ImageSettings


class ImagesState(NamedTuple):
    x: Tensor
    """Network inputs (M, ...), ordered by class."""
    y: Tensor
    """Labels (M,)."""
    velocity: Tensor
    """Momentum of x."""


class ImagesInfo(NamedTuple):
    loss: Tensor
    """The objective before the step: Eq. (20), (11) or what is matched; for the reverse KL how far
    the likelihood of the images is above the data's.
    """
    gradient_norm: Tensor
    """Norm of its gradient in the images."""
    mean_abs: Tensor
    """Mean absolute network input, about .8 for real images; it grows without bound when `image_lr`
    is too large.
    """


@dataclass(frozen=True, kw_only=True)
class ImageSGDSettings(ImageSettings):
    """Fields of methods that move images by SGD; `init` and `coreset` where that is all."""

    image_lr: Positive = 0.1
    """Step size of SGD on images, in normalised units."""
    image_momentum: Fraction = 0.5
    """Share of the last change of the images that is kept."""

    def init(self, problem: Problem, rng: Rng) -> Any:
        """Initial images at rest."""
        stream, factor = rng("images"), self.formation
        x, y = multiformation.begin(
            problem, self.counts(problem), self.initial, stream, factor=factor
        )
        return ImagesState(x, y, torch.zeros_like(x))

    def coreset(self, problem: Problem, state: Any) -> Coreset:
        """The images and their weights."""
        return coreset(problem, self, state.x, state.y)

    def moved(
        self, images: ImagesState, gradient: Tensor, loss: Tensor, limit: Tensor | None = None
    ) -> tuple[ImagesState, ImagesInfo]:
        """The images after one step; NaN, which the loop reports as divergence, where their mean
        size is above the limit.
        """
        velocity = self.image_momentum * images.velocity + gradient
        x = images.x - self.image_lr * velocity
        info = ImagesInfo(loss, gradient.norm(), x.abs().mean())
        if limit is not None:
            x = torch.where(info.mean_abs <= limit, x, torch.nan)
        return ImagesState(x, images.y, velocity), info


def coreset(
    problem: Problem, method: ImageSettings, x: Tensor, y: Tensor, **learned: float
) -> Coreset:
    """Images in pixel units with their weights, and the numbers learned beside them."""
    provenance = multiformation.provenance(factor=method.formation)
    if learned:
        provenance = {"posterior": learned, **provenance}
    weight = method.weights(problem, x).cpu()
    return Coreset(problem.pixels(x).cpu(), y.cpu(), weight, provenance=provenance)
