"""`pseudocore experts`: train the networks that trajectory methods learn from."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App

from pseudocore import api
from pseudocore.assembly import PRIOR_FIELDS, Setup
from pseudocore.cli import engine
from pseudocore.cli import flags as flagging
from pseudocore.cli.console import err, hint, out, print_json
from pseudocore.cli.flags import AtLeastOne, CompileMode, Device, Json, Switch, Whole
from pseudocore.evaluation.names import format_metric
from pseudocore.store.expert_folder import Storage
from pseudocore.training.experts import Training

NAME = "experts"
_REPEATED = ("model", "width", "depth", "norm", "preprocess", "augment")
"""Setup fields that a reduction must share with its experts."""


def make_app(words: Sequence[str]) -> App:
    """The verb with the flags of the setup and of training."""
    of_training = flagging.parameters(Training, "Training")
    of_setup = flagging.parameters(Setup, "Data and model", skip=["data", "experts", *PRIOR_FIELDS])
    more = [*engine.parameters(), *of_training, *of_setup]
    return flagging.verb(NAME, _verb(words), more)


def _verb(words: Sequence[str]) -> Callable[..., Any]:
    def experts(
        data: str,
        /,
        *,
        out: Path,
        num: Annotated[int, AtLeastOne] = 20,
        epochs: Annotated[int, AtLeastOne] = 22,
        seed: Annotated[int, Whole] = 0,
        storage: Storage = "float32",
        group: Annotated[int | None, AtLeastOne] = None,
        overwrite: Annotated[bool, Switch] = False,
        device: Device = "auto",
        compile: CompileMode = "auto",
        json: Json = False,
        **given: Any,
    ) -> int:
        """Train networks on all of DATA and keep them at every epoch, for methods that learn from
        their trajectories.

        Args:
            data: Data set: a name (see `pseudocore data list`) or a path.
            out: Folder for the experts; those in it that were trained alike are kept and trained
                further.
            num: Number of experts.
            epochs: Epochs to train each for; a method says how many it needs.
            seed: Seed of every random stream.
            storage: Type snapshots are stored in.
            group: Experts trained in one batched pass. Defaults to the fastest number.
            overwrite: Replace the experts in the folder.
        """
        options = {**flagging.given(given, Setup), **flagging.given(given, Training)}
        try:
            facts = api.train_experts(
                data,
                out=out,
                num=num,
                epochs=epochs,
                seed=seed,
                storage=storage,
                group=group,
                device=device,
                compile=compile,
                engine=engine.chosen(given, device),
                overwrite=overwrite,
                command=shlex.join(["pseudocore", NAME, *words]),
                progress=True,
                **options,
            )
        except KeyboardInterrupt:
            kept = shlex.join(["pseudocore", NAME, *(one for one in words if one != "--overwrite")])
            err.print(f"interrupted; what was trained is kept, resume with: {kept}")
            return 130
        if json:
            print_json(facts)
        else:
            _show(facts, options)
        return 0

    return experts


def _show(facts: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    size = f"{facts['num_experts']} experts of {facts['num_epochs']} epochs in {facts['experts']}"
    scores = (
        f"{name.replace('_', ' ')} {format_metric(**facts[name])}"
        for name in ("train_loss", "accuracy")
    )
    has_trained = facts["trained_epochs"] > 0
    speed = f"{facts['images_per_second']:,} images/s" if has_trained else "nothing was missing"
    mib = facts["bytes"] / 2**20
    out.print(f"{size} ({mib:.1f} MiB)  {'  '.join(scores)}  ({facts['seconds']:.1f} s, {speed})")
    shared = [
        word
        for name in _REPEATED
        if options.get(name) is not None
        for word in (f"--{name}", str(options[name]))
    ]
    following = shlex.join(["--experts", facts["experts"], *shared, "--out", "RUN"])
    hint(f"next: pseudocore reduce METHOD DATA {following}")
