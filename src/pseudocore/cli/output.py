"""Results on disk and on the screen."""

import hashlib
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from pseudocore.cli.console import err
from pseudocore.store.run_folder import Run


def file_name(first: str, settings: Mapping[str, Any]) -> str:
    """A file name for results that differ in these settings; long ones end in a hash."""
    text = ".".join([first, *(f"{key}-{value}" for key, value in sorted(settings.items()))])
    name = re.sub(r"[^A-Za-z0-9._-]", "_", text)
    if len(name) <= 120 and name == text:
        return name
    return f"{name[:100]}.{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}"


def warn_of_divergence(run: Run) -> None:
    """Say that the coreset of a diverged run is the last good one, often the first."""
    if run.manifest.get("status") == "diverged":
        step = run.manifest.get("num_steps", "?")
        err.print(
            f"warning: {run.path} diverged; its coreset is that of step {step}, the last good one"
        )


def keep_and_show(show: Callable[[], object], *keep: Callable[[], object]) -> None:
    """Save, then show, each even if another fails: a full disk leaves the numbers on the screen, a
    closed screen leaves them on the disk.
    """
    with ExitStack() as calls:  # called last in, first out
        calls.callback(show)
        for one in reversed(keep):
            calls.callback(one)
