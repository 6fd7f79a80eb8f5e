r"""Greedy selection: points taken one by one, each the best next one given those before it.

With $\mu$ the mean of all features and $S_t$ the $t$ points taken so far, the next one is

$$ \text{herding} \quad \operatorname*{argmin}_{i \notin S_t} \lVert \mu - \tfrac1{t+1}\big(x_i +
\sum_{s \in S_t} x_s\big) \rVert $$

$$ \text{k-center} \quad \operatorname*{argmax}_{i \notin S_t} \min_{s \in S_t} \lVert x_i - x_s
\rVert . $$

Ties go to the lowest index. Both make `num` passes over the features, a block of rows at a time,
with one number per row and never an n × n matrix.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from pseudocore.core.errors import ConfigError, DataError

BLOCK = 2**18
"""Numbers of the features processed at once."""


def herding(features: Tensor, num: int) -> Tensor:
    """Indices (num,), in order, of distinct rows (n, d) whose running mean stays near the mean."""
    features, mean = _checked(features, num)
    taken = torch.zeros(len(features), dtype=torch.bool, device=features.device)
    excess = torch.zeros_like(mean)  # Σ (x_s − μ): stays small, where Σ x_s would grow
    order = []
    for _ in range(num):
        # ‖μ − (x_i + Σ x_s) / (t+1)‖ · (t+1) = ‖x_i − (μ − Σ (x_s − μ))‖
        distances = _squared_distances(features, mean - excess).masked_fill(taken, torch.inf)
        index = distances.argmin(0, keepdim=True)
        taken = taken.index_fill(0, index, True)
        excess = excess + features.index_select(0, index)[0] - mean
        order.append(index)
    return torch.cat(order)


def k_center(features: Tensor, num: int, first: int | None = None) -> Tensor:
    """Indices (num,), in order, of distinct rows of features (n, d), each the farthest from those
    before it.

    `first` defaults to the row nearest to the mean. No row is farther from a selected one than
    twice what the best `num` rows could achieve (Gonzalez 1985).
    """
    features, mean = _checked(features, num)
    if first is not None and not 0 <= first < len(features):
        raise ConfigError(
            f"k-center cannot begin with row {first} of {len(features)}, numbered from 0",
            code="first-out-of-range",
            first=first,
            available=len(features),
        )
    start = _squared_distances(features, mean).argmin(0, keepdim=True)
    begin = start if first is None else torch.full_like(start, first)
    return farthest_first(
        lambda index: _squared_distances(features, features.index_select(0, index)[0]), begin, num
    )


def farthest_first(distance: Callable[[Tensor], Tensor], first: Tensor, num: int) -> Tensor:
    """Indices (num,), in order: `first` (1,), then each the farthest from those before it.

    `distance` gives non-negative distances of all points (n,) to one (1,), up to a monotone map.
    """
    order = [first]
    gap = torch.full_like(distance(first), torch.inf)  # to the nearest selected point
    while len(order) < num:
        gap = torch.minimum(gap, distance(order[-1]))
        gap = gap.index_fill(0, order[-1], -1)  # below a duplicate's 0: no point is taken twice
        order.append(gap.argmax(0, keepdim=True))
    return torch.cat(order)


def check_num(num: int, n: int) -> None:
    """Refuse to select no point, or more points than there are."""
    if not 1 <= num <= n:
        raise ConfigError(
            f"{num} of {n} points were asked for; the number must lie in 1..{n}",
            code="num-out-of-range",
            num=num,
            available=n,
        )


def _checked(features: Tensor, num: int) -> tuple[Tensor, Tensor]:
    """Features in at least single precision, and their mean (d,)."""
    if features.ndim != 2 or features.shape[1] == 0:
        raise DataError(
            f"features to select from must be a matrix (n, d), not {tuple(features.shape)}",
            code="features-shape",
            shape=tuple(features.shape),
        )
    check_num(num, len(features))
    features = features.detach().to(torch.promote_types(features.dtype, torch.float32))
    mean = features.mean(0)
    if not mean.isfinite().all():  # one NaN or infinity anywhere shows in the mean
        raise DataError(
            "features to select from hold NaN or infinite values, or overflow when averaged; "
            "scale or clean them first",
            code="features-not-finite",
        )
    return features, mean


def _squared_distances(features: Tensor, point: Tensor) -> Tensor:
    """‖x_i − point‖² for every row, (n,); by differences, so that equal rows give equal bits."""
    rows = min(len(features), max(1, BLOCK // features.shape[1]))
    buffer = torch.empty_like(features[:rows])  # reused: allocation would cost most of the time
    result = torch.empty_like(features[:, 0])
    for block, part in zip(torch.split(features, rows), torch.split(result, rows), strict=True):
        difference = torch.sub(block, point, out=buffer[: len(block)])
        torch.sum(difference.square_(), 1, out=part)
    return result
