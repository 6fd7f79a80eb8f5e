"""The distance of a coreset's predictions to those of full-data inference."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from pseudocore.assembly import Data, described
from pseudocore.core import config
from pseudocore.core.errors import ConfigError
from pseudocore.core.likelihood import check_task
from pseudocore.core.problem import Problem
from pseudocore.core.registry import inferences
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, Dataset, Inference
from pseudocore.evaluation.fidelity import Fidelity, intervals, measure_seed
from pseudocore.evaluation.metrics import spreads
from pseudocore.evaluation.robustness import corrupted_sets
from pseudocore.inference.choose import held_out
from pseudocore.inference.full_posterior import (
    FullPosterior,
    FullPredictions,
    flat_draws,
    predicted,
)
from pseudocore.objectives.multiformation import decoded
from pseudocore.runtime import profiling
from pseudocore.runtime.profiling import stage
from pseudocore.runtime.shortage import advising
from pseudocore.workflows import references
from pseudocore.workflows.arguments import coreset_of, inference_for, problem_of
from pseudocore.workflows.reduction import ReduceResult

On = Literal["test", "held-out", "corrupted"]
"""Inputs that predictions are compared on."""

NUM_HELD_OUT = 1000
SEVERITY, NUM_CORRUPTED = 3, 100
"""Of every corruption: its severity, and test images under it."""


def fidelity(
    coreset: Coreset | ReduceResult | str | Path,
    data: Data | None = None,
    *,
    inference: str | Inference | None = None,
    reference: references.Source = None,
    on: On | Dataset = "test",
    model: Any = None,
    seeds: int = 2,
    first_seed: int = 0,
    device: str = "auto",
    setup: Mapping[str, Any] | None = None,
    on_reference: Callable[[FullPosterior], object] = lambda full: None,
    on_seed: Callable[[int, dict[str, float]], None] = lambda seed, measures: None,
    **options: Any,
) -> Fidelity:
    """Compare inference on a coreset with inference on all the data it stands for.

    Args:
        coreset: A coreset, what `reduce` returned, or a path.
        data: The data set. Defaults to the coreset's own.
        inference: A name or an object, as in `infer`. Defaults to the one stored with the coreset.
        reference: Full-data inference: a name such as "hmc", a file of `references.save`, or what
            `references.reference` returned. Defaults to the same inference as on the coreset.
        on: Inputs to compare predictions on: "test", "held-out" training inputs, "corrupted" test
            images, or the test inputs of another data set.
        model: The network, as in `reduce`. Defaults to the coreset's own.
        seeds: Fits to the coreset.
        first_seed: Seed of the first.
        device: "auto", "cpu" or "cuda".
        setup: Other changes of the coreset's setup.
        on_reference: Called with the reference, for example to save it.
        on_seed: Called with each seed and its measures.
        **options: Fields of the inference, when it is given by name.

    Returns:
        The measures, and the floor between fits to all data beside each.
    """
    if seeds < 1:
        raise ConfigError(f"seeds = {seeds} must be at least 1", code="invalid-options")
    fields, network = described(model)
    changes = {**dict(setup or {}), **fields}
    points, began = coreset_of(coreset), time.monotonic()
    with profiling.recording() as costs:
        fitted = inference_for(points, inference, options)
        problem = problem_of(coreset, data, device, network, changes)
        points = decoded(problem, points) if points.is_encoded else points
        with stage("reference", problem.device):
            full = references.beside(problem, fitted, reference)
            inputs = inputs_of(problem, points, on)
            predictions = full.predictions(inputs.x)
        on_reference(full)
        found: list[Measured] = []
        for seed in range(first_seed, first_seed + seeds):
            with advising(fitted):
                found.append(fit_and_measure(fitted, problem, points, seed, inputs, predictions))
            on_seed(seed, found[-1].measures)
    return Fidelity(
        inference=inferences.name_of(fitted),
        options=config.to_dict(fitted),
        model=problem.model.describe(),
        data=problem.data.name,
        setup={name: value for name, value in changes.items() if value is not None},
        on=None if on == "test" else on.name if isinstance(on, Dataset) else str(on),
        num_inputs=len(inputs.x),
        reference=full.label,
        against=references.against(full, fitted),
        reference_diagnostics=full.diagnostics,
        seeds=seeds,
        metrics=spreads([one.measures for one in found]),
        per_seed=[{"seed": one.seed, **one.measures} for one in found],
        intervals=intervals(
            predictions, [one.log_probs for one in found], inputs.y, Rng(first_seed)("bootstrap")
        ),
        floor_of=predictions.floor_of,
        warnings=[f"reference: {sentence}" for sentence in full.warnings],
        seconds=round(time.monotonic() - began, 3),
        cost=profiling.to_table(costs),
    )


@dataclass(frozen=True, eq=False)
class Inputs:
    """What predictions are compared on."""

    x: Tensor
    """Raw inputs (n, ...)."""
    y: Tensor | None
    """Labels (n,); None where they are of other classes."""


@dataclass(frozen=True, eq=False)
class Measured:
    """One fit to a coreset."""

    seed: int
    measures: dict[str, float]
    log_probs: Tensor


def fit_and_measure(
    fitted: Inference,
    problem: Problem,
    coreset: Coreset,
    seed: int,
    inputs: Inputs,
    full: FullPredictions,
) -> Measured:
    """Fit to the coreset and compare its predictions with the full data's."""
    check_task(fitted, inferences.name_of(fitted), problem.task)
    with stage("infer", problem.device):
        predict = fitted.fit(problem, coreset, Rng(seed)("infer"))
    with stage("predict", problem.device):
        log_probs = predicted(predict, inputs.x).double()
    draws = flat_draws(predict) if full.draws else None
    return Measured(seed, measure_seed(full, log_probs, inputs.y, draws), log_probs)


def inputs_of(problem: Problem, coreset: Coreset, on: On | Dataset) -> Inputs:
    """The inputs to compare predictions on."""
    data = problem.data
    if isinstance(on, Dataset):
        if on.shape != data.shape:
            raise ConfigError(
                f"inputs of {on.name!r} have shape {on.shape}, those of {data.name!r} {data.shape}",
                code="wrong-shape",
            )
        return Inputs(on.test.x, None)
    if on == "test":
        return Inputs(*data.test)
    if on == "held-out":
        index = held_out(problem, coreset, Rng(0)("fidelity"), NUM_HELD_OUT)
        return Inputs(data.train.x[index], data.train.y[index])
    if on == "corrupted":
        sets = corrupted_sets(problem.dataset, (SEVERITY,), NUM_CORRUPTED).values()
        return Inputs(torch.cat([one.x for one in sets]), torch.cat([one.y for one in sets]))
    raise ConfigError(
        f"on = {on!r} must be test, held-out, corrupted or a Dataset",
        code="unknown-inputs",
    )
