"""A lock is had by one at a time: whoever comes second is refused, or says so and waits."""

import threading
from pathlib import Path

import pytest

from pseudocore.core.errors import RunError
from pseudocore.store.folders import Lock


def test_the_second_is_refused(tmp_path: Path) -> None:
    first = Lock(tmp_path)
    with pytest.raises(RunError, match="is being written by another process"):
        Lock(tmp_path)
    first.release()
    Lock(tmp_path).release()


def test_the_second_can_wait_and_says_so_first(tmp_path: Path) -> None:
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


def test_who_need_not_wait_says_nothing(tmp_path: Path) -> None:
    Lock(tmp_path, on_wait=lambda: pytest.fail("there was nobody to wait for")).release()
