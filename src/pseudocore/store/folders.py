"""What run and expert folders share: a manifest of their kind, a lock for one writer, refusals."""

import errno
import math
import os
import platform
import weakref
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib import metadata
from itertools import repeat
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from filelock import FileLock, SoftFileLock, Timeout

from pseudocore.core.errors import ArtifactError, PseudocoreError, RunError
from pseudocore.store.files import file_error, read_json, writing

MANIFEST_FILE = "manifest.json"
LOCK_FILE = ".pseudocore.lock"
"""Stays in the folder: if it were removed, two processes could lock two files of one name."""

NO_LOCK = "PSEUDOCORE_NO_LOCK"
"""Environment variable that turns locks off, as `--no-lock` does."""

_LONGEST_WAIT = 12 * 3600.0
_UNSUPPORTED = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP)


class TakenError(RunError):
    """Another process holds the lock."""


class Lock:
    """The right to write into `folder`, from construction to `release` or the end of the process.

    The operating system drops it when the process dies. While another process holds it, this is a
    `TakenError`; with `on_wait`, which is called first, it waits up to `timeout` seconds.
    """

    def __init__(
        self,
        folder: Path,
        on_wait: Callable[[], None] | None = None,
        timeout: float = _LONGEST_WAIT,
    ) -> None:
        if os.environ.get(NO_LOCK):
            self.release: weakref.finalize[..., Lock] = weakref.finalize(self, int)
            return
        lock = FileLock(folder / LOCK_FILE, mode=0o600, thread_local=False)
        if not _acquired(lock, folder, 0):
            if on_wait is not None:
                on_wait()
            if on_wait is None or not _acquired(lock, folder, timeout):
                message = "is being written by another process; wait for it to end or choose"
                raise file_error(folder, f"{message} another --out", "locked", TakenError)
        self.release = weakref.finalize(self, _release, lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class ManifestFolder:
    """A folder with a manifest that names its kind, and the lock of its writer."""

    kind: ClassVar[str]
    """What the manifest calls the kind of folder."""
    noun: ClassVar[str]
    """What errors call its contents."""
    schema: ClassVar[int] = 1
    """Version of its layout; later ones are refused."""
    entries: ClassVar[dict[str, Any]]
    """Types of the manifest's entries; the first must be there."""

    def __init__(self, path: Path, manifest: dict[str, Any], lock: Lock | None = None) -> None:
        self.path = path
        self.manifest = manifest
        self._lock = lock

    @classmethod
    def claim(cls, path: Path) -> Lock:
        """Lock the folder, made if need be; one with foreign files in it is refused.

        It is ours by its manifest, or by its lock where a writer was killed before its manifest.
        """
        with writing(path):
            if path.exists() and not path.is_dir():
                advice = "is a file, not a folder; choose another --out"
                raise file_error(path, advice, "not-a-folder", RunError)
            names = {entry.name for entry in path.iterdir()} if path.exists() else set()
        kind = _kind(path) if MANIFEST_FILE in names else None
        if names and kind != cls.kind and (kind is not None or LOCK_FILE not in names):
            what = f"is not empty and holds no {cls.noun} of pseudocore"
            advice = "its files are left alone, choose another --out"
            raise file_error(path, f"{what}; {advice}", "foreign-folder", RunError)
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
        return Lock(path)

    @classmethod
    def is_one(cls, path: Path) -> bool:
        """Whether the folder's manifest is of this kind, whatever its version."""
        return bool(_kind(path) == cls.kind)

    @classmethod
    def new_manifest(cls, command: str, **entries: Any) -> dict[str, Any]:
        """A manifest with when, with what and on what the work began; it names no host or user."""
        return {
            "kind": cls.kind,
            "schema": cls.schema,
            **entries,
            "created": now(),
            "command": command,
            "versions": versions(),
            "hardware": hardware(),
        }

    @classmethod
    def read_manifest(cls, path: Path) -> dict[str, Any]:
        """The manifest in a folder, checked."""
        if not os.path.exists(path):
            raise RunError(f"there is no folder {path}", code="not-a-folder", path=path)
        if not os.path.isdir(path):
            raise file_error(path, "is a file, not a folder", "not-a-folder", RunError)
        file, nothing = path / MANIFEST_FILE, f"holds no {cls.noun}"
        if not file.exists():
            raise file_error(path, f"{nothing}: it has no {file.name}", "no-manifest", RunError)
        manifest = read_json(file)
        if (kind := manifest.get("kind")) != cls.kind:
            message = f"{nothing}: the kind of its {file.name} is {kind!r}"
            raise file_error(path, message, "foreign-folder", RunError, kind=kind)
        required = ("schema", next(iter(cls.entries)))
        for name, expected in {"schema": int, **cls.entries}.items():
            value = manifest.get(name)
            if not isinstance(value, expected) and (name in manifest or name in required):
                message = f"is damaged: its {name} is {value!r}"
                raise file_error(file, message, "damaged-manifest", RunError)
        if (schema := manifest["schema"]) > cls.schema:
            message = f"schema {schema}, this one reads up to {cls.schema}"
            message = f"was made by a later pseudocore ({message}); upgrade to use it"
            raise file_error(path, message, "later-schema", RunError, schema=schema)
        return manifest

    def close(self) -> None:
        """Let other processes write into the folder; it can still be read."""
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def differences(
    stored: Mapping[str, Any], given: Mapping[str, Any], *, tolerance: float = 0
) -> list[str]:
    """`model.width: stored 32, given 128` for every entry of two nested tables that differs.

    `tolerance` is for floats, relative and absolute.
    """
    old, new = _flat(stored), _flat(given)
    return [
        f"{key}: stored {_shown(old.get(key))}, given {_shown(new.get(key))}"
        for key in dict.fromkeys((*old, *new))
        if not _equal(old.get(key), new.get(key), tolerance)
    ]


def versions() -> dict[str, str]:
    """Versions of what computes the numbers."""
    try:
        own = metadata.version("pseudocore")
    except metadata.PackageNotFoundError:  # run from a source tree that was never installed
        own = "not installed"
    return {
        "pseudocore": own,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def hardware() -> str:
    """What computes, in words: `16 CPU cores, NVIDIA H200`."""
    words = [f"{os.cpu_count()} CPU cores"]
    if torch.cuda.is_available():
        words += [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return ", ".join(words)


def now() -> str:
    """The time, UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _acquired(lock: FileLock, folder: Path, timeout: float) -> bool:
    """Whether the lock was had within that time."""
    try:
        lock.acquire(timeout=timeout)
    except Timeout:
        return False
    except NotImplementedError as error:
        raise _without_locks(folder) from error
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            raise _without_locks(folder) from error
        with writing(folder / LOCK_FILE):
            raise
    if isinstance(lock, SoftFileLock):  # a mere file, which a killed process would leave behind
        lock.release(force=True)
        raise _without_locks(folder)
    return True


def _release(lock: FileLock) -> None:
    lock.release(force=True)


def _without_locks(folder: Path) -> PseudocoreError:
    message = (
        "lies on a file system without locks, so that two processes could write into it at once;"
        " choose another folder, or pass --no-lock if this is the only one"
    )
    return file_error(folder, message, "no-locks", RunError)


def _kind(path: Path) -> Any:
    try:
        return read_json(path / MANIFEST_FILE).get("kind", "")
    except ArtifactError:
        return None


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _equal(one: Any, other: Any, tolerance: float) -> bool:
    """Equality in which NaN equals NaN, and 1 is neither 1.0 nor true."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other, repeat(tolerance)))
    if isinstance(one, float) and isinstance(other, float) and tolerance:
        return math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)
    return repr(one) == repr(other)


def _shown(value: Any) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
