r"""DD: images on which a few steps of training leave any fresh network good on the data.

Wang, Zhu, Torralba, Efros (2018), "Dataset Distillation", Algorithm 1. Minimises over images
$\tilde x$ and the step size $\tilde\eta$ of the training on them

$$ \mathbb E_{\theta_0 \sim p(\theta_0)}\; \ell(x, \theta_L), \qquad \theta_{t+1} = \theta_t -
   \tilde\eta\, \nabla_{\theta_t} \ell(\tilde x, \theta_t), \quad t = 0 \dots L - 1 $$

with $\ell$ the mean cross-entropy, $x$ a batch of the data and $\theta_0$ a new random
initialisation at every step.

| paper | here | | paper | here |
|---|---|---|---|---|
| $\tilde x$ | `x` | | $\tilde\eta$ | starts at `inner_lr`, learned |
| $T$ | `num_steps` | | gradient steps × epochs | `num_inner_steps` |
| $n$ | `batch_size` | | $\alpha$ | `image_lr`, `inner_lr_lr` |

Cost per step and student: `num_inner_steps` gradients in $\theta$ on the M images and as many
Hessian-vector products, one gradient on the batch. The memory of one inner step and
`num_inner_steps` parameter vectors (`objectives/unroll.py`), or of all steps without `recompute`.

Deviations:
  D1. Every inner step uses all images; the paper's later experiments give each of several steps
      images of its own, which no other training on the coreset could follow. So one $\tilde\eta$ is
      learned for all steps.
  D2. $\log\tilde\eta$ is learned, so that $\tilde\eta$ stays positive.
  D3. Adam's step sizes fall to 0 along a cosine. Images start as real ones by default, the paper's
      as noise.
  D4. Augmentation, if any, is drawn anew for every inner step, and does not act on the batch.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pseudocore.core.config import Positive
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.objectives import bilevel, image_sgd, multiformation, trajectory
from pseudocore.objectives.bilevel import UnrolledSettings
from pseudocore.objectives.initial import ImageSettings
from pseudocore.training.optimisers import adam, cosine, start, tree_map


class DDLearned(NamedTuple):
    # First, as the loop names the first part that is not finite, and this one makes the other so.
    log_inner_lr: Tensor  # ()
    x: Tensor  # network inputs (M, ...)


class DDState(NamedTuple):
    learned: DDLearned
    moments: Any  # Adam's, a DDLearned of Moments
    y: Tensor  # labels (M,)
    step: Tensor  # () steps taken


class DDInfo(NamedTuple):
    loss: Tensor
    """Cross-entropy of the students on the real batch, before the step."""
    gradient_norm: Tensor
    """Norm of its gradient in the images."""
    mean_abs: Tensor
    """Mean absolute network input, about .8 for real images; explodes if `image_lr` is large."""
    inner_lr: Tensor
    """Step size of the students' training, after the step."""


@methods.register(
    "dd",
    kind="condense",
    paper="Wang et al. 2018, arXiv 1811.10959",
    targets="function",
    weights="no",
)
@dataclass(frozen=True, kw_only=True)
class DatasetDistillation(UnrolledSettings, ImageSettings):
    """Dataset distillation: the loss on real data, differentiated through training on images."""

    image_lr: Positive = 0.02
    """Adam's step size on images (in normalised units); falls to 0 along a cosine."""

    def init(self, problem: Problem, rng: Rng) -> DDState:
        x, y = multiformation.begin(
            problem, self.counts(problem), self.initial, rng("images"), factor=self.formation
        )
        learned = DDLearned(x.new_full((), self.inner_lr).log(), x)
        return DDState(learned, start(learned), y, x.new_zeros(()))

    def step(self, problem: Problem, state: DDState, rng: Rng) -> tuple[DDState, DDInfo]:
        inner_lr, x = state.learned.log_inner_lr.exp(), state.learned.x
        pulled = bilevel.outer_gradient(
            self,
            problem,
            *trajectory.energy_and_view(
                problem, state.y, factor=self.formation, weight=self.relative_weights(problem, x)
            ),
            x,
            inner_lr,
            multiformation.split(x, self.formation),
            rng,
        )
        gradient = DDLearned(pulled.step_size * inner_lr, pulled.x)  # D2
        decay = cosine(state.step, self.num_steps)
        rates = decay * self.inner_lr_lr, decay * self.image_lr
        change, moments = adam(gradient, state.moments, rates)
        new = tree_map(torch.sub, state.learned, change)
        info = DDInfo(pulled.value, pulled.x.norm(), new.x.abs().mean(), new.log_inner_lr.exp())
        return DDState(new, moments, state.y, state.step + 1), info

    def coreset(self, problem: Problem, state: DDState) -> Coreset:
        inner_lr = state.learned.log_inner_lr.exp().item()
        return image_sgd.coreset(problem, self, state.learned.x, state.y, inner_lr=inner_lr)
