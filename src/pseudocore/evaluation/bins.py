"""Bins of predictions: where a confidence falls, and the gaps between what was claimed and what
came true.

The sums behind calibration errors, shared by the streaming tally of `metrics` and the functions of
`calibration`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def bin_of(confidence: Tensor, num_bins: int) -> Tensor:
    """Index of each confidence's bin: right-closed, so an edge belongs to the bin below it, and 0
    to the first.
    """
    inner = torch.arange(1, num_bins, dtype=torch.float64) / num_bins
    # exp(log p) may land a rounding above p, so an edge is an edge up to 1e-12.
    return torch.bucketize(confidence, inner + 1e-12)


def class_gaps(p: Tensor, y: Tensor, num_bins: int) -> Tensor:
    """Labels less probabilities (n, classes), summed over the examples of each bin of each class's
    probability, (classes, bins).
    """
    num_classes = p.shape[1]
    place = bin_of(p.contiguous(), num_bins) + num_bins * torch.arange(num_classes)
    gaps = torch.zeros(num_classes * num_bins, dtype=torch.float64)
    return gaps.index_add(0, place.flatten(), (F.one_hot(y, num_classes) - p).flatten()).view(
        num_classes, num_bins
    )


def equal_mass_gap(confidence: Tensor, correct: Tensor, num_bins: int) -> float:
    """Mean gap in bins that hold equally many examples (n,); examples of equal confidence share
    their hits evenly.
    """
    ordered, order = confidence.sort()
    hits = _shared_by_ties(ordered, correct[order].double())
    gaps = [part.sum().abs() for part in torch.tensor_split(hits - ordered, num_bins)]
    return float(torch.stack(gaps).sum()) / len(confidence)


def _shared_by_ties(ordered: Tensor, hits: Tensor) -> Tensor:
    """Hits as their mean over the examples of equal confidence; `ordered` is ascending, equal up to
    rounding is equal.
    """
    apart = (
        ordered.diff(prepend=ordered[:1]) > 1e-12
    )  # exp(log p) of one p may differ in the last digit
    group = apart.long().cumsum(0)
    num_groups = int(group[-1]) + 1
    total = torch.zeros(num_groups, dtype=torch.float64).index_add(0, group, hits)
    return (total / torch.bincount(group))[group]
