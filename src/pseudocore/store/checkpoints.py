"""The state of a run between its steps, in one file that is replaced whole."""

import math
import time
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from pseudocore.core.errors import ArtifactError, RunError
from pseudocore.store.coreset_file import read_tensors, write_tensors
from pseudocore.store.files import writing

CHECKPOINT_FILE = "checkpoint.safetensors"


class CheckpointFile:
    """`core.loop.Checkpoints` in a file that belongs to one configuration, known by its digest."""

    def __init__(self, path: Path, config_digest: str) -> None:
        self.path = path
        self.config_digest = config_digest
        self.seconds = 0.0
        """What the steps up to the checkpoint took, as it was last loaded or saved; a process that
        is killed tells it in no other way.
        """
        self._began = time.monotonic()

    def load(self) -> tuple[int, dict[str, Tensor]] | None:
        """Steps done and the state after them; None when nothing was saved. A damaged file is left
        where it is.
        """
        self.seconds, self._began = 0.0, time.monotonic()
        if not self.path.exists():
            return None
        way_out = "delete the file to restart from the beginning, or pass --overwrite"
        try:
            tensors, header = read_tensors(self.path, kind="checkpoint")
        except ArtifactError as error:
            raise ArtifactError(f"{error}; {way_out}") from error
        if type(step := header.get("step")) is not int:
            raise ArtifactError(f"{self.path} does not say which step it was saved at; {way_out}")
        if header.get("config") != self.config_digest:
            raise RunError(
                f"{self.path} was made with another configuration than the run's config.toml; {way_out}"
            )
        self.seconds = (
            seconds
            if isinstance(seconds := header.get("seconds"), float) and 0 <= seconds < math.inf
            else 0.0
        )
        return step, tensors

    def save(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        now = time.monotonic()
        seconds = self.seconds + now - self._began
        write_tensors(
            self.path,
            tensors,
            kind="checkpoint",
            header={"step": step, "config": self.config_digest, "seconds": seconds},
        )
        self.seconds, self._began = seconds, now

    def clear(self) -> None:
        """Remove the file, if there is one."""
        with writing(self.path):
            self.path.unlink(missing_ok=True)
