"""The folder of a search for the smallest coreset: what was asked, its reference, its runs, a file
for each method and budget, the answer. The same search resumes in it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pseudocore.core.errors import RunError
from pseudocore.core.types import Coreset
from pseudocore.store.coreset_file import CORESET_FILE, save_coreset
from pseudocore.store.files import (
    StrPath,
    decode_json,
    encode_json,
    file_error,
    read_json,
    refuse_link,
    write_json,
    writing,
)
from pseudocore.store.folders import LOCK_FILE, Lock

RESULT_FILE = "size.json"
REFERENCE_FILE = "reference.safetensors"


class SizeFolder:
    """Claimed for one search, which is known by what was asked."""

    def __init__(self, path: StrPath, asked: Mapping[str, Any]) -> None:
        self.path, self._asked = Path(path), decode_json(encode_json(asked))
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            is_new = {entry.name for entry in self.path.iterdir()} <= {LOCK_FILE}
        file = self.path / RESULT_FILE
        if not is_new and not file.exists():
            message = "holds other files; name a new folder"
            raise file_error(self.path, message, "not-ours", RunError)
        self._lock = Lock(self.path)
        if not file.exists():
            write_json(file, {"asked": self._asked})
            return
        known = read_json(file).get("asked")
        if known != self._asked:
            known = known if isinstance(known, dict) else {}
            names = [name for name in self._asked if known.get(name) != self._asked[name]]
            message = f"holds another search ({', '.join(names)} differ); name a new folder"
            raise file_error(self.path, message, "another-config", RunError)

    @property
    def reference(self) -> Path:
        return self.path / REFERENCE_FILE

    def run(self, method: str, per_class: int, seed: int) -> Path:
        """The run folder of one coreset."""
        return self._inside("runs") / f"{method}-{per_class}-seed{seed}"

    def row(self, method: str, per_class: int) -> dict[str, Any] | None:
        """What was measured of a method at a budget; None for nothing yet."""
        path = self._row(method, per_class)
        return read_json(path) if path.exists() else None

    def save_row(self, method: str, per_class: int, row: Mapping[str, Any]) -> None:
        write_json(self._row(method, per_class), row)

    def finish(self, coreset: Coreset, result: Mapping[str, Any]) -> None:
        """Write the answer, and beside it what was asked and all that was measured."""
        save_coreset(self.path / CORESET_FILE, coreset)
        write_json(self.path / RESULT_FILE, {"asked": self._asked, **result})

    def _row(self, method: str, per_class: int) -> Path:
        return self._inside("rows") / f"{method}-{per_class}.json"

    def _inside(self, name: str) -> Path:
        path = self.path / name
        refuse_link(path)
        with writing(path):
            path.mkdir(exist_ok=True)
        return path
