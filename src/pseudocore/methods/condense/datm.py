r"""DATM: matching training trajectories of a difficulty that suits the budget, with learned labels.

Guo, Wang, Cazenavette, Li, Zhang, You (2024), "Towards Lossless Dataset Distillation via
Difficulty-Aligned Trajectory Matching". As `mtt` (`methods/bayes/bpc_w.py`), minimises

$$ \lVert\theta_u - \theta_x\rVert^2 / \lVert\theta_0 - \theta_x\rVert^2, $$

where $\theta_0$ is an expert at epoch r, $\theta_x$ the same `horizon` epochs later, and $\theta_u$
what $L_u$ steps of training on the pseudo-images make of $\theta_0$. Early epochs hold easy
patterns, late ones hard ones. Small budgets learn from the early, large ones from the late:

$$ r \sim \mathcal U\{T^-, \dots, \min(T^+, T(k)) - 1\}, $$

with $T(k)$ rising from $T^- + 1$ to $T^+$ over the first steps, so that easy patterns come first.
Labels are the softmax of learned logits and move with the images. PAD (Li et al. 2024) leaves the
first layers out of the distance, which hold patterns of low level; so does `skip`.

| paper | here | | paper | here |
|---|---|---|---|---|
| $T^-$, $T^+$ | `min_start`, `max_start` | | $N$, $M$ | `num_inner_steps`, `horizon` |
| rise of $T$ | `ramp` | | $\alpha$ | starts at `inner_lr`, learned |
| labels' step size | `label_lr` | | PAD's share of layers | `skip` |

Cost: as `mtt`, `num_inner_steps` gradients in $\theta$ and as many Hessian-vector products a step.

Deviations:
  D1. Labels start halfway between what an expert predicts for the initial images and their one-hot
      labels, so that no image starts with another class. The paper starts from images that an
      expert gets right, with its prediction alone.
  D2. The inner step size is learned as for `bpc-w` (its D1).
  D3. PAD also leaves out of the experts' training what is too easy or too hard for the budget.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pseudocore.core.config import Count, Fraction, NonNegative, Positive, Whole
from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.methods.bayes.bpc_w import BPCWInfo, relative_distance
from pseudocore.objectives import image_sgd, multiformation, unroll
from pseudocore.objectives.image_sgd import ImagesState
from pseudocore.objectives.trajectory import HorizonSettings, view_of
from pseudocore.objectives.unroll import View


class DATMState(NamedTuple):
    inner_lr: Tensor
    """Step size of the inner training, ()."""
    inner_lr_velocity: Tensor
    """Momentum of its gradient, ()."""
    images: ImagesState
    log_y: Tensor
    """Labels up to a softmax (M, classes)."""
    label_velocity: Tensor
    """Momentum of these."""
    step: Tensor
    """() steps taken."""


@methods.register(
    "datm",
    kind="condense",
    paper="Guo et al. 2024, arXiv 2310.05773",
    targets="trajectory",
    weights="no",
)
@dataclass(frozen=True, kw_only=True)
class DATM(HorizonSettings):
    """Matching training trajectories of a difficulty that suits the budget."""

    horizon: Count = 2
    min_start: Whole = 0
    """Inner training starts at an expert's epoch from this on."""
    ramp: Fraction = 0.5
    """Share of the steps over which the latest start rises from `min_start` to `max_start`."""
    label_lr: NonNegative = 1.0
    """Step size of SGD on the labels' logits; 0 keeps them."""
    inner_lr: Positive = 0.01
    """Step size of training on the pseudo-images where it starts; learned."""
    inner_lr_lr: NonNegative = 1e-5
    """Step size of SGD on the inner step size; 0 keeps it."""
    skip: Fraction = 0.0
    """Share of the parameters, those of the first layers, that the distance leaves out."""

    def init(self, problem: Problem, rng: Rng) -> DATMState:
        if self.min_start >= self.max_start:
            raise ConfigError(
                f"min_start = {self.min_start} leaves no epoch below max_start = {self.max_start}",
                code="no-start",
                min_start=self.min_start,
                max_start=self.max_start,
            )
        images = super().init(problem, rng)
        x = images.x
        experts, none = problem.experts, x.new_zeros(())
        assert experts is not None  # as `init` checks
        last = torch.tensor([0]), torch.tensor([self.expert_epochs])
        (theta,) = experts.at(*(number.to(problem.device) for number in last))
        y = torch.zeros(len(x), problem.num_classes, dtype=x.dtype, device=x.device)
        y[torch.arange(len(x)), images.y] = 1
        with torch.no_grad():
            shown = x if self.formation == 1 else multiformation.split(x, self.formation)
            p = problem.logits(theta, shown).softmax(1).view(len(x), -1, problem.num_classes)
        log_y = ((y + p.mean(1)) / 2).log()  # D1
        return DATMState(x.new_full((), self.inner_lr), none, images, log_y, 0 * log_y, none)

    def step(self, problem: Problem, state: DATMState, rng: Rng) -> tuple[DATMState, BPCWInfo]:
        images, labels = state.images, state.log_y
        expert, first = (
            self._piece(problem, state.step, rng),
            int(self.skip * problem.model.num_parameters),
        )
        points = torch.cat([images.x.flatten(1), labels], 1)
        pulled = unroll.differentiate(
            lambda thetas: relative_distance(
                [theta[first:] for theta in thetas], [theta[first:] for theta in expert]
            ),
            SoftLoss(problem, self.relative_weights(problem, images.x), self.formation),
            packed_view(problem, self.formation),
            expert[0],
            points,
            state.inner_lr,
            rng("inner"),
            num_steps=self.num_inner_steps,
        )
        velocity = self.image_momentum * state.inner_lr_velocity + pulled.step_size
        inner_lr = state.inner_lr * torch.exp(-self.inner_lr_lr * velocity / state.inner_lr)
        inner_lr = torch.where(inner_lr > 0, inner_lr, torch.nan)
        in_x, in_labels = unpacked(problem, pulled.x)
        moved, info = self.moved(images, in_x, pulled.value)
        label_velocity = self.image_momentum * state.label_velocity + in_labels
        labels = labels - self.label_lr * label_velocity
        after = DATMState(inner_lr, velocity, moved, labels, label_velocity, state.step + 1)
        return after, BPCWInfo(*info, inner_lr)

    def coreset(self, problem: Problem, state: Any) -> Coreset:
        x, y = state.images.x, state.log_y.softmax(1)
        return image_sgd.coreset(problem, self, x, y, inner_lr=state.inner_lr.item())

    def _piece(self, problem: Problem, step: Tensor, rng: Rng) -> Tensor:
        """A random expert from a start between the bounds to `horizon` epochs later, (2, P)."""
        experts, device = problem.experts, problem.device
        assert experts is not None
        expert = rng("expert").integers(experts.num_experts, 1, device=device)
        span = self.max_start - self.min_start
        last = self.ramp * self.num_steps
        rise = (step / last).clamp(max=1) if last else torch.ones_like(step)  # T(k)
        bound = 1 + (span - 1) * rise
        drawn = rng("start").uniform(1, device=device, dtype=problem.dtype)
        start = self.min_start + (drawn * bound).floor().long().clamp(max=span - 1)
        epochs = torch.cat([start, start + self.horizon])
        return experts.at(expert.expand(2), epochs)


class SoftLoss:
    """The mean cross-entropy of images and the logits of their labels, packed as (M, pixels +
    classes); an `unroll.Energy`.
    """

    def __init__(self, problem: Problem, weight: Tensor | None, factor: int) -> None:
        self.problem, self.weight = problem, multiformation.repeat_weight(weight, factor)

    def __call__(self, theta: Tensor, points: Tensor) -> Tensor:
        x, log_y = unpacked(self.problem, points)
        log_p = self.problem.logits(theta, x).log_softmax(-1)
        losses = -(log_y.softmax(-1) * log_p).sum(-1)
        return (losses if self.weight is None else self.weight * losses).mean()


def unpacked(problem: Problem, points: Tensor) -> tuple[Tensor, Tensor]:
    """Images (M, ...) and logits of labels (M, classes)."""
    x, log_y = points[:, : -problem.num_classes], points[:, -problem.num_classes :]
    return x.reshape(-1, *problem.data.shape), log_y


def packed_view(problem: Problem, factor: int) -> View:
    """What networks see of packed images and labels: the images augmented, the labels as they are."""
    of_images = view_of(problem, factor=factor)

    def view(points: Tensor, rng: Rng) -> Tensor:
        x, log_y = unpacked(problem, points)
        return torch.cat([of_images(x, rng).flatten(1), multiformation.repeat(log_y, factor)], 1)

    return view
