"""The functions of a notebook. The command line is a thin layer over the same functions."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from pseudocore.assembly import Data, build, described, reading
from pseudocore.assembly import Reduction as Reduction
from pseudocore.assembly.contracts import build_problem as build_problem
from pseudocore.assembly.contracts import mismatches, unconverged
from pseudocore.core import config
from pseudocore.core.errors import ConfigError, RunError
from pseudocore.core.likelihood import check_task
from pseudocore.core.problem import Problem
from pseudocore.core.registry import inferences, methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, Inference, Iterative, Method
from pseudocore.data import Reading, read
from pseudocore.engine import Engine, Kind, engine_of
from pseudocore.evaluation.evaluate import Evaluation, Extras, Kept, assess
from pseudocore.evaluation.metrics import Metrics
from pseudocore.evaluation.regression import RegressionMetrics
from pseudocore.features.backbone import described as described_features
from pseudocore.inference.posterior import FunctionPosterior, Posterior
from pseudocore.objectives.multiformation import decoded
from pseudocore.runtime import Compile, profiling
from pseudocore.runtime.shortage import advising
from pseudocore.store.coreset_file import load_coreset
from pseudocore.store.run_folder import Run
from pseudocore.workflows import references, seed_tasks
from pseudocore.workflows.arguments import (
    check_inference,
    coreset_of,
    inference_for,
    problem_of,
    reduction_of,
)
from pseudocore.workflows.experts import train_experts
from pseudocore.workflows.on_engine import refuse_objects
from pseudocore.workflows.progress import progress as progress_bar
from pseudocore.workflows.reduction import OnLog, check_engine
from pseudocore.workflows.reduction import ReduceResult as ReduceResult
from pseudocore.workflows.reduction import resolved as resolved
from pseudocore.workflows.reduction import run_reduction as run_reduction
from pseudocore.workflows.seeds import kept_seeds

__all__ = ["evaluate", "infer", "load", "reduce", "train_experts"]


def reduce(
    method: str | Method,
    data: Data | None = None,
    *,
    model: Any = None,
    features: Any = None,
    preset: str | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    device: str = "auto",
    compile: Compile = "auto",
    shard_size: int | None = None,
    engine: Kind | Engine | None = None,
    on_log: OnLog | None = None,
    progress: bool = False,
    checkpoint_every: int = 1000,
    log_every: int = 10,
    **options: Any,
) -> ReduceResult:
    """Make a coreset.

    Args:
        method: A name such as "vbpc", or an object such as `methods.VBPC(per_class=1)`.
        data: A name, a path, or anything else that `dataset` takes. Defaults to the preset's.
        model: A name, an object such as `models.ConvNet(width=32)`, an `nn.Module` (its weights are
            not used), or a function that makes one. Defaults to convnet3 for images and mlp for
            features.
        features: A frozen network whose outputs take the place of the inputs: an `nn.Module`, a name
            such as "timm:resnet18" with `feature_weights=` a file, or features that are computed
            already, (train, test). Defaults to none.
        preset: Settings to start from, such as "vbpc2025/cifar10-ipc10"; what is given wins.
        seed: Seed of every random stream. Defaults to the preset's, or 0.
        out: A folder to keep the run in, as the command line does. Defaults to none.
        device: "auto", "cpu" or "cuda".
        compile: Whether steps on a GPU are captured and compiled: "auto", "on" or "off".
        shard_size: Examples of a shard: select in two rounds, from each shard and then from what
            they gave, with one shard in memory at a time. Defaults to one round.
        engine: Select from shards by workers: "local", "ray", "submitit", or an `Engine`; `data` and
            `model` must be names or paths, and `out` given. Defaults to this process.
        on_log: Called with a step's number and its values.
        progress: Whether to draw a progress bar.
        checkpoint_every: Steps between checkpoints in `out`.
        log_every: Steps between logged values.
        **options: Fields of the method, when it is given by name (`ipc` is `per_class`), and of the
            setup (`target`, `preprocess`, `augment`, ...).

    Returns:
        The coreset, and how it was made.

    Raises:
        RunError: The method diverged or was interrupted; `error.fields["result"]` has what is left.
    """
    named, backbone = described_features(features)
    reduction, network = reduction_of(method, data, model, preset, seed, {**options, **named})
    reduction = replace(reduction, shard_size=shard_size or reduction.shard_size)
    check_engine(reduction, None if engine is None else engine_of(engine))
    if engine is not None:
        in_memory = not (data is None or isinstance(data, str | Path))
        refuse_objects({"data": in_memory, "model": network is not None})
        if out is None:
            raise ConfigError(
                "the workers of an engine need a folder for what they select; name it (out)",
                code="engine-needs-folder",
            )
    history: list[dict[str, float]] = []
    name = methods.name_of(reduction.method)
    with profiling.recording():
        given = None
        if data is not None and not isinstance(data, str | Path):
            with profiling.stage("load"):
                given = read(data, reading(reduction.setup))
            reduction = replace(reduction, setup=replace(reduction.setup, data=given.name))
        problem = build(reduction.setup, given, device=device, network=network, features=backbone)
        folder = None if out is None else Run.create(out, resolved(reduction, problem).to_config())
        total = reduction.method.num_steps if isinstance(reduction.method, Iterative) else 0
        title = f"{name} on {problem.data.name}"
        with progress_bar(title, total) if progress else nullcontext() as advance:

            def log(step: int, values: dict[str, float]) -> None:
                history.append({"step": step, **values})
                for call in (advance, on_log):
                    if call is not None:
                        call(step, values)

            outcome = run_reduction(
                reduction,
                problem,
                folder,
                engine=None if engine is None else engine_of(engine),
                on_log=log,
                compile=compile,
                checkpoint_every=checkpoint_every,
                log_every=log_every,
            )
    result = ReduceResult(
        outcome.coreset,
        history,
        outcome.status,
        outcome.reason,
        outcome.seconds,
        outcome.num_steps,
        problem,
    )
    if outcome.status != "finished":
        raise RunError(
            f"{name} {outcome.status}: {outcome.reason}", code=outcome.status, result=result
        )
    return result


def load(path: str | Path) -> Coreset:
    """Read a coreset from its file or run folder. Nothing in the file is executed."""
    return load_coreset(path)


def infer(
    coreset: Coreset | ReduceResult | str | Path,
    inference: str | Inference | None = None,
    *,
    problem: Problem | None = None,
    model: Any = None,
    data: Data | None = None,
    seed: int = 0,
    device: str = "auto",
    **options: Any,
) -> Posterior:
    """Fit an inference on a coreset; one that carries its contract needs no data set.

    Args:
        coreset: A coreset, what `reduce` returned, or a path.
        inference: A name such as "hmc", or an object with `fit(problem, coreset, rng)` such as
            `inference.HMC(num_draws=200)`. Defaults to the one the coreset was made for, else
            last-layer-vi.
        problem: Data, network and preprocessing, where they are built already.
        model: The network, as in `reduce`. Defaults to the coreset's own.
        data: The data set that the coreset stands for, where the inference asks for examples of it.
            Defaults to none for a coreset with a contract, else to the coreset's own.
        seed: Seed of every random stream.
        device: "auto", "cpu" or "cuda".
        **options: Fields of the inference, when it is given by name.

    Returns:
        The posterior: a function from raw inputs, uint8 images or floats in pixel units, to
        log-probabilities, with `predict`, `draws`, `diagnostics` and `warnings`.
    """
    check_inference(inference)
    points = coreset_of(coreset)
    fitted = inference_for(points, inference, options)
    if problem is None:
        changes, network = described(model)
        problem = problem_of(coreset, data, device, network, changes, needs_data=False)
    problem.check_fits(points)
    check_task(fitted, inferences.name_of(fitted), problem.task)
    shown = decoded(problem, points) if points.is_encoded else points
    with advising(fitted), profiling.stage("infer", problem.device):
        found = fitted.fit(problem, shown, Rng(seed)("infer"))
    posterior = found if isinstance(found, Posterior) else FunctionPosterior(problem, found)
    posterior.notes += mismatches(points, fitted, problem) + unconverged(points)
    return posterior


def evaluate(
    coreset: Coreset | ReduceResult | str | Path,
    data: Data | None = None,
    *,
    inference: str | Inference | None = None,
    model: Any = None,
    seeds: int = 5,
    first_seed: int = 0,
    device: str = "auto",
    setup: Mapping[str, Any] | None = None,
    severities: Sequence[int] = (),
    ood: Data | None = None,
    num_robust: int = 1000,
    published: bool = False,
    landscape: bool = False,
    discrepancy: bool = False,
    fidelity: bool | references.Source = False,
    engine: Kind | Engine | None = None,
    engine_folder: str | Path | None = None,
    on_seed: Callable[[int, Metrics | RegressionMetrics], None] = lambda seed, metrics: None,
    resume: str | Path | None = None,
    **options: Any,
) -> Evaluation:
    """Score inference on a coreset on the test set, mean and sd over fresh networks.

    Args:
        coreset: A coreset, what `reduce` returned, or a path.
        data: The data set to test on. Defaults to the coreset's own.
        inference: A name or an object, as in `infer`. Defaults to the one the coreset was made for,
            else last-layer-vi.
        model: The network, as in `reduce`. Defaults to the coreset's own.
        seeds: Number of networks.
        first_seed: Seed of the first.
        device: "auto", "cpu" or "cuda".
        setup: Other changes of the coreset's setup, for example `{"preprocess": "zca"}`.
        severities: Also score the test set under every corruption at these severities, 1 to 5.
        ood: Also detect the inputs of this other data set by their uncertainty.
        num_robust: Test inputs used for `severities` and `ood`.
        published: Also compute NLL and ECE as published evaluators do, in batches of 256.
        landscape: Also the losses of coreset and data along a line between two networks.
        discrepancy: Also MMD and KSD of the points to the data.
        fidelity: Also the distance to full-data inference: True, or a reference as in `fidelity`.
        engine: Measure seeds by workers: "local", "ray", "submitit", or an `Engine`; `data`,
            `model`, `inference` and `ood` must be names or paths. Defaults to this process.
        engine_folder: Where workers keep what they measured. Defaults to "engine" in the run's
            folder, else beside the coreset's file.
        on_seed: Called with each seed and its metrics.
        resume: A file that keeps finished seeds, from which the same call goes on when this one is
            killed; remove it when the scores are saved.
        **options: Fields of the inference, when it is given by name.

    Returns:
        The scores.
    """
    check_inference(inference)
    if seeds < 1:
        raise ConfigError(f"seeds = {seeds} must be at least 1", code="invalid-options")
    fields, network = described(model)
    changes = {**dict(setup or {}), **fields}
    points, began = coreset_of(coreset), time.monotonic()
    with profiling.recording() as costs:
        fitted = inference_for(points, inference, options)
        problem = problem_of(coreset, data, device, network, changes)
        asked = {
            "published": published,
            "landscape": landscape,
            "ood": ood,
            "severities": severities,
        }
        if problem.task == "regression" and (unfit := [name for name in asked if asked[name]]):
            raise ConfigError(
                f"{' and '.join(unfit)} of evaluate are for classes, and the targets of"
                f" {problem.data.name!r} are numbers; leave them out",
                code="wrong-task",
                options=unfit,
            )
        elsewhere = None
        if engine is not None:
            elsewhere = seed_tasks.Elsewhere(
                engine_of(engine),
                engine_folder,
                coreset=coreset,
                problem=problem,
                inference=fitted,
                objects={"inference": inference, "model": network, "ood": ood},
                data=data,
                changes=changes,
                device=device,
            )
        full = None
        if fidelity is not False and fidelity is not None:
            with profiling.stage("reference", problem.device):
                source = None if fidelity is True else fidelity
                if elsewhere is not None:
                    elsewhere.fit_reference(source)
                full = references.beside(problem, fitted, source)
        other = None if ood is None else read(ood, Reading())
        extras = Extras(
            severities,
            other,
            num_robust,
            published,
            landscape,
            discrepancy,
            None if full is None else full.predictions(problem.data.test.x),
        )
        shown = decoded(problem, points) if points.is_encoded else points
        each = range(first_seed, first_seed + seeds)
        kept: Kept | None = None
        if elsewhere is not None:
            more = {"ood": ood, "num_robust": num_robust, "published": published}
            kept = elsewhere.seeds(each, full, severities=list(severities), **more)
        with advising(fitted):
            if resume is not None and kept is None:
                own = kept_seeds(Path(resume), problem, shown, fitted, extras, costs, began)
                kept, began = own, began if own is None else own.began
            scores = assess(fitted, problem, shown, each, extras, on_seed, kept)
    return Evaluation(
        inference=inferences.name_of(fitted),
        options=config.to_dict(fitted),
        model=problem.model.describe(),
        data=problem.data.name,
        setup={name: value for name, value in changes.items() if value is not None},
        robust={"num": num_robust, "severities": list(severities)}
        if severities or ood is not None
        else {},
        reference=None if full is None else full.label,
        against=references.against(full, fitted),
        seeds=seeds,
        seconds=round(time.monotonic() - began, 3),
        cost=profiling.to_table(costs),
        **scores,
    )
