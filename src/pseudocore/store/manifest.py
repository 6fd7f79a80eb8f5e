"""The manifest of a run: when, where, with what and how it ended. Names no host and no user."""

import os
import platform
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pseudocore.core.errors import ArtifactError, RunError
from pseudocore.runtime import profiling as cost
from pseudocore.store import strict_json

MANIFEST_FILE = "manifest.json"

SCHEMA = 1
"""Version of the run folder's layout; a reader refuses a later one."""

_KIND = "pseudocore run"

_KINDS: dict[str, Any] = {
    "reason": str,
    "command": str,
    "resumed": list,
    "seconds": int | float,
    "num_steps": int,
    "points": int,
    "cost": dict,
    "experts": dict,
}
"""What entries are, where they are there."""


def new_manifest(command: str = "") -> dict[str, Any]:
    """The manifest of a run that starts now."""
    return {
        "kind": _KIND,
        "schema": SCHEMA,
        "status": "running",
        "reason": "",
        "created": now(),
        "command": command,
        "versions": versions(),
        "hardware": hardware(),
    }


def is_manifest(path: Path) -> bool:
    """Whether a run of ours, of whatever version, has written this file."""
    try:
        return bool(strict_json.read(path).get("kind") == _KIND)
    except ArtifactError:
        return False


def is_anothers(path: Path) -> bool:
    """Whether something else of ours, experts for example, has written this file; one that cannot
    be read is taken for a run's.
    """
    try:
        return bool(strict_json.read(path).get("kind") != _KIND)
    except ArtifactError:
        return False


def read_manifest(path: Path) -> dict[str, Any]:
    """The checked manifest; `ArtifactError` when it is no JSON object, `RunError` when it is not a
    run's or a later one's.
    """
    manifest = strict_json.read(path)
    if manifest.get("kind") != _KIND:
        kind = manifest.get("kind")
        raise RunError(
            f"{path} is not the manifest of a run of pseudocore"
            + (f", but of {kind!r}" if isinstance(kind, str) else "")
        )
    if type(manifest.get("schema")) is not int or not isinstance(manifest.get("status"), str):
        raise RunError(f"{path} is damaged: it does not say its schema or its status")
    if manifest["schema"] > SCHEMA:
        raise RunError(
            f"{path.parent} was made by a later pseudocore (schema {manifest['schema']}, this one reads up to {SCHEMA}); upgrade to use it"
        )
    return manifest


def check_entries(manifest: dict[str, Any], path: Path) -> None:
    """Refuse a manifest whose numbers cannot be gone on with; a reader does with those that are
    there.
    """
    if wrong := [
        name
        for name, kind in _KINDS.items()
        if name in manifest and not isinstance(manifest[name], kind)
    ]:
        raise RunError(
            f"{path} is damaged: it says {wrong[0]} = {manifest[wrong[0]]!r}, which no run has written"
        )
    if type(manifest.get("experts", {}).get("num_experts", 0)) is not int:
        raise RunError(f"{path} is damaged: its experts are not what a run has written")
    try:
        cost.from_table(manifest.get("cost", {}))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise RunError(f"{path} is damaged: its cost is not what a run has written") from error


def versions() -> dict[str, str]:
    """Versions of what computes the numbers."""
    try:
        ours = metadata.version("pseudocore")
    except metadata.PackageNotFoundError:  # run from a source tree that was never installed
        ours = "not installed"
    return {
        "pseudocore": ours,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def hardware() -> str:
    """What computes, in words: `16 CPU cores, NVIDIA H200`."""
    words = [f"{os.cpu_count()} CPU cores"]
    if torch.cuda.is_available():
        words += [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return ", ".join(words)


def now() -> str:
    """The time, UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
