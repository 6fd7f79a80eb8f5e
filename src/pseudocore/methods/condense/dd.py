r"""DD: images on which a few steps of training leave any fresh network good on the data.

Wang, Zhu, Torralba, Efros (2018), "Dataset Distillation", Algorithm 1. Minimises over images
$\tilde x$ and the step size $\tilde\eta$ of the training on them

$$ \mathbb E_{\theta_0 \sim p(\theta_0)}\; \ell(x, \theta_L), \qquad
   \theta_{t+1} = \theta_t - \tilde\eta\, \nabla_{\theta_t} \ell(\tilde x, \theta_t), \quad t = 0 \dots L - 1 $$

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
  D1. Every inner step sees all images; the paper's later experiments give each of several steps
      images of its own, which no other way of training on them would know of. So one $\tilde\eta$
      is learned for all steps.
  D2. $\log\tilde\eta$ is learned, so that $\tilde\eta$ stays positive.
  D3. Adam's step sizes fall to 0 along a cosine. Images start as real ones unless told; the paper's
      start as noise.
  D4. Augmentation, if any, is drawn anew for every inner step, and does not act on the batch.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from pseudocore.core.config import Count, Positive
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.objectives import bilevel as students
from pseudocore.objectives import multiformation as formation
from pseudocore.objectives import trajectory
from pseudocore.objectives.bilevel import Settings
from pseudocore.objectives.initial import Initial
from pseudocore.training.optimisers import adam, cosine, start


class Learned(NamedTuple):
    # first, as the loop names the first part that is not finite, and this one drags the other along
    log_inner_lr: Tensor
    x: Tensor  # network inputs (M, ...)


class State(NamedTuple):
    learned: Learned
    moments: Any  # a Learned of Moments
    y: Tensor  # labels (M,)
    step: Tensor


class Info(NamedTuple):
    loss: Tensor
    """Cross-entropy of the students on the real batch, before the step."""
    gradient_norm: Tensor
    mean_abs: Tensor
    """Mean size of a network input, about .8 for real images; when it runs away the step size on
    images is too large.
    """
    inner_lr: Tensor


@methods.register("dd", kind="condense", paper="Wang et al. 2018, arXiv 1811.10959")
@dataclass(frozen=True, kw_only=True)
class DatasetDistillation(Settings):
    """Dataset distillation: the loss on real data, differentiated through training on the images."""

    image_lr: Positive = 0.02
    """Adam's step size on images (in normalised units); falls to 0 along a cosine."""
    initial: Initial = "real"
    """Start from real images, from mixes of two of a class, or from noise."""
    formation: Count = 1
    """Images that a stored one holds along each side; 1 stores them one by one."""

    def init(self, problem: Problem, rng: Rng) -> State:
        x, y = formation.begin(
            problem, self.per_class, self.initial, rng("images"), factor=self.formation
        )
        learned = Learned(x.new_full((), self.inner_lr).log(), x)
        return State(learned, Learned(*map(start, learned)), y, x.new_zeros(()))  # type: ignore[arg-type]

    def step(self, problem: Problem, state: State, rng: Rng) -> tuple[State, Info]:
        log_inner_lr, x = state.learned
        inner_lr = log_inner_lr.exp()
        pulled = students.teach(
            self,
            problem,
            *trajectory.energy_and_view(problem, state.y, factor=self.formation),
            x,
            inner_lr,
            formation.split(x, self.formation),
            rng,
        )
        decay = cosine(state.step, self.num_steps)
        lr_change, lr_moments = adam(
            pulled.step_size * inner_lr, state.moments.log_inner_lr, decay * self.inner_lr_lr
        )  # D2
        change, moments = adam(pulled.x, state.moments.x, decay * self.image_lr)
        new = Learned(log_inner_lr - lr_change, x - change)
        info = Info(pulled.value, pulled.x.norm(), new.x.abs().mean(), new.log_inner_lr.exp())
        return State(new, Learned(lr_moments, moments), state.y, state.step + 1), info  # type: ignore[arg-type]

    def coreset(self, problem: Problem, state: State) -> Coreset:
        inner_lr = state.learned.log_inner_lr.exp().item()
        return trajectory.coreset(
            problem, state.learned.x, state.y, factor=self.formation, inner_lr=inner_lr
        )
