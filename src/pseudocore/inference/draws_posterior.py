"""The posterior of draws: a set of networks, averaged as probabilities."""

import math
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from functools import cached_property
from itertools import groupby

import torch
from torch import Tensor

from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, Uncertainty
from pseudocore.inference import diagnostics as diagnosing
from pseudocore.inference.diagnostics import Diagnosis
from pseudocore.inference.draws import Draws
from pseudocore.inference.posterior import Posterior, average, uncertainty


class DrawsPosterior(Posterior):
    """The predictions of a set of networks, averaged as probabilities.

    Args:
        problem: What the draws were fitted to.
        draws: Thetas (draws, parameters), or the draws of chains.
        coreset: What they were fitted on: batch norm takes its statistics from it.
        reduced_precision: Whether passes may be in the problem's reduced precision, which is enough
            for an accuracy.
    """

    def __init__(
        self,
        problem: Problem,
        draws: Tensor | Draws,
        coreset: Coreset,
        *,
        reduced_precision: bool = False,
    ) -> None:
        super().__init__(problem)
        self.coreset = coreset
        self._draws = draws
        self._reduced_precision = reduced_precision
        self._statistics: dict[int, list[dict[str, Tensor] | None]] = {}

    def __call__(self, raw: Tensor) -> Tensor:
        return average(self.each(raw))[0]

    def uncertainty(self, raw: Tensor) -> Uncertainty:
        return uncertainty(self.each(raw))

    @property
    def draws(self) -> Tensor:
        return torch.cat([self._thetas(number) for number in range(len(self._draws))])

    @property
    def chains(self) -> Draws | None:
        return None if isinstance(self._draws, Tensor) else self._draws

    @cached_property
    def diagnostics(self) -> Diagnosis | None:
        return None if self.chains is None else diagnosing.diagnose(self)

    @property
    def num_networks(self) -> int:
        return len(self._draws) * self._num_chains

    def each(self, raw: Tensor) -> Iterator[Tensor]:
        """Log-probabilities (n, classes) of every network in turn, chain by chain within a draw."""
        return self._log_probs(raw, range(self.num_networks))

    def functions(self, raw: Tensor, num: int, rng: Rng) -> Iterator[Tensor]:
        total, rounds = self.num_networks, math.ceil(num / self.num_networks)
        order = torch.cat([rng(number).permutation(total) for number in range(rounds)])[:num]
        return self._log_probs(raw, order.tolist())

    @torch.no_grad()
    def _log_probs(self, raw: Tensor, which: Iterable[int]) -> Iterator[Tensor]:
        """Of networks by number."""
        inputs, num_chains = self.problem.asked_inputs(raw), self._num_chains
        # A draw is read once for all its chains that follow each other.
        for number, group in groupby(which, key=lambda index: index // num_chains):
            thetas = self._thetas(number).to(inputs.device)
            statistics = self._statistics_of(number, thetas)
            for chain in (index % num_chains for index in group):
                with self.problem.fast() if self._reduced_precision else nullcontext():
                    logits = self.problem.model.logits(thetas[chain], inputs, statistics[chain])
                yield self._predicted(logits.to(self.problem.dtype))

    def _predicted(self, outputs: Tensor) -> Tensor:
        """Outputs of a network (n, classes) as log-probabilities."""
        return outputs.log_softmax(1)

    @cached_property
    def _num_chains(self) -> int:
        return len(self._thetas(0))

    def _thetas(self, number: int) -> Tensor:
        """Of one draw, (chains, parameters)."""
        theta = self._draws[number]
        return theta.unsqueeze(0) if theta.ndim == 1 else theta

    def _statistics_of(self, number: int, thetas: Tensor) -> list[dict[str, Tensor] | None]:
        """Batch-norm statistics of the points the draws were fitted on, cached; None for other
        norms.
        """
        if number not in self._statistics:
            model = self.problem.model
            self._statistics[number] = [
                model.statistics(one, self._fitted_inputs) or None for one in thetas
            ]
        return self._statistics[number]

    @cached_property
    def _fitted_inputs(self) -> Tensor:
        return self.problem.inputs(self.coreset.x)
