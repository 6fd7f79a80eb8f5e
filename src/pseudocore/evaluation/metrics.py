r"""Accuracy, negative log-likelihood, calibration errors and Brier score, per example and
streaming.

Sums over examples are kept in float64 and divided once, at the end, so the size of a batch is no
part of a result. In particular the calibration error is that of the whole set, never a mean over
batches. With bins $B_1 … B_{15}$ of equal width,

$$ \mathrm{ECE} = \sum_b \frac{|B_b|}{n} \, \bigl| \mathrm{accuracy}(B_b) - \mathrm{confidence}(B_b)
\bigr| . $$

The errors in bins of equal mass and class by class are those of `calibration`. `docs/metrics.md`
holds the definitions and conventions.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypedDict

import torch
from torch import Tensor

from pseudocore.core.errors import ConfigError, DataError
from pseudocore.core.types import Predict
from pseudocore.evaluation.bins import bin_of, class_gaps, equal_mass_gap


class Reliability(NamedTuple):
    """A reliability diagram: what was claimed and what came true, per bin of confidence; `None`
    where a bin is empty.
    """

    confidence: tuple[float | None, ...]
    accuracy: tuple[float | None, ...]
    count: tuple[int, ...]  # type: ignore[assignment]  # the word for it, though every tuple has a method of that name


class Metrics(NamedTuple):
    accuracy: float
    nll: float
    """Mean of -log p(y | x) over examples, in nats; inf when a true label was given probability 0.
    """
    ece: float
    brier: float
    """Mean over examples of the squared error summed over classes, in [0, 2]."""
    adaptive_ece: float
    """As `ece`, in bins that hold equally many examples."""
    classwise_ece: float
    """Of every class's probability, averaged over classes."""
    reliability: Reliability


@dataclass(frozen=True, eq=False)
class Tally:
    """Sums over the examples seen so far, from which every metric follows. A value: `add` returns a
    new one.
    """

    num_classes: int
    nll: Tensor
    brier: Tensor
    confidence: Tensor  # (bins,), sum of top-label probabilities
    correct: Tensor  # (bins,)
    count: Tensor  # (bins,)
    class_gaps: Tensor  # (classes, bins)
    each: tuple[tuple[Tensor, Tensor], ...] = ()
    """Confidence and correctness of every example, batch by batch: bins of equal mass need their
    order.
    """

    @classmethod
    def empty(cls, num_classes: int, num_bins: int = 15) -> "Tally":
        if num_classes < 1 or num_bins < 1:
            raise ConfigError(
                f"metrics need at least one class and one bin, not {num_classes} and {num_bins}"
            )
        zero, bins = (
            torch.zeros((), dtype=torch.float64),
            torch.zeros(num_bins, dtype=torch.float64),
        )
        whole = torch.zeros(num_bins, dtype=torch.int64)
        return cls(
            num_classes,
            zero,
            zero,
            bins,
            whole,
            whole,
            torch.zeros(num_classes, num_bins, dtype=torch.float64),
        )

    def add(self, log_probs: Tensor, y: Tensor) -> "Tally":
        """The tally with a batch counted in: log-probabilities (n, classes) and integer labels
        (n,).
        """
        log_probs, y = log_probs.detach().cpu().double(), y.detach().cpu()
        check_predictions(log_probs, y, self.num_classes)
        y = y.long()
        top, label = log_probs.max(1)  # of equally likely classes the first
        confidence, correct = top.exp(), label == y
        bins = bin_of(confidence, len(self.count))
        p = log_probs.exp()
        error = p - torch.nn.functional.one_hot(y, self.num_classes)  # (n, classes)
        return Tally(
            self.num_classes,
            self.nll - log_probs.gather(1, y[:, None]).sum(),
            self.brier + error.square().sum(),
            self.confidence.index_add(0, bins, confidence),
            self.correct.index_add(0, bins, correct.long()),
            self.count.index_add(0, bins, torch.ones_like(bins)),
            self.class_gaps + class_gaps(p, y, len(self.count)),
            (*self.each, (confidence, correct)),
        )

    def result(self) -> Metrics:
        n = int(self.count.sum())
        if n == 0:
            raise DataError(
                "no examples were counted, so there is nothing to measure; give at least one labelled example"
            )
        count = tuple(self.count.tolist())
        confidence, correct = (torch.cat(parts) for parts in zip(*self.each, strict=True))
        return Metrics(
            accuracy=int(self.correct.sum()) / n,
            nll=float(self.nll) / n,
            ece=float((self.correct - self.confidence).abs().sum()) / n,
            brier=float(self.brier) / n,
            adaptive_ece=equal_mass_gap(confidence, correct, len(count)),
            classwise_ece=float(self.class_gaps.abs().sum()) / (n * self.num_classes),
            reliability=Reliability(
                _per_bin(self.confidence, count), _per_bin(self.correct, count), count
            ),
        )


def measure(
    predict: Predict, batches: Iterable[tuple[Tensor, Tensor]], num_classes: int, num_bins: int = 15
) -> Metrics:
    """Metrics of a predictor over a test set given as batches of raw inputs and labels."""
    tally = Tally.empty(num_classes, num_bins)
    with torch.no_grad():
        for x, y in batches:
            tally = tally.add(predict(x), y)
    return tally.result()


class Spread(TypedDict):
    mean: float
    sd: float | None
    """Sample standard deviation (n - 1 in the denominator); `None` when one value, or an infinite
    one, leaves it undefined.
    """


def summarise(results: Sequence[Metrics]) -> dict[str, Spread]:
    """Mean and spread over seeds of every scalar metric, as plain values for JSON."""
    if not results:
        raise DataError("there are no results to summarise; give the metrics of at least one seed")
    return spreads(
        [
            {name: value for name, value in result._asdict().items() if name != "reliability"}
            for result in results
        ]
    )


def spreads(results: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    """Mean and spread over seeds of numbers by name."""
    columns = {name: [result[name] for result in results] for name in results[0]}
    return {
        name: Spread(mean=statistics.fmean(values), sd=_sd(values))
        for name, values in columns.items()
    }


def check_predictions(log_probs: Tensor, y: Tensor, num_classes: int) -> None:
    """Refuse what is not log-probabilities (n, classes) and integer labels (n,)."""
    if log_probs.ndim != 2 or log_probs.shape[1] != num_classes:
        raise DataError(
            f"log-probabilities must be (n, {num_classes}), one column per class, not {tuple(log_probs.shape)}"
        )
    if y.shape != log_probs.shape[:1] or y.is_floating_point() or y.dtype == torch.bool:
        raise DataError(
            f"labels must be a vector of {len(log_probs)} integers, not {tuple(y.shape)} {y.dtype}"
        )
    outside = (y < 0) | (y >= num_classes)
    if outside.any():
        raise DataError(
            f"label {int(y[outside][0])} was given, but with {num_classes} classes labels lie in 0..{num_classes - 1}"
        )
    missing = log_probs.isnan().any(1)
    if missing.any():
        raise DataError(
            f"the predictor gave NaN log-probabilities for {int(missing.sum())} of {len(y)} examples: what was fitted has run away to "
            "numbers too large to compute with, and a smaller step size usually helps"
        )
    total = log_probs.logsumexp(1)
    astray = ~(total.abs() <= 1e-3)
    if astray.any():
        raise DataError(
            f"log-probabilities of {int(astray.sum())} of {len(y)} examples do not sum to one (log of the sum is "
            f"{float(total[astray][0]):.4g}); logits must go through log_softmax first"
        )


def _per_bin(sums: Tensor, count: Sequence[int]) -> tuple[float | None, ...]:
    return tuple(total / n if n else None for total, n in zip(sums.tolist(), count, strict=True))


def _sd(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else None
