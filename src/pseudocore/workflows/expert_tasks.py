"""Experts by the workers of an engine."""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pseudocore import engine
from pseudocore.assembly import Setup, build
from pseudocore.core import config
from pseudocore.core.errors import RunError
from pseudocore.core.problem import Problem
from pseudocore.engine import Engine, Item
from pseudocore.runtime import Compile
from pseudocore.store.expert_folder import ExpertFolder
from pseudocore.store.files import decode_json, encode_json
from pseudocore.training.experts import (
    OnEpoch,
    Trainer,
    Training,
    default_group,
    groups,
    identity,
    missing_epochs,
    reserved,
    train_group,
)
from pseudocore.workflows.on_engine import FOLDER


@functools.lru_cache(1)
def _problem(setup: str, device: str) -> Problem:
    """The latest is kept for a worker's next item."""
    return build(config.build(Setup, decode_json(setup), what="setup"), device=device)


def train_experts(options: Mapping[str, Any], seed: int, folder: Path) -> dict[str, Any]:
    """Train a group of experts to their last epoch, in the folder of all of them."""
    problem = _problem(encode_json(options["setup"], sort_keys=True), options["device"])
    training = config.build(Training, dict(options["training"]), what="training")
    out, numbers = Path(options["out"]), list(options["numbers"])
    own = identity(problem, training, seed, options["storage"])
    if not ExpertFolder.is_alike(out, own):
        raise RunError(
            f"a worker would train other experts than those in {out}: its data or its device differ"
            " from those the folder was begun with",
            code="other-experts",
            path=out,
        )
    trainer = Trainer(problem, training, seed, compile=options["compile"])
    trainer.expected_epochs = options["epochs"]
    found: list[float] = []
    train_group(
        ExpertFolder.open(out),
        trainer,
        numbers,
        options["epochs"],
        lambda numbers, losses: found.extend(losses[-1:]),
    )
    return {"numbers": numbers, "loss": found[-1] if found else None}


def fill_experts(
    chosen: Engine,
    folder: ExpertFolder,
    problem: Problem,
    setup: Setup,
    training: Training,
    *,
    num: int,
    num_epochs: int,
    seed: int,
    group: int | None,
    device: str,
    compile: Compile,
    on_start: Callable[[int, int], None],
    on_epoch: OnEpoch,
) -> int:
    """As `training.experts.fill`, by the workers of an engine; the same bits on all of them."""
    group = group or default_group(problem)
    reached = reserved(folder, problem, num, num_epochs)
    missing = missing_epochs(reached, num_epochs)
    total = len(reached) * num_epochs
    done = total - missing
    on_start(done, total)
    shared = {
        "setup": config.to_dict(setup),
        "training": config.to_dict(training),
        "storage": folder.identity["storage"],
        "out": str(folder.path.resolve()),
        "epochs": num_epochs,
        "device": device,
        "compile": compile,
    }
    items = [
        Item({**shared, "numbers": numbers}, seed) for numbers in groups(reached, num_epochs, group)
    ]
    work = folder.path / FOLDER
    # `again`: what is missing was made out above, whatever an earlier call has finished.
    for one in engine.map(
        train_experts, items, folder=work, engine=chosen.on(device), again=True, keep=False
    ):
        numbers = one.result["numbers"]
        done += sum(num_epochs - max(0, reached[number]) for number in numbers)
        on_epoch(done, {"expert": numbers[-1], "loss": one.result["loss"]})
    return missing
