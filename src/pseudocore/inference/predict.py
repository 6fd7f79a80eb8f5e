r"""Predictions, and Bayesian model averages over draws, one draw and one test batch at a time.

$$ \log \bar p(y \mid x) = \log \frac1D \sum_{d=1}^{D} p(y \mid x, \theta_d), \qquad
   H[\bar p] = \frac1D \sum_d H[p_d] + I(y; \theta) $$

The entropy of the average is the draws' mean entropy and the mutual information of label and theta.
Only running sums (n, classes) are held, never draws × test × classes. Entropies are in nats.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import nullcontext

import torch
from torch import Tensor

from pseudocore.core.problem import Problem
from pseudocore.core.types import Predict, Uncertainty
from pseudocore.inference.draws import Draws


class Prediction:
    """A `Predict`, with what else is known about it."""

    selected_settings: Mapping[str, float]
    """Settings that were selected on training data, by name."""
    earlier: "tuple[Prediction, ...]"
    """The same network at earlier moments of its training, where they were kept."""

    def __init__(
        self, predict: Predict, *, selected_settings: Mapping[str, float] | None = None
    ) -> None:
        self._predict = predict
        self.selected_settings = selected_settings or {}
        self.earlier = ()

    def __call__(self, raw: Tensor) -> Tensor:
        """Raw inputs (n, ...) to log-probabilities (n, classes)."""
        return self._predict(raw)


class Predictive(Prediction):
    """The predictions of a set of draws, averaged as probabilities.

    Args:
        problem: What the draws were fitted to.
        draws: Thetas (draws, parameters), or the draws of chains.
        x: Network inputs the draws were fitted on, from which batch norm takes its statistics.
        reduced_precision: Whether passes may be in the problem's reduced precision, which is enough
            for an accuracy.
    """

    def __init__(
        self, problem: Problem, draws: Tensor | Draws, x: Tensor, *, reduced_precision: bool = False
    ) -> None:
        super().__init__(lambda raw: self._mean(raw)[0])
        self.problem = problem
        self.draws = draws
        self.chains: Draws | None = None if isinstance(draws, Tensor) else draws
        """The draws, when they are those of chains."""
        self._x = x
        self._reduced_precision = reduced_precision
        self._statistics: dict[int, list[dict[str, Tensor] | None]] = {}

    def log_probs(self, raw: Tensor) -> Tensor:
        return self(raw)

    def uncertainty(self, raw: Tensor) -> Uncertainty:
        """Entropy of the average, and how much of it is disagreement of the draws."""
        mean, expected = self._mean(raw, entropies=True)
        entropy = _entropy(mean)
        # Negative only by rounding: the mean of concave H is below H of the mean.
        return Uncertainty(entropy, (entropy - expected).clamp_min(0))

    @torch.no_grad()
    def each(self, raw: Tensor) -> Iterator[Tensor]:
        """Log-probabilities (n, classes) of every network in turn, chain by chain within a draw."""
        inputs = self.problem.asked_inputs(raw)
        for number in range(len(self.draws)):
            theta = self.draws[number].to(inputs.device)
            thetas = theta.unsqueeze(0) if theta.ndim == 1 else theta
            for theta, statistics in zip(thetas, self._statistics_of(number, thetas), strict=True):
                with self.problem.fast() if self._reduced_precision else nullcontext():
                    logits = self.problem.model.logits(theta, inputs, statistics)
                yield logits.to(self.problem.dtype).log_softmax(1)

    def _mean(self, raw: Tensor, *, entropies: bool = False) -> tuple[Tensor, Tensor]:
        """Log of the mean probability (n, classes), and the mean entropy (n,) when asked for."""
        shape = (len(raw), self.problem.num_classes)
        total = torch.full(shape, -math.inf, device=self.problem.device, dtype=self.problem.dtype)
        expected, num = total.new_zeros(len(raw)), 0
        for log_probs in self.each(raw):
            total = torch.logaddexp(total, log_probs)
            if entropies:
                expected = expected + _entropy(log_probs)
            num += 1
        return total - math.log(num), expected / num

    def _statistics_of(self, number: int, thetas: Tensor) -> list[dict[str, Tensor] | None]:
        """Batch-norm statistics of the points the draws were fitted on, cached; None for other
        norms.
        """
        if number not in self._statistics:
            model = self.problem.model
            self._statistics[number] = [model.statistics(one, self._x) or None for one in thetas]
        return self._statistics[number]


def _entropy(log_probs: Tensor) -> Tensor:
    entropy: Tensor = torch.special.entr(log_probs.exp()).sum(-1)
    return entropy
