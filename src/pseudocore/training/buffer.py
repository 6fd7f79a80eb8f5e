"""Expert buffers filled and found: `pseudocore experts`, and what a reduction does when its method
learns from experts.
"""

import dataclasses
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from pseudocore import assembly as setups
from pseudocore.assembly import Reduction, Setup
from pseudocore.core import config
from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Problem
from pseudocore.core.types import Dataset, Experts
from pseudocore.evaluation.metrics import measure, spreads
from pseudocore.evaluation.robustness import in_batches
from pseudocore.runtime import profiling as cost
from pseudocore.runtime.steps import Compile
from pseudocore.store.expert_folder import ExpertFolder, Storage, traits
from pseudocore.store.expert_shards import MappedExperts
from pseudocore.store.run_folder import Run
from pseudocore.training.experts import Resident, Trainer, Training, train, usual_group
from pseudocore.training.filling import OnEpoch, OnStart, fill

HELD_SHARE = 0.5
"""Share of a GPU's free memory that snapshots may take."""


def experts(
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
    """Fill the folder `out` with `num` experts of `epochs` epochs each, or what is missing of them,
    and say how they do.

    `options` are words of `Setup` (`model`, `preprocess`, `augment`, ...) and fields of `Training`
    (`loss`, `lr`, ...). Experts in the folder that were trained alike are kept, and trained further
    where they have fewer epochs. `group` experts are trained in one step, batched or side by side;
    unless told, as many as is fastest.
    """
    for name, count in {
        "num": num,
        "epochs": epochs,
        "group": 1 if group is None else group,
    }.items():
        if count < 1:
            raise ConfigError(f"{name} = {count} must be at least 1")
    if storage not in get_args(Storage):
        raise ConfigError(
            f"storage = {storage!r} is not one of {', '.join(map(repr, get_args(Storage)))}"
        )
    setup, training = _configured(data, options)
    problem = setups.build(setup, data if isinstance(data, Dataset) else None, device=device)
    command = command or _command(
        setup, training, num=num, epochs=epochs, seed=seed, storage=storage, out=out
    )
    with ExpertFolder.create(
        out, _identity(problem, training, seed, storage), overwrite=overwrite, command=command
    ) as folder:
        trainer = Trainer(problem, training, seed, compile=compile)
        began = time.monotonic()
        group = group or usual_group(problem)
        trained = fill(
            folder,
            trainer,
            num=num,
            num_epochs=epochs,
            group=group,
            on_start=on_start,
            on_epoch=on_epoch,
        )
        return _summary(folder, problem, trained, time.monotonic() - began)


def with_experts(
    reduction: Reduction, problem: Problem, run: Run | None, on_epoch: OnEpoch
) -> Problem:
    """The problem with the experts its method needs: those it has or its setup names, else fresh
    ones, kept in RUN/experts.

    On a GPU they are held in memory, when they fit, so that a captured step can read them.
    """
    method, needed = reduction.method, getattr(reduction.method, "expert_epochs", None)
    if needed is None:
        return problem
    found = problem.experts
    with cost.stage("experts", problem.device):
        if found is None and run is not None:
            found = _own(reduction, problem, run, on_epoch)
        if found is None:
            found = train(
                problem,
                _training_for(method),
                num=method.num_experts,
                num_epochs=needed,
                seed=reduction.seed,
            )
        if isinstance(found, MappedExperts):
            if run is not None:
                found = _as_begun(found, run)
            found = _held(found, problem, needed)
    return dataclasses.replace(problem, experts=found)


def _configured(data: str | Path | Dataset, options: Mapping[str, Any]) -> tuple[Setup, Training]:
    of_training = {option.name for option in config.options(Training)}
    words = {name: value for name, value in options.items() if name not in of_training}
    name = data.name if isinstance(data, Dataset) else str(data)
    setup = config.build(Setup, {**words, "data": name}, what="setup")
    return setup, config.build(
        Training,
        {name: value for name, value in options.items() if name in of_training},
        what="training",
    )


def _identity(problem: Problem, training: Training, seed: int, storage: Storage) -> dict[str, Any]:
    """All that decides the numbers in a buffer."""
    augment: Any = problem.augment
    described = (
        config.to_dict(augment)
        if dataclasses.is_dataclass(augment)
        else augment and type(augment).__name__
    )
    arithmetic = {
        "dtype": str(problem.dtype).removeprefix("torch."),
        "precision": problem.precision,
        "storage": storage,
    }
    return {
        **traits(problem),
        "augment": described,
        "training": config.to_dict(training),
        "seed": seed,
        **arithmetic,
    }


def _command(setup: Setup, training: Training, **flags: Any) -> str:
    """The command line that would fill the same buffer."""
    words = ["pseudocore", "experts", setup.data]
    for settings in (setup, training):
        for option in config.options(type(settings)):
            if (
                option.name not in ("data", "experts")
                and (value := getattr(settings, option.name)) != option.default
            ):
                flags[option.name] = value
    for name, value in flags.items():
        flag = name.replace("_", "-")
        words += (
            [f"--{'' if value else 'no-'}{flag}"]
            if isinstance(value, bool)
            else [f"--{flag}", str(value)]
        )
    return shlex.join(words)


def _summary(
    folder: ExpertFolder, problem: Problem, trained: int, seconds: float
) -> dict[str, Any]:
    found = folder.mapped(problem)
    final = [
        {
            "train_loss": folder.losses(number)[found.num_epochs - 1],
            "accuracy": _accuracy(problem, found, number),
        }
        for number in range(found.num_experts)
    ]
    return {
        "experts": str(folder.path),
        "num_experts": found.num_experts,
        "num_epochs": found.num_epochs,
        "trained_epochs": trained,
        "seconds": round(seconds, 3),
        "images_per_second": round(trained * problem.num_train / seconds) if trained else None,
        "bytes": folder.size(),
        **spreads(final),
    }


def _accuracy(problem: Problem, found: Experts, number: int) -> float:
    """Test accuracy of an expert's last snapshot; batch norm, if any, as on the first training
    points.
    """
    theta = found.at(torch.tensor([number]), torch.tensor([found.num_epochs]))[0]
    statistics = problem.model.statistics(theta, next(problem.batches(512))[0]) or None

    def predict(x: Tensor) -> Tensor:
        with problem.fast():
            logits = problem.model.logits(theta, problem.inputs(x), statistics)
        return logits.to(problem.dtype).log_softmax(-1)

    return measure(predict, in_batches(problem.data.test), problem.num_classes).accuracy


def _training_for(method: Any) -> Training:
    """As published, on the loss the method asks for."""
    return Training(loss=getattr(method, "expert_loss", "cross-entropy"))


def _own(reduction: Reduction, problem: Problem, run: Run, on_epoch: OnEpoch) -> MappedExperts:
    """Experts trained for this run alone, in its folder; taken up again when it is."""
    method, training, path = reduction.method, _training_for(reduction.method), run.path / "experts"
    identity = _identity(problem, training, reduction.seed, "float32")
    # The run's configuration decides the identity: if they differ, the run was started again, and
    # these are left over.
    alike, num, epochs = (
        ExpertFolder.is_alike(path, identity),
        method.num_experts,
        method.expert_epochs,
    )
    command = _command(
        reduction.setup, training, num=num, epochs=epochs, seed=reduction.seed, out=path
    )
    with ExpertFolder.create(path, identity, overwrite=not alike, command=command) as folder:
        trainer = Trainer(problem, training, reduction.seed)
        fill(
            folder,
            trainer,
            num=num,
            num_epochs=epochs,
            group=usual_group(problem),
            on_epoch=on_epoch,
        )
        return folder.mapped(problem)


def _as_begun(found: MappedExperts, run: Run) -> MappedExperts:
    """As many as the run began with: a buffer may grow while a run is interrupted, and going on
    must not notice.
    """
    begun = run.manifest.get("experts", {}).get("num_experts", found.num_experts)
    if begun > found.num_experts:
        raise ConfigError(
            f"{run.path} was begun with {begun} experts, but {found.folder} now holds {found.num_experts}; bring them back"
        )
    run.update_manifest(experts={"folder": str(found.folder), "num_experts": begun})
    return found.first(begun)


def _held(found: MappedExperts, problem: Problem, num_epochs: int) -> Experts:
    if problem.device.type != "cuda":
        return found
    free, _ = torch.cuda.mem_get_info(problem.device)
    fits = found.num_bytes(num_epochs) <= HELD_SHARE * free
    return Resident(found.load(num_epochs), problem.dtype) if fits else found
