"""pseudocore reduce METHOD DATA: make a coreset."""

import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter, validators

from pseudocore import api, presets
from pseudocore import assembly as setups
from pseudocore.assembly import Setup
from pseudocore.cli import flags as flagging
from pseudocore.cli.console import err, out, print_json, progress
from pseudocore.cli.flags import AtLeastOne, Device, Json, Switch, Whole
from pseudocore.core.config import options
from pseudocore.core.errors import ArtifactError, ConfigError, RunError
from pseudocore.core.problem import Problem
from pseudocore.core.registry import Entry, methods
from pseudocore.runtime import COMPILE_HELP, Compile
from pseudocore.runtime.profiling import recording
from pseudocore.store.run_folder import Run

NAME = "reduce"
USAGE = "pseudocore reduce METHOD DATA --out RUN"


def make_app(words: Sequence[str]) -> App:
    """The verb with one subcommand per method, whose fields are its flags; just the one when these
    words name it.
    """
    app = App(
        name=NAME,
        help="Make a coreset: a RUN folder with the points, the configuration and the story of how they were made.",
    )
    for entry in _asked_for(words):
        of_method = flagging.parameters(entry.make, "Method")
        of_setup = flagging.parameters(Setup, "Data and model", skip=["data"])
        usage = f"Usage: {USAGE.replace('METHOD', entry.name)} [OPTIONS]"
        app.command(
            flagging.command(_verb(entry, words), of_method, of_setup), name=entry.name, usage=usage
        )
    return app


def _asked_for(words: Sequence[str]) -> Iterable[Entry]:
    if not words or words[0] in ("--help", "-h"):
        return methods
    if words[0].startswith("-"):
        raise ConfigError(
            f"name the method first: {USAGE}; there are {', '.join(entry.name for entry in methods)}"
        )
    return [methods[words[0]]]


def _verb(entry: Entry, words: Sequence[str]) -> Callable[..., Any]:
    @recording()
    def reduce(
        data: Annotated[
            str | None, Parameter(help="Data set: a name (see `pseudocore data list`) or a path.")
        ] = None,
        /,
        *,
        out: Annotated[Path, Parameter(help="RUN folder to write.")],
        seed: Annotated[
            int | None,
            Whole,
            Parameter(help="Seed of every random stream. [default: 0]", show_default=False),
        ] = None,
        fraction: Annotated[
            float | None,
            Parameter(
                help="Budget as a share of the training set, instead of --ipc.",
                validator=validators.Number(gt=0, lte=1),
            ),
        ] = None,
        preset: Annotated[
            str | None,
            Parameter(
                help="Start from a preset, as vbpc2025/cifar10-ipc10, or from a .toml file; flags win."
            ),
        ] = None,
        resume: Annotated[
            bool, Switch, Parameter(help="Go on where an interrupted run stopped.")
        ] = False,
        overwrite: Annotated[bool, Switch, Parameter(help="Replace an existing run.")] = False,
        checkpoint_every: Annotated[
            int, AtLeastOne, Parameter(help="Steps between checkpoints.")
        ] = 1000,
        checkpoint_seconds: Annotated[
            float,
            Parameter(help="Seconds between checkpoints.", validator=validators.Number(gte=0)),
        ] = 30.0,
        device: Device = "auto",
        compile: Annotated[Compile, Parameter(help=COMPILE_HELP)] = "auto",
        json: Json = False,
        **given: Any,
    ) -> int:
        table = _merge(entry, data, seed, preset, given)
        if fraction is not None:
            _check_fraction(entry, given)
        reduction = api.Reduction.from_config(table)
        problem = setups.build(reduction.setup, device=device)
        if fraction is not None:
            share = fraction * problem.num_train / problem.num_classes
            budget = max(1, round(share))
            if share < 0.5:
                least = problem.num_classes / problem.num_train
                raise ConfigError(
                    f"--fraction {fraction:g} of {problem.num_train} points is less than one for each of {problem.num_classes} classes; "
                    f"{least:.2g} would be one of each"
                )
            reduction = api.Reduction.from_config(
                {**table, "options": {**table["options"], "per_class": budget}}
            )
        settled = api.resolved(reduction, problem)
        command = shlex.join(["pseudocore", NAME, *words])
        with Run.create(
            out, settled.to_config(), resume=resume, overwrite=overwrite, command=command
        ) as folder:
            if folder.finished:
                err.print(f"{out} is finished already; nothing to do")
                return _tell(folder, json)
            loop_options = {
                "checkpoint_every": checkpoint_every,
                "checkpoint_seconds": checkpoint_seconds,
                "compile": compile,
            }
            stopped = _carry_out(settled, problem, folder, **loop_options)
            if stopped is not None:
                folder.close()
                way_on = (
                    f"{out} holds its earlier run again"
                    if folder.was_restored
                    else f"go on with: {_resuming(words)}"
                )
                err.print(f"{stopped}; {way_on}")
                return 130
            return _tell(folder, json)

    reduce.__doc__ = entry.summary + "."
    return reduce


def _merge(
    entry: Entry, data: str | None, seed: int | None, preset: str | None, given: dict[str, Any]
) -> dict[str, Any]:
    """Defaults, then the preset, then what was typed: the command line wins."""
    table: dict[str, Any] = {
        "method": entry.name,
        "setup": {},
        "options": {},
        **(presets.read(preset) if preset else {}),
    }
    if table["method"] != entry.name:
        raise ConfigError(
            f"preset {preset!r} is for method {table['method']!r}, not {entry.name!r}"
        )
    if data is not None:
        table["data"] = data
    elif "data" not in table and "data" not in table["setup"]:
        raise ConfigError(
            f"name the data set: {USAGE}; pseudocore data list shows those found here"
        )
    if seed is not None:
        table["seed"] = seed
    table["setup"] = {**table["setup"], **flagging.given(given, Setup)}
    table["options"] = {**table["options"], **flagging.given(given, entry.make)}
    return table


def _check_fraction(entry: Entry, given: dict[str, Any]) -> None:
    if given.get("per_class") is not None:
        raise ConfigError("--ipc and --fraction exclude each other; give one of them")
    if "per_class" not in {option.name for option in options(entry.make)}:
        raise ConfigError(f"method {entry.name!r} has no budget for --fraction to set")


def _carry_out(
    reduction: api.Reduction, problem: Problem, folder: Run, **loop_options: Any
) -> str | None:
    """Run to the end; when it was stopped before that, say where."""
    name = methods.name_of(reduction.method)
    saved = folder.checkpoints.load()
    if saved:
        err.print(f"resuming at step {saved[0]}")
    try:
        with progress(
            f"{name} on {problem.data.name}",
            getattr(reduction.method, "num_steps", 0),
            saved[0] if saved else 0,
        ) as advance:
            outcome = api.run_reduction(reduction, problem, folder, on_log=advance, **loop_options)
    except KeyboardInterrupt:  # outside the loop, which would have saved
        return "interrupted"
    if outcome.note:
        err.print(outcome.note)
    if outcome.status == "diverged":
        raise RunError(
            f"{name} diverged: {outcome.reason}; the last good coreset is in {folder.path}; a smaller learning rate usually helps"
        )
    return outcome.reason if outcome.status == "interrupted" else None


def _resuming(words: Sequence[str]) -> str:
    """The command that goes on with this one's run."""
    kept = [word for word in words if word not in ("--resume", "--overwrite")]
    return shlex.join(["pseudocore", NAME, *kept, "--resume"])


def _tell(folder: Run, as_json: bool) -> int:
    facts = {
        "run": str(folder.path),
        **{
            name: folder.manifest.get(name) for name in ("status", "points", "num_steps", "seconds")
        },
    }
    if lost := [name for name, value in facts.items() if value is None]:
        raise ArtifactError(
            f"{folder.path}/manifest.json is damaged: it does not say {lost[0]}; the coreset itself can still be used"
        )
    if as_json:
        print_json(facts)
    else:
        network = str(folder.config.get("setup", {}).get("model", ""))
        named = (
            ["--model", network] if ":" in network else []
        )  # code of somebody's own, which is not run on a file's word
        following = shlex.join(["pseudocore", "evaluate", str(folder.path), *named])
        out.print(
            f"{facts['points']} points in {folder.path} after {facts['seconds']:.1f} s; next: {following}"
        )
    return 0
