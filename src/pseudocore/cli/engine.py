"""Flags of where work runs, and `pseudocore engine status`: how far the work in a folder is."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from cyclopts import App

from pseudocore import engine as engines
from pseudocore.cli import flags as flagging
from pseudocore.cli.console import hint, out, print_json
from pseudocore.cli.flags import Json
from pseudocore.core.config import Count
from pseudocore.core.errors import ConfigError
from pseudocore.engine.settings import KINDS, num_cores
from pseudocore.workflows.on_engine import FOLDER

engine = App(name="engine")


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Where work runs."""

    engine: engines.Kind | None = None
    """Run by workers: local processes, a Ray cluster, or Slurm jobs by submitit. Defaults to this
    process."""
    engine_address: str | None = None
    """ray: the cluster, as auto or HOST:6379; submitit: slurm, slurm:PARTITION or local."""
    workers: Count | None = None
    """Workers at once. Defaults to all that fit."""
    cores: Count = 1
    """Cores, and threads, of each worker; results of other numbers differ in last bits."""


def parameters() -> list[inspect.Parameter]:
    """The flags of a verb that can use an engine."""
    return flagging.parameters(Flags, "Engine")


def chosen(given: Mapping[str, Any], device: str) -> engines.Engine | None:
    """The engine that flags ask for."""
    flags = flagging.given(given, Flags)
    kind = flags.get("engine")
    if kind is None:
        if unused := [f"--{name.replace('_', '-')}" for name in flags]:
            text = f"{' and '.join(unused)} need --engine local, ray or submitit"
            raise ConfigError(text, code="unused-option", options=unused)
        return None
    address, workers = flags.get("engine_address"), flags.get("workers")
    alone = engines.Engine(kind=kind, address=address, workers=workers).on(device)
    assert alone.resources is not None
    resources = replace(alone.resources, cores=flags.get("cores", 1))
    return replace(alone, resources=resources)


@engine.command
def status(folder: Path | None = None, /, *, json: Json = False) -> int:
    """How far the work of an engine is; without FOLDER, which engines there are.

    Args:
        folder: The --out of the command that was given --engine.
    """
    if folder is None:
        return _list(json)
    inner = folder / FOLDER
    found = engines.status(inner if inner.is_dir() else folder)
    if json:
        print_json(found._asdict())
        return 0
    left = max(0, found.total - found.done - found.running - found.failed)
    parts = [f"{found.done} of {found.total} done", f"{found.running} running", f"{left} waiting"]
    if found.failed:
        parts.append(f"{found.failed} failed")
    if found.restarted:
        parts.append(f"{found.restarted} begun more than once")
    out.print(f"{found.task} by {found.engine}: {', '.join(parts)}")
    for text in dict.fromkeys(found.errors):
        out.print(f"failed: {text}")
    if found.interrupted and not found.running:
        hint("to resume what was interrupted, run the same command again")
    return 0


def _list(as_json: bool) -> int:
    gpus = torch.cuda.device_count()
    found = {kind: kind == "local" or find_spec(kind) is not None for kind in KINDS}
    if as_json:
        print_json({"engines": found, "cores": num_cores(), "gpus": gpus})
        return 0
    for kind, is_here in found.items():
        what = f'not installed: pip install "pseudocore[{kind}]"'
        if kind == "local":
            what = f"{num_cores()} cores, {gpus} GPUs"
        elif is_here:
            what = "installed"
        out.print(f"{kind:<9} {what}")
    return 0
