"""A folder of what takes long to compute and can be computed again, such as pre-trained networks.

One safetensors file per entry, named by a digest of its full description, which is in the file too.
A file that is missing, damaged or of another description counts as absent; one that cannot be
written is skipped.
"""

import contextlib
import functools
import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pseudocore.core.errors import ArtifactError, RunError
from pseudocore.store.coreset_file import read_tensors, write_tensors
from pseudocore.store.files import decode_json, encode_json, writing
from pseudocore.store.folders import Lock


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
        try:
            tensors, header = read_tensors(self._file(what), kind="shelf")
        except ArtifactError:
            return None
        return tensors if header.get("what") == _described(what) else None

    def save(self, what: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Save tensors under a description, in place of earlier ones."""
        file = self._file(what)
        with contextlib.suppress(RunError):
            with writing(file):
                file.parent.mkdir(parents=True, exist_ok=True)
            write_tensors(file, tensors, kind="shelf", header={"what": _described(what)})

    @contextlib.contextmanager
    def lock(self, what: Mapping[str, Any]) -> Iterator[None]:
        """One process at a time for each description; no lock where nothing can be written."""
        folder = self.path / "turns" / self._file(what).stem
        with contextlib.ExitStack() as held:
            with contextlib.suppress(RunError):
                with writing(folder):
                    folder.mkdir(parents=True, exist_ok=True)
                held.enter_context(Lock(folder, on_wait=lambda: None))
            yield

    def _file(self, what: Mapping[str, Any]) -> Path:
        text = encode_json(_described(what), sort_keys=True)
        name = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        return self.path / f"{name}.safetensors"


def _described(what: Mapping[str, Any]) -> dict[str, Any]:
    """The description as read back from a file, with what may change the bits: torch, our code."""
    described = {**what, "torch": torch.__version__, "code": _code()}
    return dict(decode_json(encode_json(described)))


@functools.cache
def _code() -> str:
    """A digest of this package's source."""
    root, digest = Path(__file__).resolve().parents[1], hashlib.blake2b(digest_size=16)
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
