r"""CAFE: condensation by aligning the features of every class in every layer, and by classifying
real images by them.

Wang, Zhao, Peng, Zhu, Yang, Wang, Huang, Bilen, Wang, You (2022), "CAFE: Learning to Condense
Dataset by Aligning Features". With $\bar f^T_{c,l}$ and $\bar f^S_{c,l}$ the mean features of class
$c$ in layer $l$ over real and pseudo-images, minimises over the latter

$$ \sum_c \sum_{l=1}^{L} \big\lVert \bar f^S_{c,l} - \bar f^T_{c,l} \big\rVert^2
   - \frac{\beta}{\lvert B \rvert} \sum_{(x, y) \in B}
   \log \operatorname{softmax}_y \big( \langle f_L(x), \bar f^S_{c,L} \rangle \big)_c $$

The first part aligns features layer by layer; the second, the discrimination loss, has the
pseudo-images' centres in the last layer classify the real images. The network is trained on the
pseudo-images between matching steps, and replaced by a fresh one after a while.

| paper | here | | paper | here |
|---|---|---|---|---|
| $\beta$ | `discrimination` | | inner loop, $\eta_\theta$ | `num_inner_steps`, `inner_lr` |
| $B$ | `batch_size` of each class | | outer loop | `max_age` |
| layers $1 \dots L$ | `FlatModel.layers` | | $\eta_S$ | `image_lr` |

Cost per step: a forward pass of `batch_size` real images of every class, forward and backward of
all pseudo-images at once, `num_inner_steps` gradients in $\theta$ of them.

Deviations:
  D1. The lengths of outer and inner loop are fixed; the paper ends them when the accuracy on real
      images no longer changes.
  D2. Training steps see all pseudo-images at once. The step size on images is constant; the paper
      halves it three times near the end.
  D3. With batch norm both sides are normalised by the statistics of real images of all classes.
  D4. The setup's `augment`, if any, acts alike on the real and the pseudo-images of a class
      ("CAFE+DSA").
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pseudocore.core.config import NonNegative
from pseudocore.core.problem import Problem, label_log_likelihood
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.objectives import class_matching, multiformation
from pseudocore.objectives.class_matching import MatchingState, TrainedMatchingSettings
from pseudocore.objectives.image_sgd import ImagesInfo
from pseudocore.objectives.trajectory import view_of
from pseudocore.runtime import autodiff


class RealFeatures(NamedTuple):
    """Features of real images of all classes."""

    centres: list[Tensor]
    """Mean features of every class, one (classes, width) a layer."""
    features: Tensor
    """Of every image in the last layer, (n, h)."""
    y: Tensor
    """Labels (n,)."""


@methods.register(
    "cafe",
    kind="condense",
    paper="Wang et al. 2022, arXiv 2203.01531",
    targets="features",
    weights="no",
)
@dataclass(frozen=True, kw_only=True)
class CAFE(TrainedMatchingSettings):
    """Condensation by aligning the features of every class, layer by layer."""

    discrimination: NonNegative = 0.01
    """Weight of the loss of classifying real images by the pseudo-images' mean features."""

    def step(
        self, problem: Problem, state: MatchingState, rng: Rng
    ) -> tuple[MatchingState, ImagesInfo]:
        images, theta, view = state.images, state.theta, view_of(problem)
        drawn = class_matching.draw(problem, theta, self.batch_size, rng("batch"))
        streams = [rng("augment", label) for label in range(problem.num_classes)]
        sizes = [num * self.formation**2 for num in self.counts(problem)]

        def layers(x: Tensor) -> list[Tensor]:
            with problem.fast():
                found = problem.model.layers(theta, x, drawn.statistics)
            return [layer.to(x.dtype) for layer in found]

        each = zip(drawn.batches, streams, strict=True)
        real = _real([layers(view(problem.batch(batch)[0], stream)) for batch, stream in each])

        def loss(x: Tensor) -> Tensor:
            tiles = torch.split(multiformation.split(x, self.formation), sizes)
            shown = [view(own, stream) for own, stream in zip(tiles, streams, strict=True)]
            by_class = (torch.split(layer, sizes) for layer in layers(torch.cat(shown)))
            centres = [torch.stack([own.mean(0) for own in layer]) for layer in by_class]
            return self.mismatch(centres, real)

        value, gradient = autodiff.value_and_grad(loss, pure=False)(images.x)
        images, info = self.matched(images, drawn, gradient, value)
        theta = self.trained(problem, view, images, theta, rng("inner"))
        return MatchingState(images, *self.aged(problem, theta, state.age, rng)), info

    def mismatch(self, centres: list[Tensor], real: RealFeatures) -> Tensor:
        """The objective above, given mean features (classes, width) of the pseudo-images in every
        layer.
        """
        pairs = zip(centres, real.centres, strict=True)
        alignment = torch.stack([(own - target).square().sum() for own, target in pairs]).sum()
        log_probs = (real.features @ centres[-1].T).log_softmax(1)
        return alignment - self.discrimination * label_log_likelihood(log_probs, real.y).mean()


def _real(classes: list[list[Tensor]]) -> RealFeatures:
    """From the layers of real images, class by class."""
    centres = [
        torch.stack([layer.mean(0) for layer in same]) for same in zip(*classes, strict=True)
    ]
    features = [layers[-1] for layers in classes]
    labels = [
        torch.full((len(own),), label, device=own.device) for label, own in enumerate(features)
    ]
    return RealFeatures(centres, torch.cat(features), torch.cat(labels))
