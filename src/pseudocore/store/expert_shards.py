"""One expert's file, read row by row: a snapshot is mapped into memory, checked against its own
digest, and nothing else is touched.

A shard holds `theta` (epochs + 1, parameters), row 0 the initialisation, with a digest of every
row. Where going on from the last row would not be exact (it was rounded, or there is momentum) it
also holds `last` and `velocity` (parameters,).
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pseudocore.core.errors import ArtifactError
from pseudocore.store.coreset_file import read_tensors, write_tensors
from pseudocore.store.files import decode_json, reading

WAY_OUT = "delete the file and run the same pseudocore experts again to train that expert anew"


_KIND = "expert"


class Kept(NamedTuple):
    """One expert as its shard holds it."""

    theta: Tensor | list[Tensor]
    """(epochs + 1, parameters), or its rows."""
    losses: list[float]
    """Training loss of every epoch."""
    last: Tensor
    """(parameters,) after the last epoch, exactly."""
    velocity: Tensor | None


def write_shard(path: Path, number: int, kept: Kept) -> None:
    """Write an expert atomically."""
    tensors = {"theta": torch.stack(list(kept.theta))}
    if kept.velocity is not None:
        tensors["velocity"] = kept.velocity
    if not torch.equal(kept.theta[-1].to(kept.last), kept.last):
        tensors["last"] = kept.last
    header = {
        "number": number,
        "digests": [_row_digest(row) for row in tensors["theta"]],
        "losses": kept.losses,
    }
    write_tensors(path, tensors, kind=_KIND, header=header)


def read_shard(path: Path, number: int) -> Kept:
    """A whole expert, every byte checked."""
    losses = Shard(path, number).losses
    try:
        tensors, _ = read_tensors(path, kind=_KIND)
    except ArtifactError as error:
        raise ArtifactError(f"{error}; {WAY_OUT}") from error
    return Kept(
        tensors["theta"], losses, tensors.get("last", tensors["theta"][-1]), tensors.get("velocity")
    )


class Shard:
    """An open shard; the file may be replaced meanwhile, this keeps reading the old one."""

    def __init__(self, path: Path, number: int) -> None:
        self.path = path
        self._file, record = self._opened()
        self._theta: Any = self._guarded(lambda: self._file.get_slice("theta"))
        shape, digests, losses = (
            self._theta.get_shape(),
            record.get("digests"),
            record.get("losses"),
        )
        if (
            record.get("kind") != _KIND
            or record.get("number") != number
            or len(shape) != 2
            or not isinstance(losses, list)
        ):
            raise ArtifactError(f"{path} is not expert number {number}; {WAY_OUT}")
        if not isinstance(digests, list) or not len(digests) == len(losses) + 1 == shape[0]:
            raise ArtifactError(
                f"{path} is damaged: it should hold a digest and a loss for each of its epochs; {WAY_OUT}"
            )
        self.num_epochs: int = shape[0] - 1
        self.num_parameters: int = shape[1]
        self.losses: list[float] = losses
        self._digests = digests
        self._checked: set[int] = set()

    def row(self, epoch: int) -> Tensor:
        """Theta (parameters,) at the end of an epoch, still in the file's mapping and type: copy it
        before changing it.
        """
        theta: Tensor = self._guarded(lambda: self._theta[epoch])
        if epoch not in self._checked:
            if _row_digest(theta) != self._digests[epoch]:
                raise ArtifactError(
                    f"{self.path} is damaged: epoch {epoch} does not match the digest written with it; {WAY_OUT}"
                )
            self._checked.add(epoch)
        return theta

    def _opened(self) -> tuple[Any, dict[str, Any]]:
        file = self._guarded(lambda: safe_open(str(self.path), framework="pt", device="cpu"))
        try:
            record = decode_json((file.metadata() or {}).get("pseudocore", "null"))
        except ValueError:
            record = None
        if not isinstance(record, dict):
            raise ArtifactError(f"{self.path} was not written by pseudocore")
        return file, record

    def _guarded(self, read: Callable[[], Any]) -> Any:
        try:
            with reading(self.path):
                return read()
        except (
            SafetensorError,
            ValueError,
            RuntimeError,
            TypeError,
            KeyError,
            OverflowError,
        ) as error:
            raise ArtifactError(
                f"{self.path} is truncated, damaged or no safetensors file ({error}); {WAY_OUT}"
            ) from error


class MappedExperts:
    """`core.types.Experts` read from shards at every call; nothing is held in memory.

    All experts count up to the epoch that each of them has reached.
    """

    def __init__(
        self, folder: Path, shards: list[Shard], *, device: torch.device, dtype: torch.dtype
    ) -> None:
        if not shards:
            raise ArtifactError(
                f"{folder} holds no experts yet; run the pseudocore experts that was to fill it again"
            )
        self.folder = folder
        self.num_experts = len(shards)
        self.num_epochs = min(shard.num_epochs for shard in shards)
        self._shards, self._device, self._dtype = shards, device, dtype

    def at(self, expert: Tensor, epoch: Tensor) -> Tensor:
        rows = [
            self._shards[number].row(place)
            for number, place in zip(expert.tolist(), epoch.tolist(), strict=True)
        ]
        return torch.stack(rows).to(self._device, self._dtype)

    def first(self, num: int) -> "MappedExperts":
        """The first experts alone."""
        return MappedExperts(
            self.folder, self._shards[:num], device=self._device, dtype=self._dtype
        )

    def load(self, num_epochs: int) -> Tensor:
        """Snapshots (experts, num_epochs + 1, parameters) up to an epoch, on the device and in the
        type they are stored in.
        """
        parts = [
            torch.stack([shard.row(epoch) for epoch in range(num_epochs + 1)]).to(self._device)
            for shard in self._shards
        ]
        return torch.stack(parts)

    def num_bytes(self, num_epochs: int) -> int:
        """What `load` would take."""
        row = self._shards[0].row(0)
        return self.num_experts * (num_epochs + 1) * row.numel() * row.element_size()


def _row_digest(theta: Tensor) -> str:
    return hashlib.blake2b(
        theta.contiguous().view(torch.uint8).numpy().data, digest_size=16
    ).hexdigest()
