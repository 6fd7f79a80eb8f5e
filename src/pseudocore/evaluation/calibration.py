r"""Calibration errors beside the equal-width one of `metrics`: with bins of equal mass, and class
by class.

*Adaptive* (equal-mass bins, after Nguyen & O'Connor, 2015): examples in the order of their
confidence fall into bins $B_b$ of $n/15$ each (the first ones take one more where 15 does not
divide n), and

$$ \mathrm{ECE}_\mathrm{adaptive} = \sum_b \frac{|B_b|}{n} \, \bigl| \mathrm{accuracy}(B_b) -
\mathrm{confidence}(B_b) \bigr| . $$

Examples of equal confidence have no order: each counts as right to the degree that they are on
average, so the result does not depend on how the examples are listed.

*Class-wise* (Nixon et al., 2019; Kull et al., 2019): the probability given to class $k$ against how
often the label is $k$, in bins of equal width, averaged over the $K$ classes:

$$ \mathrm{ECE}_\mathrm{classwise} = \frac1K \sum_k \sum_b \frac{|B_{kb}|}{n} \,
   \bigl| \mathrm{frequency}_k(B_{kb}) - \bar p_k(B_{kb}) \bigr| . $$

`metrics.Tally` streams both (keeping two numbers an example for the first); the functions here take
all predictions of a test set at once, which `collect` gathers: n × classes floats.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from pseudocore.core.errors import ConfigError, DataError
from pseudocore.core.types import Predict
from pseudocore.evaluation.bins import class_gaps, equal_mass_gap
from pseudocore.evaluation.metrics import check_predictions


def collect(predict: Predict, batches: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Log-probabilities (n, classes) and labels (n,) of a test set given as batches, on the CPU."""
    with torch.no_grad():
        parts = [(predict(x).cpu(), y.cpu()) for x, y in batches]
    if not parts:
        raise DataError(
            "the test set is empty, so there is nothing to predict; give at least one batch"
        )
    log_probs, y = zip(*parts, strict=True)
    return torch.cat(log_probs), torch.cat(y)


def adaptive_ece(log_probs: Tensor, y: Tensor, num_bins: int = 15) -> float:
    """Calibration error of the top label in bins that hold equally many examples."""
    log_probs, y = _checked(log_probs, y, num_bins)
    top, label = log_probs.max(1)
    return equal_mass_gap(top.exp(), label == y, num_bins)


def classwise_ece(log_probs: Tensor, y: Tensor, num_bins: int = 15) -> float:
    """Calibration error of every class's probability in bins of equal width, averaged over classes."""
    log_probs, y = _checked(log_probs, y, num_bins)
    return float(class_gaps(log_probs.exp(), y, num_bins).abs().sum()) / log_probs.numel()


def _checked(log_probs: Tensor, y: Tensor, num_bins: int) -> tuple[Tensor, Tensor]:
    if num_bins < 1:
        raise ConfigError(f"a calibration error needs at least one bin, not {num_bins}")
    log_probs, y = log_probs.detach().cpu().double(), y.detach().cpu()
    check_predictions(log_probs, y, log_probs.shape[-1])
    if len(y) == 0:
        raise DataError(
            "no examples were given, so there is nothing to measure; give at least one labelled example"
        )
    return log_probs, y.long()
