"""A folder of what takes long to compute and can be computed again: networks that several selectors
look through.

One safetensors file per thing, named by a digest of its full description, which is in the file too.
Nothing depends on it: a file that is missing, damaged or about something else counts as absent, and
one that cannot be written is done without.
"""

import contextlib
import functools
import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pseudocore.core.errors import ArtifactError, RunError
from pseudocore.store import strict_json
from pseudocore.store.coreset_file import read_tensors, write_tensors
from pseudocore.store.files import writing
from pseudocore.store.lock import Lock


class ShelfFolder:
    """`core.types.Cache` in a folder, which is made when the first thing is kept."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self, what: Mapping[str, Any]) -> dict[str, Tensor] | None:
        """What was kept under this description, if anything."""
        try:
            tensors, header = read_tensors(self._file(what), kind="shelf")
        except ArtifactError:
            return None
        return tensors if header.get("what") == _described(what) else None

    def save(self, what: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Keep tensors under a description, in place of any before them."""
        file = self._file(what)
        with contextlib.suppress(RunError):
            with writing(file):
                file.parent.mkdir(parents=True, exist_ok=True)
            write_tensors(file, tensors, kind="shelf", header={"what": _described(what)})

    @contextlib.contextmanager
    def lock(self, what: Mapping[str, Any]) -> Iterator[None]:
        """One process at a time; where nothing can be written all go at once."""
        folder = self.path / "turns" / self._file(what).stem
        with contextlib.ExitStack() as held:
            with contextlib.suppress(RunError):
                with writing(folder):
                    folder.mkdir(parents=True, exist_ok=True)
                held.enter_context(Lock(folder, on_wait=lambda: None))
            yield

    def _file(self, what: Mapping[str, Any]) -> Path:
        text = strict_json.encode(_described(what), sort_keys=True)
        return (
            self.path / f"{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}.safetensors"
        )


def user_cache() -> ShelfFolder:
    """The user's: `$PSEUDOCORE_CACHE`, else `pseudocore` in `$XDG_CACHE_HOME` or `~/.cache`."""
    if own := os.environ.get("PSEUDOCORE_CACHE"):
        return ShelfFolder(Path(own))
    home = os.environ.get("XDG_CACHE_HOME")
    return ShelfFolder((Path(home) if home else Path.home() / ".cache") / "pseudocore")


def _described(what: Mapping[str, Any]) -> dict[str, Any]:
    """With the build of torch and our own code, as others may give other bits; through text and
    back, as a file would give it.
    """
    described: dict[str, Any] = strict_json.decode(
        strict_json.encode({**what, "torch": torch.__version__, "code": _code()})
    )
    return described


@functools.cache
def _code() -> str:
    """A digest of this package's source."""
    root, digest = Path(__file__).resolve().parents[1], hashlib.blake2b(digest_size=16)
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
