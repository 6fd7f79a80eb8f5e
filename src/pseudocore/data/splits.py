"""A test set for data that came without one."""

import torch
from torch import Tensor

from pseudocore.core.errors import ConfigError
from pseudocore.core.rng import Rng

TEST_FRACTION = 0.2
"""Of data that came without a test set."""


def split(y: Tensor, fraction: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A stratified split; a function of its arguments alone.

    Args:
        y: Labels (n,).
        fraction: Share of test points, in the proportions of the classes. Every class keeps at
            least one training point.
        seed: Decides which points of a class are chosen.

    Returns:
        Indices of training and of test points, each ascending.
    """
    if not 0 < fraction < 1:
        message = f"the test fraction must lie strictly between 0 and 1, not {fraction}"
        raise ConfigError(message, code="out-of-range", fraction=fraction)
    rng = Rng(seed)("split")
    chosen = torch.zeros(len(y), dtype=torch.bool)
    for label, num in enumerate(_largest_remainder(torch.bincount(y), fraction).tolist()):
        members = (y == label).nonzero().flatten()
        chosen[members[rng(label).permutation(len(members))[:num]]] = True
    return (~chosen).nonzero().flatten(), chosen.nonzero().flatten()


def _largest_remainder(counts: Tensor, fraction: float) -> Tensor:
    """Whole shares that add up to the rounded total: floors, one more for large remainders."""
    exact = counts.double() * fraction
    quota = exact.floor().long()
    missing = round(int(counts.sum()) * fraction) - int(quota.sum())
    order = (exact - quota).argsort(descending=True, stable=True)
    quota[order[:missing]] += 1
    return quota.minimum((counts - 1).clamp(min=0))
