"""Draws on disk: a folder with one safetensors file per draw.

A file holds `theta` (chains, parameters) and the numbers (chains,) that go with the draw, under a
digest; reading a draw reads no other file. A killed chain resumes in its folder: draws after its
checkpoint are dropped and made again, bit for bit.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from pseudocore.core.errors import RunError
from pseudocore.store.coreset_file import read_tensors, write_tensors
from pseudocore.store.files import StrPath, file_error, reserve, writing


class DrawsFolder:
    """An ordered, growing collection of draws in a folder of its own."""

    def __init__(self, path: StrPath) -> None:
        self.path = Path(path)
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        files = sorted(self.path.glob("draw-*.safetensors"))
        self._num = sum(file == self._file(number) for number, file in enumerate(files))

    def __len__(self) -> int:
        return self._num

    def __getitem__(self, index: int) -> Tensor:
        """Theta (chains, parameters) of one draw."""
        return self._read(index)["theta"]

    def reserve(self, num_draws: int, num_bytes: int) -> None:
        """Refuse to begin a chain whose draws do not fit on the disk."""
        advice = "keep fewer draws (num_draws, num_chains) or choose another folder"
        reserve(self.path, (num_draws - self._num) * num_bytes, advice)

    def append(self, theta: Tensor, traces: Mapping[str, Tensor]) -> None:
        tensors, header = {**traces, "theta": theta}, {"number": self._num}
        write_tensors(self._file(self._num), tensors, kind="draw", header=header)
        self._num += 1

    def truncate(self, num_draws: int) -> None:
        """Drop the draws that a resumed chain will make again."""
        if num_draws > self._num:
            message = f"holds {self._num} draws, but the checkpoint counts {num_draws}"
            raise file_error(self.path, f"{message}; start again", "missing-draws", RunError)
        with writing(self.path):
            while self._num > num_draws:  # the last first, so that a kill leaves no gap
                self._file(self._num - 1).unlink()
                self._num -= 1

    def trace(self, name: str) -> Tensor:
        """One number of all draws, (draws, chains)."""
        return torch.stack([self._read(number)[name] for number in range(self._num)])

    def _read(self, index: int) -> dict[str, Tensor]:
        if not -self._num <= index < self._num:
            raise IndexError(f"there are {self._num} draws in {self.path}, and no number {index}")
        number = index % self._num
        tensors, header = read_tensors(self._file(number), kind="draw")
        if header.get("number") != number or "theta" not in tensors:
            message = f"is not draw number {number} of a chain"
            raise file_error(self._file(number), message, "damaged-file")
        return tensors

    def _file(self, number: int) -> Path:
        return self.path / f"draw-{number:06d}.safetensors"
