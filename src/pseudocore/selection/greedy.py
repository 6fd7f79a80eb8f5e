r"""Greedy selection: points taken one by one, each the best next one for what was taken before.

With $\mu$ the mean of all features and $S_t$ the $t$ points taken so far, the next one is

$$ \text{herding} \quad \operatorname*{argmin}_{i \notin S_t} \lVert \mu - \tfrac1{t+1}\big(x_i +
\sum_{s \in S_t} x_s\big) \rVert $$

$$ \text{k-center} \quad \operatorname*{argmax}_{i \notin S_t} \min_{s \in S_t} \lVert x_i - x_s
\rVert . $$

Ties go to the lowest index. Both compare every row with one point per choice, a block of rows at a
time: `num` passes over the features and one number per row, never an n × n matrix.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from pseudocore.core.errors import ConfigError, DataError

BLOCK = 2**18
"""Numbers in flight at once."""


def herding(features: Tensor, num: int) -> Tensor:
    """Indices (num,), in order, of distinct rows of features (n, d) whose running mean stays near
    the mean of all rows.
    """
    features, mean = _checked(features, num)
    taken = torch.zeros(len(features), dtype=torch.bool, device=features.device)
    excess = torch.zeros_like(
        mean
    )  # sum over taken rows of what they exceed the mean by: small, where their sum would grow
    chosen = []
    for _ in range(num):
        # ‖μ − (x_i + Σ x_s) / (t+1)‖ · (t+1) = ‖x_i − (μ − Σ (x_s − μ))‖
        index = (
            _squared_distances(features, mean - excess)
            .masked_fill(taken, torch.inf)
            .argmin(0, keepdim=True)
        )
        taken = taken.index_fill(0, index, True)
        excess = excess + features.index_select(0, index)[0] - mean
        chosen.append(index)
    return torch.cat(chosen)


def k_center(features: Tensor, num: int, first: int | None = None) -> Tensor:
    """Indices (num,), in order, of distinct rows of features (n, d), each the farthest from those
    before it.

    The first is the row nearest to the mean, unless told. No row is farther from a chosen one than
    twice what the best `num` rows could achieve (Gonzalez 1985).
    """
    features, mean = _checked(features, num)
    if first is not None and not 0 <= first < len(features):
        raise ConfigError(
            f"k-center was told to begin with row {first}, but the {len(features)} rows are numbered from 0"
        )
    start = _squared_distances(features, mean).argmin(0, keepdim=True)
    begin = start if first is None else torch.full_like(start, first)
    return farthest_first(
        lambda index: _squared_distances(features, features.index_select(0, index)[0]), begin, num
    )


def farthest_first(distance: Callable[[Tensor], Tensor], first: Tensor, num: int) -> Tensor:
    """Indices (num,), in order: `first` (1,), then each the farthest from those before it.

    `distance` gives those of all points (n,) to one (1,), in any unit that grows with it and is
    never below 0.
    """
    chosen = [first]
    gap = torch.full_like(distance(first), torch.inf)  # to the nearest chosen point
    while len(chosen) < num:
        gap = torch.minimum(gap, distance(chosen[-1]))
        gap = gap.index_fill(
            0, chosen[-1], -1
        )  # below a duplicate's 0, so that no point is taken twice
        chosen.append(gap.argmax(0, keepdim=True))
    return torch.cat(chosen)


def _checked(features: Tensor, num: int) -> tuple[Tensor, Tensor]:
    """Features in at least single precision, and their mean (d,)."""
    if features.ndim != 2 or features.shape[1] == 0:
        raise DataError(
            f"features to select from must be a matrix (n, d), not {tuple(features.shape)}"
        )
    if not 1 <= num <= len(features):
        raise ConfigError(
            f"{num} of {len(features)} points were asked for; the number must lie in 1..{len(features)}"
        )
    features = features.detach().to(torch.promote_types(features.dtype, torch.float32))
    mean = features.mean(0)
    if not mean.isfinite().all():  # one NaN or infinity anywhere shows in the mean
        raise DataError(
            "features to select from hold NaN or infinite values, or overflow when averaged; scale or clean them first"
        )
    return features, mean


def _squared_distances(features: Tensor, point: Tensor) -> Tensor:
    """‖x_i − point‖² for every row, (n,); by differences, which make equal rows equal to the last
    bit.
    """
    rows = min(len(features), max(1, BLOCK // features.shape[1]))
    buffer = torch.empty_like(
        features[:rows]
    )  # one for all blocks: fresh memory for each costs more than the arithmetic
    result = torch.empty_like(features[:, 0])
    for block, part in zip(torch.split(features, rows), torch.split(result, rows), strict=True):
        difference = torch.sub(block, point, out=buffer[: len(block)])
        torch.sum(difference.square_(), 1, out=part)
    return result
