r"""CAFE: condensation by aligning the features of every class in every layer, and by classifying
real images by them.

Wang, Zhao, Peng, Zhu, Yang, Wang, Huang, Bilen, Wang, You (2022), "CAFE: Learning to Condense
Dataset by Aligning Features". With $\bar f^T_{c,l}$ and $\bar f^S_{c,l}$ the mean features of class
$c$ in layer $l$ over real and pseudo-images, minimises over the latter

$$ \sum_c \sum_{l=1}^{L} \big\lVert \bar f^S_{c,l} - \bar f^T_{c,l} \big\rVert^2
   - \frac{\beta}{\lvert B \rvert} \sum_{(x, y) \in B} \log \operatorname{softmax}_y \big( \langle f_L(x), \bar f^S_{c,L} \rangle \big)_c $$

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

from pseudocore.core.config import Count, NonNegative, Positive
from pseudocore.core.problem import Problem, label_log_likelihood
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.objectives import (
    class_matching as classwise,
)
from pseudocore.objectives import (
    multiformation as formation,
)
from pseudocore.objectives import (
    trajectory,
    unroll,
)
from pseudocore.objectives.class_matching import Settings, State
from pseudocore.objectives.trajectory import Info
from pseudocore.runtime import autodiff


class Real(NamedTuple):
    """What real images of all classes are in the network."""

    centres: list[Tensor]  # one a layer, (classes, width)
    features: Tensor  # of the last layer, (n, h)
    y: Tensor  # (n,)


@methods.register("cafe", kind="condense", paper="Wang et al. 2022, arXiv 2203.01531")
@dataclass(frozen=True, kw_only=True)
class CAFE(Settings):
    """Condensation by aligning the features of every class, layer by layer."""

    discrimination: NonNegative = 0.01
    """Weight of the loss of classifying real images by the pseudo-images' mean features."""
    max_age: Count = 10
    """Matching steps after which the network is replaced by a fresh one."""
    num_inner_steps: Count = 50
    """Training steps of the network on the pseudo-images after each matching step."""
    inner_lr: Positive = 0.01
    """Step size of that training."""

    def init(self, problem: Problem, rng: Rng) -> State:
        return classwise.under(problem, classwise.begin(self, problem, rng), rng)

    def step(self, problem: Problem, state: State, rng: Rng) -> tuple[State, Info]:
        images, theta, view = state.images, state.theta, trajectory.view_of(problem)
        drawn = classwise.draw(problem, theta, self.batch_size, rng("batch"))
        streams = [rng("augment", label) for label in range(problem.num_classes)]

        def layers(x: Tensor) -> list[Tensor]:
            with problem.fast():
                return [
                    layer.to(x.dtype) for layer in problem.model.layers(theta, x, drawn.statistics)
                ]

        real = _real(
            problem,
            [
                layers(view(problem.batch(batch)[0], stream))
                for batch, stream in zip(drawn.batches, streams, strict=True)
            ],
        )

        def loss(x: Tensor) -> Tensor:
            tiles = formation.split(x, self.formation).chunk(len(streams))
            shown = torch.cat(
                [view(own, stream) for own, stream in zip(tiles, streams, strict=True)]
            )
            return self.mismatch(
                [
                    layer.view(problem.num_classes, -1, layer.shape[1]).mean(1)
                    for layer in layers(shown)
                ],
                real,
            )

        value, gradient = autodiff.value_and_grad(loss, pure=False)(images.x)
        images, info = classwise.move(self, images, drawn, gradient, value)
        if self.max_age > 1:  # otherwise the network is gone after this step
            x, y = formation.decode(images.x, images.y, factor=self.formation)
            energy = trajectory.energy_on(problem, y)
            theta = unroll.descend(
                energy,
                view,
                theta,
                x,
                rng("inner"),
                num_steps=self.num_inner_steps,
                step_size=self.inner_lr,
            )
        return State(
            images, *classwise.aged(problem, theta, state.age, rng("fresh"), max_age=self.max_age)
        ), info

    def coreset(self, problem: Problem, state: State) -> Coreset:
        return trajectory.coreset(problem, state.images.x, state.images.y, factor=self.formation)

    def mismatch(self, centres: list[Tensor], real: Real) -> Tensor:
        """The objective above, of mean features (classes, width) of the pseudo-images in every
        layer.
        """
        alignment = torch.stack(
            [
                (own - target).square().sum()
                for own, target in zip(centres, real.centres, strict=True)
            ]
        ).sum()
        log_probs = (real.features @ centres[-1].T).log_softmax(1)
        return alignment - self.discrimination * label_log_likelihood(log_probs, real.y).mean()


def _real(problem: Problem, classes: list[list[Tensor]]) -> Real:
    """From the layers of real images, class by class."""
    centres = [
        torch.stack([layer.mean(0) for layer in same]) for same in zip(*classes, strict=True)
    ]
    labels = [
        torch.full((len(layers[-1]),), label, device=problem.device)
        for label, layers in enumerate(classes)
    ]
    return Real(centres, torch.cat([layers[-1] for layers in classes]), torch.cat(labels))
