"""Entry point: parse, run, and turn what the user can mend into one sentence and exit code 2."""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from cyclopts import CycloptsError
from cyclopts.exceptions import (
    MissingArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
    ValidationError,
)

from pseudocore.cli.console import err
from pseudocore.cli.signals import polite_stop, stop_at_once
from pseudocore.core.errors import PseudocoreError
from pseudocore.core.registry import did_you_mean

_TOO_LARGE = ("allocate", "size calculation overflowed")
"""In torch's words when memory runs out."""

_WAIT = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
"""How long a thread of torch that waits for another keeps its core busy."""


def main(tokens: Sequence[str] | None = None) -> None:
    words = list(sys.argv[1:] if tokens is None else tokens)
    if not any(name in os.environ for name in _WAIT) and _has_company():
        os.environ["GOMP_SPINCOUNT"] = "1000"  # read when torch is loaded, below
    for stream in filter(None, (sys.stdout, sys.stderr)):
        cast(Any, stream).reconfigure(
            errors="replace"
        )  # a terminal without ± or ↑ shows a question mark
    try:
        with polite_stop():
            with stop_at_once():
                from pseudocore.cli.app import make_app  # which takes a second or two: torch
            sys.exit(make_app(words)(words, exit_on_error=False, print_error=False))
    except KeyboardInterrupt:
        err.print("interrupted")
        sys.exit(130)
    except Exception as error:
        sentence = _sentence(error)
        if sentence is None:
            raise
        err.print(f"pseudocore: {sentence}")
        sys.exit(2)


def _has_company() -> bool:
    """Whether other programs are computing on this machine.

    Waiting at full speed, as torch's threads do first, then takes the very core that the awaited
    thread needs: 60 steps of VBPC on the digits took 69 s instead of 3 with one of two cores in
    use. Alone on a machine it is the faster way: the demo took 96 s instead of 155.
    """

    def running() -> int:
        time.sleep(0.005)
        return int(
            next(
                line.split()[1]
                for line in Path("/proc/stat").read_text().splitlines()
                if line.startswith("procs_running")
            )
        )

    try:
        return min(running() for _ in range(3)) > 1  # one is this
    except (OSError, StopIteration, ValueError, IndexError):  # no Linux
        return False


def _sentence(error: Exception) -> str | None:
    """What the user can mend, in one line; nothing for a fault of ours, which keeps its traceback."""
    if isinstance(error, CycloptsError):
        verb = " ".join(["pseudocore", *(error.command_chain or ())])
        return f"{_in_our_words(error)} (see {verb} --help)"
    if isinstance(error, PseudocoreError):
        return " ".join(str(error).split()).replace("per_class", "per_class (--ipc)")
    if isinstance(error, OSError):
        return f"the operating system refused: {' '.join(str(error).split())}"
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in _TOO_LARGE)
    ):
        return "there is not enough memory for this; a smaller --batch-size, --width or budget needs less"
    return None


def _in_our_words(error: CycloptsError) -> str:
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        return f"nothing here takes the word {error.unused_tokens[0]!r}"
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        name = error.argument.name
        given = error.keyword is not None or bool(error.argument.tokens)
        return f"{error.keyword or name} needs a value" if given else f"{name} is missing"
    if isinstance(error, UnknownCommandError) and error.unused_tokens and error.app is not None:
        word, known = (
            error.unused_tokens[0],
            [name for name in error.app if not name.startswith("-")],
        )
        return f"unknown command {word!r}, not one of {', '.join(known)}{did_you_mean(word, known)}"
    if isinstance(error, UnknownOptionError):
        word = (error.token.keyword or error.token.value).partition("=")[0]
        known = [name for one in error.argument_collection if one.parse for name in one.names]
        return f"unknown option {word!r}{did_you_mean(word, known)}"
    text = " ".join(str(error).split()).rstrip(".")
    if (
        isinstance(error, ValidationError)
        and error.argument is not None
        and isinstance(error.argument.value, list)
    ):
        text = text.replace(
            str(error.argument.value), ", ".join(map(str, error.argument.value))
        )  # as typed: 0, not [0]
    return text[:1].lower() + text[1:]
