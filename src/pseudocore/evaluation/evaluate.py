"""Scoring an inference on a coreset: seeds, test metrics, robustness, diagnostics, cost, and the
numbers behind the report's figures.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Protocol

import torch

from pseudocore.core.likelihood import check_task
from pseudocore.core.problem import Problem
from pseudocore.core.registry import inferences
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, Dataset, Inference, Predict, SelectsSettings
from pseudocore.evaluation import regression
from pseudocore.evaluation.discrepancy import discrepancies
from pseudocore.evaluation.fidelity import measure_seed
from pseudocore.evaluation.landscape import Points, along
from pseudocore.evaluation.metrics import Metrics, Spread, in_batches, measure, spreads
from pseudocore.evaluation.names import DETAILS, format_metric, metric_title, num_digits
from pseudocore.evaluation.published_metrics import published_scores
from pseudocore.evaluation.regression import RegressionMetrics
from pseudocore.evaluation.result import Result
from pseudocore.evaluation.robustness import (
    Corrupted,
    corrupted_scores,
    corrupted_sets,
    ood_scores,
)
from pseudocore.evaluation.spectrum import spectrum
from pseudocore.inference.diagnostics import Diagnosis, of_all_seeds
from pseudocore.inference.draws import traces
from pseudocore.inference.full_posterior import FullPredictions, predicted
from pseudocore.inference.posterior import Posterior
from pseudocore.inference.sgd import SGD
from pseudocore.runtime.profiling import stage

NUM_IMAGES = 1000
"""Training images behind a spectrum, and training points behind a loss."""

NUM_TRAINING = 10_000
"""Training points behind the network that stands for the data in a landscape."""

_CORRUPTED_METRICS = ("accuracy", "nll", "ece", "brier")


class Extras(NamedTuple):
    """What to measure beyond the test set."""

    severities: Sequence[int] = ()
    ood: Dataset | None = None
    num_robust: int = 1000
    published: bool = False
    landscape: bool = False
    discrepancy: bool = False
    full: FullPredictions | None = None
    """What full-data inference predicts for the test set."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Evaluation(Result):
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
    reference: str | None = None
    """The full-data inference that fidelity is measured against."""
    against: str | None = None
    """Its name, where it is not the inference on the coreset."""
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
            f"{metric_title(name):<{width}}  {format_metric(**spread, digits=num_digits(name))}"
            for name, spread in self.metrics.items()
        )

    def __repr__(self) -> str:
        scores = ", ".join(
            f"{name} {format_metric(**spread)}"
            for name, spread in self.metrics.items()
            if name not in DETAILS
        )
        return f"Evaluation({self.inference} on {self.data}: {scores}; {self.seeds} seeds)"


class _Seed(NamedTuple):
    """The results of one fresh network, or one set of chains."""

    metrics: Metrics | RegressionMetrics
    more: dict[str, float]
    corrupted: dict[tuple[str, int], Metrics]
    diagnosis: Diagnosis | None
    traces: dict[str, Any]
    chosen: Mapping[str, float]

    @property
    def scores(self) -> dict[str, float]:
        return {**self.metrics.scalars(), **self.more}

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        corrupted = [[*key, metrics._asdict()] for key, metrics in self.corrupted.items()]
        diagnosis = None if self.diagnosis is None else self.diagnosis.to_dict()
        plain = {"metrics": self.metrics._asdict(), "chosen": dict(self.chosen)}
        return self._asdict() | plain | {"corrupted": corrupted, "diagnosis": diagnosis}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "_Seed":
        """The inverse of `to_dict`."""
        metrics, diagnosis = values["metrics"], values["diagnosis"]
        is_regression = "reliability" not in metrics
        parts = {
            "metrics": RegressionMetrics(**metrics)
            if is_regression
            else Metrics.from_dict(metrics),
            "corrupted": {
                (kind, severity): Metrics.from_dict(one)
                for kind, severity, one in values["corrupted"]
            },
            "diagnosis": None if diagnosis is None else Diagnosis.from_dict(diagnosis),
        }
        return cls(**{**values, **parts})


class Kept(Protocol):
    """Results of seeds, kept as they are made."""

    def load(self, seed: int) -> Mapping[str, Any] | None: ...
    def save(self, seed: int, result: Mapping[str, Any]) -> None: ...


def assess(
    inference: Inference,
    problem: Problem,
    coreset: Coreset,
    seeds: range,
    extras: Extras,
    on_seed: Callable[[int, Metrics | RegressionMetrics], None],
    kept: Kept | None = None,
) -> dict[str, Any]:
    """The measured entries of an `Evaluation`; None for what was not measured. Seeds that were kept
    are not measured again.
    """
    corrupted: Corrupted = {}
    if extras.severities:
        with stage("corrupt"):
            corrupted = corrupted_sets(problem.dataset, extras.severities, extras.num_robust)
    check_task(inference, inferences.name_of(inference), problem.task)
    found: list[_Seed] = []
    distances: dict[str, float] = {}
    if extras.discrepancy:
        with stage("discrepancy"):
            distances = discrepancies(problem, coreset)
    for seed in seeds:
        if kept is not None and (before := kept.load(seed)) is not None:
            one = _Seed.from_dict(before)
        else:
            one = _one(inference, problem, coreset, seed, extras, corrupted)
            if kept is not None:
                kept.save(seed, one.to_dict())
        found.append(one._replace(more=one.more | distances))
        on_seed(seed, found[-1].metrics)
    each = list(zip(seeds, found, strict=True))
    diagnoses = [one.diagnosis for one in found if one.diagnosis is not None]
    has_landscape, rng = extras.landscape, Rng(seeds.start)("landscape")
    return {
        "metrics": spreads([one.scores for one in found]),
        "per_seed": [{"seed": seed, **one.scores} for seed, one in each],
        "reliability": _pooled_reliability([one.metrics for one in found]),
        "chosen": [{"seed": seed, **one.chosen} for seed, one in each] if found[0].chosen else None,
        "corruptions": _corruption_table([one.corrupted for one in found]) if corrupted else None,
        "ood": extras.ood.name if extras.ood is not None else None,
        "traces": found[0].traces or None,
        "spectrum": _spectra(problem, coreset) if problem.data.is_images else None,
        "landscape": _landscape(problem, coreset, rng) if has_landscape else None,
        "diagnostics": [one.to_dict() for one in diagnoses] or None,
        "warnings": of_all_seeds(diagnoses) if diagnoses else None,
    }


def _one(
    inference: Inference,
    problem: Problem,
    coreset: Coreset,
    seed: int,
    extras: Extras,
    corrupted: Corrupted,
) -> _Seed:
    with stage("infer", problem.device):
        predict = inference.fit(problem, coreset, Rng(seed)("infer"))
    more: dict[str, float] = {}
    with stage("predict", problem.device):
        metrics = _metrics(predict, problem)
        if extras.published:
            more |= published_scores(predict, in_batches(problem.data.test))
        if extras.full is not None:
            own = predicted(predict, problem.data.test.x).double()
            more |= measure_seed(extras.full, own, problem.data.test.y)
    by_corruption: dict[tuple[str, int], Metrics] = {}
    if corrupted or extras.ood is not None:
        with stage("robustness", problem.device):
            by_corruption = corrupted_scores(predict, corrupted, problem.num_classes)
            if by_corruption:
                more |= _mean_scores(list(by_corruption.values()))
            if extras.ood is not None:
                more |= ood_scores(predict, problem.dataset, extras.ood, extras.num_robust)
    chosen: Mapping[str, float] = (
        predict.selected_settings if isinstance(predict, SelectsSettings) else {}
    )
    return _Seed(metrics, more, by_corruption, *_chains(predict), chosen)


def _metrics(predict: Predict, problem: Problem) -> Metrics | RegressionMetrics:
    """On the test set."""
    batches = in_batches(problem.data.test)
    if problem.task == "regression":
        return regression.measure(predict, batches)
    return measure(predict, batches, problem.num_classes)


def _chains(predict: Predict) -> tuple[Diagnosis | None, dict[str, Any]]:
    """Diagnosis and traces of chains; those of an ensemble are no chain."""
    if not isinstance(predict, Posterior) or predict.chains is None:
        return None, {}
    with stage("diagnose", predict.problem.device):
        return predict.diagnostics, traces(predict.chains)


def _mean_scores(found: Sequence[Metrics]) -> dict[str, float]:
    """Metrics averaged over corruptions and severities, each counting the same."""
    return {
        f"corrupted_{name}": sum(metrics.scalars()[name] for metrics in found) / len(found)
        for name in _CORRUPTED_METRICS
    }


def _corruption_table(
    found: Sequence[Mapping[tuple[str, int], Metrics]],
) -> dict[str, dict[str, float]]:
    """Mean accuracy over seeds: corruption, then severity."""
    table: dict[str, dict[str, float]] = {}
    for kind, severity in found[0]:
        values = [one[kind, severity].accuracy for one in found]
        table.setdefault(kind, {})[str(severity)] = sum(values) / len(values)
    return table


def _pooled_reliability(found: Sequence[Metrics | RegressionMetrics]) -> dict[str, list[Any]]:
    """Reliability over all seeds: bins of the same edges added up."""
    pooled: dict[str, list[Any]] = {"confidence": [], "accuracy": [], "count": []}
    for bins in zip(*(zip(*metrics.reliability, strict=True) for metrics in found), strict=True):
        count = sum(n for *_, n in bins)
        pooled["count"].append(count)
        for place, name in enumerate(("confidence", "accuracy")):
            total = sum(one[place] * one[2] for one in bins if one[2])
            pooled[name].append(total / count if count else None)
    return pooled


def _spectra(problem: Problem, coreset: Coreset) -> dict[str, list[float]]:
    """Power by frequency of the coreset's images and of real ones."""
    some = Rng(0)("spectrum").permutation(problem.num_train)[:NUM_IMAGES]
    own, real = spectrum(coreset.x), spectrum(problem.data.train.x[some])
    return {
        "frequency": own.frequency.tolist(),
        "coreset": own.power.tolist(),
        "data": real.power.tolist(),
    }


def _landscape(problem: Problem, coreset: Coreset, rng: Rng) -> dict[str, Any]:
    """Losses of coreset and data between a network trained on either, from one initialisation."""
    whole = problem.subset(rng("whole").permutation(problem.num_train)[:NUM_TRAINING])
    with stage("landscape", problem.device):
        own, other = (
            SGD().fit(problem, points, rng("train")).draws[0] for points in (coreset, whole)
        )
        some = problem.subset(rng("some").permutation(problem.num_train)[:NUM_IMAGES])
        sets = {"coreset": _points(problem, coreset), "data": _points(problem, some)}
        found = along(problem.log_likelihood, own, other, sets)
    return {"at": found.at, **found.losses}


def _points(problem: Problem, coreset: Coreset, size: int = 500) -> Points:
    y, weight = problem.targets_and_weight(coreset)
    parts = torch.split(torch.arange(len(coreset)), size)
    return lambda: ((problem.inputs(coreset.x[part]), y[part], weight[part]) for part in parts)
