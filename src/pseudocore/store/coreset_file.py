"""Safetensors files with integrity and provenance: what is read is what was written, bit for bit.

A file has one metadata entry, `pseudocore`: a JSON object with the schema version, the kind of
file, a blake2b digest of tensors and metadata, and what the kind adds. `docs/artifacts.md` is the
format's page.
"""

import contextlib
import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from pseudocore.core.errors import ArtifactError, DataError
from pseudocore.core.types import Contract, Coreset
from pseudocore.store.files import (
    StrPath,
    decode_json,
    encode_json,
    file_error,
    reading,
    write_bytes,
)

SCHEMA = 1
"""Version of the metadata; later ones are refused."""

CORESET_FILE = "coreset.safetensors"

STASH = ".replaced"
"""Folder in a run's where the run that it overwrites is kept until it has a coreset."""

_ENTRY = "pseudocore"

_DTYPES = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
)
"""What torch can compute with: it has types of 8 bits that it can only store."""

_CLASSES = 1_000_000
"""Labels lie below: a stranger's may be huge, and points have a probability of every class."""

_CONSTANT = "preprocess."
"""What the names of the preprocessing's constants begin with."""


def write_tensors(
    path: StrPath, tensors: Mapping[str, Tensor], *, kind: str, header: Mapping[str, Any]
) -> None:
    """Write tensors atomically.

    Args:
        path: The file, replaced if there is one.
        tensors: Tensors by name, on any device.
        kind: The kind of file, which `read_tensors` asks for.
        header: JSON values kept beside the tensors; `schema`, `kind` and `digest` are reserved.
    """
    # Copied even on a CPU: safetensors refuses tensors that share memory, as those of a state may.
    own = {
        name: value.detach().to("cpu", copy=True).contiguous() for name, value in tensors.items()
    }
    # Encoded and decoded, so that the digest covers the header as a reader will see it.
    record = decode_json(encode_json({**header, "schema": SCHEMA, "kind": kind}))
    record.pop("digest", None)
    record["digest"] = _digest(own, record)
    write_bytes(path, save(own, metadata={_ENTRY: encode_json(record)}))


def read_tensors(path: StrPath, *, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and header of a file of `write_tensors`, copied so that they are aligned."""
    path = Path(path)
    try:
        with reading(path):
            _refuse_no_file(path)
            with safe_open(str(path), framework="pt", device="cpu") as file:
                record = _record(path, file.metadata(), kind)
                names = file.keys()
                tensors = {name: file.get_tensor(name).clone() for name in names}
        is_intact = record.pop("digest", None) == _digest(tensors, record)
    except (SafetensorError, ValueError, RuntimeError, TypeError, KeyError, OverflowError) as error:
        raise file_error(
            path, f"is truncated, damaged or no safetensors file ({error})", "damaged-file"
        ) from error
    if not is_intact:
        raise file_error(
            path,
            "is damaged: its contents do not match the digest written with them",
            "damaged-file",
        )
    del record["schema"], record["kind"]
    return tensors, record


def read_header(path: StrPath, *, kind: str) -> dict[str, Any]:
    """The header alone; whether it and the tensors are intact is not checked."""
    path = Path(path)
    try:
        with reading(path):
            _refuse_no_file(path)
            with safe_open(str(path), framework="pt", device="cpu") as file:
                return _record(path, file.metadata(), kind)
    except (SafetensorError, ValueError, RuntimeError) as error:
        message = f"is damaged or no safetensors file ({error})"
        raise file_error(path, message, "damaged-file") from error


def save_coreset(path: StrPath, coreset: Coreset) -> None:
    """Write a coreset; plain safetensors readers find `x`, `y`, `weight` and, for chosen points,
    `indices` in it.
    """
    tensors = {"x": coreset.x, "y": coreset.y, "weight": coreset.weight}
    if coreset.indices is not None:
        tensors["indices"] = coreset.indices
    header: dict[str, Any] = {"provenance": coreset.provenance}
    if (contract := coreset.contract) is not None:
        header["contract"] = contract.to_table()
        tensors |= {_CONSTANT + name: value for name, value in contract.constants.items()}
    write_tensors(path, tensors, kind="coreset", header=header)


def load_coreset(path: StrPath) -> Coreset:
    """Read a coreset from its file or from the run folder that holds it."""
    path = Path(path)
    if os.path.isdir(path):
        if not (path / CORESET_FILE).exists() and (path / STASH / CORESET_FILE).exists():
            path = path / STASH
        if not (path / CORESET_FILE).exists():
            message = (
                f"holds no {CORESET_FILE}; give a coreset file or the folder of a finished run"
            )
            raise file_error(path, message, "no-coreset")
        path = path / CORESET_FILE
    _refuse_other_formats(path)
    tensors, header = read_tensors(path, kind="coreset")
    provenance = header.get("provenance", {})
    missing = sorted({"x", "y", "weight"} - tensors.keys())
    if missing or not isinstance(provenance, dict):
        lacking = ", ".join(missing) or "a provenance that is an object"
        raise file_error(path, f"is no complete coreset: it lacks {lacking}", "damaged-file")
    for name, tensor in tensors.items():
        if tensor.ndim == 0 or tensor.dtype not in _DTYPES:
            raise file_error(
                path,
                f"is no usable coreset: {name} must be an array of real numbers, of 16 bits or more"
                " where it is of floats",
                "damaged-file",
            )
    y = tensors["y"]
    if not y.is_floating_point() and y.numel() and not 0 <= int(y.min()) <= int(y.max()) < _CLASSES:
        message = f"is no usable coreset: its labels must lie in 0..{_CLASSES - 1}"
        raise file_error(path, message, "damaged-file")
    constants = {
        name.removeprefix(_CONSTANT): value
        for name, value in tensors.items()
        if name.startswith(_CONSTANT)
    }
    try:
        contract = (
            Contract.from_table(header["contract"], constants) if "contract" in header else None
        )
        return Coreset(
            tensors["x"],
            tensors["y"],
            tensors["weight"],
            tensors.get("indices"),
            provenance,
            contract,
        )
    except (ArtifactError, DataError) as error:
        raise file_error(path, f"is no usable coreset: {error}", "damaged-file") from error


def _digest(tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> str:
    digest = hashlib.blake2b(digest_size=32)
    digest.update(encode_json(record, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        about = [name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
        digest.update(encode_json(about).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _refuse_no_file(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ArtifactError(f"there is no file {path}", code="no-file", path=path) from error
    if not stat.S_ISREG(mode):  # opening a pipe would wait for ever
        what = "is a folder, not a file" if stat.S_ISDIR(mode) else "is not a regular file"
        raise file_error(path, what, "no-file")


def _refuse_other_formats(path: Path) -> None:
    """Refuse a file that never was a coreset; damaged and missing ones are left to the reader."""
    head = b""
    with contextlib.suppress(OSError):
        if path.is_file():
            with path.open("rb") as file:
                head = file.read(9)
    advice = f"give a run or its {CORESET_FILE}"
    if head.startswith(b"PK\x03\x04"):
        message = f"is no coreset file but an archive; {advice}, or adopt it (pseudocore adopt)"
        raise file_error(path, message, "not-a-coreset")
    if len(head) == 9 and not head.endswith(b"{"):  # safetensors: eight bytes of length, then JSON
        raise file_error(path, f"is no coreset file, or a damaged one; {advice}", "not-a-coreset")


def _record(path: Path, metadata: Mapping[str, str] | None, kind: str) -> dict[str, Any]:
    """The checked JSON object under our metadata entry."""
    if not metadata or _ENTRY not in metadata:
        message = f"was not written by pseudocore: it has no {_ENTRY!r} metadata"
        raise file_error(path, message, "foreign-file")
    try:
        record = decode_json(metadata[_ENTRY])
    except ValueError as error:
        message = f"is damaged: its {_ENTRY!r} metadata is not JSON ({error})"
        raise file_error(path, message, "damaged-file") from error
    schema = record.get("schema") if isinstance(record, dict) else None
    if type(schema) is not int or schema < 1:
        message = f"is damaged: its {_ENTRY!r} metadata has no schema version"
        raise file_error(path, message, "damaged-file")
    if schema > SCHEMA:
        message = f"schema {schema}, this one reads up to {SCHEMA}"
        message = f"was written by a later pseudocore ({message}); upgrade to read it"
        raise file_error(path, message, "later-schema", schema=schema)
    if record.get("kind") != kind:
        message = f"holds {record.get('kind')!r}, not {kind!r}"
        raise file_error(path, message, "another-kind", kind=record.get("kind"))
    return dict(record)
