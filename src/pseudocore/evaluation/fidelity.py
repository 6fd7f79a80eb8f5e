r"""How far predictions from a coreset are from those of full-data inference.

With $p$ the full data's predictive and $q$ the coreset's, averaged over inputs,

$$ D_{KL}[p \| q] = \sum_k p_k \log\frac{p_k}{q_k}, \qquad
   D_{KL}[q \| p], \qquad
   \mathrm{TV} = \tfrac12 \sum_k |p_k - q_k|, \qquad
   \mathrm{agreement} = \mathbb 1[\arg\max p = \arg\max q] , $$

Spearman's rank correlation of their entropies, and the gap between their negative log-likelihoods
with a paired bootstrap interval. The full data are fitted several times. The *floor* of each
measure is its mean over ordered pairs of such fits. The measure itself is the mean over pairs of a
full-data fit and a coreset fit. Equal effort on both sides makes the two comparable: full data
against full data lies at the floor.

For models whose parameters are identified (no hidden layer), $D_{KL}$ and $W_2$ between the
Gaussians of the moments of both sides' draws are given too. Of a regression the measures are those
of `evaluation/regression.py`.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from pseudocore.core.likelihood import Task
from pseudocore.core.rng import Rng
from pseudocore.evaluation.metrics import Spread
from pseudocore.evaluation.names import format_metric, metric_title, num_digits
from pseudocore.evaluation.regression import distances
from pseudocore.evaluation.regression import nll as nll_of
from pseudocore.evaluation.result import Result
from pseudocore.evaluation.robustness import entropy
from pseudocore.inference.full_posterior import FullPredictions
from pseudocore.objectives.small_models import Gaussian, kl, wasserstein

CONFIDENCE = 0.95
"""Of the intervals that are reported."""

NUM_RESAMPLES = 2000

DRAWS_PER_PARAMETER = 2
"""Draws for each parameter below which moments say nothing about a posterior's covariance."""

PREFIX = "fidelity_"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Fidelity(Result):
    """The distance from full-data inference; also a mapping of the same entries."""

    inference: str
    options: dict[str, Any]
    """Those of the inference on the coreset."""
    model: dict[str, Any]
    data: str
    setup: dict[str, Any]
    """What was changed of the coreset's own setup."""
    on: str | None = None
    """The inputs, when they are not the test set: held-out, corrupted, or a data set's name."""
    num_inputs: int
    reference: str
    """What the coreset is compared with."""
    against: str | None = None
    """The reference's inference, where it is not the one on the coreset."""
    reference_diagnostics: dict[str, float]
    seeds: int
    metrics: dict[str, Spread]
    """Mean and sample standard deviation over seeds, by flat name (`fidelity_kl`, …)."""
    per_seed: list[dict[str, float]]
    intervals: dict[str, list[float]]
    """Of the means over inputs, by bootstrap at 95 %."""
    floor_of: str
    """What the floors are between: fits of the reference, or halves of its draws."""
    warnings: list[str]
    seconds: float
    cost: dict[str, dict[str, Any]]

    @property
    def kl(self) -> float:
        """KL(full ‖ coreset), in nats an input."""
        return self._mean("kl")

    @property
    def reverse_kl(self) -> float:
        return self._mean("reverse_kl")

    @property
    def tv(self) -> float:
        return self._mean("tv")

    @property
    def agreement(self) -> float:
        return self._mean("agreement")

    @property
    def floor_kl(self) -> float:
        return self._mean("floor_kl")

    @property
    def floor_tv(self) -> float:
        return self._mean("floor_tv")

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; what was not measured is left out."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def flat(self) -> dict[str, float]:
        """The means by name, and the intervals' ends as `_low` and `_high`."""
        found = {name: spread["mean"] for name, spread in self.metrics.items()}
        for name, (low, high) in self.intervals.items():
            found |= {f"{PREFIX}{name}_low": low, f"{PREFIX}{name}_high": high}
        return found

    def summary(self) -> dict[str, Any]:
        """What a coreset's file carries of it: the numbers, and what they were measured against."""
        about = {"reference": self.reference, "inference": self.inference, "on": self.on or "test"}
        return {**about, "num_inputs": self.num_inputs, "seeds": self.seeds, **self.flat()}

    def table(self) -> str:
        """A line for each measure: its mean and deviation, its interval and its floor."""
        names = [name for name in self.metrics if not name.startswith(PREFIX + "floor_")]
        titles = {name: metric_title(name) for name in names}
        width = max(map(len, titles.values()))
        lines = []
        for name in names:
            short = name.removeprefix(PREFIX)
            text = f"{titles[name]:<{width}}  {format_metric(**self.metrics[name], digits=num_digits(name))}"
            if short in self.intervals:
                low, high = (
                    format_metric(value, digits=num_digits(name)) for value in self.intervals[short]
                )
                text += f"  [{low}, {high}]"
            floor = self.metrics.get(f"{PREFIX}floor_{short}")
            lines.append(
                text
                + (
                    f"  floor {format_metric(floor['mean'], digits=num_digits(name))}"
                    if floor
                    else ""
                )
            )
        return "\n".join(lines)

    def _mean(self, name: str) -> float:
        found = self.metrics.get(PREFIX + name)
        return math.nan if found is None else found["mean"]

    def __repr__(self) -> str:
        own = f"KL {format_metric(self.kl, digits=4)}"
        floor = f"floor {format_metric(self.floor_kl, digits=4)}"
        if PREFIX + "tv" in self.metrics:
            own, floor = (
                f"{own}, TV {format_metric(self.tv)}",
                f"{floor}, {format_metric(self.floor_tv)}",
            )
        return f"Fidelity({self.inference} on {self.data}: {own} to {self.reference}; {floor})"


def point_distances(full: Tensor, other: Tensor) -> dict[str, Tensor]:
    """kl, reverse_kl, tv and agreement of each input, (n,), between log-probabilities (n, classes)."""
    p, q = full.exp(), other.exp()
    return {
        "kl": _expected_log_ratio(full, other),
        "reverse_kl": _expected_log_ratio(other, full),
        "tv": 0.5 * (p - q).abs().sum(1),
        "agreement": (full.argmax(1) == other.argmax(1)).to(p),
    }


def distance(full: Tensor, other: Tensor, task: Task = "classification") -> dict[str, float]:
    """The means of `point_distances`, and the rank correlation of the entropies; of a regression
    those between means and standard deviations (n, 2).
    """
    if task == "regression":
        return {name: float(each.mean()) for name, each in distances(full, other).items()}
    means = {name: float(each.mean()) for name, each in point_distances(full, other).items()}
    return means | {"entropy_correlation": spearman(entropy(full), entropy(other))}


def spearman(one: Tensor, other: Tensor) -> float:
    """Rank correlation of two vectors, ties at their mean rank; NaN where one is constant."""
    a, b = (ranks - ranks.mean() for ranks in (_ranks(one), _ranks(other)))
    return float((a @ b) / (a.norm() * b.norm()))


def measure_seed(
    full: FullPredictions, own: Tensor, y: Tensor | None, draws: Tensor | None = None
) -> dict[str, float]:
    """The measures of one coreset fit and their floors, by flat name.

    Args:
        full: What full-data inference predicts.
        own: The coreset's log-probabilities (n, classes).
        y: Labels (n,), where there are some.
        draws: Thetas (draws, parameters), where parameters are identified.
    """
    task = full.task
    found = _mean_of([distance(one, own, task) for one in full.log_probs])
    floor = _mean_of([distance(*pair, task) for pair in itertools.permutations(full.halves, 2)])
    if y is not None:
        nll = [float(nll_of(one, y, task).mean()) for one in (own, *full.log_probs)]
        found["nll_gap"] = nll[0] - sum(nll[1:]) / len(nll[1:])
        each = [float(nll_of(one, y, task).mean()) for one in full.halves]
        pairs = itertools.combinations(each, 2)
        gaps = [abs(one - other) for one, other in pairs]
        floor |= {"nll_gap": sum(gaps) / len(gaps)} if gaps else {}
    if draws is not None:
        others = [one for one in full.draws if one is not None]
        parts = [parameter_distance(one, draws) for one in others]
        found |= _mean_of([one for one in parts if one])
        pairs = itertools.permutations(others, 2)  # type: ignore[assignment]
        floor |= _mean_of([one for pair in pairs if (one := parameter_distance(*pair))])  # type: ignore[arg-type]
    floors = {f"{PREFIX}floor_{name}": value for name, value in floor.items()}
    return {PREFIX + name: value for name, value in found.items()} | floors


def parameter_distance(full: Tensor, own: Tensor) -> dict[str, float]:
    """KL(full ‖ own) and W₂ between the Gaussians of the moments of draws (draws, parameters);
    nothing where there are too few draws.
    """
    if min(len(full), len(own)) < DRAWS_PER_PARAMETER * full.shape[1]:
        return {}
    one, other = (Gaussian(part.mean(0), part.T.cov()) for part in (full.double(), own.double()))
    squared = wasserstein(one, other)
    return {
        "parameter_kl": float(kl(one, other)),
        "parameter_w2": float(squared.clamp_min(0).sqrt()),
    }


def intervals(
    full: FullPredictions, own: Sequence[Tensor], y: Tensor | None, rng: Rng
) -> dict[str, list[float]]:
    """Bootstrap intervals of KL and NLL gap over inputs, both averaged over fits."""
    task = full.task
    between = distances if task == "regression" else point_distances
    each = [between(one, other)["kl"] for one in full.log_probs for other in own]
    found = {"kl": bootstrap(torch.stack(each).mean(0), rng("kl"))}
    if y is not None:
        gap = _mean_nll(own, y, task) - _mean_nll(full.log_probs, y, task)
        found["nll_gap"] = bootstrap(gap, rng("nll_gap"))
    return {name: list(ends) for name, ends in found.items()}


def bootstrap(
    values: Tensor, rng: Rng, *, confidence: float = CONFIDENCE, num: int = NUM_RESAMPLES
) -> tuple[float, float]:
    """A percentile interval of the mean of values (n,), resampled; paired where they are
    differences of pairs.
    """
    means = resampled_means(values.unsqueeze(0), rng, num)
    tail = (1 - confidence) / 2
    low, high = torch.quantile(means, torch.tensor([tail, 1 - tail], dtype=means.dtype)).tolist()
    return low, high


def resampled_means(values: Tensor, rng: Rng, num: int = NUM_RESAMPLES) -> Tensor:
    """Means (num,) of values (fits, n), fits and inputs resampled with replacement."""
    num_fits, n = values.shape
    fits = rng("fits").integers(num_fits, num, num_fits)
    means = []
    for number, part in enumerate(torch.split(fits, max(1, 2**22 // n))):
        index = rng("inputs", number).integers(n, len(part), n)
        mean_of_fits = values[part].mean(1) if num_fits > 1 else values.expand(len(part), n)
        means.append(mean_of_fits.gather(1, index).mean(1))
    return torch.cat(means)


def _expected_log_ratio(p: Tensor, q: Tensor) -> Tensor:
    """Σ p log(p / q) of each row of log-probabilities; a class without probability adds nothing."""
    terms = torch.where(p > -math.inf, p.exp() * (p - q), 0.0)
    return terms.sum(1).clamp_min(0)


def _mean_nll(several: Sequence[Tensor], y: Tensor, task: Task) -> Tensor:
    """Of each input, over fits."""
    return torch.stack([nll_of(one, y, task) for one in several]).mean(0)


def _ranks(values: Tensor) -> Tensor:
    values = values.double()
    ordered = values.sort().values
    below = torch.searchsorted(ordered, values)
    return (below + torch.searchsorted(ordered, values, right=True)).double() / 2


def _mean_of(results: Sequence[Mapping[str, float]]) -> dict[str, float]:
    if not results:
        return {}
    return {name: sum(one[name] for one in results) / len(results) for name in results[0]}
