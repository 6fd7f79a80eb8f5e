r"""Predictive densities of a regression: a mixture of equally likely Gaussians at each input.

Draws of a network give one Gaussian each; a last layer in closed form gives a single one. With
components $\mathcal N(\mu_i, \sigma_i^2)$, $A(m, s) = 2 s\,\varphi(m/s) + m\,(2\Phi(m/s) - 1)$ and
D components, the continuous ranked probability score is (Grimit et al. 2006)

$$ \mathrm{CRPS}(y) = \frac1D \sum_i A(y - \mu_i, \sigma_i) - \frac1{2D^2} \sum_{i,j}
   A\left(\mu_i - \mu_j, \sqrt{\sigma_i^2 + \sigma_j^2}\right) . $$
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

MAX_COMPONENTS = 200
"""Components behind a CRPS, evenly spaced among all: its second sum is over pairs."""

BLOCK = 2**22
"""Numbers held at once."""


class Mixture(NamedTuple):
    """Equally likely Gaussians at each of n inputs, in the targets' own units, float64."""

    mean: Tensor  # (n, components)
    sd: Tensor  # (n, components)

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation, each (n,)."""
        mean = self.mean.mean(1)
        variance = self.sd.square().mean(1) + (self.mean - mean[:, None]).square().mean(1)
        return mean, variance.sqrt()

    def log_prob(self, y: Tensor) -> Tensor:
        """Log-density at y (n,)."""
        z = (y[:, None] - self.mean) / self.sd
        each = -0.5 * z.square() - self.sd.log() - 0.5 * math.log(2 * math.pi)
        found: Tensor = each.logsumexp(1) - math.log(each.shape[1])
        return found

    def cdf(self, y: Tensor) -> Tensor:
        """Probability of a target of at most y (n,)."""
        found: Tensor = torch.special.ndtr((y[:, None] - self.mean) / self.sd).mean(1)
        return found

    def quantile(self, level: float) -> Tensor:
        """Where the probability of a smaller target is `level`, (n,); by bisection."""
        at = float(torch.special.ndtri(torch.tensor(level, dtype=torch.float64)))
        each = self.mean + at * self.sd
        low, high = each.amin(1), each.amax(1)  # the mixture's quantile lies among its components'
        if each.shape[1] == 1:
            return low
        for _ in range(60):
            middle = (low + high) / 2
            is_below = self.cdf(middle) < level
            low, high = torch.where(is_below, middle, low), torch.where(is_below, high, middle)
        return (low + high) / 2

    def crps(self, y: Tensor) -> Tensor:
        """Continuous ranked probability score at y (n,), in units of y; 0 is best."""
        mean, sd = self.mean, self.sd
        if mean.shape[1] > MAX_COMPONENTS:
            some = torch.linspace(0, mean.shape[1] - 1, MAX_COMPONENTS).round().long()
            mean, sd = mean[:, some], sd[:, some]
        scores = []
        for m, s, t in zip(*_blocks(mean, sd, y), strict=True):
            error = _expected_distance(t[:, None] - m, s).mean(1)
            gaps, sds = m[:, :, None] - m[:, None], torch.hypot(s[:, :, None], s[:, None])
            scores.append(error - 0.5 * _expected_distance(gaps, sds).mean((1, 2)))
        return torch.cat(scores)

    def sample(self, noise: Tensor, which: Tensor) -> Tensor:
        """Targets (num, n) of standard normal noise (num, n) and components (num, n)."""
        rows = torch.arange(len(self.mean))
        return self.mean[rows, which] + self.sd[rows, which] * noise


def _expected_distance(mean: Tensor, sd: Tensor) -> Tensor:
    """E|X| of Gaussians."""
    z = mean / sd
    density = (-0.5 * z.square()).exp() / math.sqrt(2 * math.pi)
    found: Tensor = 2 * sd * density + mean * (2 * torch.special.ndtr(z) - 1)
    return found


def _blocks(mean: Tensor, *others: Tensor) -> list[tuple[Tensor, ...]]:
    size = max(1, BLOCK // mean.shape[1] ** 2)
    return [torch.split(part, size) for part in (mean, *others)]
