"""`pseudocore completion`: a script by which a shell completes verbs, methods and flags."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from cyclopts import App
from cyclopts.completion.detect import ShellDetectionError

from pseudocore.cli.console import hint, out
from pseudocore.core.errors import ConfigError
from pseudocore.core.registry import methods

Shell = Literal["bash", "zsh", "fish"]


def make_app(words: Sequence[str]) -> App:
    """The verb."""
    app = App(name="completion")
    app.command(show)
    app.command(install)
    return app


def show(shell: Shell, /) -> int:
    """Print the script.

    Args:
        shell: bash, zsh or fish.
    """
    out.print(_whole().generate_completion(shell=shell), end="")
    return 0


def install(shell: Shell | None = None, /, *, path: Path | None = None) -> int:
    """Write the script where the shell looks for it, and load it from the shell's start-up file.

    Args:
        shell: bash, zsh or fish. Defaults to the one this runs in.
        path: Write this file and leave the start-up file alone.
    """
    try:
        where = _whole().install_completion(shell=shell, output=path, add_to_startup=path is None)
    except ShellDetectionError as error:
        message = "the shell could not be told; name it: pseudocore completion install bash"
        raise ConfigError(message, code="unknown-shell") from error
    hint(f"completion is in {where}; a new shell has it")
    return 0


def _whole() -> App:
    """The command line with the flags of every verb, and of every method after `reduce`."""
    from pseudocore.cli import main

    app = main.bare_app()
    for verb, text in main.VERBS.items():
        loaded = App(name=verb) if verb == "reduce" else main.load(verb, [])
        if verb == "reduce":
            for entry in methods:
                loaded.command(main.load(verb, [entry.name])[entry.name], name=entry.name)
        loaded.help = text
        app.command(loaded)
    return app
