r"""Fresh networks taught by a few points and judged on real data, with the gradient of the
judgement in what they were taught.

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
from pseudocore.objectives.unroll import Energy, Objective, Pulled, View


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What methods that differentiate through the training of fresh networks have in common."""

    per_class: Count = 10
    """Points per class."""
    num_steps: Count = 1000
    """Outer steps."""
    batch_size: Count = 512
    """Real examples on which a student is judged."""
    num_students: Count = 1
    """Fresh networks per outer step."""
    num_inner_steps: Count = 20
    """Training steps of a student, each on all points."""
    inner_lr: Positive = 0.1
    """Step size of a student's training where it starts; learned."""
    inner_lr_lr: NonNegative = 0.01
    """Adam's step size on the logarithm of the inner step size; 0 keeps it."""
    recompute: bool = True
    """Make every inner step again on the way back rather than keep them all: slower, but memory
    does not grow with their number.
    """

    repeats_passes: ClassVar[bool] = True
    """A step is some dozens of passes through the network."""


def teach(
    method: Settings,
    problem: Problem,
    energy: Energy,
    view: View,
    taught: Tensor,
    step_size: Tensor,
    x: Tensor,
    rng: Rng,
) -> Pulled:
    """J and its gradient in `taught` and `step_size`; x are the images the students see, for the
    statistics of batch norms.
    """
    real, y = problem.batch(
        rng("batch").integers(problem.num_train, method.batch_size, device=problem.device)
    )
    pulls = []
    for number in range(method.num_students):
        stream = rng("student", number)
        theta = problem.model.init(stream("theta"), device=problem.device, dtype=problem.dtype)
        path = (
            _judge(problem, x, real, y),
            energy,
            view,
            theta,
            taught,
            step_size,
            stream("inner"),
        )
        pulls.append(
            unroll.differentiate(
                *path, num_steps=method.num_inner_steps, recompute=method.recompute
            )
        )
    return Pulled(*(torch.stack(parts).mean(0) for parts in zip(*pulls, strict=True)))


def _judge(problem: Problem, x: Tensor, real: Tensor, y: Tensor) -> Objective:
    """The mean cross-entropy of the last parameters of a path on real inputs; with batch norm under
    the statistics of x.
    """

    def judge(thetas: Sequence[Tensor]) -> Tensor:
        with problem.fast():
            statistics = problem.model.statistics(thetas[-1], x) or None
            logits = problem.model.logits(thetas[-1], real, statistics)
        return -label_log_likelihood(logits.to(real.dtype).log_softmax(1), y).mean()

    return judge
