"""The other harnesses in small, and that each sees what it is there to see."""

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from pseudocore.core.errors import ArtifactError, RunError
from pseudocore.core.types import Coreset
from pseudocore.store import coreset_file
from pseudocore.store.coreset_file import load_coreset, save_coreset

Harness = Callable[[str], ModuleType]


def test_pairs_of_writers(harness: Harness) -> None:
    (found,) = harness("chaos").pairs(20)
    assert found["ok"], found


def test_pairs_see_a_shared_partial_file(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(path: Path, data: bytes) -> None:
        partial = Path(f"{path}.partial")  # as all writers did once
        for start in range(0, len(data), 64):
            with partial.open("r+b" if start else "wb") as file:
                file.seek(start)
                file.write(data[start : start + 64])
            time.sleep(0.002)  # the other one writes in the meantime
        partial.replace(path)

    monkeypatch.setattr(coreset_file, "write_bytes", write)
    try:
        (found,) = harness("chaos").pairs(5)
    except SystemExit:  # a writer found its file gone
        return
    assert not found["ok"]


@pytest.mark.parametrize("mode", ["crash", errno.ENOSPC, errno.EIO])
def test_a_fault_at_any_operation_leaves_the_old_coreset_or_the_new(
    harness: Harness, tmp_path: Path, mode: str | int
) -> None:
    faults, path, number = harness("faults"), tmp_path / "coreset.safetensors", 0
    old, new = (
        Coreset(torch.full((2, 3), value), torch.arange(2), torch.ones(2)) for value in (1.0, 2.0)
    )
    codes = []
    while not codes or codes[-1] != 0:
        save_coreset(path, old)
        if not (child := os.fork()):
            code = 1
            try:
                with faults.Faults(tmp_path, number, mode).installed():
                    save_coreset(path, new)
                code = 0
            except RunError:
                code = 2
            finally:
                os._exit(code)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        value = load_coreset(path).x
        assert torch.equal(value, old.x) or torch.equal(value, new.x)
        assert codes[-1] != 0 or torch.equal(value, new.x)
        number += 1
    assert set(codes[:-1]) == {faults.DIED if mode == "crash" else 2}
    assert number > 4  # opened, written, synced, renamed, the folder synced


def test_faults_see_a_writer_that_is_not_atomic(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coreset_file, "write_bytes", lambda path, data: _in_two(path, data))
    with pytest.raises(ArtifactError):
        test_a_fault_at_any_operation_leaves_the_old_coreset_or_the_new(harness, tmp_path, "crash")


def _in_two(path: Path, data: bytes) -> None:
    for mode, part in (("wb", data[:50]), ("ab", data[50:])):
        with open(path, mode) as file:
            file.write(part)


def test_growth_is_a_slope(harness: Harness) -> None:
    assert harness("soak").slope([1.0, 3.0, 5.0]) == pytest.approx(2.0)
    assert harness("soak").slope([4.0, 4.0, 4.0]) == 0
