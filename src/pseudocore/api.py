"""What a notebook uses: `reduce`, `infer`, `evaluate`, `experts`, `load`. The command line is a
thin layer over the same functions.
"""

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast, get_args

import torch
from torch import Tensor

from pseudocore import assembly as setups
from pseudocore.assembly import Reduction as Reduction
from pseudocore.assembly import Setup, build_problem, words_of
from pseudocore.assembly import resolved as resolved
from pseudocore.core import config
from pseudocore.core.errors import ConfigError, RunError
from pseudocore.core.problem import Problem
from pseudocore.core.registry import inferences
from pseudocore.core.rng import Rng
from pseudocore.core.types import (
    Coreset,
    Dataset,
    Inference,
    Iterative,
    NeedsExperts,
    Predict,
    Selector,
)
from pseudocore.data import load as load_data
from pseudocore.evaluation.evaluate import Extras, assess
from pseudocore.evaluation.metrics import Metrics, measure, spreads
from pseudocore.evaluation.robustness import in_batches
from pseudocore.objectives.multiformation import decoded
from pseudocore.runtime import Compile
from pseudocore.runtime import profiling as cost
from pseudocore.runtime.loop import Outcome, run
from pseudocore.store.coreset_file import load_coreset
from pseudocore.store.expert_folder import ExpertFolder, Storage
from pseudocore.store.folders import versions
from pseudocore.store.run_folder import Run
from pseudocore.training.experts import (
    OnEpoch,
    OnStart,
    Trainer,
    Training,
    fill,
    identity,
    with_experts,
)

OnLog = Callable[[int, dict[str, float]], None]


def reduce(
    method: str,
    data: str | Path | Dataset,
    *,
    seed: int = 0,
    out: str | Path | None = None,
    device: str = "auto",
    **options: Any,
) -> Coreset:
    """Make a coreset of `data` by `method`.

    `options` are fields of the method (`per_class`, `num_steps`, ...) and of `Setup` (`model`,
    `width`, `preprocess`, ...). With `out`, the run is kept in that folder, as the command line
    would. Raises RunError when the method diverged.
    """
    of_setup = {option.name for option in config.options(Setup)}
    name = data.name if isinstance(data, Dataset) else str(data)
    words = {key: value for key, value in options.items() if key in of_setup}
    rest = {key: value for key, value in options.items() if key not in of_setup}
    reduction = Reduction.from_config(
        {"method": method, "data": name, "seed": seed, "setup": words, "options": rest}
    )
    with cost.recording():
        problem = setups.build(
            reduction.setup, data if isinstance(data, Dataset) else None, device=device
        )
        folder = None if out is None else Run.create(out, resolved(reduction, problem).to_config())
        outcome = run_reduction(reduction, problem, folder)
    if outcome.status != "finished":
        raise RunError(f"{method} {outcome.status}: {outcome.reason}")
    return outcome.coreset


def run_reduction(
    reduction: Reduction,
    problem: Problem,
    folder: Run | None = None,
    *,
    on_log: OnLog = lambda step, values: None,
    **loop_options: Any,
) -> Outcome:
    """Carry out a reduction, in a run folder when one is given: metrics, checkpoints, coreset and
    manifest go there.

    A method that learns from experts and was given none trains them first, while `on_log` hears of
    step 0.
    """
    config.check(reduction.method)
    reduction = resolved(reduction, problem)
    if folder is not None:
        _begin(folder, problem)
    with cost.recording() as costs, cost.stage("reduce", problem.device):
        method, seed = reduction.method, reduction.seed
        command = ""
        if isinstance(method, NeedsExperts) and folder is not None:
            command = experts_command(
                reduction.setup,
                Training(loss=cast(Any, method.expert_loss)),
                num=method.num_experts,
                epochs=method.expert_epochs,
                seed=seed,
                out=folder.path / "experts",
            )
        problem = with_experts(
            problem,
            method,
            seed=seed,
            run=folder,
            command=command,
            on_epoch=lambda done, numbers: on_log(0, numbers),
        )
        outcome = _carry_out(reduction, problem, folder, on_log, loop_options)
    outcome = _unless_runaway(outcome, problem)
    outcome = outcome._replace(coreset=_with_origin(outcome.coreset, reduction, problem, outcome))
    if folder is not None:
        _end(folder, outcome, costs)
    return outcome


def load(path: str | Path) -> Coreset:
    """A coreset from its file or run folder. Safe on files from strangers: nothing in them is
    executed.
    """
    return load_coreset(path)


def infer(
    coreset: Coreset,
    inference: str | Inference = "last-layer-vi",
    *,
    problem: Problem | None = None,
    seed: int = 0,
    **options: Any,
) -> Predict:
    """Predictions from a coreset: a function from raw inputs (uint8 images or floats in pixel
    units) to log-probabilities.
    """
    problem = problem or build_problem(coreset)
    problem.check_fits(coreset)
    return _inference(inference, options).fit(
        problem, decoded(problem, coreset), Rng(seed)("infer")
    )


def evaluate(
    coreset: Coreset | str | Path,
    data: str | Path | Dataset | None = None,
    *,
    inference: str | Inference | None = None,
    seeds: int = 5,
    first_seed: int = 0,
    device: str = "auto",
    setup: Mapping[str, Any] | None = None,
    severities: Sequence[int] = (),
    ood: str | Path | Dataset | None = None,
    num_robust: int = 1000,
    published: bool = False,
    landscape: bool = False,
    on_seed: Callable[[int, Metrics], None] = lambda seed, metrics: None,
    **options: Any,
) -> dict[str, Any]:
    """Test-set metrics of inference on a coreset, mean and sd over `seeds` fresh networks, each to
    its last step.

    `setup` changes words of the coreset's own setup, for example `{"model": "mlp"}`; `options` are
    fields of the inference. Unless told, the inference is the one the coreset's makers meant, else
    last-layer-vi.

    With `severities`, the first `num_robust` test images are also scored under every corruption at
    those severities; with `ood`, uncertainty must tell as many of them from another data set.
    `published` adds NLL and ECE as published evaluators compute them, batch by batch of 256, to
    compare with printed numbers; `landscape` the losses of coreset and data between two networks
    trained on either.
    """
    if isinstance(coreset, str | Path):
        coreset = load(coreset)
    if seeds < 1:
        raise ConfigError(f"seeds = {seeds} must be at least 1")
    meant = words_of(coreset, "evaluate")
    name = str(meant.pop("inference", "last-layer-vi"))
    if inference is None or inference == name:
        inference, options = name, {**meant, **options}
    way = _inference(inference, options)
    began = time.monotonic()
    with cost.recording() as costs:
        problem = build_problem(coreset, data, device=device, **dict(setup or {}))
        foreign = load_data(ood) if isinstance(ood, str | Path) else ood
        extras = Extras(severities, foreign, num_robust, published, landscape)
        found = assess(
            way,
            problem,
            decoded(problem, coreset),
            range(first_seed, first_seed + seeds),
            extras,
            on_seed,
        )
    return {
        "inference": inferences.name_of(way),
        "options": config.to_dict(way),
        "model": problem.model.describe(),
        "data": problem.data.name,
        "setup": {name: value for name, value in dict(setup or {}).items() if value is not None},
        "robust": {"num": num_robust, "severities": list(severities)}
        if severities or ood is not None
        else {},
        "seeds": seeds,
        **found,
        "seconds": round(time.monotonic() - began, 3),
        "cost": cost.to_table(costs),
    }


def train_experts(
    data: str | Path | Dataset,
    *,
    out: str | Path,
    num: int = 20,
    epochs: int = 22,
    seed: int = 0,
    storage: Storage = "float32",
    group: int | None = None,
    device: str = "auto",
    compile: Compile = "auto",
    overwrite: bool = False,
    command: str = "",
    on_start: OnStart = lambda done, total: None,
    on_epoch: OnEpoch = lambda done, numbers: None,
    **options: Any,
) -> dict[str, Any]:
    """Train networks on all of `data` and keep them at every epoch, for methods that learn from
    experts.

    Experts in the folder that were trained alike are kept, and trained further where they have
    fewer epochs.

    Args:
        data: Name or path of a data set, or the data set.
        out: Folder for the experts.
        num: Number of experts.
        epochs: Epochs to train each for.
        seed: Seed of every random stream.
        storage: Type that snapshots are stored in, `float32` or `bfloat16`.
        group: Experts trained in one batched pass. Defaults to the fastest number.
        device: `auto`, `cpu` or `cuda`.
        compile: `auto`, `on` or `off`.
        overwrite: Replace experts in the folder that were trained otherwise.
        command: Command line to keep with the experts. Defaults to one with the same effect.
        on_start: Called with the number of epochs already trained and the total.
        on_epoch: Called with the number of epochs trained so far and numbers to show.
        **options: Fields of `Setup` (`model`, `preprocess`, ...) and of `Training` (`loss`, ...).

    Returns:
        What is in the folder, what was trained, and the experts' training loss and test accuracy.
    """
    for name, count in {"num": num, "epochs": epochs, "group": group}.items():
        if count is not None and count < 1:
            raise ConfigError(f"{name} = {count} must be at least 1", code="option", option=name)
    if storage not in get_args(Storage):
        raise ConfigError(
            f"storage = {storage!r} is not one of {', '.join(map(repr, get_args(Storage)))}",
            code="option",
            option="storage",
        )
    given = data if isinstance(data, Dataset) else None
    of_training = {option.name for option in config.options(Training)} & options.keys()
    training = config.build(
        Training, {name: options.pop(name) for name in of_training}, what="training"
    )
    words = {**options, "data": str(data) if given is None else given.name}
    setup = config.build(Setup, words, what="setup")
    problem = setups.build(setup, given, device=device)
    command = command or experts_command(
        setup, training, num=num, epochs=epochs, seed=seed, storage=storage, out=out
    )
    described = identity(problem, training, seed, storage)
    with ExpertFolder.create(out, described, overwrite=overwrite, command=command) as folder:
        began = time.monotonic()
        trained = fill(
            folder,
            Trainer(problem, training, seed, compile=compile),
            num=num,
            num_epochs=epochs,
            group=group,
            on_start=on_start,
            on_epoch=on_epoch,
        )
        seconds = time.monotonic() - began
        found = folder.mapped(problem)
        return {
            "experts": str(folder.path),
            "num_experts": found.num_experts,
            "num_epochs": found.num_epochs,
            "trained_epochs": trained,
            "seconds": round(seconds, 3),
            "images_per_second": round(trained * problem.num_train / seconds) if trained else None,
            "bytes": folder.size(),
            **spreads(_expert_scores(folder, problem)),
        }


experts = train_experts
"""The old name."""


def experts_command(setup: Setup, training: Training, **flags: Any) -> str:
    """The command line that trains the same experts."""
    words = ["pseudocore", "experts", setup.data]
    for settings in (setup, training):
        for option in config.options(type(settings)):
            value = getattr(settings, option.name)
            if option.name not in ("data", "experts") and value != option.default:
                flags[option.name] = value
    for name, value in flags.items():
        flag = name.replace("_", "-")
        is_switch = isinstance(value, bool)
        words += [f"--{'' if value else 'no-'}{flag}"] if is_switch else [f"--{flag}", str(value)]
    return shlex.join(words)


def _expert_scores(folder: ExpertFolder, problem: Problem) -> list[dict[str, float]]:
    """Last training loss and test accuracy of every expert; batch norm as on the first training
    points.
    """
    found = folder.mapped(problem)
    scores = []
    for number in range(found.num_experts):
        theta = found.at(torch.tensor([number]), torch.tensor([found.num_epochs]))[0]
        statistics = problem.model.statistics(theta, next(problem.batches(512))[0]) or None

        def predict(x: Tensor, theta: Tensor = theta, statistics: Any = statistics) -> Tensor:
            with problem.fast():
                logits = problem.model.logits(theta, problem.inputs(x), statistics)
            return logits.to(problem.dtype).log_softmax(-1)

        metrics = measure(predict, in_batches(problem.data.test), problem.num_classes)
        loss = folder.losses(number)[found.num_epochs - 1]
        scores.append({"train_loss": loss, "accuracy": metrics.accuracy})
    return scores


def _carry_out(
    reduction: Reduction,
    problem: Problem,
    folder: Run | None,
    on_log: OnLog,
    loop_options: Mapping[str, Any],
) -> Outcome:
    began = time.monotonic()
    if hasattr(reduction.method, "select"):
        coreset = cast(Selector, reduction.method).select(problem, Rng(reduction.seed))
        return Outcome(coreset, "finished", "", 0, time.monotonic() - began)

    def log(step: int, values: dict[str, float]) -> None:
        if folder is not None:
            folder.log(step, values)
        on_log(step, values)

    checkpoints = folder.checkpoints if folder is not None else None
    return run(
        cast(Iterative, reduction.method),
        problem,
        seed=reduction.seed,
        checkpoints=checkpoints,
        on_log=log,
        **loop_options,
    )


def _inference(inference: str | Inference, options: Mapping[str, Any]) -> Inference:
    if not isinstance(inference, str):
        if options:
            raise ConfigError(
                f"{', '.join(options)} given beside an inference that is already made; make it with them instead"
            )
        config.check(inference)
        return inference
    built: Inference = config.build(inferences[inference].make, options, what=inference)
    return built


def _unless_runaway(outcome: Outcome, problem: Problem) -> Outcome:
    """Points a thousand times beyond the data's range are no coreset, finite or not: that is
    divergence too.
    """
    reach = float(outcome.coreset.x.abs().max())
    limit = 1000 * (
        1.0 if problem.train_x.dtype == torch.uint8 else float(problem.train_x.abs().max())
    )
    if outcome.status != "finished" or reach <= limit:
        return outcome
    return outcome._replace(
        status="diverged",
        reason=f"points reached {reach:.3g}, far outside the data (at most {limit / 1000:.3g})",
    )


def _begin(folder: Run, problem: Problem) -> None:
    data = problem.data
    if folder.manifest.get("data_fingerprint") not in (
        None,
        data.fingerprint,
    ):  # it is taken up again
        raise RunError(
            f"{folder.path} was begun on another {data.name!r} than the one found here (their fingerprints differ); "
            "bring that data back, or pass --overwrite to start again"
        )
    saved = folder.checkpoints.load()
    folder.truncate_metrics(saved[0] if saved else 0)
    _count_killed(folder)
    folder.update_manifest(
        data_fingerprint=data.fingerprint,
        class_names=list(data.class_names),
        device=str(problem.device),
    )


def _count_killed(folder: Run) -> None:
    """Add what steps took in a call that was killed, and so could not say, to what earlier calls
    have said.
    """
    known = folder.manifest.get("seconds") or 0.0
    if (missing := folder.checkpoints.seconds - known) > 0:
        costs = cost.combined(
            cost.from_table(folder.manifest.get("cost") or {}), {"reduce": cost.Cost(missing, 0)}
        )
        folder.update_manifest(seconds=round(known + missing, 3), cost=cost.to_table(costs))


def _end(folder: Run, outcome: Outcome, costs: Mapping[str, cost.Cost]) -> None:
    seconds = outcome.seconds + (
        folder.manifest.get("seconds") or 0.0
    )  # of earlier, interrupted calls too
    costs = cost.combined(cost.from_table(folder.manifest.get("cost") or {}), costs)
    if outcome.status != "interrupted":
        folder.save_coreset(outcome.coreset)
    folder.finish(
        outcome.status,
        outcome.reason,
        seconds=round(seconds, 3),
        num_steps=outcome.num_steps,
        points=len(outcome.coreset),
        peak_memory_mib=max(one.peak_mib for one in costs.values()),
        cost=cost.to_table(costs),
        note=outcome.note,
    )


def _with_origin(
    coreset: Coreset, reduction: Reduction, problem: Problem, outcome: Outcome
) -> Coreset:
    return coreset.with_provenance(
        **reduction.to_config(),
        num_steps=outcome.num_steps,
        status=outcome.status,
        data_fingerprint=problem.data.fingerprint,
        preprocess=problem.preprocess.describe(),
        versions=versions(),
    )
