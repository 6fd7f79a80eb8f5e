r"""BPC-W and MTT: pseudo-coresets by Wasserstein distance, which is matching training trajectories.

Kim, Choi, Lee, Lee, Ha, Lee (2022), "On Divergence Measures for Bayesian Pseudocoresets", § 3.2;
Cazenavette, Wang, Torralba, Efros, Zhu (2022), "Dataset Distillation by Matching Training
Trajectories". Between $\mathcal N(\theta_u, \Sigma_u)$ and $\mathcal N(\theta_x, \Sigma_x)$

$$ W_2^2 = \|\theta_u - \theta_x\|^2
   + \operatorname{Tr}\left(\Sigma_x + \Sigma_u
   - 2(\Sigma_u^{1/2}\Sigma_x\Sigma_u^{1/2})^{1/2}\right) \tag{15} $$

where $\theta_x$ is an expert and $\theta_u$ what $L_u$ training steps on the pseudo-images $u$ make
of its earlier self $\theta_0$. With one covariance for both the trace vanishes; what is minimised,
over $u$ and the inner step size $\eta$ and straight through the $L_u$ steps, is $W_2^2 / \|\theta_0
- \theta_x\|^2$. With diagonal covariances (App. C.1) the trace is $\|\sigma_u - \sigma_x\|^2$.

| paper | here | | paper | here |
|---|---|---|---|---|
| $T^+$ | `max_start` | | $L_u$ | `num_inner_steps` |
| $L_x$ | `horizon` | | $\eta$ | starts at `inner_lr`, learned |

Cost per step: `num_inner_steps` gradients in $\theta$ and as many Hessian-vector products. The
memory of one inner step and `num_inner_steps` parameter vectors (`objectives/unroll.py`), or of all
steps without `recompute`.

Deviations:
  D1. $\eta$ moves by $\eta \leftarrow \eta\, e^{-\rho v / \eta}$ with $v$ its gradient (with the
      images' momentum): to first order the published $\eta - \rho v$, to which `inner_lr_lr` =
      $\rho$ belongs, but never zero or below.
  D2. The paper does not say where diagonal covariances come from. Here $\sigma$ is the standard
      deviation of each parameter along its path. That is over the $L_u$ steps for $u$, over the
      epochs from start to `horizon` for the expert. Both paths are joined by straight lines and
      taken over time, so few and many points on one path give the same.
  D3. The start epoch is uniform on 0 … $T^+ - 1$. Augmentation, if any, is drawn anew for every
      inner step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from pseudocore.core.config import Count, NonNegative, Positive
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.objectives import image_sgd, unroll
from pseudocore.objectives.image_sgd import ImagesState
from pseudocore.objectives.trajectory import HorizonSettings


class BPCWState(NamedTuple):
    # First, as the loop names the first part that is not finite, and this one makes the others so.
    inner_lr: Tensor
    """Step size of the inner training, ()."""
    inner_lr_velocity: Tensor
    """Momentum of its gradient, ()."""
    images: ImagesState


class BPCWInfo(NamedTuple):
    loss: Tensor
    """Squared distance to the expert, relative to that from the start."""
    gradient_norm: Tensor
    """Norm of its gradient in the images."""
    mean_abs: Tensor
    """Mean absolute network input, about .8 for real images."""
    inner_lr: Tensor
    """Step size of the inner training, after the step."""


@methods.register(
    "bpc-w",
    kind="bayes",
    paper="Kim et al. 2022, arXiv 2210.06205",
    targets="posterior",
    weights="no",
)
@dataclass(frozen=True, kw_only=True)
class BPCWasserstein(HorizonSettings):
    """Bayesian pseudo-coreset by Wasserstein distance."""

    assumes: ClassVar[str | None] = "hmc"

    horizon: Count = 2
    inner_lr: Positive = 0.01
    """Step size of training on the pseudo-images where it starts; learned."""
    inner_lr_lr: NonNegative = 1e-5
    """Step size of SGD on the inner step size; 0 keeps it."""
    covariance: Literal["common", "diagonal"] = "common"
    """One covariance for both posteriors, or the spread of every parameter along each trajectory.
    """
    recompute: bool = True
    """Recompute inner steps in the backward pass: slower, but memory does not grow with them."""

    def init(self, problem: Problem, rng: Rng) -> BPCWState:
        images = super().init(problem, rng)
        inner_lr = images.x.new_full((), self.inner_lr)
        return BPCWState(inner_lr, torch.zeros_like(inner_lr), images)

    def step(self, problem: Problem, state: BPCWState, rng: Rng) -> tuple[BPCWState, BPCWInfo]:
        images, diagonal = state.images, self.covariance == "diagonal"
        stride = 1 if diagonal else self.horizon
        expert = self.expert_path(problem, rng, horizon=self.horizon, stride=stride)
        pulled = unroll.differentiate(
            lambda thetas: relative_distance(thetas, expert, diagonal=diagonal),
            *self.energy_and_view(problem, images),
            expert[0],
            images.x,
            state.inner_lr,
            rng("inner"),
            num_steps=self.num_inner_steps,
            whole=diagonal,
            recompute=self.recompute,
        )
        velocity = self.image_momentum * state.inner_lr_velocity + pulled.step_size
        inner_lr = state.inner_lr * torch.exp(-self.inner_lr_lr * velocity / state.inner_lr)  # D1
        # too small for a float, the loop reports it as divergence, like too large
        inner_lr = torch.where(inner_lr > 0, inner_lr, torch.nan)
        moved, info = self.moved(images, pulled.x, pulled.value)
        return BPCWState(inner_lr, velocity, moved), BPCWInfo(*info, inner_lr)

    def coreset(self, problem: Problem, state: Any) -> Coreset:
        (x, y, _), inner_lr = state.images, state.inner_lr.item()
        return image_sgd.coreset(problem, self, x, y, inner_lr=inner_lr)


@methods.register(
    "mtt",
    kind="condense",
    paper="Cazenavette et al. 2022, arXiv 2203.11932",
    targets="trajectory",
    weights="no",
)
@dataclass(frozen=True, kw_only=True)
class MTT(BPCWasserstein):
    """Matching training trajectories: `bpc-w` under its first name."""

    assumes: ClassVar[str | None] = None


def relative_distance(
    student: Sequence[Tensor], expert: Sequence[Tensor] | Tensor, *, diagonal: bool = False
) -> Tensor:
    """Eq. (15) between the ends of two paths, over the squared length from the expert's start to
    its end.
    """
    squared = (student[-1] - expert[-1]).square().sum()
    if diagonal:
        squared = squared + (_spread(student) - _spread(expert)).square().sum()  # D2
    return squared / (expert[0] - expert[-1]).square().sum()


def _spread(path: Sequence[Tensor] | Tensor) -> Tensor:
    """Standard deviation of each parameter over the time of a path of straight pieces, (P,)."""
    points = torch.stack(
        [theta - path[0] for theta in path]
    )  # small numbers: a variance is a difference of squares
    here, there = points[:-1], points[1:]
    mean = (here + there).mean(0) / 2
    variance = (here.square() + here * there + there.square()).mean(0) / 3 - mean.square()
    return variance.clamp(min=1e-14).sqrt()
