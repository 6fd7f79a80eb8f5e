"""Results on disk and on the screen: under names of their own, and kept before they are shown."""

import hashlib
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from pseudocore.cli.console import err
from pseudocore.store.run_folder import Run


def file_name(first: str, settings: Mapping[str, Any]) -> str:
    """A name of its own for every way of evaluating, so that none overwrites another."""
    text = ".".join([first, *(f"{key}-{value}" for key, value in sorted(settings.items()))])
    name = re.sub(r"[^A-Za-z0-9._-]", "_", text)
    if len(name) <= 120 and name == text:
        return name
    return f"{name[:100]}.{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}"


def warn_of_divergence(run: Run) -> None:
    """A run that diverged has a coreset, too: the last good one, often the first."""
    if run.manifest.get("status") == "diverged":
        err.print(
            f"warning: {run.path} diverged; its coreset is that of step {run.manifest.get('num_steps', '?')}, the last good one"
        )


def keep_and_show(show: Callable[[], object], *keep: Callable[[], object]) -> None:
    """All of them, whichever fails: a full disk leaves the numbers on the screen, a closed screen
    leaves them on the disk.
    """
    with ExitStack() as calls:  # the last one in is the first to be called
        calls.callback(show)
        for one in reversed(keep):
            calls.callback(one)
