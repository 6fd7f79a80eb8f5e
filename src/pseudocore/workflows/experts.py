"""Experts: a folder of them trained on request, and those that a reduction needs."""

import dataclasses
import shlex
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast, get_args

import torch
from torch import Tensor

from pseudocore.assembly import PRIOR_FIELDS, Data, Setup, build, described, reading
from pseudocore.core import config
from pseudocore.core.errors import ConfigError
from pseudocore.core.likelihood import check_task
from pseudocore.core.problem import Problem
from pseudocore.core.types import NeedsExperts
from pseudocore.data import read
from pseudocore.engine import Engine, Kind, engine_of
from pseudocore.evaluation.metrics import in_batches, measure, spreads
from pseudocore.runtime import Compile
from pseudocore.runtime.profiling import stage
from pseudocore.store.expert_folder import ExpertFolder, MappedExperts, Storage
from pseudocore.store.run_folder import Run
from pseudocore.training.experts import (
    OnEpoch,
    Resident,
    Trainer,
    Training,
    fill,
    identity,
    train,
)
from pseudocore.workflows.expert_tasks import fill_experts
from pseudocore.workflows.on_engine import refuse_objects
from pseudocore.workflows.progress import progress as progress_bar

MAX_MEMORY_SHARE = 0.5
"""Share of a GPU's free memory that snapshots may take."""


def train_experts(
    data: Data,
    *,
    out: str | Path,
    model: Any = None,
    num: int = 20,
    epochs: int = 22,
    seed: int = 0,
    storage: Storage = "float32",
    group: int | None = None,
    device: str = "auto",
    compile: Compile = "auto",
    engine: Kind | Engine | None = None,
    overwrite: bool = False,
    command: str = "",
    progress: bool = False,
    on_epoch: OnEpoch = lambda done, numbers: None,
    **options: Any,
) -> dict[str, Any]:
    """Train networks on all of `data` and keep them at every epoch, for methods that learn from
    experts.

    Experts in the folder that were trained alike are kept, and trained further where they have
    fewer epochs.

    Args:
        data: A name, a path, or anything else that `dataset` takes.
        out: Folder for the experts.
        model: The network, as in `reduce`.
        num: Number of experts.
        epochs: Epochs to train each for.
        seed: Seed of every random stream.
        storage: Type that snapshots are stored in, `float32` or `bfloat16`.
        group: Experts trained in one batched pass. Defaults to the fastest number.
        device: `auto`, `cpu` or `cuda`.
        compile: `auto`, `on` or `off`.
        engine: Train them by workers: "local", "ray", "submitit", or an `Engine`; `data` and
            `model` must be names or paths. Defaults to this process.
        overwrite: Replace experts in the folder that were trained otherwise.
        command: Command line to keep with the experts. Defaults to one with the same effect.
        progress: Whether to draw a progress bar.
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
    network_fields, network = described(model)
    if engine is not None:
        engine = engine_of(engine)
        in_memory = {"data": not isinstance(data, str | Path), "model": network is not None}
        refuse_objects(in_memory)
    of_training = {option.name for option in config.options(Training)} & options.keys()
    training = config.build(
        Training, {name: options.pop(name) for name in of_training}, what="training"
    )
    fields = {**options, **network_fields}
    if isinstance(data, str | Path):
        fields["data"] = str(data)
    setup, given = config.build(Setup, fields, what="setup"), None
    if not isinstance(data, str | Path):
        given = read(data, reading(setup))
        setup = dataclasses.replace(setup, data=given.name)
    problem = build(setup, given, device=device, network=network)
    check_task(train_experts, "experts", problem.task)
    command = command or experts_command(
        setup, training, num=num, epochs=epochs, seed=seed, storage=storage, out=out
    )
    identified = identity(problem, training, seed, storage)
    callbacks = [on_epoch]
    with (
        ExpertFolder.create(out, identified, overwrite=overwrite, command=command) as folder,
        ExitStack() as shown,
    ):

        def draw_bar(done: int, total: int) -> None:
            if progress:
                bar = progress_bar(f"experts on {setup.data}", total, done)
                callbacks.append(shown.enter_context(bar))

        def report(done: int, numbers: dict[str, float]) -> None:
            for callback in callbacks:
                callback(done, numbers)

        began = time.monotonic()
        shared: Any = {
            "num": num,
            "num_epochs": epochs,
            "group": group,
            "on_start": draw_bar,
            "on_epoch": report,
        }
        if engine is None:
            trained = fill(folder, Trainer(problem, training, seed, compile=compile), **shared)
        else:
            more: Any = {"seed": seed, "device": device, "compile": compile}
            trained = fill_experts(engine, folder, problem, setup, training, **shared, **more)
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


def with_experts(
    problem: Problem,
    method: Any,
    setup: Setup,
    *,
    seed: int,
    run: Run | None = None,
    on_epoch: OnEpoch = lambda done, numbers: None,
) -> Problem:
    """The problem with the experts its method needs, if it needs any: its own, else new ones, which
    are kept in RUN/experts.

    On a GPU they are held in memory, when they fit, so that a captured step can read them.
    """
    if not isinstance(method, NeedsExperts):
        return problem
    with stage("experts", problem.device):
        found = problem.experts
        if found is None:
            found = _trained(problem, method, setup, seed, run, on_epoch)
        if isinstance(found, MappedExperts):
            found = found if run is None else _as_begun(found, run)
            if problem.device.type == "cuda":
                free, _ = torch.cuda.mem_get_info(problem.device)
                if found.num_bytes(method.expert_epochs) <= MAX_MEMORY_SHARE * free:
                    found = Resident(found.load(method.expert_epochs), problem.dtype)
    return dataclasses.replace(problem, experts=found)


def _trained(
    problem: Problem,
    method: NeedsExperts,
    setup: Setup,
    seed: int,
    run: Run | None,
    on_epoch: OnEpoch,
) -> MappedExperts | Resident:
    """New experts, by the published training on the loss the method asks for."""
    training = Training(loss=cast(Any, method.expert_loss))
    num, epochs = method.num_experts, method.expert_epochs
    if run is None:
        return train(problem, training, num=num, num_epochs=epochs, seed=seed)
    path, identified = run.path / "experts", identity(problem, training, seed, "float32")
    command = experts_command(setup, training, num=num, epochs=epochs, seed=seed, out=path)
    # The run's configuration decides the identity: experts of another one are left over.
    overwrite = not ExpertFolder.is_alike(path, identified)
    with ExpertFolder.create(path, identified, overwrite=overwrite, command=command) as folder:
        trainer = Trainer(problem, training, seed)
        fill(folder, trainer, num=num, num_epochs=epochs, on_epoch=on_epoch)
        return folder.mapped(problem)


def _as_begun(found: MappedExperts, run: Run) -> MappedExperts:
    """As many as the run began with: the folder may grow while a run is interrupted."""
    begun = run.manifest.get("experts", {}).get("num_experts", found.num_experts)
    if begun > found.num_experts:
        raise ConfigError(
            f"{run.path} was begun with {begun} experts, but {found.folder} now holds "
            f"{found.num_experts}; bring them back",
            code="experts-missing",
            begun=begun,
            found=found.num_experts,
        )
    run.update_manifest(experts={"folder": str(found.folder), "num_experts": begun})
    return found.first(begun)


def experts_command(setup: Setup, training: Training, **flags: Any) -> str:
    """The command line that trains the same experts."""
    words = ["pseudocore", "experts", setup.data]
    for settings in (setup, training):
        for option in config.options(type(settings)):
            value = getattr(settings, option.name)
            if option.name not in ("data", "experts", *PRIOR_FIELDS) and value != option.default:
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
