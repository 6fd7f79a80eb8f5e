"""A folder of what takes long to compute and can be computed again, such as pre-trained networks.

One safetensors file per entry, named by a digest of its full description, which is in the file too.
A file that is missing, damaged or of another description counts as absent; one that cannot be
written is skipped. The folder is its owner's alone, and what was used longest ago leaves first.
"""

import contextlib
import hashlib
import math
import os
import shutil
import stat
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pseudocore.core.errors import ArtifactError, ConfigError, RunError
from pseudocore.store.coreset_file import read_header, read_tensors, write_tensors
from pseudocore.store.files import decode_json, encode_json, writing
from pseudocore.store.folders import Lock

VERSIONS = {"network": 1, "reference": 1, "features": 1}
"""Version of each kind of entry: raised when its code would now compute other numbers from the same
description. `tests/unit/store/test_cache_versions.py` fails when that code changes.
"""

LIMIT = "PSEUDOCORE_CACHE_LIMIT"
"""Environment variable: GiB that the cache may take."""

DEFAULT_GIB = 10.0

_LOCKS = "turns"

_ABANDONED = 24 * 3600.0
"""Seconds after which a partial file is of a writer that was killed."""


class Entry(NamedTuple):
    """A file of the cache."""

    path: Path
    kind: str
    """Of `VERSIONS`, or `obsolete` where no current description leads to it."""
    num_bytes: int
    used: float
    """When it was last read or written, in seconds since 1970."""


@dataclass(frozen=True)
class CacheFolder:
    """`core.types.Cache` in a folder, which is made when the first entry is saved."""

    own_path: Path | None = None
    """Defaults to `$PSEUDOCORE_CACHE`, or `pseudocore` in `$XDG_CACHE_HOME` or `~/.cache`."""

    @property
    def path(self) -> Path:
        if self.own_path is not None:
            return self.own_path
        if path := os.environ.get("PSEUDOCORE_CACHE"):
            return Path(path)
        home = os.environ.get("XDG_CACHE_HOME")
        return (Path(home) if home else Path.home() / ".cache") / "pseudocore"

    def load(self, what: Mapping[str, Any]) -> dict[str, Tensor] | None:
        """The tensors saved under a description, if any."""
        file = self._file(what)
        if not file.exists() or not self._is_own():
            return None
        try:
            tensors, header = read_tensors(file, kind="cache")
        except ArtifactError:
            return None
        with contextlib.suppress(OSError):
            os.utime(file)
        return tensors if header.get("what") == _described(what) else None

    def save(self, what: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Save tensors under a description, in place of earlier ones."""
        limit, file = size_limit(), self._file(what)
        with contextlib.suppress(RunError):
            with writing(file):
                self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self._is_own():
                write_tensors(file, tensors, kind="cache", header={"what": _described(what)})
                self._evict(limit)

    @contextlib.contextmanager
    def lock(self, what: Mapping[str, Any]) -> Iterator[None]:
        """One process at a time for each description; no lock where nothing can be written."""
        folder = self.path / _LOCKS / self._file(what).stem
        text = f"waiting for another process, which is making the same {what['kind']}"
        with contextlib.ExitStack() as held:
            with contextlib.suppress(RunError):
                with writing(folder):
                    self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
                    if own := self._is_own():
                        folder.mkdir(parents=True, exist_ok=True)
                if own:
                    wait = Lock(folder, on_wait=lambda: warnings.warn(text, stacklevel=4))
                    held.enter_context(wait)
            yield

    def entries(self) -> list[Entry]:
        """All entries, the one used longest ago first."""
        found = []
        for path in self.path.glob("*.safetensors"):
            with contextlib.suppress(OSError):  # another process may remove it
                about = path.lstat()
                if stat.S_ISREG(about.st_mode):
                    found.append(Entry(path, _kind(path), about.st_size, about.st_mtime))
        return sorted(found, key=lambda entry: entry.used)

    def clear(self, *, older_than: float = 0, obsolete: bool = False) -> list[Entry]:
        """Remove entries that were not used for `older_than` seconds, or only obsolete ones."""
        if not self._is_own():
            return []
        before = time.time() - older_than
        gone = [one for one in self.entries() if not older_than or one.used < before]
        gone = [one for one in gone if not obsolete or one.kind == "obsolete"]
        for entry in gone:
            with writing(entry.path):
                entry.path.unlink(missing_ok=True)
        self._sweep()
        if not older_than and not obsolete:  # at worst, two processes make one entry
            shutil.rmtree(self.path / _LOCKS, ignore_errors=True)
        return gone

    def _evict(self, limit: int) -> None:
        """Remove what was used longest ago until the rest fits."""
        self._sweep()
        entries = self.entries()
        excess = sum(entry.num_bytes for entry in entries) - limit
        for entry in entries:
            if excess <= 0:
                break
            with contextlib.suppress(OSError):
                entry.path.unlink(missing_ok=True)
                excess -= entry.num_bytes

    def _sweep(self) -> None:
        """Remove what killed writers have left."""
        for partial in self.path.glob(".*.partial"):
            with contextlib.suppress(OSError):
                if time.time() - partial.lstat().st_mtime > _ABANDONED:
                    partial.unlink()

    def _is_own(self) -> bool:
        """Whether nobody else can write here: another user's numbers would be taken for ours."""
        try:
            about = os.stat(self.path)
        except OSError:
            return True
        if not hasattr(os, "geteuid"):  # Windows
            return True
        if about.st_uid != os.geteuid():
            reason = "belongs to another user"
        elif stat.S_IMODE(about.st_mode) & 0o022:
            reason = "can be written by other users (chmod 700 makes it yours alone)"
        else:
            return True
        text = f"the cache {self.path} {reason} and is not used; PSEUDOCORE_CACHE names another"
        warnings.warn(text, stacklevel=3)
        return False

    def _file(self, what: Mapping[str, Any]) -> Path:
        return self.path / f"{_name(_described(what))}.safetensors"


def size_limit() -> int:
    """Bytes that the cache may take."""
    text = os.environ.get(LIMIT) or str(DEFAULT_GIB)
    try:
        limit = float(text)
    except ValueError:
        limit = math.nan
    if not 0 <= limit < 2**20:
        message = f"the limit of the cache {text[:40]!r} is not a number of GiB ({LIMIT})"
        raise ConfigError(message, code="out-of-range", option="cache_limit")
    return int(limit * 2**30)


def _name(described: Mapping[str, Any]) -> str:
    text = encode_json(described, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _described(what: Mapping[str, Any]) -> dict[str, Any]:
    """The description as read back from a file, with what may change the bits: torch, our code."""
    described = {**what, "torch": torch.__version__, "version": VERSIONS[what["kind"]]}
    return dict(decode_json(encode_json(described)))


def _kind(path: Path) -> str:
    """What an entry is."""
    try:
        what = read_header(path, kind="cache")["what"]
        kind = str(what["kind"])
        is_current = what["version"] == VERSIONS[kind] and what["torch"] == torch.__version__
    except (ArtifactError, KeyError, TypeError):
        return "obsolete"
    return kind if is_current and path.stem == _name(what) else "obsolete"
