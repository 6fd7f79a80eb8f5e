r"""BPC-fKL: pseudo-coresets by forward KL divergence.

Kim, Choi, Lee, Lee, Ha, Lee (2022), "On Divergence Measures for Bayesian Pseudocoresets", Algorithm
1. Minimises over pseudo-images $u$

$$ D_{KL}[\pi_x \| \pi_u] \approx \tfrac1S \sum_{s=1}^S f(u, \bar\theta_u + \sigma_u \epsilon_s)
   - f(u, \theta_x + \sigma_x \epsilon'_s) + \text{const} \tag{20} $$

where $f$ is the log-likelihood, $\theta_x$ an expert trained on the data, $\theta_u$ what training
on $u$ makes of that expert's earlier self, and the bar stops the gradient: $u$ moves until its
likelihood no longer tells the two apart.

| paper | here | | paper | here |
|---|---|---|---|---|
| $T^+$ | `max_start` | | $S$ | `num_draws` |
| $L_u$, $\eta$ | `num_inner_steps`, `inner_lr` | | $\Sigma_u^{1/2}$ | `noise` |
| $L_x$ | `horizon` | | $\Sigma_x^{1/2}$ | `expert_noise` |
| $K$, $\gamma$ | `num_steps`, `image_lr` | | | |

Cost per step: `num_inner_steps` gradients in $\theta$ and 2 `num_draws` gradients in $u$; the
memory of one of them (of `draw_batch` of them), whatever `num_draws` is.

Deviations:
  D1. $f$ is the mean over $u$, not the sum, as in the published runs; `image_lr` = 1000 and the
      inner step sizes belong to that scale.
  D2. The start epoch is uniform on 0 … $T^+ - 1$ (the algorithm prints $r \le T^+$).
  D3. Augmentation, if any, is drawn anew for every inner step, and once more for Eq. (20): the same
      for both terms and all draws. The authors' code draws it anew for every draw;
      `redraw_augmentation` does so.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pseudocore.core.config import Count, NonNegative, Positive
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.objectives.contrast import contrast
from pseudocore.objectives.image_sgd import ImagesInfo, ImagesState
from pseudocore.objectives.trajectory import HorizonSettings, near
from pseudocore.objectives.unroll import Energy, View, augment_vjp, descend


@methods.register(
    "bpc-fkl",
    kind="bayes",
    paper="Kim et al. 2022, arXiv 2210.06205",
    targets="posterior",
    weights="no",
)
@dataclass(frozen=True, kw_only=True)
class BPCForwardKL(HorizonSettings):
    """Bayesian pseudo-coreset by forward KL divergence."""

    assumes: ClassVar[str | None] = "hmc"

    inner_lr: Positive = 0.03
    """Step size of training on the pseudo-images."""
    num_draws: Count = 30
    """Gaussian draws around each end of the trajectories."""
    noise: NonNegative = 0.01
    """Standard deviation of the draws around the network trained on the pseudo-images."""
    expert_noise: NonNegative = 0.01
    """Standard deviation of the draws around the expert."""
    redraw_augmentation: bool = False
    """Augment the images anew for every draw (or batch of draws) of Eq. (20)."""
    draw_batch: Count = 1
    """Draws that pass the network at once: more may be faster and take as many times the memory."""

    def step(
        self, problem: Problem, state: ImagesState, rng: Rng
    ) -> tuple[ImagesState, ImagesInfo]:
        start, expert = self.expert_ends(problem, rng)
        energy, view = self.energy_and_view(problem, state)  # E = -f, D1
        student = descend(
            energy,
            view,
            start,
            state.x,
            rng("inner"),
            num_steps=self.num_inner_steps,
            step_size=self.inner_lr,
        )  # Algorithm 1, inner loop
        counts = {"num": self.num_draws, "batch": self.draw_batch}
        near_expert = near(expert, self.expert_noise, rng("near-expert"), **counts)
        near_student = near(student, self.noise, rng("near-student"), **counts)
        pairs = zip(near_expert, near_student, strict=True)
        if self.redraw_augmentation:
            gradient, gap = contrast_by_draw(energy, view, state.x, pairs, rng("view"))
        else:
            images, pull = augment_vjp(view, state.x, rng("view"))  # D3
            gradient, gap = contrast(energy, images, pairs)  # Eq. (20)
            gradient = pull(gradient)
        return self.moved(state, gradient, gap)


def contrast_by_draw(
    energy: Energy, view: View, x: Tensor, pairs: Iterable[tuple[Tensor, Tensor]], rng: Rng
) -> tuple[Tensor, Tensor]:
    """`contrast` in the points x, each pair under a view of its own."""
    gradient, value, num = torch.zeros_like(x), x.new_zeros(()), 0
    for number, pair in enumerate(pairs):
        size = len(pair[0]) if pair[0].ndim == 2 else 1
        images, pull = augment_vjp(view, x, rng(number))
        part, height = contrast(energy, images, [pair])
        gradient, value, num = gradient + size * pull(part), value + size * height, num + size
    return gradient / num, value / num
