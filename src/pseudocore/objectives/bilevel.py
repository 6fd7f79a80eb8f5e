r"""The loss of fresh networks trained on a few points, and its gradient in these points.

$$ J(v, \eta) = \mathbb E_{\theta_0} \tfrac1{|B|} \sum_{(x, y) \in B} \ell\left(\theta_L(v, \eta,
\theta_0); x, y\right) $$

where $\theta_L$ is the end of $L$ full-batch gradient steps of size $\eta$ from a random
initialisation $\theta_0$ on an energy that depends on $v$: the images, or their labels. The
gradient passes through all $L$ steps (`objectives/unroll.py`) with the memory of one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pseudocore.core.config import Count, NonNegative, Positive
from pseudocore.core.problem import Problem, label_log_likelihood
from pseudocore.core.rng import Rng
from pseudocore.objectives import unroll
from pseudocore.objectives.initial import PointSettings
from pseudocore.objectives.unroll import Energy, Pulled, View


@dataclass(frozen=True, kw_only=True)
class UnrolledSettings(PointSettings):
    """Fields of methods that differentiate through the training of fresh networks."""

    num_steps: Count = 1000
    batch_size: Count = 512
    """Real examples on which a student is evaluated."""
    num_students: Count = 1
    """Fresh networks per outer step."""
    num_inner_steps: Count = 20
    """Training steps of a student, each on all points."""
    inner_lr: Positive = 0.1
    """Initial step size of a student's training; learned."""
    inner_lr_lr: NonNegative = 0.01
    """Adam's step size on the logarithm of the inner step size; 0 keeps it."""
    recompute: bool = True
    """Recompute inner steps in the backward pass: slower, but memory does not grow with them."""

    repeats_passes: ClassVar[bool] = True
    """A step is some dozens of passes through the network."""


def outer_gradient(
    settings: UnrolledSettings,
    problem: Problem,
    energy: Energy,
    view: View,
    learned: Tensor,
    step_size: Tensor,
    x: Tensor,
    rng: Rng,
) -> Pulled:
    """J and its gradient in `learned` and `step_size`; batch norm has the statistics of x."""
    index = rng("batch").integers(problem.num_train, settings.batch_size, device=problem.device)
    real, y = problem.batch(index)

    def objective(thetas: Sequence[Tensor]) -> Tensor:
        with problem.fast():
            statistics = problem.model.statistics(thetas[-1], x) or None
            logits = problem.model.logits(thetas[-1], real, statistics)
        return -label_log_likelihood(logits.to(real.dtype).log_softmax(1), y).mean()

    pulls = []
    for number in range(settings.num_students):
        stream = rng("student", number)
        theta = problem.model.init(stream("theta"), device=problem.device, dtype=problem.dtype)
        pulls.append(
            unroll.differentiate(
                objective,
                energy,
                view,
                theta,
                learned,
                step_size,
                stream("inner"),
                num_steps=settings.num_inner_steps,
                recompute=settings.recompute,
            )
        )
    return Pulled(*(torch.stack(parts).mean(0) for parts in zip(*pulls, strict=True)))
