"""Records of measurements in JSON Lines: one record per line, sorted by name, the file replaced
whole
under a lock.

A record's name is its `name`, `cell` or `preset`. Other lines are kept byte for byte, whatever is
in them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pseudocore.core.errors import ArtifactError
from pseudocore.store.files import decode_json, encode_json, reading, write_bytes, writing
from pseudocore.store.folders import Lock


def read(path: Path) -> dict[str, dict[str, Any]]:
    """The records of a file by name; none if there is no file."""
    return {name_of(record): record for _, record in _lines(path)}


def put(path: Path, record: Mapping[str, Any]) -> None:
    """Add a record, or replace the one of its name; atomic, with other processes doing the same."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with Lock(path.parent, on_wait=lambda: None):
        lines = {name_of(known): line for line, known in _lines(path)}
        lines[name_of(record)] = encode_json(record)
        write_bytes(path, "".join(f"{lines[name]}\n" for name in sorted(lines)).encode())


def name_of(record: Mapping[str, Any]) -> str:
    return str(next((record[key] for key in ("name", "cell", "preset") if key in record), ""))


def _lines(path: Path) -> list[tuple[str, dict[str, Any]]]:
    with reading(path):
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    try:
        return [(line, _decoded(line)) for line in lines]
    except ValueError as error:
        raise ArtifactError(
            f"{path} is damaged: {error}; move it away, or choose another --out",
            code="damaged",
            path=path,
        ) from error


def _decoded(line: str) -> dict[str, Any]:
    record = decode_json(line)
    if not isinstance(record, dict):
        raise ValueError(f"a line holds {type(record).__name__}, not an object")
    return record
