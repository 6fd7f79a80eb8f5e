"""engine.map: the same results on every engine, killed workers replaced, errors raised at once."""

import importlib.util
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pseudocore import engine
from pseudocore.core.errors import ConfigError, DataError, PseudocoreError
from pseudocore.engine import Engine, Item, Resources
from pseudocore.engine import items as kept


def run_here(task: Any, item: Item, folder: Path) -> Any:
    """As a worker would, in this process."""
    call = kept.call_of(task, item, folder, 1)
    return kept.result_of(kept.run(call), item).result


def test_killed_workers_are_replaced_and_resume(tasks: ModuleType, tmp_path: Path) -> None:
    plain, log = tmp_path / "plain", tmp_path / "log"
    plain.mkdir()
    expected = {}
    for seed in range(5):
        (plain / str(seed)).mkdir()
        expected[seed] = tasks.count({"log": str(tmp_path / "other")}, seed, plain / str(seed))
    items = [
        Item({"log": str(log), "kill_at": 4 if seed % 2 else None}, seed=seed) for seed in range(5)
    ]
    chosen = Engine(workers=2)
    found = {
        done.item.seed: done.result
        for done in engine.map(tasks.count, items, folder=tmp_path / "work", engine=chosen)
    }
    assert found == expected
    # Nothing lost, and nothing counted twice: the checkpoint was resumed from.
    counts = Counter(log.read_text().split())
    assert counts == Counter(f"{seed}:{at}" for seed in range(5) for at in range(1, 11))
    status = engine.status(tmp_path / "work")
    assert (status.total, status.done, status.restarted) == (5, 5, 2)
    assert status.task == "engine_tasks:count"
    # A second call runs nothing.
    again = engine.map(tasks.count, items, folder=tmp_path / "work", engine=chosen)
    assert {done.item.seed: done.result for done in again} == expected
    assert Counter(log.read_text().split()) == counts


def test_a_worker_that_always_dies_is_an_error(tasks: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(PseudocoreError, match=r"seed 7, died once \(by signal 9\)") as caught:
        list(engine.map(tasks.die, [Item(seed=7)], folder=tmp_path / "work", retries=0))
    assert (caught.value.code, caught.value.fields) == ("worker-died", {"times": 1})
    status = engine.status(tmp_path / "work")
    assert (status.interrupted, status.done, status.restarted) == (1, 0, 0)


def test_errors_of_tasks_are_not_retried(tasks: ModuleType, tmp_path: Path) -> None:
    item, work = Item({"log": str(tmp_path / "log")}), tmp_path / "work"
    with pytest.raises(DataError, match=r"^no such thing$") as caught:
        list(engine.map(tasks.refuse, [item], folder=work))
    assert caught.value.code == "no-thing"
    assert (tmp_path / "log").read_text() == "called\n"
    status = engine.status(work)
    assert (status.failed, status.errors) == (1, ["no such thing"])


def test_faults_keep_their_traceback(tasks: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)ZeroDivisionError.*return 1 // 0"):
        run_here(tasks.fail, Item(), tmp_path)


def test_again_runs_what_is_there(tasks: ModuleType, tmp_path: Path) -> None:
    call = kept.call_of(tasks.says, Item(), tmp_path, 3)
    Path(call.folder).mkdir(parents=True)
    (Path(call.folder) / kept.RESULT).write_text('{"result": 8}')
    options: Any = {"engine": Engine(workers=1), "resources": Resources(cores=3)}
    (old,) = engine.map(tasks.says, [Item()], folder=tmp_path, **options)
    (new,) = engine.map(tasks.says, [Item()], folder=tmp_path, again=True, **options)
    # What a task prints is no part of its answer.
    assert (old.result, new.result) == (8, {"threads": "3", "gpus": ""})


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"engine": "slurm"}, "unknown-engine"),
        ({"retries": -1}, "invalid-options"),
        ({"items": [Item(), Item()]}, "repeated-item"),
        ({"resources": Resources(cores=10**6)}, "too-many-resources"),
        ({"task": lambda config, seed, folder: 0}, "task-not-importable"),
    ],
)
def test_what_is_refused(
    tasks: ModuleType, tmp_path: Path, options: dict[str, Any], code: str
) -> None:
    given = {"task": tasks.trivial, "items": [Item()], **options}
    task, items = given.pop("task"), given.pop("items")
    with pytest.raises(ConfigError) as caught:
        list(engine.map(task, items, folder=tmp_path, **given))
    assert caught.value.code == code


@pytest.mark.parametrize(("kind", "package"), [("ray", "Ray"), ("submitit", "submitit")])
def test_a_missing_extra_is_named(
    tasks: ModuleType, tmp_path: Path, kind: Any, package: str
) -> None:
    if importlib.util.find_spec(kind) is not None:
        pytest.skip(f"{package} is installed")
    with pytest.raises(DataError, match=rf'needs {package}; pip install "pseudocore\[{kind}\]"'):
        list(engine.map(tasks.trivial, [Item()], folder=tmp_path, engine=kind))


def test_an_engine_on_this_machine_has_no_address() -> None:
    with pytest.raises(ConfigError, match="has no address"):
        Engine(address="10.0.0.1:6379")


def test_a_folder_without_work_has_no_status(tmp_path: Path) -> None:
    with pytest.raises(PseudocoreError, match="holds no work of an engine"):
        engine.status(tmp_path)
