"""Draws on disk: a folder with one safetensors file a draw, written whole or not at all.

A file holds `theta` (chains, parameters) and the numbers (chains,) that go with the draw, under a
digest; reading a draw reads its own bytes and no others. A killed chain takes its folder up again:
what its checkpoint does not count is dropped and made anew, bit for bit.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from pseudocore.core.errors import ArtifactError, RunError
from pseudocore.store.coreset_file import read_tensors, write_tensors
from pseudocore.store.files import StrPath, writing


class DrawsFolder:
    """An ordered, growing collection of draws in a folder of its own."""

    def __init__(self, path: StrPath) -> None:
        self.path = Path(path)
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        self._num = sum(1 for _ in self._files())

    def __len__(self) -> int:
        return self._num

    def __getitem__(self, index: int) -> Tensor:
        """Theta (chains, parameters) of one draw."""
        return self._read(index)["theta"]

    def reserve(self, num_draws: int, num_bytes: int) -> None:
        """Refuse before the first draw what the disk cannot hold."""
        needed, free = (num_draws - self._num) * num_bytes, shutil.disk_usage(self.path).free
        if needed > free:
            raise RunError(
                f"{num_draws} draws of {num_bytes / 2**20:.1f} MiB do not fit into {self.path}: {free / 2**20:.0f} MiB are free there; "
                "keep fewer (num_draws, num_chains) or choose another folder"
            )

    def append(self, theta: Tensor, traces: Mapping[str, Tensor]) -> None:
        write_tensors(
            self._file(self._num),
            {**traces, "theta": theta},
            kind="draw",
            header={"number": self._num},
        )
        self._num += 1

    def truncate(self, num_draws: int) -> None:
        """Drop what a resumed chain will make again."""
        if num_draws > self._num:
            raise RunError(
                f"the chain had made {num_draws} draws at its checkpoint, but {self.path} holds {self._num}; start it again"
            )
        with writing(self.path):
            for number in reversed(
                range(num_draws, self._num)
            ):  # the last first: killed in between, what is left has no gap
                self._file(number).unlink()
                self._num = number

    def trace(self, name: str) -> Tensor:
        """One number of all draws, (draws, chains)."""
        return torch.stack([self._read(number)[name] for number in range(self._num)])

    def _read(self, index: int) -> dict[str, Tensor]:
        if not -self._num <= index < self._num:
            raise IndexError(f"there are {self._num} draws in {self.path}, and no number {index}")
        number = index % self._num
        tensors, header = read_tensors(self._file(number), kind="draw")
        if header.get("number") != number or "theta" not in tensors:
            raise ArtifactError(f"{self._file(number)} is not draw number {number} of a chain")
        return tensors

    def _file(self, number: int) -> Path:
        return self.path / f"draw-{number:06d}.safetensors"

    def _files(self) -> list[Path]:
        """The draws from the first to the last before a gap."""
        files = sorted(self.path.glob("draw-*.safetensors"))
        return [file for number, file in enumerate(files) if file == self._file(number)]
