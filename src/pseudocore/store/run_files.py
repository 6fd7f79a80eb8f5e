"""The files that a run writes while it works: its checkpoint and its metrics."""

import contextlib
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from pseudocore.core.errors import ArtifactError, RunError
from pseudocore.store.coreset_file import read_tensors, write_tensors
from pseudocore.store.files import (
    decode_json,
    encode_json,
    file_error,
    reading,
    write_bytes,
    writing,
)

CHECKPOINT_FILE = "checkpoint.safetensors"
METRICS_FILE = "metrics.jsonl"


class CheckpointFile:
    """`runtime.loop.Checkpoints` in a file of one configuration, known by its digest."""

    def __init__(
        self, path: Path, config_digest: str, metrics: "MetricsFile | None" = None
    ) -> None:
        self.path = path
        self.config_digest = config_digest
        self.num_metrics: int | None = None
        """Lines of metrics up to the checkpoint last loaded; None where it does not say."""
        self._metrics = metrics
        self.seconds = 0.0
        """Duration of the steps up to the checkpoint last loaded or saved, over all processes."""
        self._began = time.monotonic()

    def load(self) -> tuple[int, dict[str, Tensor]] | None:
        """Steps done and the state after them; None when nothing was saved.

        A damaged file is left where it is.
        """
        self.seconds, self._began = 0.0, time.monotonic()
        if not self.path.exists():
            return None
        advice = "delete the file to restart from the beginning, or pass --overwrite"
        try:
            tensors, header = read_tensors(self.path, kind="checkpoint")
        except ArtifactError as error:
            raise ArtifactError(f"{error}; {advice}", code=error.code, **error.fields) from error
        step, seconds = header.get("step"), header.get("seconds")
        if type(step) is not int:
            message = f"does not say at which step it was saved; {advice}"
            raise file_error(self.path, message, "damaged-file")
        if header.get("config") != self.config_digest:
            message = f"belongs to another configuration than the run's config.toml; {advice}"
            raise file_error(self.path, message, "another-config", RunError)
        if isinstance(seconds, float) and 0 <= seconds < math.inf:
            self.seconds = seconds
        if type(header.get("metrics")) is int:
            self.num_metrics = header["metrics"]
        return step, tensors

    def save(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        now = time.monotonic()
        seconds = self.seconds + now - self._began
        header = {"step": step, "config": self.config_digest, "seconds": seconds}
        if self._metrics is not None:
            header["metrics"] = self._metrics.sync(step)
        write_tensors(self.path, tensors, kind="checkpoint", header=header)
        self.seconds, self._began = seconds, now

    def clear(self) -> None:
        """Remove the file, if there is one."""
        with writing(self.path):
            self.path.unlink(missing_ok=True)


class MetricsFile:
    """One JSON object a line, `step` first; a resumed run writes an uninterrupted one's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._num_kept = 0
        self._appended: list[int] = []
        """Steps of the lines appended since `truncate`."""

    def append(self, step: int, values: Mapping[str, float]) -> None:
        line = encode_json({"step": step, **values}) + "\n"
        with writing(self.path), open(self._open(os.O_APPEND | os.O_CREAT), "ab") as file:
            file.write(line.encode())
        self._appended.append(step)

    def truncate(self, step: int) -> int:
        """Keep the whole lines up to `step`, byte for byte.

        Returns:
            Their number.
        """
        lines = self._lines()
        kept = [line for line in lines if (entry := _entry(line)) and entry["step"] <= step]
        if kept != lines:
            write_bytes(self.path, b"".join(kept))
        self._num_kept, self._appended = len(kept), []
        return len(kept)

    def sync(self, step: int) -> int:
        """Put on the disk what was appended.

        Returns:
            The number of lines up to `step`.
        """
        if self._appended:
            with contextlib.suppress(FileNotFoundError), writing(self.path):
                handle = self._open()
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)
        return self._num_kept + sum(one <= step for one in self._appended)

    def _open(self, flags: int = 0) -> int:
        """Neither a link nor a pipe is followed or waited for."""
        flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        return os.open(self.path, os.O_WRONLY | flags | getattr(os, "O_BINARY", 0), 0o666)

    def read(self) -> list[dict[str, Any]]:
        """All whole lines, without an unfinished last one."""
        entries = []
        for number, line in enumerate(self._lines(), start=1):
            if entry := _entry(line):
                entries.append(entry)
            elif line.endswith(b"\n"):
                message = f"line {number} is not a JSON object with a step; delete it"
                raise file_error(self.path, f"is damaged: {message}", "damaged-file", line=number)
        return entries

    def _lines(self) -> list[bytes]:
        if not self.path.exists():
            return []
        with reading(self.path):
            return self.path.read_bytes().splitlines(keepends=True)


def _entry(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        entry = decode_json(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and type(entry.get("step")) is int else None
