r"""Accuracy, negative log-likelihood, Brier score and calibration errors, streamed over batches.

Sums over examples are kept in float64 and divided once at the end, so that no metric depends on the
batch size. With bins $B_1 … B_{15}$ of equal width,

$$ \mathrm{ECE} = \sum_b \frac{|B_b|}{n} \, \bigl| \mathrm{accuracy}(B_b) - \mathrm{confidence}(B_b)
\bigr| . $$

*Adaptive ECE* (after Nguyen & O'Connor, 2015) is the same with bins of equal mass. Examples in the
order of their confidence fall into bins of $n/15$ each (the first ones take one more where 15 does
not divide n). Examples of equal confidence have no order: each counts as right to the degree that
they are on average.

*Class-wise ECE* (Nixon et al., 2019; Kull et al., 2019) compares the probability of class $k$ with
the frequency of that label. Bins have equal width, and the error is averaged over the $K$ classes:

$$ \mathrm{ECE}_\mathrm{classwise} = \frac1K \sum_k \sum_b \frac{|B_{kb}|}{n} \,
   \bigl| \mathrm{frequency}_k(B_{kb}) - \bar p_k(B_{kb}) \bigr| . $$

`docs/metrics.md` holds the definitions and conventions.
"""

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor

from pseudocore.core.errors import ConfigError, DataError
from pseudocore.core.types import Examples, Predict

NUM_BINS = 15
BATCH_SIZE = 1024
"""Test inputs per batch: a multiple of 256, the batch of published evaluators, and large enough to
keep a GPU busy.
"""


class Reliability(NamedTuple):
    """A reliability diagram: confidence and accuracy per bin; `None` where a bin is empty."""

    confidence: tuple[float | None, ...]
    accuracy: tuple[float | None, ...]
    count: tuple[int, ...]  # type: ignore[assignment]  # tuples have a method of that name


class Metrics(NamedTuple):
    accuracy: float
    nll: float
    """Mean of -log p(y | x) over examples, in nats; inf when a true label has probability 0."""
    ece: float
    brier: float
    """Mean over examples of the squared error summed over classes, in [0, 2]."""
    adaptive_ece: float
    classwise_ece: float
    reliability: Reliability

    def scalars(self) -> dict[str, float]:
        """Every metric but the diagram, by name."""
        return {name: value for name, value in self._asdict().items() if name != "reliability"}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Metrics":
        """From `_asdict` as JSON gives it back."""
        return cls(**{**values, "reliability": Reliability(*map(tuple, values["reliability"]))})


@dataclass(frozen=True, eq=False)
class Tally:
    """Sums over the examples seen so far, from which every metric follows; `add` returns a new one."""

    num_classes: int
    nll: Tensor
    brier: Tensor
    confidence: Tensor
    """Sum of top-label probabilities, (bins,)."""
    correct: Tensor
    """(bins,)"""
    count: Tensor
    """(bins,)"""
    class_gaps: Tensor
    """Labels less probabilities, (classes, bins)."""
    each: tuple[tuple[Tensor, Tensor], ...] = ()
    """Confidence and correctness of every example: bins of equal mass need their order."""

    @classmethod
    def empty(cls, num_classes: int, num_bins: int = NUM_BINS) -> "Tally":
        if num_classes < 1 or num_bins < 1:
            raise ConfigError(
                f"metrics need at least one class and one bin, not {num_classes} and {num_bins}",
                code="invalid-options",
            )
        zeros = torch.zeros(num_classes, num_bins, dtype=torch.float64)
        whole = torch.zeros(num_bins, dtype=torch.int64)
        return cls(num_classes, zeros[0, 0], zeros[0, 0], zeros[0], whole, whole, zeros)

    def add(self, log_probs: Tensor, y: Tensor) -> "Tally":
        """Count a batch: log-probabilities (n, classes) and integer labels (n,)."""
        log_probs, y = log_probs.detach().cpu().double(), y.detach().cpu()
        check_predictions(log_probs, y, self.num_classes)
        y = y.long()
        top, label = log_probs.max(1)  # of equally likely classes the first
        confidence, correct = top.exp(), label == y
        bins = _bin_of(confidence, len(self.count))
        p = log_probs.exp()
        error = p - F.one_hot(y, self.num_classes)  # (n, classes)
        return Tally(
            self.num_classes,
            self.nll - log_probs.gather(1, y[:, None]).sum(),
            self.brier + error.square().sum(),
            self.confidence.index_add(0, bins, confidence),
            self.correct.index_add(0, bins, correct.long()),
            self.count.index_add(0, bins, torch.ones_like(bins)),
            self.class_gaps + _class_gaps(p, y, len(self.count)),
            (*self.each, (confidence, correct)),
        )

    def result(self) -> Metrics:
        n = int(self.count.sum())
        if n == 0:
            raise DataError("no examples were given; give at least one", code="no-examples")
        count = tuple(self.count.tolist())
        confidence, correct = (torch.cat(parts) for parts in zip(*self.each, strict=True))
        return Metrics(
            accuracy=int(self.correct.sum()) / n,
            nll=float(self.nll) / n,
            ece=float((self.correct - self.confidence).abs().sum()) / n,
            brier=float(self.brier) / n,
            adaptive_ece=_equal_mass_gap(confidence, correct, len(count)),
            classwise_ece=float(self.class_gaps.abs().sum()) / (n * self.num_classes),
            reliability=Reliability(
                _per_bin(self.confidence, count), _per_bin(self.correct, count), count
            ),
        )


def measure(
    predict: Predict,
    batches: Iterable[tuple[Tensor, Tensor]],
    num_classes: int,
    num_bins: int = NUM_BINS,
) -> Metrics:
    """Metrics of a predictor over a test set given as batches of raw inputs and labels."""
    tally = Tally.empty(num_classes, num_bins)
    with torch.no_grad():
        for x, y in batches:
            tally = tally.add(predict(x), y)
    return tally.result()


def in_batches(examples: Examples, size: int = BATCH_SIZE) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and labels of a test set, batch by batch."""
    for start in range(0, len(examples.y), size):
        yield examples.x[start : start + size], examples.y[start : start + size]


class Spread(TypedDict):
    mean: float
    sd: float | None
    """Sample standard deviation; `None` for a single or an infinite value."""


def spreads(results: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    """Mean and spread over seeds of numbers by name."""
    if not results:
        raise DataError("there are no results; give at least one seed", code="no-results")
    columns = {name: [result[name] for result in results] for name in results[0]}
    return {
        name: Spread(mean=statistics.fmean(values), sd=_sd(values))
        for name, values in columns.items()
    }


def check_predictions(log_probs: Tensor, y: Tensor, num_classes: int) -> None:
    """Refuse what is not log-probabilities (n, classes) and integer labels (n,)."""
    if log_probs.ndim != 2 or log_probs.shape[1] != num_classes:
        raise DataError(
            f"log-probabilities must be (n, {num_classes}), one column per class, not"
            f" {tuple(log_probs.shape)}",
            code="wrong-shape",
        )
    if y.shape != log_probs.shape[:1] or y.is_floating_point() or y.dtype == torch.bool:
        raise DataError(
            f"labels must be a vector of {len(log_probs)} integers, not {tuple(y.shape)} {y.dtype}",
            code="wrong-labels",
        )
    outside = (y < 0) | (y >= num_classes)
    if outside.any():
        raise DataError(
            f"label {int(y[outside][0])} was given, but with {num_classes} classes labels lie in"
            f" 0..{num_classes - 1}",
            code="wrong-labels",
        )
    if num_nan := int(log_probs.isnan().any(1).sum()):
        raise DataError(
            f"the log-probabilities of {num_nan} of {len(y)} examples are NaN: the parameters have"
            " grown too large; a smaller step size usually helps",
            code="nan-predictions",
            num=num_nan,
        )
    total = log_probs.logsumexp(1)
    wrong = ~(total.abs() <= 1e-3)
    if wrong.any():
        raise DataError(
            f"log-probabilities of {int(wrong.sum())} of {len(y)} examples do not sum to one (log"
            f" of the sum is {float(total[wrong][0]):.4g}); logits must go through log_softmax",
            code="not-normalised",
            num=int(wrong.sum()),
        )


def _bin_of(confidence: Tensor, num_bins: int) -> Tensor:
    """Index of each confidence's bin, closed on the right; 0 belongs to the first."""
    inner = torch.arange(1, num_bins, dtype=torch.float64) / num_bins
    # exp(log p) may land a rounding above p, so an edge is an edge up to 1e-12.
    return torch.bucketize(confidence, inner + 1e-12)


def _class_gaps(p: Tensor, y: Tensor, num_bins: int) -> Tensor:
    """Labels less probabilities (n, classes), summed over the bins of each class, (classes, bins)."""
    num_classes = p.shape[1]
    place = _bin_of(p.contiguous(), num_bins) + num_bins * torch.arange(num_classes)
    gaps = torch.zeros(num_classes * num_bins, dtype=torch.float64)
    gaps = gaps.index_add(0, place.flatten(), (F.one_hot(y, num_classes) - p).flatten())
    return gaps.view(num_classes, num_bins)


def _equal_mass_gap(confidence: Tensor, correct: Tensor, num_bins: int) -> float:
    """Mean gap in bins that hold equally many examples (n,)."""
    ordered, order = confidence.sort()
    hits = _shared_by_ties(ordered, correct[order].double())
    gaps = [part.sum().abs() for part in torch.tensor_split(hits - ordered, num_bins)]
    return float(torch.stack(gaps).sum()) / len(confidence)


def _shared_by_ties(ordered: Tensor, hits: Tensor) -> Tensor:
    """Hits as their mean over the examples of equal confidence, equal up to rounding."""
    differs = ordered.diff(prepend=ordered[:1]) > 1e-12
    group = differs.long().cumsum(0)
    num_groups = int(group[-1]) + 1
    total = torch.zeros(num_groups, dtype=torch.float64).index_add(0, group, hits)
    return (total / torch.bincount(group))[group]


def _per_bin(sums: Tensor, count: Sequence[int]) -> tuple[float | None, ...]:
    return tuple(total / n if n else None for total, n in zip(sums.tolist(), count, strict=True))


def _sd(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else None
