r"""DC and DSA: condensation by matching the gradients of every class along training on the
pseudo-images.

Zhao, Mopuri, Bilen (2021), "Dataset Condensation with Gradient Matching"; Zhao, Bilen (2021),
"Dataset Condensation with Differentiable Siamese Augmentation". Minimises over pseudo-images $S$

$$ \mathbb E_{\theta_0} \Big[ \sum_{t=0}^{T-1} \sum_c D\big(\nabla_\theta \mathcal L(A(S_c, \omega); \theta_t),\,
   \nabla_\theta \mathcal L(A(B_c, \omega); \theta_t)\big) \Big]
   \quad \text{with} \quad \theta_{t+1} \text{ from } \theta_t \text{ by } \varsigma_\theta \text{ steps of training on } S $$

where $B_c$ are real images of class $c$, $D$ adds up one minus the cosine over all output nodes of
all layers (`objectives/distances.py`), and $A(\cdot, \omega)$ is one random augmentation for both
sides: none for DC. After $T$ matching steps a fresh network takes over.

| paper | here | | paper | here |
|---|---|---|---|---|
| $K \cdot T$ | `num_steps` | | $\varsigma_\theta$, $\eta_\theta$ | `num_inner_steps`, `inner_lr` |
| $T$ | `max_age` | | $\eta_S$, $\lvert B_c \rvert$ | `image_lr`, `batch_size` |
| $D$ | `distance` | | $A$ | the setup's `augment`, else `strategy` |

Cost per step: for every class one gradient in $\theta$ of `batch_size` real images, one of its
pseudo-images and that one's gradient in pixels; then `num_inner_steps` gradients in $\theta$ of all
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

from pseudocore.core.config import Count, Positive
from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.data import augment
from pseudocore.objectives import (
    class_matching as classwise,
)
from pseudocore.objectives import (
    distances as distance,
)
from pseudocore.objectives import (
    multiformation as formation,
)
from pseudocore.objectives import (
    trajectory,
    unroll,
)
from pseudocore.objectives.class_matching import State
from pseudocore.objectives.distances import Distance
from pseudocore.objectives.initial import Initial
from pseudocore.objectives.trajectory import Info
from pseudocore.objectives.unroll import View
from pseudocore.selection.last_layer_gradients import LastLayer


@dataclass(frozen=True, kw_only=True)
class Settings(classwise.Settings):
    """What DC and DSA have in common; the defaults are those for ten images per class."""

    max_age: Count = 10
    """Matching steps after which the network is replaced by a fresh one."""
    num_inner_steps: Count = 50
    """Training steps of the network on the pseudo-images after each matching step."""
    inner_lr: Positive = 0.01
    """Step size of that training."""
    distance: Distance = "cosine"
    """Of gradients: cosine over output nodes, mean or sum of squares over weights, or Euclidean;
    the step size on images belongs to it.
    """


@methods.register("dc", kind="condense", paper="Zhao et al. 2021, arXiv 2006.05929")
@dataclass(frozen=True, kw_only=True)
class DC(Settings):
    """Condensation by gradient matching."""

    def init(self, problem: Problem, rng: Rng) -> State:
        return _init(self, problem, rng)

    def step(self, problem: Problem, state: State, rng: Rng) -> tuple[State, Info]:
        return _step(self, trajectory.view_of(problem), problem, state, rng)

    def coreset(self, problem: Problem, state: State) -> Coreset:
        return trajectory.coreset(problem, state.images.x, state.images.y, factor=self.formation)


@methods.register("dsa", kind="condense", paper="Zhao & Bilen 2021, arXiv 2102.08259")
@dataclass(frozen=True, kw_only=True)
class DSA(Settings):
    """Condensation by gradient matching under one random augmentation of real and pseudo-images."""

    initial: Initial = "real"
    """Start from real images, as the authors' published commands do, from mixes of two of a class,
    or from noise.
    """
    strategy: str = "color_crop_cutout_flip_scale_rotate"
    """Augmentations to draw from where the setup names none; leave out flip for numerals."""

    def init(self, problem: Problem, rng: Rng) -> State:
        if not getattr(problem.augment, "siamese", True):
            raise ConfigError(
                "dsa needs one augmentation for real and pseudo-images, but siamese is off; leave it on, or use dc"
            )
        if problem.augment is None and not problem.data.is_images:
            raise ConfigError(
                f"dsa augments images, but {problem.data.name!r} has features of shape {problem.data.shape}; dc takes them"
            )
        self._view(problem)  # refuses an unknown strategy
        return _init(self, problem, rng)

    def step(self, problem: Problem, state: State, rng: Rng) -> tuple[State, Info]:
        return _step(self, self._view(problem), problem, state, rng)

    def coreset(self, problem: Problem, state: State) -> Coreset:
        return trajectory.coreset(problem, state.images.x, state.images.y, factor=self.formation)

    def _view(self, problem: Problem) -> View:
        return problem.augment or _augmentation(self.strategy)


@functools.cache  # a configuration takes milliseconds to check
def _augmentation(strategy: str) -> augment.DSA:
    return augment.DSA(strategy=strategy)


def _init(method: Settings, problem: Problem, rng: Rng) -> State:
    classwise.check_classes(method, problem)
    return classwise.under(problem, classwise.begin(method, problem, rng), rng)


def _step(
    method: Settings, view: View, problem: Problem, state: State, rng: Rng
) -> tuple[State, Info]:
    images, theta = state.images, state.theta
    drawn = classwise.draw(problem, theta, method.batch_size, rng("batch"))

    def against(real: Tensor, label: int) -> classwise.Mismatch:
        loss = classwise.ClassLoss(problem, label, drawn.statistics)
        target, _ = classwise.slope(loss, theta, real)

        def compare(found: list[Tensor], layer: LastLayer) -> Tensor:
            return distance.between(method.distance, target, found)

        return classwise.slope_mismatch(loss, theta, compare)

    gradient, loss = classwise.match(method, problem, view, images.x, drawn, against, rng)
    images, info = classwise.move(method, images, drawn, gradient, loss)
    if method.max_age > 1:  # otherwise the network is gone after this step
        x, y = formation.decode(images.x, images.y, factor=method.formation)
        energy = trajectory.energy_on(problem, y)
        theta = unroll.descend(
            energy,
            view,
            theta,
            x,
            rng("inner"),
            num_steps=method.num_inner_steps,
            step_size=method.inner_lr,
        )
    return State(
        images, *classwise.aged(problem, theta, state.age, rng("fresh"), max_age=method.max_age)
    ), info
