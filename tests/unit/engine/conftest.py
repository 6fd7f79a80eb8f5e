"""Tasks in a module that workers can import, and a place to count how they ended."""

from pathlib import Path
from types import ModuleType

import pytest

TASKS = '''
import os, signal, sys, time
from pathlib import Path

from pseudocore.core.errors import DataError


def count(config, seed, folder):
    """Counts to 10, saving as it goes; killed at `kill_at` the first time it gets there."""
    place = folder / "at"
    at, total = map(int, place.read_text().split()) if place.exists() else (0, seed)
    while at < 10:
        if at == config.get("kill_at") and not (folder / "killed").exists():
            (folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(config.get("seconds", 0))
        at, total = at + 1, (total * 31 + at) % 10007
        place.write_text(f"{at} {total}")
        with open(Path(config["log"]), "a") as file:
            file.write(f"{seed}:{at}\\n")
    return {"total": total, "third": 1 / (seed + 3)}


def trivial(config, seed, folder):
    return seed * seed


def pid(config, seed, folder):
    return os.getpid()


def refuse(config, seed, folder):
    with open(config["log"], "a") as file:
        file.write("called\\n")
    raise DataError("no such thing", code="no-thing")


def fail(config, seed, folder):
    return 1 // 0


def die(config, seed, folder):
    os.kill(os.getpid(), signal.SIGKILL)


def says(config, seed, folder):
    print("among the answers?")
    print("or on standard error", file=sys.stderr)
    return {"threads": os.environ["OMP_NUM_THREADS"], "gpus": os.environ["CUDA_VISIBLE_DEVICES"]}
'''


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    import importlib
    import sys

    (tmp_path / "engine_tasks.py").write_text(TASKS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "engine_tasks", raising=False)
    return importlib.import_module("engine_tasks")
