r"""Posteriors of a regression: a `Mixture` of Gaussians at each input, in the targets' own units.

Draws of a network are the components $\mathcal N(c + u f_d(x), \sigma^2)$ of the predictive; a last
layer in closed form has the single one $\mathcal N(c + u\,\mu(x), u^2\Sigma(x) + \sigma^2)$. Calling
a posterior gives the predictive's mean and standard deviation, (n, 2).
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pseudocore.core.errors import ConfigError
from pseudocore.core.mixture import Mixture
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, Uncertainty
from pseudocore.inference.draws import Draws
from pseudocore.inference.draws_posterior import DrawsPosterior
from pseudocore.inference.posterior import Posterior, Prediction


class RegressionPosterior(Posterior):
    """Predictions of numbers averaged over a posterior."""

    @abstractmethod
    def mixture(self, raw: Tensor) -> Mixture:
        """The predictive densities at raw inputs (n, ...), on the CPU."""

    def __call__(self, raw: Tensor) -> Tensor:
        """Mean and standard deviation of a target at raw inputs (n, ...), (n, 2) in float64."""
        return torch.stack(self.mixture(raw).moments(), 1)

    def uncertainty(self, raw: Tensor) -> Uncertainty:
        """Of the Gaussian of the predictive's moments: its entropy, and what of it is left where
        the noise is known.
        """
        _, sd = self.mixture(raw).moments()
        noise = self.problem.gaussian.noise
        entropy = sd.log() + 0.5 * math.log(2 * math.pi * math.e)
        return Uncertainty(entropy, (sd.log() - math.log(noise)).clamp_min(0))

    def predict(self, raw: Any) -> "ValuePrediction":
        return ValuePrediction(self, self.problem.as_tensor(raw))


class ValuePrediction(Prediction):
    """What a posterior predicts for the targets of some inputs, in their own units."""

    _posterior: RegressionPosterior

    @cached_property
    def mixture(self) -> Mixture:
        """The predictive density of each input."""
        return self._posterior.mixture(self._raw)

    @property
    def mean(self) -> Tensor:
        """Of the predictive, (n,)."""
        return self.mixture.moments()[0]

    @property
    def sd(self) -> Tensor:
        """Standard deviation of the predictive, noise included, (n,)."""
        return self.mixture.moments()[1]

    def quantile(self, level: float) -> Tensor:
        """What a target is below with probability `level`, (n,)."""
        if not 0 < level < 1:
            raise ConfigError(
                f"a quantile is asked for at a level between 0 and 1, not {level!r}",
                code="out-of-range",
                level=level,
            )
        return self.mixture.quantile(level)

    def interval(self, share: float) -> tuple[Tensor, Tensor]:
        """The central interval that holds a target with probability `share`, each end (n,)."""
        return self.quantile((1 - share) / 2), self.quantile((1 + share) / 2)

    def sample(self, num: int, *, rng: Rng | int = 0, noise: bool = False) -> Tensor:
        """Values (num, n) of `num` functions drawn from the posterior, without noise or with that
        of an observation each.
        """
        rng = Rng(rng)("functions") if isinstance(rng, int) else rng
        drawn = list(self._posterior.functions(self._raw, num, rng))
        values = torch.stack(drawn)[..., 0].cpu().double()
        if not noise:
            return values
        error = rng("noise").normal(*values.shape, dtype=torch.float64)
        return values + self._posterior.problem.gaussian.noise * error

    @property
    def log_probs(self) -> Tensor:
        raise ConfigError("a regression has no class probabilities", code="no-classes")

    @property
    def entropy(self) -> Tensor:
        """Of the Gaussian of the predictive's moments, (n,) in nats."""
        return self._posterior.uncertainty(self._raw).entropy

    def __repr__(self) -> str:
        return f"ValuePrediction({len(self._raw)} inputs)"


class RegressionDraws(RegressionPosterior, DrawsPosterior):
    """A set of networks: each is one component of the predictive."""

    def mixture(self, raw: Tensor) -> Mixture:
        mean = torch.cat([each.cpu() for each in self.each(raw)], 1)
        return Mixture(mean, torch.full_like(mean, self.problem.gaussian.noise))

    def _predicted(self, outputs: Tensor) -> Tensor:
        """Outputs (n, 1) in the targets' own units."""
        return self.problem.likelihood.raw_targets(outputs)


class GaussianRegression(RegressionPosterior):
    """One network under a Gaussian over its last layer.

    Args:
        problem: What it was fitted to.
        outputs: Network inputs to mean (n, 1) and variance (n,) of outputs, in float64.
        features: Network inputs to what the last layer multiplies, (n, features).
        heads: A number and a stream to that many draws of the last layer, (num, features, 1).
        selected_settings: Settings that were selected on training data, by name.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        outputs: Callable[[Tensor], tuple[Tensor, Tensor]],
        features: Callable[[Tensor], Tensor],
        heads: Callable[[int, Rng], Tensor],
        selected_settings: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(problem, selected_settings=selected_settings)
        self._outputs, self._features, self._heads = outputs, features, heads

    @torch.no_grad()
    def mixture(self, raw: Tensor) -> Mixture:
        own = self.problem.gaussian
        mean, variance = self._outputs(self.problem.asked_inputs(raw))
        mean = own.raw_targets(mean).cpu()
        sd = (own.unit**2 * variance + own.noise**2).sqrt().cpu()
        return Mixture(mean, sd[:, None])

    @torch.no_grad()
    def functions(self, raw: Tensor, num: int, rng: Rng) -> Iterator[Tensor]:
        features = self._features(self.problem.asked_inputs(raw))
        for head in self._heads(num, rng):
            yield self.problem.likelihood.raw_targets(features @ head)


def posterior_of_draws(
    problem: Problem, draws: Tensor | Draws, coreset: Coreset, *, reduced_precision: bool = False
) -> DrawsPosterior:
    """The posterior of a set of networks, of classes or numbers."""
    kind = RegressionDraws if problem.task == "regression" else DrawsPosterior
    return kind(problem, draws, coreset, reduced_precision=reduced_precision)
