r"""DM: condensation by matching the mean features of every class in random networks.

Zhao, Bilen (2023), "Dataset Condensation with Distribution Matching". Minimises over pseudo-images
$S$

$$ \mathbb E_{\vartheta, \omega} \sum_{c} \Big\lVert
   \tfrac1{|B_c|} \sum_{x \in B_c} \psi_\vartheta(A(x, \omega))
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
from pseudocore.objectives import class_matching
from pseudocore.objectives.class_matching import MatchingSettings, Mismatch
from pseudocore.objectives.image_sgd import ImagesInfo, ImagesState
from pseudocore.objectives.initial import Initial
from pseudocore.objectives.trajectory import view_of
from pseudocore.runtime import autodiff


@methods.register(
    "dm",
    kind="condense",
    paper="Zhao & Bilen 2023, arXiv 2110.04181",
    targets="features",
    weights="no",
)
@dataclass(frozen=True, kw_only=True)
class DM(MatchingSettings):
    """Condensation by matching mean features in random networks."""

    num_steps: Count = 20_000
    """Matching steps, each under a fresh network."""
    image_lr: Positive = 1.0
    initial: Initial = "real"

    def step(
        self, problem: Problem, state: ImagesState, rng: Rng
    ) -> tuple[ImagesState, ImagesInfo]:
        theta = problem.model.init(rng("network"), device=problem.device, dtype=problem.dtype)
        drawn = class_matching.draw(problem, theta, self.batch_size, rng("batch"))

        def centre(x: Tensor) -> Tensor:
            return problem.features(theta, x, drawn.statistics).mean(0)

        def against(real: Tensor, label: int) -> Mismatch:
            target = centre(real)

            def distance(own: Tensor) -> Tensor:
                return (centre(own) - target).square().sum()  # the objective above

            return autodiff.value_and_grad(distance, pure=False)

        view = view_of(problem)
        gradient, loss = class_matching.match(self, problem, view, state.x, drawn, against, rng)
        return self.matched(state, drawn, gradient, loss)
