r"""Bayesian model averages over draws, one draw and one test batch at a time.

$$ \log \bar p(y \mid x) = \log \frac1D \sum_{d=1}^{D} p(y \mid x, \theta_d), \qquad
   H[\bar p] = \frac1D \sum_d H[p_d] + I(y; \theta) $$

The entropy of the average is the draws' mean entropy and the mutual information of label and theta.
Only running sums (n, classes) are held, never draws × test × classes. Entropies are in nats."""

import math
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pseudocore.core.problem import Problem
from pseudocore.core.types import Predict, Uncertainty


class Thetas(Protocol):
    """Draws by number: a tensor (draws, parameters), or anything whose entries are thetas
    (parameters,) or (chains, parameters).
    """

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Tensor: ...


class Predictive:
    """The predictions of a set of draws, averaged as probabilities: a `Predict` that also tells
    what it does not know.
    """

    def __init__(self, problem: Problem, draws: Thetas, x: Tensor, *, rough: bool = False) -> None:
        self.problem = problem
        self.rough = rough
        """Whether passes may be in the problem's reduced precision, which is enough for an
        accuracy.
        """
        self.draws = draws
        self.chosen: Mapping[str, float] = {}
        """Settings that were chosen on the way, by name."""
        self.earlier: tuple[Predictive, ...] = ()
        """The same network at earlier moments of its training, where they were kept."""
        self._x = x
        self._statistics: dict[int, list[dict[str, Tensor] | None]] = {}

    def __call__(self, raw: Tensor) -> Tensor:
        """Raw inputs (n, ...) to averaged log-probabilities (n, classes)."""
        return self._mean(raw)[0]

    log_probs = __call__

    def uncertainty(self, raw: Tensor) -> Uncertainty:
        """Entropy of the average, and how much of it the draws' disagreement makes up; (n,) each."""
        mean, expected = self._mean(raw, entropies=True)
        entropy = _entropy(mean)
        return Uncertainty(
            entropy, (entropy - expected).clamp_min(0)
        )  # at rounding only: the mean of concave H is below H of the mean

    @torch.no_grad()
    def each(self, raw: Tensor) -> Iterator[Tensor]:
        """Log-probabilities (n, classes) of every network in turn, chain by chain within a draw."""
        inputs = self.problem.asked_inputs(raw)
        for number in range(len(self.draws)):
            theta = self.draws[number].to(inputs.device)
            thetas = theta.unsqueeze(0) if theta.ndim == 1 else theta
            for theta, statistics in zip(thetas, self._statistics_of(number, thetas), strict=True):
                with self.problem.fast() if self.rough else nullcontext():
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
        """Batch-norm statistics of the points the draws were fitted on, kept once known; None for
        other norms.
        """
        if number not in self._statistics:
            self._statistics[number] = [
                self.problem.model.statistics(theta, self._x) or None for theta in thetas
            ]
        return self._statistics[number]


@dataclass(frozen=True, eq=False)
class Settled:
    """A `Predict` without draws, and the settings that were chosen on the way to it."""

    predict: Predict
    chosen: Mapping[str, float]

    def __call__(self, raw: Tensor) -> Tensor:
        return self.predict(raw)


def averaged(problem: Problem, thetas: Thetas, x: Tensor, *, rough: bool = False) -> Predictive:
    """BMA over draws: log of the mean over draws of p(y | x, theta); `rough`, where only accuracy
    is asked for.

    `x` are the network inputs the draws were fitted on; batch-norm networks take their statistics
    from them.
    """
    return Predictive(problem, thetas, x, rough=rough)


def _entropy(log_probs: Tensor) -> Tensor:
    entropy: Tensor = torch.special.entr(log_probs.exp()).sum(-1)
    return entropy
