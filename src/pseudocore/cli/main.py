"""Entry point: parse, run, and turn errors a user can fix into one sentence and exit code 2."""

import io
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from cyclopts import App

from pseudocore import __version__
from pseudocore.cli.console import err
from pseudocore.cli.sentences import sentence_of
from pseudocore.core.errors import ConfigError
from pseudocore.core.registry import methods
from pseudocore.runtime.stopping import is_shielded
from pseudocore.workflows.progress import is_verbose, parts, set_verbosity

VERBS = {
    "demo": "Compare coresets of the built-in digits by uniform, FRePo and VBPC with all of them.",
    "methods": "List methods by kind, and inferences; --json adds papers.",
    "presets": "List presets; with NAME, print one: its cell, settings and protocols.",
    "data": "Data sets: list, info NAME, import SRC NAME.",
    "experts": "Train networks on all of DATA and save every epoch, for trajectory matching.",
    "reduce": "Make a coreset: a RUN folder with points, configuration and provenance.",
    "evaluate": "Fit --inference on the coreset of a RUN or file and predict the test set: mean ± "
    "sd over fresh networks.",
    "fidelity": "How far predictions from the coreset of a RUN or file are from those of inference on "
    "all its data: KL, total variation, agreement, each beside its floor.",
    "adopt": "Turn somebody's distilled set, FILE, of DATA into a coreset file: .pt, .npz or pictures.",
    "rank": "Score a RUN or a coreset file as DD-Ranking does, with the effect of soft labels and of "
    "augmentation taken out.",
    "size": "Find the smallest coreset of DATA whose predictions stay --within a KL of inference on "
    "all of it, over methods and budgets.",
    "continual": "Class-incremental learning: reduce each stage's classes as RUN did, fit the "
    "memory alone, test on all classes seen so far.",
    "testbed": "Run divergence methods on a Gaussian location model, where reverse KL, forward KL "
    "and W₂ to the full posterior are exact.",
    "bench": "Time a step of every method and of its parts on noise, next to plain loops and this "
    "machine's peak; and how cost grows.",
    "table": "Fill a published table, or our own (digits), cell by cell from presets; print our "
    "numbers next to theirs. Without NAME: list the tables.",
    "engine": "How far the work of --engine is, and which engines there are.",
    "completion": "Complete verbs, methods and flags in a shell: install, or show the script.",
    "cache": "What is kept between runs (networks, references, features): info, clear.",
    "compare": "Tabulate evaluated runs; runs that differ only in their seed share a row.",
    "report": "Write one HTML page: pictures, labels, curves, calibration, comparison, commands.",
    "export": "Copy the coreset of a RUN or file into a format other programs read.",
}
"""Verbs and their help; the module of a verb is imported only when the verb is called."""

_FIXED = {name: name for name in ("demo", "presets", "cache", "engine")} | dict.fromkeys(
    ("methods", "data", "compare", "report", "export"), "listings"
)
"""Modules of the verbs whose flags do not depend on other words; the other verbs have `make_app`
in a module of their own.
"""

_STOPS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGXCPU", "SIGUSR1")
    if hasattr(signal, name)
)
"""Signals that save and end: from a person, a closed terminal, a scheduler."""

_STOPPED = 130
"""The exit code after a stop."""

_GRACE = 2.0
"""Seconds after a stop in which further ones are taken for the same."""

_SPIN_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
"""Environment variables that decide how long a waiting thread of torch keeps its core busy."""


def main(tokens: Sequence[str] | None = None) -> None:
    """Run one command line and exit; `tokens` default to those of the process."""
    words = list(sys.argv[1:] if tokens is None else tokens)
    if "--no-lock" in words:
        os.environ["PSEUDOCORE_NO_LOCK"] = "1"  # every verb's, and for its child processes too
        words = [word for word in words if word != "--no-lock"]
    words = _with_verbosity(_with_data_limit(words))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ± or ↑ shows a question mark
    code = _run(words)
    if tokens is None and code == _STOPPED:  # another stop would kill Python as it shuts down
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _with_data_limit(words: list[str]) -> list[str]:
    """The words without `--data-limit GIB`, which every verb has, also for its child processes."""
    rest, found = [], iter(words)
    for word in found:
        if word == "--data-limit":
            os.environ["PSEUDOCORE_DATA_LIMIT"] = next(found, "nothing")
        elif word.startswith("--data-limit="):
            os.environ["PSEUDOCORE_DATA_LIMIT"] = word.partition("=")[2] or "nothing"
        else:
            rest.append(word)
    return rest


def _with_verbosity(words: list[str]) -> list[str]:
    """The words without `--quiet` and `--verbose`, which every verb has."""
    level = next((word for word in ("--quiet", "--verbose") if word in words), "")
    set_verbosity(level.removeprefix("--"))
    return [word for word in words if word not in ("--quiet", "--verbose")]


def _run(words: Sequence[str]) -> Any:
    """Run one command line; its exit code."""
    with on_stop(interrupt_once()), warnings.catch_warnings():
        warnings.showwarning = _print_once()
        try:
            with on_stop(exit_now):
                app = make_app(words)  # may import torch, which takes a second or two
            with parts():
                return app(words, exit_on_error=False, print_error=False)
        except KeyboardInterrupt:
            err.print("interrupted")
            return _STOPPED
        except Exception as error:
            sentence = sentence_of(error)
            if sentence is None:
                raise
            if is_verbose():
                traceback.print_exc()
            err.print(f"pseudocore: {sentence}")
            return 2


def exit_now(*_: Any) -> None:
    """A handler for the time libraries are imported: there is nothing to save, and an import may
    swallow an exception.
    """
    os.write(2, b"interrupted\n")
    os._exit(130)


def interrupt_once() -> Callable[..., None]:
    """A handler that does what Ctrl-C does; pressing it again right away, or however late while
    a run is being saved, does not disturb the saving.
    """
    last = -_GRACE

    def handle(*_: Any) -> None:
        nonlocal last
        since, last = time.monotonic() - last, time.monotonic()
        if since >= _GRACE and not is_shielded():
            raise KeyboardInterrupt

    return handle


@contextmanager
def on_stop(handler: Any) -> Iterator[None]:
    """Handle the signals that stop, unless they are ignored, as SIGINT is in the background."""
    heeded = [number for number in _STOPS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heeded}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _print_once() -> Callable[..., None]:
    """A `warnings.showwarning` that prints each message once, in one line."""
    shown = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) not in shown:
            shown.add(str(message))
            err.print(f"warning: {message}")

    return show


def make_app(words: Sequence[str]) -> App:
    """The command line; the flags of the verb in `words` may depend on the other words."""
    app = bare_app()
    called = next((word for word in words if not word.startswith("-")), "")
    for verb, text in VERBS.items():
        loaded = load(verb, words[words.index(verb) + 1 :]) if verb == called else App(name=verb)
        loaded.help = text
        app.command(loaded)
    return app


def bare_app() -> App:
    """The command line without verbs."""
    return App(
        name="pseudocore",
        help="Turns a training set into a tiny one that carries its posterior. Every verb takes "
        "--quiet, --verbose, --no-lock and --data-limit GIB, too.",
        version=__version__,
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )


def load(verb: str, words: Sequence[str]) -> App:
    """A verb with its flags: this imports its module."""
    if verb == "reduce" and (not words or words[0].startswith("-")):
        return _list_methods(words)
    if not any(name in os.environ for name in _SPIN_VARIABLES) and _others_are_computing():
        os.environ["GOMP_SPINCOUNT"] = "1000"  # torch reads it when it is loaded
    if verb not in _FIXED:
        app: App = import_module(f"pseudocore.cli.{verb}").make_app(words)
        return app
    function = getattr(import_module(f"pseudocore.cli.{_FIXED[verb]}"), verb)
    if isinstance(function, App):
        return function
    app = App(name=verb)
    app.default(function)
    return app


def _list_methods(words: Sequence[str]) -> App:
    """`reduce` without a method: its help lists the methods."""
    if words and words[0] not in ("--help", "-h"):
        raise ConfigError(
            "name the method first: pseudocore reduce METHOD DATA --out RUN; methods are "
            f"{', '.join(methods.names())}",
            code="missing-method",
        )
    app = App(name="reduce", usage="Usage: pseudocore reduce METHOD DATA --out RUN [OPTIONS]")
    for entry in methods:
        app.command(App(name=entry.name, help=f"{entry.summary}."))
    return app


def _others_are_computing() -> bool:
    """Whether other programs are running on this machine.

    Torch's waiting threads first spin, which takes the very core that the awaited thread needs:
    60 steps of VBPC on the digits took 69 s instead of 3 with one of two cores in use. Alone on a
    machine spinning is faster: the demo took 96 s instead of 155.
    """

    def num_running() -> int:
        time.sleep(0.005)
        lines = Path("/proc/stat").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("procs_running")))

    try:
        return min(num_running() for _ in range(3)) > 1  # this process is one
    except (OSError, StopIteration, ValueError, IndexError):  # not Linux
        return False
