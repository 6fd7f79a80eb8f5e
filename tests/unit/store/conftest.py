"""Shared by the store's tests: a small sound file, and a disk that fills up on demand."""

import errno
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import torch

from pseudocore.store.coreset_file import write_tensors


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """An artifact of kind `test` with two tensors and a step."""
    path = tmp_path / "state.safetensors"
    write_tensors(
        path, {"a": torch.arange(6.0), "b": torch.tensor([True])}, kind="test", header={"step": 3}
    )
    return path


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> AbstractContextManager[None]:
    """Inside `with full_disk:` nothing new reaches the disk."""

    def refuse(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    @contextmanager
    def full() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", refuse)
            yield

    return full()
