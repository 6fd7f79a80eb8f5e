r"""Monotone submodular objectives, maximised greedily: siblings of facility location.

With similarities $s_{ij}$ of a positive semi-definite kernel and non-negative features $\phi$,

| objective | $F(S)$ |
|---|---|
| `FacilityLocation` | $\sum_i \max_{j \in S} s_{ij}$ |
| `GraphCut` | $\sum_i \sum_{j \in S} s_{ij} - \lambda \sum_{i, j \in S} s_{ij}$, monotone up to $\lambda = \frac12$ |
| `LogDet` | $\log\det(I + s_{SS} / \nu)$, the information of $S$ under a Gaussian process of noise $\nu$ |
| `FeatureBased` | $\sum_d g\big(\sum_{j \in S} \phi_{jd}\big)$ for a concave $g$: a root or $\log(1 + t)$ |

All are submodular: what a point adds falls as more are taken, so the greedy rule reaches $1 - 1/e$ of
the best $F$ (Nemhauser et al. 1978). Ties go to the lowest index. Given the
matrix, a choice costs O(n) for `GraphCut`, O(n) times the points taken for `LogDet`, and the whole
matrix for `FacilityLocation`. For `FeatureBased` it costs O(n · d).
"""

from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from pseudocore.core.errors import ConfigError, DataError
from pseudocore.runtime.reporting import report

Concave = Literal["sqrt", "log"]


class Chosen(NamedTuple):
    """Points chosen one by one."""

    indices: Tensor  # (num,), in order
    gains: Tensor  # (num,): what each added to the objective, which never rises


class Objective(Protocol):
    """A set function, and the points taken so far."""

    num: int
    """Candidates."""

    def gains(self) -> Tensor:
        """What each candidate would add, (num,)."""

    def take(self, index: int) -> None:
        """Add a candidate."""


class FacilityLocation:
    """Everyone near one of the points."""

    def __init__(self, similarity: Tensor) -> None:
        self.similarity, self.num = similarity, len(similarity)
        self.covered = torch.zeros_like(similarity[0])

    def gains(self) -> Tensor:
        rows = torch.split(self.similarity, max(1, 2**22 // len(self.covered)))
        return torch.cat([(part - self.covered).clamp_min_(0).sum(1) for part in rows])

    def take(self, index: int) -> None:
        self.covered = torch.maximum(self.covered, self.similarity[index])


class GraphCut:
    """Points near everyone and far from each other."""

    def __init__(self, similarity: Tensor, diversity: float) -> None:
        if not 0 <= diversity <= 0.5:
            raise ConfigError(
                f"diversity = {diversity} must lie in [0, 0.5]; above, a point can take away from "
                "the objective",
                code="diversity-out-of-range",
                diversity=diversity,
            )
        self.similarity, self.num, self.diversity = similarity, len(similarity), diversity
        self.near_all, self.own = similarity.sum(1), similarity.diagonal()
        self.near_chosen = torch.zeros_like(self.near_all)

    def gains(self) -> Tensor:
        return self.near_all - self.diversity * (2 * self.near_chosen + self.own)

    def take(self, index: int) -> None:
        self.near_chosen = self.near_chosen + self.similarity[index]


class LogDet:
    """Points that say most of all others under a Gaussian process."""

    def __init__(self, similarity: Tensor, noise: float) -> None:
        if not noise > 0:
            raise ConfigError(f"noise = {noise} must be above 0", code="no-noise", noise=noise)
        self.similarity, self.num, self.noise = similarity, len(similarity), noise
        self.left = similarity.diagonal() + noise  # variances given the points taken
        self.rows = similarity.new_empty(0, len(similarity))  # of the Cholesky factor

    def gains(self) -> Tensor:
        return (self.left / self.noise).clamp_min(1).log()

    def take(self, index: int) -> None:
        row = self.similarity[index] - self.rows[:, index] @ self.rows
        row = row / self.left[index].sqrt()
        self.rows = torch.cat([self.rows, row.unsqueeze(0)])
        self.left = self.left - row.square()


class FeatureBased:
    """Points that have some of every feature."""

    def __init__(self, features: Tensor, concave: Concave) -> None:
        if (features < 0).any():
            raise DataError(
                "feature-based selection adds up features, which must not be negative; shift or "
                "clip them",
                code="negative-features",
            )
        self.features, self.num = features, len(features)
        self.concave = torch.sqrt if concave == "sqrt" else torch.log1p
        self.total = torch.zeros_like(features[0])

    def gains(self) -> Tensor:
        rows = torch.split(self.features, max(1, 2**22 // len(self.total)))
        more = torch.cat([self.concave(self.total + part).sum(1) for part in rows])
        return more - self.concave(self.total).sum()

    def take(self, index: int) -> None:
        self.total = self.total + self.features[index]


def maximise(objective: Objective, num: int, initial: Tensor | None = None) -> Chosen:
    """`num` distinct candidates beside the `initial` ones, each of the largest gain."""
    before = [] if initial is None else initial.tolist()
    _check(before, num, objective.num)
    for index in before:
        objective.take(index)
    taken, indices, gains = list(before), list[int](), list[Tensor]()
    for pick in range(num):
        gain = objective.gains()
        if not gain.isfinite().all():
            raise DataError(
                "similarities or features hold NaN or infinite values", code="gains-not-finite"
            )
        gain[taken] = -torch.inf
        index = int(gain.argmax())
        objective.take(index)
        taken.append(index)
        indices.append(index)
        gains.append(gain[index])
        report("selecting", pick + 1, num)
    return Chosen(torch.tensor(indices), torch.stack(gains))


def _check(before: list[int], num: int, n: int) -> None:
    if len(set(before)) < len(before) or not all(0 <= index < n for index in before):
        raise ConfigError(
            f"initial points must be distinct rows of {n}, numbered from 0", code="bad-initial"
        )
    if not 1 <= num <= n - len(before):
        rest = f" beside {len(before)} initial ones" if before else ""
        raise ConfigError(
            f"{num} of {n} points were asked for{rest}; the number must lie in "
            f"1..{n - len(before)}",
            code="num-out-of-range",
            num=num,
            available=n - len(before),
        )
