"""pseudocore reduce METHOD DATA: make a coreset."""

import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from pseudocore import api
from pseudocore import setup as setups
from pseudocore.cli import flags as flagging
from pseudocore.cli import presets
from pseudocore.cli.console import err, out, print_json, progress
from pseudocore.core.config import options
from pseudocore.core.errors import ConfigError, RunError
from pseudocore.core.problem import Problem
from pseudocore.core.registry import Entry, methods
from pseudocore.setup import Setup
from pseudocore.store.runs import Run

__all__ = ["app", "command_line"]

app = App(name="reduce", help="Make a coreset: a RUN folder with the points, the configuration and the story of how they were made.")


def register() -> None:
    """One subcommand per method, its fields as flags."""
    for entry in methods:
        of_method = flagging.parameters(entry.make, "Method")
        of_setup = flagging.parameters(Setup, "Data and model", skip=["data"])
        app.command(flagging.command(_verb(entry), of_method, of_setup), name=entry.name)


def _verb(entry: Entry) -> Callable[..., Any]:
    def reduce(
        data: Annotated[str | None, Parameter(help="Data set: a name (see `pseudocore data list`) or a path.")] = None,
        /,
        *,
        out: Annotated[Path, Parameter(help="RUN folder to write.")],
        seed: Annotated[int | None, Parameter(help="Seed of every random stream. [default: 0]", show_default=False)] = None,
        fraction: Annotated[float | None, Parameter(help="Budget as a share of the training set, instead of --ipc.")] = None,
        preset: Annotated[
            str | None, Parameter(help="Start from a preset, as vbpc2025/cifar10-ipc10, or from a .toml file; flags win.")
        ] = None,
        resume: Annotated[bool, Parameter(help="Go on where an interrupted run stopped.", negative="")] = False,
        overwrite: Annotated[bool, Parameter(help="Replace an existing run.", negative="")] = False,
        checkpoint_every: Annotated[int, Parameter(help="Steps between checkpoints.")] = 1000,
        checkpoint_seconds: Annotated[float, Parameter(help="Seconds between checkpoints.")] = 30.0,
        device: Annotated[str, Parameter(help="auto, cpu or cuda.")] = "auto",
        compile: Annotated[str, Parameter(help="auto captures steps as CUDA graphs on a GPU; off runs them eagerly.")] = "auto",
        json: Annotated[bool, Parameter(help="Print one JSON document on standard output.", negative="")] = False,
        **given: Any,
    ) -> int:
        if compile not in ("auto", "off"):
            raise ConfigError(f"--compile {compile!r} is neither auto nor off")
        table = _merge(entry, data, seed, preset, given)
        reduction = api.Reduction.from_config(table)
        problem = setups.build(reduction.setup, device=device)
        if fraction is not None:
            reduction = api.Reduction.from_config(
                {**table, "options": {**table["options"], "per_class": _per_class(fraction, problem, entry, given)}}
            )
        settled = api.resolved(reduction, problem)
        with Run.create(out, settled.to_config(), resume=resume, overwrite=overwrite, command=command_line()) as folder:
            if folder.finished:
                err.print(f"{out} is finished already; nothing to do")
                return 0
            return _carry_out(
                settled,
                problem,
                folder,
                json,
                checkpoint_every=checkpoint_every,
                checkpoint_seconds=checkpoint_seconds,
                compile=compile,
            )

    reduce.__doc__ = entry.summary + "."
    return reduce


def command_line() -> str:
    """This very command, as one could type it again."""
    return shlex.join(["pseudocore", *sys.argv[1:]])


def _carry_out(reduction: api.Reduction, problem: Problem, folder: Run, as_json: bool, **loop_options: Any) -> int:
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # a cluster's polite stop saves like Ctrl-C
    name = methods.name_of(reduction.method)
    saved = folder.checkpoints.load()
    if saved:
        err.print(f"resuming at step {saved[0]}")
    with progress(f"{name} on {problem.data.name}", getattr(reduction.method, "num_steps", 0), saved[0] if saved else 0) as advance:
        outcome = api.run_reduction(reduction, problem, folder, on_log=advance, **loop_options)
    if outcome.note:
        err.print(outcome.note)
    if outcome.status == "interrupted":
        err.print(f"{outcome.reason}; go on with: {command_line()}{'' if '--resume' in sys.argv else ' --resume'}")
        return 130
    if outcome.status == "diverged":
        raise RunError(
            f"{name} diverged: {outcome.reason}; the last good coreset is in {folder.path}; a smaller learning rate usually helps"
        )
    coreset = outcome.coreset
    if as_json:
        print_json(
            {
                "run": str(folder.path),
                "status": outcome.status,
                "points": len(coreset),
                "num_steps": outcome.num_steps,
                "seconds": outcome.seconds,
            }
        )
    else:
        out.print(f"{len(coreset)} points in {folder.path} after {outcome.seconds:.1f} s; next: pseudocore evaluate {folder.path}")
    return 0


def _merge(entry: Entry, data: str | None, seed: int | None, preset: str | None, given: dict[str, Any]) -> dict[str, Any]:
    """Defaults, then the preset, then what was typed: the command line wins."""
    table: dict[str, Any] = {"method": entry.name, "setup": {}, "options": {}, **(presets.read(preset) if preset else {})}
    if table["method"] != entry.name:
        raise ConfigError(f"preset {preset!r} is for method {table['method']!r}, not {entry.name!r}")
    if data is None and "data" not in table:
        raise ConfigError("name the data set: pseudocore reduce METHOD DATA --out RUN")
    table["data"] = data if data is not None else table["data"]
    table["seed"] = seed if seed is not None else table.get("seed", 0)
    table["setup"] = {**table["setup"], **flagging.given(given, Setup)}
    table["options"] = {**table["options"], **flagging.given(given, entry.make)}
    return table


def _per_class(fraction: float, problem: Problem, entry: Entry, given: dict[str, Any]) -> int:
    if given.get("per_class") is not None:
        raise ConfigError("--ipc and --fraction exclude each other; give one of them")
    if "per_class" not in {option.name for option in options(entry.make)}:
        raise ConfigError(f"method {entry.name!r} has no budget to set")
    if not 0 < fraction <= 1:
        raise ConfigError(f"--fraction {fraction} must be above 0 and at most 1")
    return max(1, round(fraction * problem.num_train / problem.num_classes))
