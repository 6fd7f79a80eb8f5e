"""The numbers of a run's steps, one JSON object a line, `step` first."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pseudocore.core.errors import ArtifactError
from pseudocore.store import strict_json
from pseudocore.store.files import reason_of, write_bytes, writing

METRICS_FILE = "metrics.jsonl"


class MetricsFile:
    """An append-only file of lines; holds no clock, so that a resumed run's equals an uninterrupted
    one's.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, step: int, values: Mapping[str, float]) -> None:
        line = strict_json.encode({"step": step, **values}) + "\n"
        with writing(self.path), open(self.path, "ab") as file:
            file.write(line.encode())

    def truncate(self, step: int) -> None:
        """Keep the whole lines up to `step`, byte for byte."""
        lines = self._lines()
        kept = [
            line for line in lines if (entry := _entry(line)) is not None and entry["step"] <= step
        ]
        if kept != lines:
            write_bytes(self.path, b"".join(kept))

    def read(self) -> list[dict[str, Any]]:
        """All whole lines; one still being written, or torn when its writer was killed, is passed
        over.
        """
        entries = []
        for number, line in enumerate(self._lines(), start=1):
            if (entry := _entry(line)) is not None:
                entries.append(entry)
            elif line.endswith(b"\n"):
                raise ArtifactError(
                    f"{self.path} is damaged: line {number} is not a JSON object with a step; delete that line"
                )
        return entries

    def _lines(self) -> list[bytes]:
        try:
            return self.path.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ArtifactError(f"cannot read {self.path}: {reason_of(error)}") from error


def _entry(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        entry = strict_json.decode(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and type(entry.get("step")) is int else None
