"""The shelf: what was put there is found again by its description alone, and nothing on it can stop
a run.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from pseudocore.store.cache import CacheFolder

WHAT = {
    "kind": "network",
    "seed": 3,
    "recipe": {"epochs": 2, "step_size": None},
    "stream": [0, "pretrain"],
}
TENSORS = {"theta": torch.arange(5.0), "forgotten": torch.tensor([1, 0])}


def test_what_was_kept_comes_back(tmp_path: Path) -> None:
    CacheFolder(tmp_path / "a" / "b").save(WHAT, TENSORS)
    found = CacheFolder(tmp_path / "a" / "b").load(dict(reversed(WHAT.items())))
    assert found is not None
    assert found.keys() == TENSORS.keys()
    assert all(
        torch.equal(found[name], TENSORS[name]) and found[name].dtype == TENSORS[name].dtype
        for name in found
    )


def test_only_under_its_own_description(tmp_path: Path) -> None:
    cache = CacheFolder(tmp_path)
    assert cache.load(WHAT) is None
    cache.save(WHAT, TENSORS)
    assert cache.load({**WHAT, "seed": 4}) is None
    (file,) = tmp_path.iterdir()
    cache.save({**WHAT, "seed": 4}, TENSORS)
    (other,) = set(tmp_path.iterdir()) - {file}
    other.write_bytes(file.read_bytes())  # under another's name
    assert cache.load({**WHAT, "seed": 4}) is None


def test_the_later_one_stays(tmp_path: Path) -> None:
    cache = CacheFolder(tmp_path)
    cache.save(WHAT, TENSORS)
    cache.save(WHAT, {"theta": torch.ones(2)})
    found = cache.load(WHAT)
    assert found is not None
    assert list(found) == ["theta"]


def test_another_torch_is_another_thing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    CacheFolder(tmp_path).save(WHAT, TENSORS)
    monkeypatch.setattr("torch.__version__", "99.0")
    assert CacheFolder(tmp_path).load(WHAT) is None


def test_other_code_of_ours_makes_another_thing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    CacheFolder(tmp_path).save(WHAT, TENSORS)
    monkeypatch.setattr("pseudocore.store.cache._code", lambda: "that of another version")
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


def test_a_folder_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = CacheFolder(tmp_path / "file" / "shelf")
    cache.save(WHAT, TENSORS)
    assert cache.load(WHAT) is None
    with cache.lock(WHAT), cache.lock(WHAT):  # nobody waits for a turn that cannot be had
        pass


def test_one_at_a_time_makes_a_thing_and_the_others_find_it(tmp_path: Path) -> None:
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


def test_turns_at_two_things_do_not_wait_for_each_other(tmp_path: Path) -> None:
    cache = CacheFolder(tmp_path)
    with cache.lock(WHAT), cache.lock({**WHAT, "seed": 4}):
        pass


def test_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSEUDOCORE_CACHE", "/a/b")
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    assert CacheFolder().path == Path("/a/b")
    monkeypatch.delenv("PSEUDOCORE_CACHE")
    assert CacheFolder().path == Path("/c/pseudocore")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert CacheFolder().path == Path("/home/someone/.cache/pseudocore")
