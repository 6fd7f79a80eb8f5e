r"""Facility location: few points that are, for every point, near the nearest of them.

With similarities $s_{ij} \ge 0$ of candidates $j$ to the points $i$ that are to be covered,

$$ F(S) = \sum_i \max_{j \in S} s_{ij}, \qquad
   j_{t+1} = \operatorname*{argmax}_{j \notin S_t} \sum_i \max(0,\, s_{ij} - \max_{s \in S_t} s_{is}) . $$

$F$ is monotone and submodular, so the greedy rule reaches $1 - 1/e$ of the best $F$ (Nemhauser et
al. 1978), and a gain once computed bounds all later ones from above: candidates whose bound is
below the best gain at hand need not be looked at (Minoux 1978, "lazy"). With `epsilon` each choice
looks at $\frac{n}{k}\ln\frac1\epsilon$ random candidates only and reaches $1 - 1/e - \epsilon$ in
expectation (Mirzasoleiman et al. 2015, "stochastic greedy"). Ties go to the lowest index.

Similarities are asked for a few rows at a time. `from_distance` takes them from distances: a matrix
kept in memory up to `ENTRIES` numbers, rows computed anew each time they are asked for beyond that.
No n × n matrix is needed anywhere.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pseudocore.core.errors import ConfigError, DataError
from pseudocore.core.rng import Device, Rng

Distance = Callable[[Tensor, Tensor | slice], Tensor]
"""From points (a,) and points (b,), or a slice of all points, to their distances (a, b), a fresh
tensor.
"""

ENTRIES = 2**28
"""Similarities kept in memory at most: 1 GiB of them in single precision."""

GLANCE = {"cpu": 2**15, "cuda": 2**25}
"""Kept similarities looked at at once. On a CPU they stay in a core's cache, and torch does not
spread so few over threads, whose
waking takes longer than the work."""

BLOCK = {"cpu": 2**21, "cuda": 2**25}
"""Similarities computed at once."""


class Rows(NamedTuple):
    """Similarities, none below 0, of candidates to the points to be covered."""

    take: Callable[[Tensor], Tensor]
    """From candidates (b,) to a fresh tensor (b, m), which will be written into."""
    block: int
    """How many similarities to ask for at once."""

    def at_once(self, m: int) -> int:
        """How many candidates that is."""
        return max(1, self.block // m)


def from_matrix(matrix: Tensor) -> Rows:
    """Similarities (n, m) that are there already."""
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
    """Similarities `farthest - distance` of n points to `references` (m,), or to all of them; no
    distance may exceed `farthest`.

    A point is at distance 0 from itself, whatever rounding says. Unless `keep`, rows are computed
    anew even where a matrix of them all would fit: right for whoever asks for few.
    """
    everyone = torch.arange(n, device=device)
    to = everyone if references is None else references.to(everyone)
    own = torch.full_like(everyone, -1).index_copy_(
        0, to, torch.arange(len(to), device=device)
    )  # a point's place among references

    def compute(index: Tensor) -> Tensor:
        similarity = (
            distance(index, slice(None) if references is None else to).neg_().add_(farthest)
        )
        known = (own[index] >= 0).nonzero().flatten()
        similarity[known, own[index[known]]] = farthest
        return similarity

    computed = Rows(compute, BLOCK[everyone.device.type])
    if not keep or n * len(to) > ENTRIES:
        return computed
    return from_matrix(
        _symmetric(distance, everyone, farthest)
        if references is None
        else _rectangle(computed, everyone, len(to))
    )


def facility_location(
    rows: Rows,
    n: int,
    num: int,
    *,
    device: Device = "cpu",
    epsilon: float = 0.0,
    rng: Rng | None = None,
) -> Tensor:
    """Indices (num,), in order, of distinct candidates 0..n-1, each the one that adds most to what
    is covered.

    With `epsilon` above 0, a random part of the candidates, drawn from `rng`, is looked at for each
    choice.
    """
    if not 1 <= num <= n:
        raise ConfigError(f"{num} of {n} points were asked for; the number must lie in 1..{n}")
    if not 0 <= epsilon < 1:
        raise ConfigError(f"epsilon = {epsilon} must lie in [0, 1); 0 looks at every candidate")
    if epsilon > 0 and rng is None:
        raise ConfigError(
            "a random part of the candidates (epsilon above 0) needs an rng to be drawn from"
        )
    size = n if epsilon == 0 else min(n, math.ceil(n / num * math.log(1 / epsilon)))
    covered = torch.zeros_like(
        rows.take(torch.zeros(1, dtype=torch.int64, device=device))[0]
    )  # each point's nearest choice, by similarity
    bound = (
        torch.full_like(covered[:1], torch.inf).expand(n).clone()
    )  # on each candidate's gain; -1 once it is taken
    chosen: list[Tensor] = []
    for pick in range(num):
        allowed = None if rng is None or size == n else _sample(bound, size, rng(pick))
        index = _best(rows, bound, covered, allowed)
        covered = torch.maximum(covered, rows.take(index)[0])
        bound[index] = -1
        chosen.append(index)
    return torch.cat(chosen)


def coverage(rows: Rows, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """For every point its similarity to the nearest choice, and that choice's place in `chosen`,
    (m,) each; the first of equals.
    """
    best = rows.take(chosen[:1])[0]
    place, size = torch.zeros_like(best, dtype=torch.int64), rows.at_once(len(best))
    for start in range(0, len(chosen), size):
        value, at = rows.take(chosen[start : start + size]).max(0)
        place = torch.where(value > best, at + start, place)
        best = torch.maximum(best, value)
    return best, place


def objective(rows: Rows, chosen: Tensor) -> float:
    """F of the choices."""
    return float(coverage(rows, chosen)[0].double().sum())


def _sample(bound: Tensor, size: int, rng: Rng) -> Tensor:
    """A random part of the candidates not yet taken, as a mask (n,)."""
    order = rng.permutation(len(bound)).to(bound.device)
    part = order[bound[order] >= 0][:size]
    return torch.zeros_like(bound, dtype=torch.bool).index_fill_(0, part, True)


def _best(rows: Rows, bound: Tensor, covered: Tensor, allowed: Tensor | None) -> Tensor:
    """The candidate (1,) of the largest gain among those allowed; tightens `bound` for those it had
    to look at.
    """
    limit = bound if allowed is None else bound.masked_fill(~allowed, -torch.inf)
    seen, size = None, rows.at_once(len(covered))
    while True:
        values, index = limit.topk(min(size + 1, len(limit)))
        following = (
            float(values[size]) if size < len(limit) else 0.0
        )  # no one beyond these gains more
        unsure = (
            values[:size] > 0
            # nothing gains less than 0, so a bound of 0 is exact; below are those taken or not
            # allowed
        )
        stale = index[:size][unsure if seen is None else unsure & ~seen[index[:size]]]
        if len(stale):
            limit[stale] = bound[stale] = _gains(rows, stale, covered)
        if following <= 0 or float(limit[index[:size]].max()) > following:
            return limit.argmax(0, keepdim=True)
        seen = torch.zeros_like(limit, dtype=torch.bool) if seen is None else seen
        seen[stale] = True
        size *= 2


def _gains(rows: Rows, index: Tensor, covered: Tensor) -> Tensor:
    """What each candidate would add to the objective."""
    size = rows.at_once(len(covered))
    parts = [index] if len(index) <= size else torch.split(index, size)
    gain = torch.cat([rows.take(part).sub_(covered).clamp_min_(0).sum(1) for part in parts])
    if not math.isfinite(float(gain.max())):
        raise DataError(
            "similarities to select by hold NaN or infinite values; the features behind them must be finite"
        )
    return gain


def _symmetric(distance: Distance, everyone: Tensor, farthest: float) -> Tensor:
    """Similarities of all points to each other: one half computed, the other its mirror image."""
    n = len(everyone)
    size = max(1, BLOCK[everyone.device.type] // n)
    matrix = distance(everyone[:1], slice(0, 1)).new_empty(n, n)
    for start in range(0, n, size):
        stop = min(start + size, n)
        part = distance(everyone[start:stop], slice(start, None)).neg_().add_(farthest)
        matrix[start:stop, start:] = part
        matrix[stop:, start:stop] = part[:, stop - start :].T
    return matrix.fill_diagonal_(farthest)


def _rectangle(computed: Rows, everyone: Tensor, m: int) -> Tensor:
    """Similarities of all points to some."""
    matrix, size = computed.take(everyone[:1]).new_empty(len(everyone), m), computed.at_once(m)
    for start in range(0, len(everyone), size):
        matrix[start : start + size] = computed.take(everyone[start : start + size])
    return matrix
