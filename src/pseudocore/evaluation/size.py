r"""A search for the smallest coreset: its rows, when one meets the bound, and the answer.

With $\kappa_{si} = D_{KL}[p_i \| q_{si}]$ on held-out training input i for the coreset of seed s,
a bound holds with confidence c if the c-quantile of $\bar\kappa$, over bootstrap resamples of both
seeds and inputs, is within it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.evaluation.fidelity import point_distances, resampled_means
from pseudocore.evaluation.result import Result


class Row(NamedTuple):
    """One method at one budget."""

    method: str
    per_class: int
    points: int
    kl: float
    """Mean over seeds and held-out inputs."""
    upper: float
    """The quantile of its bootstrap at the confidence asked for."""
    tv: float
    agreement: float
    kl_by_seed: list[float]
    """Fewer than all seeds where the first alone take the mean above the bound."""
    seconds: float
    meets: bool
    """Whether `upper` is within the bound."""
    seed: int
    """Of the nearest coreset, the one that is the answer if this row is."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Size(Result):
    """The answer and the way to it; also a mapping of the same entries."""

    data: str
    within: float
    """The bound on KL(full ‖ coreset), in nats an input."""
    confidence: float
    met: bool
    """Whether a coreset met the bound; the answer is the nearest one tried where none did."""
    answer: Row
    test_kl: float
    """Of the answer on the test set, measured once."""
    floor_kl: float
    """KL between two fits to all data on the same held-out inputs."""
    rows: list[Row]
    skipped: dict[str, str]
    """Methods that were left out, and why."""
    reference: str
    seeds: int
    seconds: float
    coreset: Coreset

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, without the coreset."""
        names = [field.name for field in fields(self) if field.name != "coreset"]
        entries = {name: getattr(self, name) for name in names}
        rows = [row._asdict() for row in self.rows]
        return entries | {"rows": rows, "answer": self.answer._asdict()}

    def sentence(self) -> str:
        """The answer in words."""
        row = self.answer
        what = f"{row.method} at {row.per_class} per class ({row.points} points)"
        if self.met:
            return (
                f"{what} is within {self.within:g} of full-data inference: KL {row.kl:.4f}, below"
                f" {row.upper:.4f} with {self.confidence:.0%} confidence; {self.test_kl:.4f} on the"
                " test set"
            )
        reason = ""
        if self.floor_kl >= self.within:
            reason = (
                f" Two fits to all data differ by {self.floor_kl:.4f} themselves: no coreset can"
                " be shown to be nearer than that; more draws would lower it."
            )
        return (
            f"no coreset tried is within {self.within:g} with {self.confidence:.0%} confidence; the"
            f" nearest is {what}, KL {row.kl:.4f} (below {row.upper:.4f}).{reason}"
        )

    def table(self) -> str:
        """A line for each method and budget."""
        lines = [
            f"{'method':<10} {'per class':>9} {'points':>7} {'seeds':>5} {'KL':>8} {'below':>8} {'TV':>6}"
        ]
        for row in self.rows:
            mark = "  ← answer" if row is self.answer else ""
            lines.append(
                f"{row.method:<10} {row.per_class:>9} {row.points:>7}"
                f" {len(row.kl_by_seed):>5} {row.kl:>8.4f}"
                f" {row.upper:>8.4f} {row.tv:>6.3f}{mark}"
            )
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Size({self.data}: {self.sentence()})"


def chosen(rows: Sequence[Row]) -> Row:
    """The smallest that meets the bound, of equal sizes the nearest; the nearest where none does."""
    meeting = [row for row in rows if row.meets]
    if meeting:
        return min(meeting, key=lambda row: (row.points, row.kl))
    return min(rows, key=lambda row: row.upper)


def mean_distances(full: Sequence[Tensor], own: Tensor) -> dict[str, Tensor]:
    """kl, tv and agreement of each input (n,), averaged over the fits to all data."""
    each = [point_distances(one, own) for one in full]
    return {
        name: torch.stack([one[name] for one in each]).mean(0) for name in ("kl", "tv", "agreement")
    }


def upper_bound(kl: Tensor, confidence: float, rng: Rng) -> float:
    """What the mean of kl (seeds, n) is below with this confidence."""
    return float(torch.quantile(resampled_means(kl, rng), confidence))
