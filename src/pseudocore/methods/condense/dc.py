r"""DC and DSA: condensation by matching the gradients of every class along training on the
pseudo-images.

Zhao, Mopuri, Bilen (2021), "Dataset Condensation with Gradient Matching"; Zhao, Bilen (2021),
"Dataset Condensation with Differentiable Siamese Augmentation". Minimises over pseudo-images $S$

$$ \mathbb E_{\theta_0} \Big[ \sum_{t=0}^{T-1} \sum_c
   D\big(\nabla_\theta \mathcal L(A(S_c, \omega); \theta_t),\,
   \nabla_\theta \mathcal L(A(B_c, \omega); \theta_t)\big) \Big]
   \quad \text{with} \quad \theta_{t+1} \text{ from } \theta_t
   \text{ by } \varsigma_\theta \text{ steps of training on } S $$

where $B_c$ are real images of class $c$, $D$ adds up one minus the cosine over all output nodes of
all layers (`objectives/distances.py`), and $A(\cdot, \omega)$ is one random augmentation for both
sides: none for DC. After $T$ matching steps a fresh network takes over.

| paper | here | | paper | here |
|---|---|---|---|---|
| $K \cdot T$ | `num_steps` | | $\varsigma_\theta$, $\eta_\theta$ | `num_inner_steps`, `inner_lr` |
| $T$ | `max_age` | | $\eta_S$, $\lvert B_c \rvert$ | `image_lr`, `batch_size` |
| $D$ | `distance` | | $A$ | the setup's `augment`, else `strategy` |

Cost per step: for every class one gradient in $\theta$ of `batch_size` real images, one of its
pseudo-images and that one's gradient in pixels. Then `num_inner_steps` gradients in $\theta$ of all
pseudo-images. The memory of a few classes, or of one of the last.

Deviations:
  D1. Training steps see all pseudo-images at once, under one augmentation (the authors': epochs of
      batches of 256).
  D2. With batch norm both sides are normalised by the statistics of real images of all classes.
  D3. `dc` follows the setup's augmentation too, and is then `dsa`; `dsa` augments by `strategy`
      where the setup names nothing.
  D4. A node without any gradient counts 1 and pulls at nothing; nothing is added to small norms.
"""

import functools
from dataclasses import dataclass

from torch import Tensor

from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.data import augment
from pseudocore.objectives import class_matching, distances, trajectory
from pseudocore.objectives.class_matching import (
    ClassLoss,
    MatchingState,
    Mismatch,
    TrainedMatchingSettings,
)
from pseudocore.objectives.distances import Distance
from pseudocore.objectives.image_sgd import ImagesInfo
from pseudocore.objectives.initial import Initial
from pseudocore.objectives.unroll import View
from pseudocore.selection.last_layer_gradients import LastLayer


@methods.register(
    "dc",
    kind="condense",
    paper="Zhao et al. 2021, arXiv 2006.05929",
    targets="gradients",
    weights="no",
)
@dataclass(frozen=True, kw_only=True)
class DC(TrainedMatchingSettings):
    """Condensation by gradient matching."""

    distance: Distance = "cosine"
    """Of gradients: cosine over output nodes, mean or sum of squares over weights, or Euclidean;
    `image_lr` must suit it.
    """

    def init(self, problem: Problem, rng: Rng) -> MatchingState:
        class_matching.check_classes(self, problem)
        state: MatchingState = super().init(problem, rng)
        return state

    def step(
        self, problem: Problem, state: MatchingState, rng: Rng
    ) -> tuple[MatchingState, ImagesInfo]:
        images, theta, view = state.images, state.theta, self._view(problem)
        drawn = class_matching.draw(problem, theta, self.batch_size, rng("batch"))

        def against(real: Tensor, label: int) -> Mismatch:
            loss = ClassLoss(problem, label, drawn.statistics)
            target, _ = class_matching.slope(loss, theta, real)

            def compare(found: list[Tensor], _: LastLayer) -> Tensor:
                return distances.between(self.distance, target, found)

            return class_matching.slope_mismatch(loss, theta, compare)

        gradient, loss = class_matching.match(self, problem, view, images.x, drawn, against, rng)
        images, info = self.matched(images, drawn, gradient, loss)
        theta = self.trained(problem, view, images, theta, rng("inner"))
        return MatchingState(images, *self.aged(problem, theta, state.age, rng)), info

    def _view(self, problem: Problem) -> View:
        return trajectory.view_of(problem)


@methods.register(
    "dsa",
    kind="condense",
    paper="Zhao & Bilen 2021, arXiv 2102.08259",
    targets="gradients",
    weights="no",
)
@dataclass(frozen=True, kw_only=True)
class DSA(DC):
    """Gradient matching under one random augmentation of real and pseudo-images."""

    initial: Initial = "real"
    strategy: str = "color_crop_cutout_flip_scale_rotate"
    """Augmentations to draw from where the setup names none; leave out flip for numerals."""

    def init(self, problem: Problem, rng: Rng) -> MatchingState:
        if isinstance(problem.augment, augment.DSA) and not problem.augment.siamese:
            raise ConfigError(
                "dsa needs one augmentation for real and pseudo-images, but siamese is off; leave "
                "it on, or use dc",
                code="siamese-needed",
            )
        if problem.augment is None and not problem.data.is_images:
            raise ConfigError(
                f"dsa augments images, but {problem.data.name!r} has features of shape "
                f"{problem.data.shape}; dc takes them",
                code="augmentation-needs-images",
                shape=problem.data.shape,
            )
        self._view(problem)  # refuses an unknown strategy
        return super().init(problem, rng)

    def _view(self, problem: Problem) -> View:
        return problem.augment or _augmentation(self.strategy)


@functools.cache  # a configuration takes milliseconds to check
def _augmentation(strategy: str) -> augment.DSA:
    return augment.DSA(strategy=strategy)
