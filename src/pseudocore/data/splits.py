"""A test set for data that came without one: stratified and a pure function of (labels, fraction,
seed).
"""

import torch
from torch import Tensor

from pseudocore.core.errors import ConfigError
from pseudocore.core.rng import Rng


def split(y: Tensor, fraction: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Indices (train, test), each ascending, with round(fraction · n) test points in the
    proportions of the classes.

    Every class keeps at least one training point.
    """
    if not 0 < fraction < 1:
        raise ConfigError(f"the test fraction must lie strictly between 0 and 1, not {fraction}")
    counts = torch.bincount(y)
    quota = _largest_remainder(counts, fraction)
    rng = Rng(seed)("split")
    chosen = torch.zeros(len(y), dtype=torch.bool)
    for label, num in enumerate(quota.tolist()):
        members = (y == label).nonzero().flatten()
        chosen[members[rng(label).permutation(len(members))[:num]]] = True
    return (~chosen).nonzero().flatten(), chosen.nonzero().flatten()


def _largest_remainder(counts: Tensor, fraction: float) -> Tensor:
    """Whole shares of each class that add up to the rounded total: floors first, then the largest
    remainders.
    """
    exact = counts.double() * fraction
    quota = exact.floor().long()
    missing = round(int(counts.sum()) * fraction) - int(quota.sum())
    order = (exact - quota).argsort(descending=True, stable=True)
    quota[order[:missing]] += 1
    return quota.minimum((counts - 1).clamp(min=0))
