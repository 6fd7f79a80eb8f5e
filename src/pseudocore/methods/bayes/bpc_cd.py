r"""BPC-CD: pseudo-coresets by contrastive divergence.

Tiwary, Shubham, Kashyap, Prathosh (2023), "Constructing Bayesian Pseudo-Coresets using Contrastive
Divergence". The posterior of the pseudo-images $u$ is energy-based, $q(\theta) \propto
e^{-E(\theta, u)}$, that of the data is whatever the experts are draws of, and

$$ \mathcal L = \mathbb E_{\theta^+}[E(\theta^+, u)] - \mathbb E_{\theta^-}[E(\theta^-, u)] \tag{11}
$$

is descended on in $u$ through the two energies alone. $\theta^+$ is an expert at epoch $k + T$,
$\theta^-$ the end of $L$ Langevin steps from its epoch $k$,

$$ \theta^{(t+1)} = \theta^{(t)} - \tfrac\alpha2 \nabla_\theta E(\theta^{(t)}, u)
   + \sqrt\alpha\,\eta_t, \quad \eta_t \sim \mathcal N(0, I) \tag{12} $$

A posterior of N data points has $E = \sum_m w_m \ell_m$ with $\sum_m w_m = N$, N times the mean over
$u$ of a classification loss (Eq. 13, § 5.5), whatever loss the experts were trained with. The
published step sizes belong to the mean: with $\alpha / N$ in place of $\alpha$ on E the drift is
$\tfrac\alpha2$ on the mean, as published, and the noise $\sqrt{\alpha / N}\,\eta_t$.

| paper | here | | paper | here |
|---|---|---|---|---|
| $L$, $\alpha$ | `num_inner_steps`, `langevin_step` | | $T$ | `horizon` |
| factor on $\sqrt\alpha\,\eta$ | `noise_scale` | | losses of $E$, experts | `energy`, `expert_loss` |

Cost per step: `num_inner_steps` gradients in $\theta$, two in $u$; the memory of one.

Deviations:
  D1. `noise_scale` multiplies the noise of Eq. (12). Its default is $1/\sqrt N$ (above). 1 is the
      paper, whose E is the mean itself: it samples $e^{-E}$ of a single data point, which is nearly
      flat. 0 is the authors' public loop: BPC-fKL at one draw of zero variance and half this step
      size.
  D2. Start epochs are uniform below `max_start`. Augmentation, if any, is drawn anew for every
      Langevin step and once more for the two energies together.
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from pseudocore.core.config import Count, Positive, Range
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.objectives.contrast import contrast
from pseudocore.objectives.image_sgd import ImagesInfo, ImagesState
from pseudocore.objectives.initial import Initial
from pseudocore.objectives.trajectory import HorizonSettings
from pseudocore.objectives.unroll import Energy, View, augment_vjp, descend
from pseudocore.training.losses import Loss


@methods.register(
    "bpc-cd",
    kind="bayes",
    paper="Tiwary et al. 2023, arXiv 2303.11278",
    targets="posterior",
    weights="no",
)
@dataclass(frozen=True, kw_only=True)
class BPCContrastiveDivergence(HorizonSettings):
    """Bayesian pseudo-coreset by contrastive divergence."""

    assumes: ClassVar[str | None] = "hmc"

    initial: Initial = "mix"
    max_start: Count = 8
    """Langevin steps start at an expert's epoch below this."""
    num_inner_steps: Count = 10
    """Langevin steps on the pseudo-images."""
    langevin_step: Positive = 0.01
    """Langevin step size α: half of it on the gradient, its root on the noise."""
    noise_scale: Annotated[float | None, Range(low=0)] = None
    """Factor on the Langevin noise. Defaults to 1/√N, the posterior of N points; 1 is the paper's,
    0 the authors' public loop.
    """
    energy: Loss = "cross-entropy"
    """Loss whose mean over the pseudo-images is their energy."""
    expert_loss: Loss = "cross-entropy"
    """Loss of the experts, when they are trained for this run."""

    def step(
        self, problem: Problem, state: ImagesState, rng: Rng
    ) -> tuple[ImagesState, ImagesInfo]:
        start, positive = self.expert_ends(problem, rng)
        energy, view = self.energy_and_view(problem, state, self.energy)
        negative = self.walk(energy, view, start, state.x, rng("inner"), problem.num_train)
        images, pull = augment_vjp(view, state.x, rng("view"))
        gradient, gap = contrast(energy, images, [(positive, negative)])  # Eq. (11)
        return self.moved(state, pull(gradient), gap)

    def noise(self, num_data: int) -> float:
        """Standard deviation of the noise of a Langevin step, for N data points."""
        factor = num_data**-0.5 if self.noise_scale is None else self.noise_scale
        return factor * math.sqrt(self.langevin_step)

    def walk(
        self, mean_loss: Energy, view: View, theta: Tensor, x: Tensor, rng: Rng, num_data: int
    ) -> Tensor:
        """Eq. (12) from theta on the energy of N data points, N times the mean loss."""
        return descend(
            mean_loss,
            view,
            theta,
            x,
            rng,
            num_steps=self.num_inner_steps,
            step_size=self.langevin_step / 2,
            noise=self.noise(num_data),
        )
