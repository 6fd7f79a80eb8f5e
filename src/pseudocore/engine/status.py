"""How far the work in a folder is."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pseudocore.core.errors import ArtifactError
from pseudocore.engine.items import ERROR, ITEM, RESULT, TASKS, begun
from pseudocore.store.files import file_error, read_json, write_json
from pseudocore.store.folders import Lock, TakenError

NOTE = "engine.json"
_KIND = "pseudocore engine"


class Status(NamedTuple):
    """The items of a folder, by what became of them."""

    task: str
    engine: str
    total: int
    """Of the latest call."""
    done: int
    running: int
    failed: int
    interrupted: int
    """Begun, neither finished nor running: the same command resumes them."""
    restarted: int
    """Begun more than once."""
    errors: list[str]
    """What failed items raised."""


def note(folder: Path, *, task: str, engine: str, total: int, done: int = 0) -> None:
    """Keep what a call of `map` is about to do, or has done where its items are forgotten."""
    facts = {"kind": _KIND, "task": task, "engine": engine, "total": total, "done": done}
    write_json(folder / NOTE, facts)


def status(folder: Path) -> Status:
    """The status of the work in a folder, which may be going on."""
    if not (folder / NOTE).is_file():
        raise file_error(
            folder, f"holds no work of an engine: it has no {NOTE}", "no-engine-folder"
        )
    about = read_json(folder / NOTE)
    if about.get("kind") != _KIND:
        raise file_error(folder / NOTE, "was not written by pseudocore", "foreign-folder")
    tasks = folder / TASKS
    found = [_state(path) for path in sorted(tasks.iterdir())] if tasks.is_dir() else []
    names, forgotten = [name for name, _, _ in found], about.get("done")
    return Status(
        str(about.get("task")),
        str(about.get("engine")),
        about["total"] if isinstance(about.get("total"), int) else len(found),
        names.count("done") + (forgotten if isinstance(forgotten, int) else 0),
        names.count("running"),
        names.count("failed"),
        names.count("interrupted"),
        restarted=sum(times > 1 for _, times, _ in found),
        errors=[text for _, _, text in found if text],
    )


def _state(path: Path) -> tuple[str, int, str]:
    """What became of an item, how often it was begun, and its error."""
    times = begun(path)
    if (path / RESULT).is_file():
        return "done", times, ""
    if not (path / ITEM).is_file():
        return "waiting", times, ""
    try:
        Lock(path).release()
    except TakenError:
        return "running", times, ""
    try:
        error: Any = read_json(path / ERROR).get("error") if (path / ERROR).is_file() else None
    except ArtifactError:
        error = None
    if isinstance(error, Mapping):
        return "failed", times, str(error.get("message"))
    return "interrupted", times, ""
