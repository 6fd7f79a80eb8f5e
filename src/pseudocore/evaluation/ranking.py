r"""What a distilled set is worth beyond its labels and its augmentation: the scores of DD-Ranking (Li
et al. 2025, arXiv 2505.13300).

With $a$ the test accuracy of networks trained on a set, in 0 to 1,

$$ \mathrm{HLR} = a_\text{all, hard} - a_\text{own, hard}, \qquad
   \mathrm{IOR} = a_\text{own} - a_\text{random}, \qquad
   \mathrm{LRS} = s\bigl(w\,\mathrm{IOR} - (1 - w)\,\mathrm{HLR}\bigr), $$

$$ \mathrm{ARS} = s\bigl(w\,(a_\text{own} - a_\text{random})_\text{augmented} + (1 - w)\,(a_\text{own} -
   a_\text{random})_\text{plain}\bigr), \qquad
   s(\alpha) = \frac{e^{\alpha} - e^{-1}}{e - e^{-1}}, $$

where "hard" is with the most likely class as label and without augmentation, "own" with the set's
own labels and augmentation. "random" is as many training examples of each class, trained on in the
same way. They have soft labels of the full data's networks where the set has soft ones.
$w = \tfrac12$. $s$ maps −1 to 0 and 1 to 1; a set that equals all data under hard labels and
random examples under its own has $s(0) = 0.269$.
"""

import math
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from pseudocore.evaluation.metrics import Spread
from pseudocore.evaluation.names import format_metric
from pseudocore.evaluation.result import Result

TITLES = {
    "lrs": "label-robust score ↑",
    "ars": "augmentation-robust score ↑",
    "hlr": "hard label recovery, the gap to all data ↓",
    "ior": "improvement over random ↑",
    "all_hard": "accuracy, all data, hard labels",
    "own_hard": "accuracy, the set, hard labels",
    "own": "accuracy, the set, its own labels",
    "random": "accuracy, random examples, labels of the same kind",
    "own_augmented": "accuracy, the set, augmented",
    "random_augmented": "accuracy, random examples, augmented",
}


class Accuracies(NamedTuple):
    """Test accuracies of one seed, 0 to 1."""

    all_hard: float
    own_hard: float
    own: float
    random: float
    own_augmented: float | None = None
    random_augmented: float | None = None


def scaled(alpha: float) -> float:
    """$s$: −1 to 1 as 0 to 1."""
    return (math.exp(alpha) - math.exp(-1)) / (math.e - math.exp(-1))


def scores(found: Accuracies, weight: float = 0.5) -> dict[str, float]:
    """The scores by name, and the accuracies behind them."""
    hlr = found.all_hard - found.own_hard
    plain = found.own - found.random
    augmented = None
    if found.own_augmented is not None and found.random_augmented is not None:
        augmented = found.own_augmented - found.random_augmented
    ior = plain if augmented is None else augmented
    result = {"lrs": scaled(weight * ior - (1 - weight) * hlr)}
    if augmented is not None:
        result["ars"] = scaled(weight * augmented + (1 - weight) * plain)
    known = {name: value for name, value in found._asdict().items() if value is not None}
    return {**result, "hlr": hlr, "ior": ior, **known}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Ranking(Result):
    """The scores of a distilled set; also a mapping of the same entries."""

    data: str
    inference: str
    options: dict[str, Any]
    model: dict[str, Any]
    augment: str | None
    weight: float
    """$w$ of both scores."""
    labels: str
    """hard or soft: the set's own."""
    reference: str
    """The fits to all data."""
    seeds: int
    metrics: dict[str, Spread]
    """Mean and sample standard deviation over seeds."""
    per_seed: list[dict[str, float]]
    seconds: float

    @property
    def lrs(self) -> float:
        """The label-robust score, 0 to 1."""
        return self.metrics["lrs"]["mean"]

    @property
    def ars(self) -> float:
        """The augmentation-robust score, 0 to 1; NaN where no augmentation was given."""
        found = self.metrics.get("ars")
        return math.nan if found is None else found["mean"]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def table(self) -> str:
        """A line for each score and accuracy: its mean and deviation."""
        width = max(len(TITLES[name]) for name in self.metrics)
        return "\n".join(
            f"{TITLES[name]:<{width}}  {format_metric(**spread)}"
            for name, spread in self.metrics.items()
        )

    def __repr__(self) -> str:
        ars = f", ARS {format_metric(self.ars)}" if "ars" in self.metrics else ""
        return f"Ranking({self.inference} on {self.data}: LRS {format_metric(self.lrs)}{ars})"
