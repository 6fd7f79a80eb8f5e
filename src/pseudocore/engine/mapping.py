"""`engine.map`: a task for each item, results as they finish."""

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pseudocore.core.config import check
from pseudocore.core.errors import ConfigError
from pseudocore.engine import local, on_ray, on_submitit
from pseudocore.engine.items import (
    RESULT,
    Call,
    Done,
    Item,
    Task,
    call_of,
    name_of,
    result_of,
    stored,
)
from pseudocore.engine.settings import Engine, Kind, Resources, engine_of
from pseudocore.engine.status import note
from pseudocore.store.files import StrPath, encode_json, writing

_BACKENDS = {"local": local.run_all, "ray": on_ray.run_all, "submitit": on_submitit.run_all}


def map_items(
    task: Task,
    items: Iterable[Item],
    *,
    folder: StrPath,
    engine: Kind | Engine = "local",
    resources: Resources | None = None,
    retries: int = 3,
    again: bool = False,
    keep: bool = True,
) -> Iterator[Done]:
    """Call a task for each item, and yield results as they finish.

    The results are the same on every engine, however often a worker died.

    Args:
        task: A pure function of (config, seed, folder) at the top of a module.
        items: What to call it for, each once.
        folder: Where results and checkpoints are kept; every worker must see it under this path. What
            is in it from an earlier call is not run again.
        engine: Where to run: `local`, `ray`, `submitit`, or an `Engine`.
        resources: What one item needs. Defaults to the engine's, one core.
        retries: How often an item is tried again after its worker died. What a task raises is
            raised at once, as it would be again.
        again: Run also what the folder has results of.
        keep: Keep the folders of items when all are done, so that a later call finds their results.

    Yields:
        Each item with its result.

    Raises:
        WorkerDiedError: A worker died more often than `retries`.
    """
    chosen = engine_of(engine)
    needed = resources or chosen.resources or Resources()
    check(needed)
    if retries < 0:
        raise ConfigError(f"retries = {retries} must be at least 0", code="invalid-options")
    path, listed = Path(folder).resolve(), list(items)
    calls = {call_of(task, item, path, needed.cores): item for item in listed}
    if len(calls) < len(listed):
        raise ConfigError("two items are the same; each is run once", code="repeated-item")
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
    about: dict[str, Any] = {"task": name_of(task), "engine": chosen.kind, "total": len(listed)}
    note(path, **about)
    results = _results(list(calls), list(calls.values()), chosen, needed, retries, again)
    return results if keep else _forgotten(results, list(calls), path, about)


def _forgotten(
    results: Iterator[Done], calls: list[Call], path: Path, about: dict[str, Any]
) -> Iterator[Done]:
    """Results, after the last of which nothing but their number is left."""
    yield from results
    with writing(path):
        for call in calls:
            shutil.rmtree(call.folder, ignore_errors=True)
    note(path, **about, done=len(calls))


def _results(
    calls: list[Call],
    items: list[Item],
    engine: Engine,
    resources: Resources,
    retries: int,
    again: bool,
) -> Iterator[Done]:
    waiting = []
    for call, item in zip(calls, items, strict=True):
        if again:
            with writing(call.folder):
                (Path(call.folder) / RESULT).unlink(missing_ok=True)
        if (before := stored(call)) is None:
            waiting.append((item, call))
        else:
            yield result_of(encode_json(before), item)
    if waiting:
        yield from _BACKENDS[engine.kind](waiting, engine, resources, retries)
