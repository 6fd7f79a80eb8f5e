"""One way of inference on one coreset, measured: seeds, test metrics, robustness, diagnostics,
cost, pictures' numbers.

The place where predictions of `inference` meet the measures of `evaluation`, which know nothing of
each other.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch

from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, Dataset, Inference, Predict, SelectsSettings
from pseudocore.evaluation.landscape import Points, along
from pseudocore.evaluation.metrics import Metrics, Spread, measure, spreads
from pseudocore.evaluation.names import DETAILS, metric_title
from pseudocore.evaluation.published_metrics import published_scores
from pseudocore.evaluation.robustness import (
    Corrupted,
    corrupted_scores,
    corrupted_sets,
    foreign_scores,
    in_batches,
)
from pseudocore.evaluation.spectrum import spectrum
from pseudocore.evaluation.tables import format_metric
from pseudocore.inference.diagnostics import Diagnosis, diagnose, of_all_seeds
from pseudocore.inference.draws import traces
from pseudocore.inference.predict import Predictive
from pseudocore.inference.sgd import SGD
from pseudocore.runtime.profiling import stage

NUM_PICTURED = 1000
"""Training images behind a spectrum, and training points behind a loss."""

NUM_TRAINED = 10_000
"""Training points behind the network that stands for the data in a slice of the losses."""

USUAL = ("accuracy", "nll", "ece", "brier")
"""Metrics averaged over corruptions."""

OnSeed = Callable[[int, Metrics], None]


class Extras(NamedTuple):
    """What to measure beyond the test set."""

    severities: Sequence[int] = ()
    foreign: Dataset | None = None
    num_robust: int = 1000
    published: bool = False
    landscape: bool = False


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Evaluation(Mapping[str, Any]):
    """The scores of an inference on a coreset; also a mapping of the same entries."""

    inference: str
    options: dict[str, Any]
    """Those of the inference."""
    model: dict[str, Any]
    data: str
    setup: dict[str, Any]
    """What was changed of the coreset's own setup."""
    robust: dict[str, Any]
    """Number of inputs and severities, where robustness was measured."""
    seeds: int
    metrics: dict[str, Spread]
    """Mean and sample standard deviation over seeds, by metric."""
    per_seed: list[dict[str, float]]
    reliability: dict[str, list[Any]]
    """Confidence and accuracy by bin, over all seeds."""
    chosen: list[dict[str, float]] | None = None
    """Settings that were chosen while fitting, by seed."""
    corruptions: dict[str, dict[str, float]] | None = None
    """Accuracy by corruption and severity."""
    ood: str | None = None
    """Name of the other data set."""
    traces: dict[str, Any] | None = None
    """Of the first seed's chains."""
    spectrum: dict[str, list[float]] | None = None
    """Power by frequency of the coreset's images and of real ones."""
    landscape: dict[str, Any] | None = None
    """Losses along a line between two networks."""
    diagnostics: list[dict[str, Any]] | None = None
    """Of each seed's chains."""
    warnings: list[str] | None = None
    """What to know before trusting the chains."""
    seconds: float
    cost: dict[str, dict[str, Any]]
    """Seconds and peak memory by stage."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; what was not measured is left out."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def table(self) -> str:
        """A line for each metric: its title, mean and standard deviation."""
        width = max(len(metric_title(name)) for name in self.metrics)
        return "\n".join(
            f"{metric_title(name):<{width}}  {format_metric(**spread)}"
            for name, spread in self.metrics.items()
        )

    def __repr__(self) -> str:
        scores = ", ".join(
            f"{name} {format_metric(**spread)}"
            for name, spread in self.metrics.items()
            if name not in DETAILS
        )
        return f"Evaluation({self.inference} on {self.data}: {scores}; {self.seeds} seeds)"

    def __getitem__(self, name: str) -> Any:
        return self.to_dict()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_dict())

    def __len__(self) -> int:
        return len(self.to_dict())


class _Seed(NamedTuple):
    """What one fresh network, or one set of chains, gave."""

    metrics: Metrics
    more: dict[str, float]
    sweep: dict[tuple[str, int], Metrics]
    diagnosis: Diagnosis | None
    traces: dict[str, Any]
    chosen: Mapping[str, float]


def assess(
    way: Inference,
    problem: Problem,
    coreset: Coreset,
    seeds: range,
    extras: Extras,
    on_seed: OnSeed,
) -> dict[str, Any]:
    """Everything measured, as plain values for JSON; what was not asked for, or does not apply, is
    not there.
    """
    corrupted: Corrupted = {}
    if extras.severities:
        with stage("corrupt"):
            corrupted = corrupted_sets(problem.data, extras.severities, extras.num_robust)
    found = []
    for seed in seeds:
        found.append(_one(way, problem, coreset, seed, extras, corrupted))
        on_seed(seed, found[-1].metrics)
    per_seed = [{**_scores(one.metrics), **one.more} for one in found]
    diagnoses = [one.diagnosis for one in found if one.diagnosis is not None]
    optional = {
        "chosen": [{"seed": seed, **one.chosen} for seed, one in zip(seeds, found, strict=True)]
        if found[0].chosen
        else None,
        "corruptions": _corruption_table([one.sweep for one in found]) if corrupted else None,
        "ood": extras.foreign.name if extras.foreign is not None else None,
        "traces": found[0].traces,
        "spectrum": _spectra(problem, coreset),
        "landscape": _landscape(problem, coreset, Rng(seeds.start)("landscape"))
        if extras.landscape
        else None,
    }
    return {
        "metrics": spreads(per_seed),
        "per_seed": [
            {"seed": seed, **scores} for seed, scores in zip(seeds, per_seed, strict=True)
        ],
        "reliability": _pooled_reliability([one.metrics for one in found]),
        **{name: value for name, value in optional.items() if value},
        **(_diagnostics(diagnoses) if diagnoses else {}),
    }


def _one(
    way: Inference,
    problem: Problem,
    coreset: Coreset,
    seed: int,
    extras: Extras,
    corrupted: Corrupted,
) -> _Seed:
    with stage("infer", problem.device):
        predict = way.fit(problem, coreset, Rng(seed)("infer"))
    more: dict[str, float] = {}
    with stage("predict", problem.device):
        metrics = measure(predict, in_batches(problem.data.test), problem.num_classes)
        if extras.published:
            more |= published_scores(predict, in_batches(problem.data.test))
    sweep: dict[tuple[str, int], Metrics] = {}
    if corrupted or extras.foreign is not None:
        with stage("robustness", problem.device):
            sweep = corrupted_scores(predict, corrupted, problem.num_classes)
            more |= _mean_scores(sweep) if sweep else {}
            if extras.foreign is not None:
                more |= foreign_scores(predict, problem.data, extras.foreign, extras.num_robust)
    selected: Mapping[str, float] = (
        predict.selected_settings if isinstance(predict, SelectsSettings) else {}
    )
    return _Seed(metrics, more, sweep, *_chains(predict), selected)


def _chains(predict: Predict) -> tuple[Diagnosis | None, dict[str, Any]]:
    """How the chains were, where there are some: an ensemble's draws are one tensor and no chain."""
    if not isinstance(predict, Predictive) or predict.chains is None:
        return None, {}
    with stage("diagnose", predict.problem.device):
        return diagnose(predict), traces(predict.chains)


def _scores(metrics: Metrics) -> dict[str, float]:
    return {name: value for name, value in metrics._asdict().items() if name != "reliability"}


def _mean_scores(sweep: Mapping[tuple[str, int], Metrics]) -> dict[str, float]:
    """Metrics averaged over corruptions and severities, each counting the same."""
    return {
        f"corrupted_{name}": sum(getattr(metrics, name) for metrics in sweep.values()) / len(sweep)
        for name in USUAL
    }


def _corruption_table(
    sweeps: Sequence[Mapping[tuple[str, int], Metrics]],
) -> dict[str, dict[str, float]]:
    """Mean accuracy over seeds: corruption, then severity."""
    table: dict[str, dict[str, float]] = {}
    for kind, severity in sweeps[0]:
        values = [sweep[kind, severity].accuracy for sweep in sweeps]
        table.setdefault(kind, {})[str(severity)] = sum(values) / len(values)
    return table


def _pooled_reliability(results: Sequence[Metrics]) -> dict[str, list[Any]]:
    """Reliability over all seeds: bins of the same edges added up."""
    pooled: dict[str, list[Any]] = {"confidence": [], "accuracy": [], "count": []}
    for bins in zip(*(zip(*result.reliability, strict=True) for result in results), strict=True):
        count = sum(n for *_, n in bins)
        pooled["count"].append(count)
        for place, name in enumerate(("confidence", "accuracy")):
            pooled[name].append(
                sum(b[place] * b[2] for b in bins if b[2]) / count if count else None
            )
    return pooled


def _diagnostics(diagnoses: Sequence[Diagnosis]) -> dict[str, Any]:
    """What each seed's chains were like, and what to say of them."""
    each = [
        {
            **found._asdict(),
            "predictions": found.predictions._asdict(),
            "parameters": found.parameters._asdict(),
        }
        for found in diagnoses
    ]
    return {"diagnostics": each, "warnings": of_all_seeds(diagnoses)}


def _spectra(problem: Problem, coreset: Coreset) -> dict[str, list[float]] | None:
    """Power by frequency of the coreset's images and of as many real ones as it takes; nothing for
    features.
    """
    if not problem.data.is_images:
        return None
    some = Rng(0)("spectrum").permutation(problem.num_train)[:NUM_PICTURED]
    own, real = spectrum(coreset.x), spectrum(problem.data.train.x[some])
    return {
        "frequency": own.frequency.tolist(),
        "coreset": own.power.tolist(),
        "data": real.power.tolist(),
    }


def _landscape(problem: Problem, coreset: Coreset, rng: Rng) -> dict[str, Any]:
    """Losses of coreset and data between a network trained on either, from one initialisation."""
    whole = problem.subset(rng("whole").permutation(problem.num_train)[:NUM_TRAINED])
    with stage("landscape", problem.device):
        own, other = (
            SGD().fit(problem, points, rng("train")).draws[0] for points in (coreset, whole)
        )
        some = problem.subset(rng("some").permutation(problem.num_train)[:NUM_PICTURED])
        sets = {"coreset": _points(problem, coreset), "data": _points(problem, some)}
        found = along(problem.log_likelihood, own, other, sets)
    return {"at": found.at, **found.losses}


def _points(problem: Problem, coreset: Coreset, size: int = 500) -> Points:
    y, weight = coreset.targets.to(problem.device), coreset.weight.to(problem.device)
    parts = torch.split(torch.arange(len(coreset)), size)
    return lambda: ((problem.inputs(coreset.x[part]), y[part], weight[part]) for part in parts)
