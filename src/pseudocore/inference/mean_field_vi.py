r"""Mean-field variational inference (Blundell et al. 2015, "Bayes by Backprop"): the independent
Gaussians on all parameters that are nearest to the posterior.

$$ q(\theta) = \mathcal N\left(\mu, \operatorname{diag} s^2\right), \qquad \theta = \mu + s
   \odot \epsilon, \qquad \max_{\mu, s} \; \mathbb E_\epsilon \sum_m w_m \log p(y_m \mid x_m,
   \theta) - \mathrm{KL}\left[q \,\|\, p(\theta)\right] $$

The likelihood is a sum over weighted points, so that q is as narrow as the posterior of all that
they stand for. Its expectation is estimated by `num_samples` draws on a random batch; the KL to the
Gaussian prior $\mathcal N(c, \operatorname{diag} \sigma^2)$ is exact:

$$ \mathrm{KL} = \sum_i \frac{s_i^2 + (\mu_i - c_i)^2}{2\sigma_i^2} - \log\frac{s_i}{\sigma_i}
   - \frac12 . $$

At temperature T the target is $\pi^{1/T}$: all but the entropy of q, $\sum_i \log s_i$, is divided
by T. On a Gaussian posterior of precision Λ the optimum is its mean and $s_i^2 = T/\Lambda_{ii}$.

Cost: `num_steps` gradients on at most `batch_size` points times `num_samples`.

Deviations:
1. $\mu$ and $\log s$ are measured in the prior's own units, $(\mu - c)/\sigma$, in which one step
   size serves all layers; Blundell et al. have $s = \log(1 + e^\rho)$.
2. The prior is the problem's Gaussian, and the KL exact; theirs is a mixture, its KL estimated.
3. A batch's sum is scaled to that of all points, and the KL enters every step whole.
4. Draws come in pairs $\pm\epsilon$: where the posterior is Gaussian the mean's gradient is exact.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor

from pseudocore.core.config import Count, Positive, Range
from pseudocore.core.errors import RunError
from pseudocore.core.likelihood import BOTH
from pseudocore.core.problem import Problem
from pseudocore.core.registry import inferences
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.inference import density
from pseudocore.inference.draws_posterior import DrawsPosterior
from pseudocore.inference.regression import posterior_of_draws
from pseudocore.runtime import autodiff
from pseudocore.training.loop import FitSettings, train
from pseudocore.training.optimisers import Moments, adam, cosine, start

BETAS = 0.9, 0.99
"""Adam's. The gradient falls by orders of magnitude from the start, over which the usual .999 would
keep dividing by its first size.
"""


class MeanField(NamedTuple):
    """Independent Gaussians."""

    mean: Tensor  # (parameters,)
    sd: Tensor  # (parameters,)


@inferences.register(
    "mean-field-vi", kind="variational", paper="Blundell et al. 2015, arXiv 1505.05424"
)
@dataclass(frozen=True, kw_only=True)
class MeanFieldVI(FitSettings):
    """Independent Gaussians on all parameters, by reparameterised draws and an exact KL."""

    tasks = BOTH

    num_steps: Count = 3000
    """Gradient steps."""
    step_size: Positive = 0.02
    """Adam's first step size, in units of the prior; it falls to 0 along a cosine."""
    num_samples: Count = 4
    """Draws behind each gradient, in pairs on both sides of the mean."""
    init_sd: Positive = 0.02
    """Standard deviations that training starts from, in units of the prior's."""
    temperature: Positive = 1.0
    """T: q is nearest to the posterior to the power 1/T."""
    prior: Literal["problem", "isotropic", "fan-in"] = "problem"
    """The problem's own prior, or another: Gaussian on all parameters alike, or by each layer's
    fan-in.
    """
    prior_scale: Annotated[float | None, Range(above=0)] = None
    """Scale of the prior: in units of one over the root of the fan-in, or for isotropic of the
    parameters themselves. Defaults to the problem's own.
    """
    num_draws: Count = 100
    """Networks drawn from q for predictions."""

    def fit(self, problem: Problem, coreset: Coreset, rng: Rng) -> DrawsPosterior:
        q = self.gaussian(problem, coreset, rng)
        like: Any = {"device": q.mean.device, "dtype": q.mean.dtype}
        noise = rng("draws").normal(self.num_draws, len(q.mean), **like)
        return posterior_of_draws(problem, q.mean + q.sd * noise, coreset)

    def gaussian(self, problem: Problem, coreset: Coreset, rng: Rng) -> MeanField:
        """The q of largest evidence bound."""
        problem = density.under(problem, self.prior, self.prior_scale)
        centre, unit = problem.prior_moments()
        log_likelihood = density.estimated(
            problem, coreset, lambda theta: theta.new_zeros(len(theta)), self.batch_size
        )

        def loss(variational: Tensor, rng: Rng) -> Tensor:
            """Minus the evidence bound times T, up to a constant."""
            mean, log_sd = variational
            like: Any = {"device": mean.device, "dtype": mean.dtype}
            half = rng("noise").normal((self.num_samples + 1) // 2, len(mean), **like)
            noise = torch.cat([half, -half])[: self.num_samples]
            thetas = centre + unit * (mean + log_sd.exp() * noise)
            squares = 0.5 * (mean.square() + (2 * log_sd).exp()).sum()
            fit = log_likelihood(thetas, rng("density")).mean() - squares
            bound: Tensor = fit + self.temperature * log_sd.sum()
            return -bound

        def gradient(variational: Tensor, _: Tensor, rng: Rng) -> tuple[Tensor, None]:
            return autodiff.grad(lambda variational: loss(variational, rng))(variational), None

        def optimiser(gradient: Tensor, moments: Moments, _: Tensor) -> tuple[Tensor, Moments]:
            rate = self.step_size * cosine(moments.steps, self.num_steps)
            return adam(gradient, moments, rate, betas=BETAS)

        theta = problem.model.init(rng("theta"), device=problem.device, dtype=problem.dtype)
        mean = (theta - centre) / unit
        begin = torch.stack([mean, torch.full_like(mean, self.init_sd).log()])
        steps = self.num_steps
        found = train(gradient, optimiser, begin, start(begin), problem, rng, num_steps=steps)
        if not found.isfinite().all():
            raise RunError(
                f"mean-field-vi diverged with step_size = {self.step_size:g}; try a smaller one",
                code="vi-diverged",
                step_size=self.step_size,
            )
        mean, log_sd = found
        return MeanField(centre + unit * mean, unit * log_sd.exp())
