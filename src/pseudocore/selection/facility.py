r"""Facility location: few points such that every point is near one of them.

With similarities $s_{ij} \ge 0$ of candidates $j$ to the points $i$ to be covered,

$$ F(S) = \sum_i \max_{j \in S} s_{ij}, \qquad
   j_{t+1} = \operatorname*{argmax}_{j \notin S_t}
   \sum_i \max(0,\, s_{ij} - \max_{s \in S_t} s_{is}) . $$

$F$ is monotone and submodular, so the greedy rule reaches $1 - 1/e$ of the best $F$ (Nemhauser et
al. 1978), and a gain once computed is an upper bound on all later ones: candidates whose bound is
below the best gain are skipped (Minoux 1978, "lazy"). With `epsilon` each choice is made among
$\frac{n}{k}\ln\frac1\epsilon$ random candidates and reaches $1 - 1/e - \epsilon$ in expectation
(Mirzasoleiman et al. 2015, "stochastic greedy"). Ties go to the lowest index.

Similarities are read a few rows at a time, from a matrix of at most `ENTRIES` numbers or, beyond
that, computed anew each time. No n × n matrix is needed.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pseudocore.core.errors import ConfigError, DataError
from pseudocore.core.rng import Device, Rng
from pseudocore.runtime.reporting import report
from pseudocore.selection.greedy import check_num

Distance = Callable[[Tensor, Tensor | slice], Tensor]
"""Points (a,) and points (b,), or a slice of all points, to distances (a, b) in a new tensor."""

ENTRIES = 2**28
"""Limit on the similarities kept in memory: 1 GiB in single precision."""

GLANCE = {"cpu": 2**15, "cuda": 2**25}
"""Kept similarities read at once: few enough for a core's cache and a single thread on a CPU."""

BLOCK = {"cpu": 2**21, "cuda": 2**25}
"""Similarities computed at once."""


class Rows(NamedTuple):
    """Non-negative similarities of candidates to the points to be covered."""

    take: Callable[[Tensor], Tensor]
    """Candidates (b,) to a new tensor (b, m), which the caller may overwrite."""
    block: int
    """Similarities to read at once."""

    def at_once(self, m: int) -> int:
        """Candidates to read at once."""
        return max(1, self.block // m)


def from_matrix(matrix: Tensor) -> Rows:
    """Similarities (n, m) in memory."""
    return Rows(lambda index: matrix.index_select(0, index), GLANCE[matrix.device.type])


def from_distance(
    distance: Distance,
    n: int,
    farthest: float,
    *,
    device: Device = "cpu",
    references: Tensor | None = None,
    keep: bool = True,
) -> Rows:
    """Similarities `farthest - distance` of n points to `references` (m,), which default to all.

    `farthest` bounds all distances. A point is at distance 0 from itself, whatever rounding says.
    Without `keep` no matrix is built even where it would fit, which is faster if few rows are read.
    """
    points = torch.arange(n, device=device)
    to = points if references is None else references.to(points)
    place = torch.full_like(points, -1)  # of a point among the references
    place.index_copy_(0, to, torch.arange(len(to), device=device))

    def compute(index: Tensor) -> Tensor:
        columns = slice(None) if references is None else to
        similarity = distance(index, columns).neg_().add_(farthest)
        known = (place[index] >= 0).nonzero().flatten()
        similarity[known, place[index[known]]] = farthest
        return similarity

    rows = Rows(compute, BLOCK[points.device.type])
    if not keep or n * len(to) > ENTRIES:
        return rows
    if references is None:
        return from_matrix(_symmetric(distance, points, farthest))
    matrix, size = rows.take(points[:1]).new_empty(n, len(to)), rows.at_once(len(to))
    for block, part in zip(torch.split(matrix, size), torch.split(points, size), strict=True):
        block.copy_(rows.take(part))
    return from_matrix(matrix)


def weighted(rows: Rows, weight: Tensor) -> Rows:
    """Similarities to points that count as often as `weight` (m,) says."""
    return Rows(lambda index: rows.take(index).mul_(weight), rows.block)


def facility_location(
    rows: Rows,
    n: int,
    num: int,
    *,
    device: Device = "cpu",
    epsilon: float = 0.0,
    rng: Rng | None = None,
) -> Tensor:
    """Indices (num,), in order, of distinct candidates 0..n-1, each the one of the largest gain.

    With `epsilon` above 0, each is chosen among random candidates, drawn from `rng`.
    """
    check_num(num, n)
    if not 0 <= epsilon < 1:
        raise ConfigError(
            f"epsilon = {epsilon} must lie in [0, 1); 0 considers every candidate",
            code="epsilon-out-of-range",
            epsilon=epsilon,
        )
    if epsilon > 0 and rng is None:
        raise ConfigError("epsilon above 0 needs an rng to draw candidates from", code="needs-rng")
    size = n if epsilon == 0 else min(n, math.ceil(n / num * math.log(1 / epsilon)))
    # The similarity of each point to the nearest choice, and an upper bound on each candidate's
    # gain, which is -1 once it is taken.
    covered = torch.zeros_like(rows.take(torch.zeros(1, dtype=torch.int64, device=device))[0])
    bound = torch.full_like(covered[:1], torch.inf).expand(n).clone()
    order: list[Tensor] = []
    for pick in range(num):
        allowed = None if rng is None or size == n else _sample(bound, size, rng(pick))
        index = _best(rows, bound, covered, allowed)
        covered = torch.maximum(covered, rows.take(index)[0])
        bound[index] = -1
        order.append(index)
        report("selecting", pick + 1, num)
    return torch.cat(order)


def coverage(rows: Rows, subset: Tensor) -> tuple[Tensor, Tensor]:
    """Every point's similarity to the nearest of `subset`, and the place of that one, (m,) each."""
    best = rows.take(subset[:1])[0]
    place, size = torch.zeros_like(best, dtype=torch.int64), rows.at_once(len(best))
    for start in range(0, len(subset), size):
        value, at = rows.take(subset[start : start + size]).max(0)
        place = torch.where(value > best, at + start, place)
        best = torch.maximum(best, value)
    return best, place


def objective(rows: Rows, subset: Tensor) -> float:
    """F of `subset`."""
    return float(coverage(rows, subset)[0].double().sum())


def _sample(bound: Tensor, size: int, rng: Rng) -> Tensor:
    """A mask (n,) of random candidates not taken yet."""
    order = rng.permutation(len(bound)).to(bound.device)
    part = order[bound[order] >= 0][:size]
    return torch.zeros_like(bound, dtype=torch.bool).index_fill_(0, part, True)


def _best(rows: Rows, bound: Tensor, covered: Tensor, allowed: Tensor | None) -> Tensor:
    """The allowed candidate (1,) of the largest gain; tightens `bound` where it computes gains."""
    limit = bound if allowed is None else bound.masked_fill(~allowed, -torch.inf)
    exact, size = torch.zeros_like(limit, dtype=torch.bool), rows.at_once(len(covered))
    while True:
        values, index = limit.topk(min(size + 1, len(limit)))
        following = float(values[size]) if size < len(limit) else 0.0  # bounds all further gains
        index = index[:size]
        # A bound of 0 is exact, as no gain is negative; a negative one is not a candidate.
        stale = index[(values[:size] > 0) & ~exact[index]]
        if len(stale):
            limit[stale] = bound[stale] = _gains(rows, stale, covered)
        if following <= 0 or float(limit[index].max()) > following:
            return limit.argmax(0, keepdim=True)
        exact[stale] = True
        size *= 2


def _gains(rows: Rows, index: Tensor, covered: Tensor) -> Tensor:
    """The increase of F by each candidate."""
    parts = torch.split(index, rows.at_once(len(covered)))
    gain = torch.cat([rows.take(part).sub_(covered).clamp_min_(0).sum(1) for part in parts])
    if not math.isfinite(float(gain.max())):
        raise DataError(
            "similarities hold NaN or infinite values; the features behind them must be finite",
            code="similarities-not-finite",
        )
    return gain


def _symmetric(distance: Distance, points: Tensor, farthest: float) -> Tensor:
    """Similarities of all points to each other; one half is computed, the other its transpose."""
    n = len(points)
    size = max(1, BLOCK[points.device.type] // n)
    matrix = distance(points[:1], slice(0, 1)).new_empty(n, n)
    for start in range(0, n, size):
        stop = min(start + size, n)
        part = distance(points[start:stop], slice(start, None)).neg_().add_(farthest)
        matrix[start:stop, start:] = part
        matrix[stop:, start:stop] = part[:, stop - start :].T
    return matrix.fill_diagonal_(farthest)
