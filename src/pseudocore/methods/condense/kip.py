r"""KIP: points whose kernel ridge regression predicts the data.

Nguyen, Chen, Lee (2021), "Dataset Meta-Learning from Kernel Ridge-Regression". Minimises over
points $u$ and targets $\hat Y$

$$ \mathcal L(u, \hat Y) = \tfrac1{2|B|} \lVert \bar Y_B - K_{Bu} \left(K_{uu} + \lambda
I\right)^{-1} \hat Y \rVert^2 $$

on batches $B$ of the data. The kernel $K$ is that of an infinitely wide fully-connected ReLU
network, in closed form (`objectives/network_kernels.py`), or the inner product of last-layer
features, averaged over a few fresh networks of the problem's own architecture.

| paper | here | | paper | here |
|---|---|---|---|---|
| $X_s$, $y_s$ | `x`, `y` | | $\lambda$ | `ridge`, relative |
| $X_t$, $y_t$ | a batch | | FC$_m$ | `kernel`, `kernel_depth` |

Cost per step: for `ntk` and `nngp` `kernel_depth` element-wise passes over matrices of `batch_size`
× M and M × M, for `features` `num_networks` forward passes of the batch, and as many forward and
backward passes of the M points; one Cholesky factor of M × M.

Deviations:
  D1. `ridge` is relative to the mean of the diagonal of $K_{uu}$.
  D2. The convolutional kernels of the later paper (Nguyen et al. 2021b) took many accelerators;
      `features` stands for them. It draws new networks at every step, so that the points suit the
      architecture and not a few networks, and never trains them (FRePo does).
  D3. A logit scale is fitted to the same batches; it moves nothing else and only makes predictions
      probabilities.
  D4. Adam's step sizes fall to 0 along a cosine. Augmentation, if any, acts on the real batch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.func import grad

from pseudocore.core.config import Count, NonNegative, Positive
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.objectives import (
    kernel_regression as regression,
)
from pseudocore.objectives import (
    multiformation as formation,
)
from pseudocore.objectives import (
    network_kernels as kernels,
)
from pseudocore.objectives.initial import Initial
from pseudocore.training.optimisers import adam, cosine, start


class Learned(NamedTuple):
    x: Tensor  # network inputs (M, ...)
    y: Tensor  # targets (M, classes)
    log_scale: Tensor


class State(NamedTuple):
    learned: Learned
    moments: Any  # a Learned of Moments
    step: Tensor


class Info(NamedTuple):
    loss: Tensor
    accuracy: Tensor
    """On the training batch, before the step."""
    logit_scale: Tensor


@methods.register("kip", kind="condense", paper="Nguyen et al. 2021, arXiv 2011.00050")
@dataclass(frozen=True, kw_only=True)
class KIP:
    """Kernel inducing points."""

    per_class: Count = 10
    """Pseudo-images per class."""
    num_steps: Count = 2000
    """Outer steps."""
    batch_size: Count = 512
    """Real examples per step."""
    kernel: Literal["features", "ntk", "nngp"] = "features"
    """Features of random networks of the problem's own architecture, or one of the closed forms of
    a wide fully-connected network.
    """
    kernel_depth: Count = 3
    """Hidden layers of the fully-connected network."""
    bias_variance: Positive = 0.01
    """Variance of its biases; that of its weights is 2 over the fan-in."""
    num_networks: Count = 4
    """Random networks per step whose features are averaged over."""
    ridge: Positive = 0.01
    """Relative to the mean of the kernel's diagonal."""
    image_lr: Positive = 0.01
    """Adam's step size on images (in normalised units) and on the logit scale; falls to 0 along a
    cosine.
    """
    label_lr: NonNegative = 0.01
    """Adam's step size on targets; 0 keeps the labels at centred one-hot."""
    initial: Initial = "real"
    """Start from real images, from mixes of two of a class, or from noise."""
    formation: Count = 1
    """Images that a stored one holds along each side; 1 stores them one by one."""
    logit_scale: Positive = 10.0
    """Initial factor from predictions to logits; fitted."""

    def init(self, problem: Problem, rng: Rng) -> State:
        x, y = formation.begin(
            problem, self.per_class, self.initial, rng("images"), factor=self.formation
        )
        learned = Learned(
            x,
            regression.centred(y, problem.num_classes, x.dtype),
            x.new_full((), self.logit_scale).log(),
        )
        return State(learned, Learned(*map(start, learned)), x.new_zeros(()))  # type: ignore[arg-type]

    def step(self, problem: Problem, state: State, rng: Rng) -> tuple[State, Info]:
        learned = state.learned
        real, y = problem.batch(
            rng("batch").integers(problem.num_train, self.batch_size, device=problem.device)
        )
        real = real if problem.augment is None else problem.augment(real, rng("augment"))
        shown = formation.split(learned.x, self.formation)
        pair = (
            self._random_features(problem, shown, real, rng)
            if self.kernel == "features"
            else self._closed_form(real)
        )

        def objective(learned: Learned) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            gram, cross = pair(formation.split(learned.x, self.formation))
            mean = regression.regress(
                gram, cross, formation.repeat(learned.y, self.formation), ridge=self.ridge
            )
            value, log_probs = regression.loss(mean, y, learned.log_scale)
            return value, (value.detach(), log_probs.detach())

        gradient, (value, log_probs) = grad(objective, has_aux=True)(learned)
        decay = cosine(state.step, self.num_steps)
        rates = (self.image_lr, self.label_lr, self.image_lr)
        moved = [
            adam(g, m, decay * rate)
            for g, m, rate in zip(gradient, state.moments, rates, strict=True)
        ]
        new = Learned(*(part - change for part, (change, _) in zip(learned, moved, strict=True)))
        moments = Learned(*(moment for _, moment in moved))  # type: ignore[arg-type]
        accuracy = (log_probs.argmax(1) == y).to(real.dtype).mean()
        return State(new, moments, state.step + 1), Info(value, accuracy, new.log_scale.exp())

    def coreset(self, problem: Problem, state: State) -> Coreset:
        x, y, log_scale = state.learned
        numbers = {"logit_scale": log_scale.exp().item(), "ridge": self.ridge}
        provenance = {"posterior": numbers, **formation.provenance(factor=self.formation)}
        return Coreset(
            problem.pixels(x).cpu(),
            y.cpu(),
            torch.ones(len(y), dtype=y.dtype),
            provenance=provenance,
        )

    def _closed_form(self, real: Tensor) -> "Pair":
        kernel = kernels.DenseKernel(
            "ntk" if self.kernel == "ntk" else "nngp",
            self.kernel_depth,
            bias_variance=self.bias_variance,
        )
        return lambda x: (kernel.gram(x), kernel.cross(real, x))

    def _random_features(self, problem: Problem, x: Tensor, real: Tensor, rng: Rng) -> "Pair":
        """The kernel of fresh networks; the features of the real batch are made once, as no
        gradient passes them.
        """
        names = [rng("network", number) for number in range(self.num_networks)]
        thetas = [
            problem.model.init(name, device=problem.device, dtype=problem.dtype) for name in names
        ]
        seen = [kernels.real_features(problem, theta, x, real) for theta in thetas]

        def pair(x: Tensor) -> tuple[Tensor, Tensor]:
            products = [
                kernels.inner_products(kernels.own_features(problem, theta, x), other)
                for theta, other in zip(thetas, seen, strict=True)
            ]
            grams, crosses = zip(*products, strict=True)
            return torch.stack(grams).mean(0), torch.stack(crosses).mean(0)

        return pair


Pair = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Points to their kernel with themselves (M, M) and that of the real batch with them (n, M)."""
