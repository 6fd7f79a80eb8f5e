"""The cache: entries are found by their description alone, and nothing in it can stop a run; and
the lock that it, runs and experts share.
"""

import errno
import os
import stat
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from pseudocore.store.cache import LIMIT, VERSIONS, CacheFolder
from pseudocore.store.folders import LOCK_FILE, NO_LOCK, Lock, TakenError

Fails = Callable[..., Any]

WHAT = {"kind": "network", "seed": 3, "recipe": {"epochs": 2, "lr": None}, "stream": [0, "a"]}
OTHER = {**WHAT, "seed": 4}
TENSORS = {"theta": torch.arange(5.0), "forgotten": torch.tensor([1, 0])}


def test_entries_come_back(tmp_path: Path) -> None:
    CacheFolder(tmp_path / "a" / "b").save(WHAT, TENSORS)
    found = CacheFolder(tmp_path / "a" / "b").load(dict(reversed(WHAT.items())))
    assert found is not None
    assert found.keys() == TENSORS.keys()
    assert all(torch.equal(found[name], TENSORS[name]) for name in found)
    assert all(found[name].dtype == TENSORS[name].dtype for name in found)


def test_an_entry_is_found_under_its_own_description_only(tmp_path: Path) -> None:
    cache = CacheFolder(tmp_path)
    assert cache.load(WHAT) is None
    cache.save(WHAT, TENSORS)
    assert cache.load(OTHER) is None
    (file,) = tmp_path.iterdir()
    cache.save(OTHER, TENSORS)
    (other,) = set(tmp_path.iterdir()) - {file}
    other.write_bytes(file.read_bytes())  # under another's name
    assert cache.load(OTHER) is None


def test_a_later_entry_replaces_an_earlier_one(tmp_path: Path) -> None:
    cache = CacheFolder(tmp_path)
    cache.save(WHAT, TENSORS)
    cache.save(WHAT, {"theta": torch.ones(2)})
    assert list(cache.load(WHAT) or ()) == ["theta"]


def test_other_versions_make_other_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    CacheFolder(tmp_path).save(WHAT, TENSORS)
    with monkeypatch.context() as patch:
        patch.setattr("torch.__version__", "99.0")
        assert CacheFolder(tmp_path).load(WHAT) is None
    assert CacheFolder(tmp_path).load(WHAT) is not None
    monkeypatch.setitem(VERSIONS, "network", VERSIONS["network"] + 1)
    assert CacheFolder(tmp_path).load(WHAT) is None


@pytest.mark.parametrize("damage", [b"", b"nonsense", None])
def test_a_damaged_file_counts_as_absent_and_is_replaced(
    tmp_path: Path, damage: bytes | None
) -> None:
    cache = CacheFolder(tmp_path)
    cache.save(WHAT, TENSORS)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-3] if damage is None else damage)
    assert cache.load(WHAT) is None
    cache.save(WHAT, TENSORS)
    assert cache.load(WHAT) is not None


def test_a_folder_that_cannot_be_written_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = CacheFolder(tmp_path / "file" / "cache")
    cache.save(WHAT, TENSORS)
    assert cache.load(WHAT) is None
    with cache.lock(WHAT), cache.lock(WHAT):  # nobody waits for a lock that cannot be had
        pass


@pytest.mark.filterwarnings("ignore:waiting for another process")
def test_one_process_makes_an_entry_and_the_others_find_it(tmp_path: Path) -> None:
    made = []

    def need() -> None:
        cache = CacheFolder(tmp_path)  # as another process would have its own
        with cache.lock(WHAT):
            if cache.load(WHAT) is None:
                time.sleep(0.05)  # the others come in the meantime
                made.append(1)
                cache.save(WHAT, TENSORS)

    with ThreadPoolExecutor(4) as workers:
        list(workers.map(lambda _: need(), range(4)))
    assert len(made) == 1
    with CacheFolder(tmp_path).lock(WHAT), CacheFolder(tmp_path).lock(OTHER):
        pass  # entries do not wait for each other


def test_what_was_used_longest_ago_leaves_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, whats = CacheFolder(tmp_path), [{**WHAT, "seed": seed} for seed in range(4)]
    for what in whats[:3]:
        cache.save(what, {"theta": torch.zeros(1000)})
    for number, entry in enumerate(sorted(cache.entries())):
        os.utime(entry.path, (number, number))  # in an order that is not that of writing
    oldest, _, _ = [entry.path for entry in cache.entries()]
    (used,) = [what for what in whats[:3] if cache._file(what) == oldest]
    assert cache.load(used) is not None  # now it is the newest
    size = cache.entries()[0].num_bytes
    monkeypatch.setenv(LIMIT, str(3.5 * size / 2**30))
    cache.save(whats[3], {"theta": torch.zeros(1000)})
    assert len(cache.entries()) == 3
    assert cache.load(used) is not None
    assert cache.load(whats[3]) is not None
    monkeypatch.setenv(LIMIT, "0")
    cache.save(whats[3], {"theta": torch.zeros(1000)})
    assert cache.entries() == []


def test_what_killed_writers_left_is_removed(tmp_path: Path) -> None:
    old, new = tmp_path / ".a.safetensors.1.partial", tmp_path / ".a.safetensors.2.partial"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    CacheFolder(tmp_path).save(WHAT, TENSORS)
    assert not old.exists()
    assert new.exists()


def test_clearing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = CacheFolder(tmp_path / "cache")
    for what in (WHAT, OTHER):
        with cache.lock(what):
            cache.save(what, TENSORS)
    (cache.path / "mine.txt").write_text("not ours to remove")
    assert [entry.kind for entry in cache.entries()] == ["network", "network"]
    os.utime(cache._file(WHAT), (0, 0))
    assert [entry.path for entry in cache.clear(older_than=60)] == [cache._file(WHAT)]
    assert cache.clear(obsolete=True) == []
    monkeypatch.setitem(VERSIONS, "network", 99)
    assert [entry.kind for entry in cache.clear(obsolete=True)] == ["obsolete"]
    cache.save(WHAT, TENSORS)
    assert len(cache.clear()) == 1
    assert [path.name for path in cache.path.iterdir()] == ["mine.txt"]


def test_the_cache_is_its_owners_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = CacheFolder(tmp_path / "cache")
    cache.save(WHAT, TENSORS)
    assert stat.S_IMODE(cache.path.stat().st_mode) == 0o700
    cache.path.chmod(0o777)
    with pytest.warns(match="can be written by other users"):
        assert cache.load(WHAT) is None
    cache.path.chmod(0o700)
    monkeypatch.setattr("os.geteuid", lambda: os.getuid() + 1)
    with pytest.warns(match="belongs to another user"):
        assert cache.load(WHAT) is None
    with pytest.warns(match="belongs to another user"), cache.lock(WHAT):
        pass
    with pytest.warns(match="belongs to another user"):
        assert cache.clear() == []


@pytest.mark.parametrize("limit", ["much", "nan", "-1"])
def test_a_limit_is_a_number(
    tmp_path: Path, limit: str, fails: Fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LIMIT, limit)
    with fails("out-of-range", limit):
        CacheFolder(tmp_path).save(WHAT, TENSORS)


def test_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("PSEUDOCORE_CACHE", "/a/b")
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    assert CacheFolder().path == Path("/a/b")
    monkeypatch.delenv("PSEUDOCORE_CACHE")
    assert CacheFolder().path == Path("/c/pseudocore")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert CacheFolder().path == Path("/home/someone/.cache/pseudocore")


def test_a_second_lock_is_refused(tmp_path: Path) -> None:
    first = Lock(tmp_path)
    with pytest.raises(TakenError, match="is being written by another process"):
        Lock(tmp_path)
    first.release()
    Lock(tmp_path, on_wait=lambda: pytest.fail("there was nobody to wait for")).release()


def test_a_second_lock_can_wait_and_says_so_first(tmp_path: Path) -> None:
    first, waits, has_it = Lock(tmp_path), threading.Event(), threading.Event()

    def second() -> None:
        lock = Lock(tmp_path, on_wait=waits.set)
        has_it.set()
        lock.release()

    thread = threading.Thread(target=second)
    thread.start()
    assert waits.wait(10)
    assert not has_it.wait(0.1)
    first.release()
    thread.join(10)
    assert has_it.is_set()


def test_a_lock_is_for_its_owner_alone(tmp_path: Path) -> None:
    with Lock(tmp_path):
        assert stat.S_IMODE((tmp_path / LOCK_FILE).stat().st_mode) == 0o600


def test_waiting_ends(tmp_path: Path) -> None:
    with Lock(tmp_path), pytest.raises(TakenError):
        Lock(tmp_path, on_wait=lambda: None, timeout=0.01)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_an_error_with_advice(
    tmp_path: Path, number: int, fails: Fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", flock)
    with warnings.catch_warnings(action="ignore"), fails("no-locks", "pass --no-lock"):
        Lock(tmp_path)
    monkeypatch.setenv(NO_LOCK, "1")
    with Lock(tmp_path), Lock(tmp_path):
        pass
