r"""DM: condensation by matching the mean features of every class in random networks.

Zhao, Bilen (2023), "Dataset Condensation with Distribution Matching". Minimises over pseudo-images
$S$

$$ \mathbb E_{\vartheta, \omega} \sum_{c} \Big\lVert \tfrac1{|B_c|} \sum_{x \in B_c} \psi_\vartheta(A(x, \omega))
   - \tfrac1{|S_c|} \sum_{s \in S_c} \psi_\vartheta(A(s, \omega)) \Big\rVert^2 $$

where $\psi_\vartheta$ are the last-layer features of a network with random weights, drawn anew for
every step, $B_c$ real images of class $c$, and $A(\cdot, \omega)$ one augmentation for both.
Nothing is trained, and no gradient in $\vartheta$ is needed.

| paper | here | | paper | here |
|---|---|---|---|---|
| $K$, $\eta$ | `num_steps`, `image_lr` | | $\lvert B_c \rvert$ | `batch_size` |
| $A$ | the setup's `augment` | | $P_\vartheta$ | the model's `init` |

Cost per step: a forward pass of `batch_size` real images of every class, forward and backward of
the pseudo-images; the memory of one class.

Deviations:
  D1. Without an `augment` in the setup nothing is augmented; the paper's runs have
      color_crop_cutout_flip_scale_rotate.
  D2. With batch norm both sides are normalised by the statistics of real images of all classes.
"""

from dataclasses import dataclass

from torch import Tensor

from pseudocore.core.config import Count, Positive
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.objectives import class_matching as classwise
from pseudocore.objectives import trajectory
from pseudocore.objectives.class_matching import Settings
from pseudocore.objectives.initial import Initial
from pseudocore.objectives.trajectory import Info, State
from pseudocore.runtime import autodiff


@methods.register("dm", kind="condense", paper="Zhao & Bilen 2023, arXiv 2110.04181")
@dataclass(frozen=True, kw_only=True)
class DM(Settings):
    """Condensation by matching mean features in random networks."""

    num_steps: Count = 20_000
    """Matching steps, each under a fresh network."""
    image_lr: Positive = 1.0
    """Step size of SGD on images, in normalised units."""
    initial: Initial = "real"
    """Start from real images, from mixes of two of a class, or from noise."""

    def init(self, problem: Problem, rng: Rng) -> State:
        return classwise.begin(self, problem, rng)

    def step(self, problem: Problem, state: State, rng: Rng) -> tuple[State, Info]:
        theta = problem.model.init(rng("network"), device=problem.device, dtype=problem.dtype)
        drawn = classwise.draw(problem, theta, self.batch_size, rng("batch"))

        def centre(x: Tensor) -> Tensor:
            with problem.fast():
                features = problem.model.features(theta, x, drawn.statistics)
            return features.to(x.dtype).mean(0)

        def against(real: Tensor, label: int) -> classwise.Mismatch:
            target = centre(real)
            return autodiff.value_and_grad(  # of the objective above
                lambda own: (centre(own) - target).square().sum(), pure=False
            )

        gradient, loss = classwise.match(
            self, problem, trajectory.view_of(problem), state.x, drawn, against, rng
        )
        return classwise.move(self, state, drawn, gradient, loss)

    def coreset(self, problem: Problem, state: State) -> Coreset:
        return trajectory.coreset(problem, state.x, state.y, factor=self.formation)
