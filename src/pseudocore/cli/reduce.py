"""`pseudocore reduce METHOD DATA`: make a coreset."""

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter, validators

from pseudocore import loggers
from pseudocore.assembly import Reduction, Setup, build
from pseudocore.assembly.presets import read as read_preset
from pseudocore.cli import engine
from pseudocore.cli import flags as flagging
from pseudocore.cli.console import err, hint, out, print_json, progress
from pseudocore.cli.flags import AtLeastOne, CompileMode, Device, Json, Switch, Whole
from pseudocore.core.errors import ArtifactError, ConfigError, RunError
from pseudocore.core.problem import Problem
from pseudocore.core.registry import Entry, methods
from pseudocore.core.types import Iterative
from pseudocore.runtime.loop import Outcome
from pseudocore.runtime.profiling import recording
from pseudocore.store.run_folder import Run
from pseudocore.workflows.reduction import (
    OnLog,
    check_engine,
    configuration,
    resolved,
    run_reduction,
)

NAME = "reduce"


def make_app(words: Sequence[str]) -> App:
    """The verb with one subcommand: the method that `words` name, whose fields are its flags."""
    entry = methods[words[0]]
    of_method = flagging.parameters(entry.make, "Method")
    of_setup = flagging.parameters(Setup, "Data and model", skip=["data"])
    app = App(name=NAME)
    app.command(
        flagging.extend(_verb(entry, words), [*of_method, *of_setup, *engine.parameters()]),
        name=entry.name,
        help=f"{entry.summary}.",
        usage=f"Usage: pseudocore reduce {entry.name} DATA --out RUN [OPTIONS]",
    )
    return app


def _verb(entry: Entry, words: Sequence[str]) -> Callable[..., Any]:
    def reduce(
        data: str | None = None,
        /,
        *,
        out: Path,
        seed: Annotated[int | None, Whole] = None,
        preset: str | None = None,
        resume: Annotated[bool, Switch] = False,
        overwrite: Annotated[bool, Switch] = False,
        yes: Annotated[bool, Switch] = False,
        checkpoint_every: Annotated[int, AtLeastOne] = 1000,
        checkpoint_seconds: Annotated[float, Parameter(validator=validators.Number(gte=0))] = 30.0,
        shard_size: Annotated[int | None, AtLeastOne] = None,
        device: Device = "auto",
        compile: CompileMode = "auto",
        log: Annotated[list[loggers.Name] | None, Parameter(negative="")] = None,
        json: Json = False,
        **given: Any,
    ) -> int:
        """Make a coreset by this method.

        Args:
            data: Data set: a name (see `pseudocore data list`) or a path.
            out: RUN folder to write.
            seed: Seed of every random stream. [default: 0]
            preset: Preset to start from, as vbpc2025/cifar10-ipc10, or a .toml file; flags
                override it.
            resume: Continue an interrupted run.
            overwrite: Replace an existing run.
            yes: Use a preset on other data than its own without being asked.
            checkpoint_every: Steps between checkpoints.
            checkpoint_seconds: Seconds between checkpoints.
            shard_size: Examples of a shard: select in two rounds, with one shard in memory at a time.
            log: Also log the metrics of steps to this program, below RUN; repeat for several.
        """
        loggers.check(log or ())
        workers = engine.chosen(given, device)
        table = _table(entry, data, seed, preset, given)
        if preset is not None and data is not None and not (yes or resume):
            _confirm(preset, data)
        with recording():
            reduction = Reduction.from_config(table)
            reduction = replace(reduction, shard_size=shard_size or reduction.shard_size)
            check_engine(reduction, workers)
            problem = build(reduction.setup, device=device)
            reduction = resolved(reduction, problem)
            for note in problem.dataset.notes:
                hint(f"note: {note}")
            with Run.create(
                out,
                reduction.to_config(),
                resume=resume,
                overwrite=overwrite,
                command=shlex.join(["pseudocore", NAME, *words]),
            ) as folder:
                if folder.finished:
                    err.print(f"{out} is finished already; nothing to do")
                    return _show(folder, json)
                try:
                    with _progress(reduction, problem, folder, log or ()) as on_log:
                        outcome = run_reduction(
                            reduction,
                            problem,
                            folder,
                            engine=workers,
                            on_log=on_log,
                            checkpoint_every=checkpoint_every,
                            checkpoint_seconds=checkpoint_seconds,
                            compile=compile,
                        )
                    interruption = _interruption(outcome, entry.name, folder)
                except KeyboardInterrupt:  # outside the loop, which would have saved
                    interruption = "interrupted"
                if not interruption:
                    return _show(folder, json)
                folder.close()
                next_step = (
                    f"{out} holds its earlier run again"
                    if folder.was_restored
                    else f"resume with: {_resuming(words)}"
                )
                err.print(f"{interruption}; {next_step}")
                return 130

    return reduce


def _table(
    entry: Entry, data: str | None, seed: int | None, preset: str | None, given: dict[str, Any]
) -> dict[str, Any]:
    """The configuration: defaults, then the preset, then flags."""
    setup = flagging.given(given, Setup) | ({} if data is None else {"data": data})
    options = flagging.given(given, entry.make)
    table = configuration(entry.name, preset, setup, options, seed)
    if "data" not in table and "data" not in table["setup"]:
        raise ConfigError(
            f"name the data set: pseudocore reduce {entry.name} DATA --out RUN; "
            "pseudocore data list shows those found here",
            code="missing-data",
        )
    return table


def _confirm(preset: str, data: str) -> None:
    """Ask before settings that were chosen for other data are used, which may take hours."""
    tables = read_preset(preset)
    meant = Path(tables.get("data") or tables.get("setup", {}).get("data", data)).stem
    if meant == Path(data).stem:
        return
    answer = ""
    if sys.stdin is not None and sys.stdin.isatty():
        try:
            question = f"preset {preset} is for {meant}; use it on {data}? [y/N] "
            answer = err.input(question, markup=False, emoji=False)
        except EOFError:
            answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise ConfigError(
            f"preset {preset!r} is for {meant}, not {data}; --yes uses it all the same",
            code="preset-of-other-data",
            preset=preset,
            data=meant,
        )


@contextmanager
def _progress(
    reduction: Reduction, problem: Problem, folder: Run, names: Sequence[loggers.Name]
) -> Iterator[OnLog]:
    """A progress bar and the loggers of these names, called as one."""
    method, saved = reduction.method, folder.checkpoints.load()
    first_step = saved[0] if saved else 0
    if saved:
        err.print(f"resuming at step {first_step}")
    num_steps = method.num_steps if isinstance(method, Iterative) else 0
    title, config = f"{methods.name_of(method)} on {problem.data.name}", reduction.to_config()
    with (
        loggers.opened(
            names, folder.path, config=config, first_step=first_step, said=err.print
        ) as log,
        progress(title, num_steps, first_step) as advance,
    ):

        def on_log(step: int, values: dict[str, float]) -> None:
            advance(step, values)
            log(step, values)

        yield on_log


def _interruption(outcome: Outcome, name: str, folder: Run) -> str:
    """Where the run was interrupted, or ""."""
    if outcome.note:
        err.print(outcome.note)
    if outcome.status == "diverged":
        raise RunError(
            f"{name} diverged: {outcome.reason}; the last good coreset is in {folder.path}; "
            "a smaller learning rate usually helps",
            code="diverged",
            method=name,
            reason=outcome.reason,
        )
    return outcome.reason if outcome.status == "interrupted" else ""


def _resuming(words: Sequence[str]) -> str:
    """The command that resumes this one's run."""
    kept = [word for word in words if word not in ("--resume", "--overwrite")]
    return shlex.join(["pseudocore", NAME, *kept, "--resume"])


def _show(folder: Run, as_json: bool) -> int:
    names = ("status", "points", "num_steps", "seconds")
    facts = {"run": str(folder.path)} | {name: folder.manifest.get(name) for name in names}
    if lost := [name for name, value in facts.items() if value is None]:
        raise ArtifactError(
            f"{folder.path}/manifest.json is damaged: it has no {lost[0]}; "
            "the coreset itself can still be used",
            code="damaged-manifest",
            path=folder.path,
            missing=lost,
        )
    if as_json:
        print_json(facts)
        return 0
    network = str(folder.config.get("setup", {}).get("model", ""))
    # Code from outside this package runs only when it is named.
    named = ["--model", network] if ":" in network else []
    following = shlex.join(["pseudocore", "evaluate", str(folder.path), *named])
    out.print(
        f"{facts['points']} points in {folder.path} after {facts['seconds']:.1f} s; "
        f"next: {following}"
    )
    return 0
