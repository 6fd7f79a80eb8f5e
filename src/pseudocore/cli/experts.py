"""pseudocore experts DATA: train the networks that trajectory methods learn from."""

import shlex
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from pseudocore import api
from pseudocore.assembly import Setup
from pseudocore.cli import flags as flagging
from pseudocore.cli.console import err, out, print_json, progress
from pseudocore.cli.flags import AtLeastOne, Device, Json, Switch, Whole
from pseudocore.evaluation.names import format_metric
from pseudocore.runtime import COMPILE_HELP, Compile
from pseudocore.store.expert_folder import Storage
from pseudocore.training.experts import Training

NAME = "experts"


def make_app(words: Sequence[str]) -> App:
    """The verb with the flags of the setup and of training."""
    of_training = flagging.parameters(Training, "Training")
    of_setup = flagging.parameters(Setup, "Data and model", skip=["data", "experts", "prior_scale"])
    return flagging.verb(NAME, _verb(words), [*of_training, *of_setup])


def _verb(words: Sequence[str]) -> Callable[..., Any]:
    def experts(
        data: Annotated[
            str, Parameter(help="Data set: a name (see `pseudocore data list`) or a path.")
        ],
        /,
        *,
        out: Annotated[
            Path,
            Parameter(
                help="Folder to fill; experts in it that were trained alike are kept and trained on."
            ),
        ],
        num: Annotated[int, AtLeastOne, Parameter(help="Experts to have in the end.")] = 20,
        epochs: Annotated[
            int,
            AtLeastOne,
            Parameter(help="Epochs to train each for; a method says how many it needs."),
        ] = 22,
        seed: Annotated[int, Whole, Parameter(help="Seed of every random stream.")] = 0,
        storage: Annotated[Storage, Parameter(help="Type snapshots are stored in.")] = "float32",
        group: Annotated[
            int | None,
            AtLeastOne,
            Parameter(
                help="Experts trained in one batched pass; unless told, as many as is fastest."
            ),
        ] = None,
        overwrite: Annotated[
            bool, Switch, Parameter(help="Replace the experts in the folder.")
        ] = False,
        device: Device = "auto",
        compile: Annotated[Compile, Parameter(help=COMPILE_HELP)] = "auto",
        json: Json = False,
        **given: Any,
    ) -> int:
        options = {**flagging.given(given, Setup), **flagging.given(given, Training)}
        command = shlex.join(["pseudocore", NAME, *words])
        try:
            with ExitStack() as bar:
                shown: dict[str, Any] = {}

                def on_start(done: int, total: int) -> None:
                    shown["advance"] = bar.enter_context(
                        progress(f"experts on {data}", total, done)
                    )

                facts = api.train_experts(
                    data, out=out, num=num, epochs=epochs, seed=seed, storage=storage, group=group, device=device, compile=compile,
                    overwrite=overwrite, command=command, on_start=on_start, on_epoch=lambda *news: shown["advance"](*news), **options,
                )  # fmt: skip
        except KeyboardInterrupt:
            kept = [word for word in words if word != "--overwrite"]
            err.print(
                f"interrupted; what was trained is kept, go on with: {shlex.join(['pseudocore', NAME, *kept])}"
            )
            return 130
        _tell(facts, json, _to_repeat(options))
        return 0

    return experts


def _to_repeat(options: dict[str, Any]) -> list[str]:
    """The words of a setup that a reduction must repeat to learn from these experts."""
    told = {
        name: options.get(name)
        for name in ("model", "width", "depth", "norm", "preprocess", "augment")
    }
    return [
        word
        for name, value in told.items()
        if value is not None
        for word in (f"--{name}", str(value))
    ]


def _tell(facts: dict[str, Any], as_json: bool, setup: list[str]) -> None:
    if as_json:
        print_json(facts)
        return
    scores = "  ".join(
        f"{name.replace('_', ' ')} {format_metric(**facts[name])}"
        for name in ("train_loss", "accuracy")
    )
    speed = (
        f", {facts['images_per_second']:,} images/s"
        if facts["trained_epochs"]
        else ", nothing was missing"
    )
    size = f"{facts['num_experts']} experts of {facts['num_epochs']} epochs in {facts['experts']} ({facts['bytes'] / 2**20:.1f} MiB)"
    out.print(f"{size}  {scores}  ({facts['seconds']:.1f} s{speed})")
    following = shlex.join(["--experts", facts["experts"], *setup, "--out", "RUN"])
    err.print(f"next: pseudocore reduce METHOD DATA {following}")
