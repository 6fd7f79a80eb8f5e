"""One item of work: what it is, the folder it is kept in, and how a worker runs it.

FOLDER/tasks/DIGEST holds:

- item.json: task, config, seed, and how often it was begun;
- result.json: the result, once there is one;
- error.json: what was raised, where something was;
- what the task leaves there to resume from.
"""

import contextlib
import functools
import hashlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from pseudocore.core import errors
from pseudocore.core.errors import ArtifactError, ConfigError, PseudocoreError, RunError
from pseudocore.store.files import decode_json, encode_json, read_json, write_json, writing
from pseudocore.store.folders import Lock, versions

Task = Callable[[Mapping[str, Any], int, Path], Any]
"""A pure function of (config, seed, folder) at the top of a module; its result is a JSON value. It
may keep checkpoints in the folder, and resumes from them when it is called again.
"""

TASKS, ITEM, RESULT, ERROR = "tasks", "item.json", "result.json", "error.json"

_PASSED_ON = "PSEUDOCORE_"
"""Begins the names of environment variables that workers take over."""


@dataclass(frozen=True)
class Item:
    """What one call of a task is of."""

    config: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0


@dataclass(frozen=True)
class Done:
    """An item and its result."""

    item: Item
    result: Any


class WorkerDiedError(RunError):
    """A worker died more often than an item is tried again."""

    code = "worker-died"


@dataclass(frozen=True)
class Call:
    """A call that can be sent anywhere: plain texts and numbers."""

    task: str
    """`package.module:function`."""
    config: str
    """JSON."""
    seed: int
    folder: str
    cores: int
    environment: tuple[tuple[str, str], ...]
    cwd: str
    """Where relative paths begin."""
    path: tuple[str, ...]
    """Where modules are found."""

    def to_json(self) -> str:
        return encode_json(self.__dict__)

    @classmethod
    def from_json(cls, text: str) -> "Call":
        values = decode_json(text)
        values["environment"] = tuple(map(tuple, values["environment"]))
        return cls(**{**values, "path": tuple(values["path"])})


def call_of(task: Task, item: Item, folder: Path, cores: int) -> Call:
    """The call of a task for an item, in a folder of its own."""
    name, text = name_of(task), encode_json(item.config, sort_keys=True)
    what = f"{name}\n{text}\n{item.seed}\n{_versions()}"  # a later version may compute otherwise
    digest = hashlib.blake2b(what.encode(), digest_size=10).hexdigest()
    kept = {name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON)}
    kept["PSEUDOCORE_VERBOSITY"] = "quiet"
    return Call(
        name,
        text,
        item.seed,
        folder=str(folder / TASKS / digest),
        cores=cores,
        environment=tuple(sorted(kept.items())),
        cwd=os.getcwd(),
        path=search_path(),
    )


@functools.cache
def _versions() -> dict[str, str]:
    return versions()


def name_of(task: Task) -> str:
    """`package.module:function`, by which a worker finds the task again."""
    module, name = getattr(task, "__module__", None), getattr(task, "__qualname__", "")
    if module in (None, "__main__") or not name.isidentifier():
        raise ConfigError(
            f"workers cannot import the task {name or task!r} of {module}; make it a function at the"
            " top of a module",
            code="task-not-importable",
        )
    return f"{module}:{name}"


def stored(call: Call) -> dict[str, Any] | None:
    """What was kept of a finished item."""
    path = Path(call.folder) / RESULT
    return read_json(path) if path.is_file() else None


def serve(text: str) -> str:
    """Run a call, as JSON, in a process that is a worker."""
    call = Call.from_json(text)
    for name, value in call.environment:
        os.environ[name] = value
    if torch.get_num_threads() != call.cores:
        torch.set_num_threads(call.cores)
    sys.path += [part for part in call.path if part not in sys.path]
    with contextlib.suppress(OSError):  # it may not be on this machine
        os.chdir(call.cwd)
    return run(call)


def run(call: Call) -> str:
    """Run a call, unless it has been run before.

    Returns:
        The JSON of `{"result": …}`, or of `{"error": …}` where the task raised.
    """
    folder = Path(call.folder)
    try:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        # A worker given up for dead may still run: whoever comes second waits, and finds its result.
        with Lock(folder, on_wait=lambda: None):
            if (before := stored(call)) is not None:
                return encode_json(before)
            return encode_json(_run_once(call, folder))
    except PseudocoreError as error:  # of the folder
        return encode_json({"error": _described(error)})


def _run_once(call: Call, folder: Path) -> dict[str, Any]:
    config = decode_json(call.config)
    write_json(
        folder / ITEM,
        {"task": call.task, "config": config, "seed": call.seed, "begun": begun(folder) + 1},
    )
    (folder / ERROR).unlink(missing_ok=True)
    module, _, name = call.task.partition(":")
    try:
        found = {"result": getattr(import_module(module), name)(config, call.seed, folder)}
        write_json(folder / RESULT, found)
        return found
    except Exception as error:  # anything of the task; a stop is no Exception
        described = {"error": _described(error)}
        write_json(folder / ERROR, described)
        return described


def begun(folder: Path) -> int:
    """How often an item was begun."""
    try:
        number = read_json(folder / ITEM).get("begun", 0) if (folder / ITEM).is_file() else 0
    except ArtifactError:
        return 0
    return number if isinstance(number, int) else 0


def result_of(text: str, item: Item) -> Done:
    """What a worker returned; an error of the task is raised here as it was there."""
    value = decode_json(text)
    if "error" not in value:
        return Done(item, value["result"])
    error = value["error"]
    kind = getattr(errors, error["type"], None)
    if isinstance(kind, type) and issubclass(kind, PseudocoreError):
        raise kind(error["message"], code=error["code"])
    raise RuntimeError(f"{error['type']} in a worker: {error['message']}\n{error['where']}")


def died(item: Item, times: int, how: str) -> WorkerDiedError:
    """The error of an item whose worker died too often."""
    what, often = encode_json(item.config), "once" if times == 1 else f"{times} times"
    return WorkerDiedError(
        f"the worker of item {what[:120]}, seed {item.seed}, died {often} ({how}); if memory ran"
        " out, fewer workers need less; run the same command to resume",
        times=times,
    )


def _described(error: Exception) -> dict[str, str]:
    if isinstance(error, PseudocoreError):
        known = next(one for one in type(error).__mro__ if hasattr(errors, one.__name__))
        return {"type": known.__name__, "code": error.code, "message": str(error)}
    where = "".join(traceback.format_exception(error))
    return {"type": type(error).__name__, "message": str(error), "where": where}


def search_path() -> tuple[str, ...]:
    """Where this process finds modules, for workers."""
    return tuple(dict.fromkeys(os.path.abspath(part) for part in sys.path))
