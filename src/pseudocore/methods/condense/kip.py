r"""KIP: points whose kernel ridge regression predicts the data.

Nguyen, Chen, Lee (2021), "Dataset Meta-Learning from Kernel Ridge-Regression". Minimises over
points $u$ and targets $\hat Y$

$$ \mathcal L(u, \hat Y) = \tfrac1{2|B|} \lVert \bar Y_B - K_{Bu} \left(K_{uu} + \lambda
I\right)^{-1} \hat Y \rVert^2 $$

on batches $B$ of the data. The kernel $K$ is that of an infinitely wide fully-connected ReLU
network, in closed form (`objectives/network_kernels.py`). Or it is the inner product of last-layer
features, averaged over a few fresh networks of the problem's own architecture.

| paper | here | | paper | here |
|---|---|---|---|---|
| $X_s$, $y_s$ | `x`, `y` | | $\lambda$ | `ridge`, relative |
| $X_t$, $y_t$ | a batch | | FC$_m$ | `kernel`, `kernel_depth` |

Cost per step: for `ntk` and `nngp` `kernel_depth` element-wise passes over matrices of `batch_size`
× M and M × M. For `features` `num_networks` forward passes of the batch, and as many forward and
backward passes of the M points. One Cholesky factor of M × M.

Deviations:
  D1. `ridge` is relative to the mean of the diagonal of $K_{uu}$.
  D2. The convolutional kernels of the later paper (Nguyen et al. 2021b) took many accelerators;
      `features` replaces them. It draws new networks at every step, so that the points suit the
      architecture and not a few networks, and never trains them (FRePo does).
  D3. A logit scale is fitted to the same batches; it moves nothing else and only makes predictions
      probabilities.
  D4. Adam's step sizes fall to 0 along a cosine. Augmentation, if any, acts on the real batch.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from torch import Tensor

from pseudocore.core.config import Count, Positive
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.objectives import kernel_regression, multiformation
from pseudocore.objectives.image_regression import ImageRegression, RegressionPoints
from pseudocore.objectives.kernel_regression import RegressionInfo
from pseudocore.objectives.multiformation import repeat_weight
from pseudocore.objectives.network_kernels import DenseKernel, Kernel, feature_kernel
from pseudocore.training.optimisers import cosine, start


class KIPState(NamedTuple):
    learned: RegressionPoints
    moments: Any  # Adam's, a RegressionPoints of Moments
    step: Tensor  # () steps taken


@methods.register(
    "kip",
    kind="condense",
    paper="Nguyen et al. 2021, arXiv 2011.00050",
    targets="function",
    weights="no",
)
@dataclass(frozen=True, kw_only=True)
class KIP(ImageRegression):
    """Kernel inducing points."""

    image_lr: Positive = 0.01
    """Adam's step size on (normalised) images and the logit scale; falls to 0 along a cosine."""
    kernel: Literal["features", "ntk", "nngp"] = "features"
    """Features of random networks of the model, or closed forms of wide fully-connected ones."""
    kernel_depth: Count = 3
    """Hidden layers of the fully-connected network."""
    bias_variance: Positive = 0.01
    """Variance of its biases; that of its weights is 2 over the fan-in."""
    num_networks: Count = 4
    """Random networks per step whose features are averaged over."""

    def init(self, problem: Problem, rng: Rng) -> KIPState:
        learned = self.begin(problem, rng)
        return KIPState(learned, start(learned), learned.x.new_zeros(()))

    def step(self, problem: Problem, state: KIPState, rng: Rng) -> tuple[KIPState, RegressionInfo]:
        index = rng("batch").integers(problem.num_train, self.batch_size, device=problem.device)
        real, y = problem.batch(index)
        real = real if problem.augment is None else problem.augment(real, rng("augment"))
        kernel = self._kernel(problem, state.learned.x, real, rng)
        relative = self.relative_weights(problem, state.learned.y)
        weight = repeat_weight(relative, self.formation)

        def objective(learned: RegressionPoints) -> tuple[Tensor, Tensor]:
            x, targets = multiformation.decode(learned.x, learned.y, factor=self.formation)
            mean = kernel_regression.regress(*kernel(x), targets, ridge=self.ridge, weight=weight)
            return kernel_regression.loss(mean, y, learned.log_scale)

        decay = cosine(state.step, self.num_steps)
        rates = [decay * rate for rate in (self.image_lr, self.label_lr, self.image_lr)]
        new, moments, info = kernel_regression.step(
            objective, state.learned, state.moments, rates, y
        )
        return KIPState(new, moments, state.step + 1), info

    def coreset(self, problem: Problem, state: KIPState) -> Coreset:
        return self.ended(problem, state.learned)

    def _kernel(self, problem: Problem, stored: Tensor, real: Tensor, rng: Rng) -> Kernel:
        if self.kernel != "features":
            dense = DenseKernel(self.kernel, self.kernel_depth, bias_variance=self.bias_variance)
            return lambda x: (dense.gram(x), dense.cross(real, x))
        thetas = [
            problem.model.init(rng("network", number), device=problem.device, dtype=problem.dtype)
            for number in range(self.num_networks)
        ]
        return feature_kernel(problem, thetas, multiformation.split(stored, self.formation), real)
