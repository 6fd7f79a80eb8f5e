r"""BPC-rKL: pseudo-coresets by reverse KL divergence.

Kim, Choi, Lee, Lee, Ha, Lee (2022), "On Divergence Measures for Bayesian Pseudocoresets", Algorithm
4; the gradient is that of Manousakas et al. (2020),

$$ \nabla_{u_m} D_{KL}[\pi_u \| \pi_x] = -\operatorname{Cov}_{\pi_u}\left[\nabla_u f(u_m, \theta),\;
   \mathbb 1^\top f(x, \theta) - \mathbb 1^\top f(u, \theta)\right] \tag{4} $$

estimated over $S$ draws around $\theta_u$, what training on $u$ makes of an expert at a random
early epoch: $u$ moves until the likelihood of the data and that of $u$ vary together there.

| paper | here | | paper | here |
|---|---|---|---|---|
| $T^+$ | `max_start` | | $S$ | `num_draws` |
| $L_u$, $\eta$ | `num_inner_steps`, `inner_lr` | | $\Sigma_u^{1/2}$ | `noise` |
| $B$ | `batch_size` | | $K$, $\gamma$ | `num_steps`, `image_lr` |

Cost per step: `num_inner_steps` gradients in $\theta$, `num_draws` forward passes of `batch_size`
real images and as many gradients in $u$. The memory of one of them, whatever `num_draws` is: the
draws are made twice, as only the second pass knows the mean of the first.

Deviations:
  D1. As Algorithm 4 prints it, the two likelihoods in the covariance are means (over the real batch
      and over $u$), where Eq. (4) has sums; `reverse_kl` does either. Inner training is on the mean
      over $u$ too.
  D2. Only one side of the covariance is centred, which leaves it the same.
  D3. The start epoch is uniform on 0 … $T^+ - 1$ (the algorithm prints $r \le T^+$).
  D4. Augmentation, if any, is drawn anew for every inner step, and once more for the covariance:
      the same for the real batch and for $u$. In the authors' code the covariance is not augmented;
      `augment_covariance` off does the same.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from pseudocore.core.config import Count, Fraction, Positive, Range
from pseudocore.core.problem import Problem, label_log_likelihood
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.objectives import multiformation
from pseudocore.objectives.image_sgd import ImagesInfo, ImagesState
from pseudocore.objectives.trajectory import TrajectorySettings, near, tiled, view_of
from pseudocore.objectives.unroll import augment_vjp, descend
from pseudocore.runtime import autodiff
from pseudocore.runtime.execution import map_independent, repeated


@methods.register(
    "bpc-rkl",
    kind="bayes",
    paper="Kim et al. 2022, arXiv 2210.06205",
    targets="posterior",
    weights="no",
)
@dataclass(frozen=True, kw_only=True)
class BPCReverseKL(TrajectorySettings):
    """Bayesian pseudo-coreset by reverse KL divergence."""

    assumes: ClassVar[str | None] = "hmc"

    image_momentum: Fraction = 0.0
    inner_lr: Positive = 0.03
    """Step size of training on the pseudo-images."""
    num_draws: Annotated[int, Range(low=2)] = 10
    """Gaussian draws around the network trained on the pseudo-images."""
    noise: Positive = 0.01
    """Standard deviation of the draws."""
    batch_size: Count = 1000
    """Real examples per step."""
    augment_covariance: bool = True
    """Whether the covariance of Eq. (4), too, is taken of augmented images, where any are."""
    draw_batch: Count = 1
    """Draws that pass the network at once: more may be faster and take as many times the memory."""

    def step(
        self, problem: Problem, state: ImagesState, rng: Rng
    ) -> tuple[ImagesState, ImagesInfo]:
        (start,) = self.expert_path(problem, rng, horizon=0)
        energy, view = self.energy_and_view(problem, state)
        student = descend(
            energy,
            view,
            start,
            state.x,
            rng("inner"),
            num_steps=self.num_inner_steps,
            step_size=self.inner_lr,
        )
        index = rng("batch").integers(problem.num_train, self.batch_size, device=problem.device)
        x, y = problem.batch(index)
        if self.augment_covariance:
            x = view_of(problem)(x, rng("view"))  # D4
        else:
            view = tiled(None, self.formation)
        images, pull = augment_vjp(view, state.x, rng("view"))
        labels = multiformation.repeat(state.y, self.formation)

        def likelihood(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
            return label_log_likelihood(problem.logits(theta, x).log_softmax(-1), y)

        counts = {"num": self.num_draws, "batch": self.draw_batch}
        gradient, gap = reverse_kl(
            lambda theta, images: likelihood(theta, images, labels),
            lambda theta: likelihood(theta, x, y).mean(-1),
            images,
            lambda: near(student, self.noise, rng("near-student"), **counts),
            scale=1 / len(images),  # D1
        )
        return self.moved(state, pull(gradient), gap)


def reverse_kl(
    points: Callable[[Tensor, Tensor], Tensor],
    data: Callable[[Tensor], Tensor],
    x: Tensor,
    draws: Callable[[], Iterable[Tensor]],
    *,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Eq. (4): the gradient in x, and the mean over the draws of how far the likelihood of x is
    above that of the data.

    `points` gives log-likelihoods (M,) of x under parameters (P,), `data` one number for the data;
    or (b, M) and (b,) under (b, P). `scale` times the sum over x is compared with that number.
    `draws` are from the posterior of x, the same at every call.
    """
    of_data = repeated(data, through_network=True)
    of_points = repeated(points, through_network=True)
    with torch.no_grad():
        above = [of_data(theta) - scale * of_points(theta, x).sum(-1) for theta in draws()]
        excess = torch.cat([one.reshape(-1) for one in above])  # (S,)
    centred, gradient = excess - excess.mean(), torch.zeros_like(x)

    def weighted(x: Tensor, theta: Tensor, factor: Tensor) -> Tensor:
        return (factor * points(theta, x).sum(-1)).sum()

    def slopes() -> Iterator[Callable[[], Tensor]]:
        first = 0
        for theta in draws():
            factor = centred[first : first + (len(theta) if theta.ndim == 2 else 1)]
            first += len(factor)
            yield partial(autodiff.grad(weighted), x, theta, factor)

    for slope in map_independent(slopes()):
        gradient = gradient - slope / len(excess)
    return gradient, -excess.mean()
