"""Safetensors files with integrity and provenance: what was written comes back bit for bit, or a
sentence says why not.

A file carries one metadata entry, `pseudocore`: a JSON object with the schema version, the kind of
thing the file holds, a blake2b digest of it all, and what the kind adds. `docs/artifacts.md` is the
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
from pseudocore.core.types import Coreset
from pseudocore.store import strict_json
from pseudocore.store.files import StrPath, reason_of, write_bytes

SCHEMA = 1
"""Version of the metadata; a reader refuses a later one."""

CORESET_FILE = "coreset.safetensors"

_ENTRY = "pseudocore"


def write_tensors(
    path: StrPath, tensors: Mapping[str, Tensor], *, kind: str, header: Mapping[str, Any]
) -> None:
    """Write tensors atomically; `schema`, `kind` and `digest` are ours and win over header entries
    of these names.
    """
    own = {name: _on_cpu(tensor) for name, tensor in tensors.items()}
    # Through text and back, so that the digest covers the header as a reader will see it.
    record = strict_json.decode(strict_json.encode({**header, "schema": SCHEMA, "kind": kind}))
    record["digest"] = _digest(own, record)
    write_bytes(path, save(own, metadata={_ENTRY: strict_json.encode(record)}))


def read_tensors(path: StrPath, *, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and header of a file of ours, freshly allocated so that their alignment does not
    depend on the file.
    """
    where = os.fspath(path)
    try:
        _refuse_no_file(Path(path))
        with safe_open(where, framework="pt", device="cpu") as file:
            record = _record(where, file.metadata(), kind)
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118  safe_open is no mapping
        intact = record.get("digest") == _digest(tensors, record)
    except OSError as error:
        raise ArtifactError(f"cannot read {where}: {reason_of(error)}") from error
    except (SafetensorError, ValueError, RuntimeError, TypeError, KeyError, OverflowError) as error:
        raise ArtifactError(
            f"{where} is truncated, damaged or no safetensors file ({error})"
        ) from error
    if not intact:
        raise ArtifactError(
            f"{where} is damaged: its contents do not match the digest written with them"
        )
    return tensors, {
        name: value for name, value in record.items() if name not in ("schema", "kind", "digest")
    }


def save_coreset(path: StrPath, coreset: Coreset) -> None:
    """Write a coreset; plain safetensors readers find `x`, `y`, `weight` and, for chosen points,
    `indices` in it.
    """
    tensors = {"x": coreset.x, "y": coreset.y, "weight": coreset.weight}
    if coreset.indices is not None:
        tensors["indices"] = coreset.indices
    write_tensors(path, tensors, kind="coreset", header={"provenance": coreset.provenance})


def load_coreset(path: StrPath) -> Coreset:
    """Read a coreset from its file or from the run folder that holds it."""
    path = Path(path)
    if os.path.isdir(path):
        if not (path / CORESET_FILE).exists():
            raise ArtifactError(
                f"the folder {path} holds no {CORESET_FILE}; give a coreset file or the folder of a finished run"
            )
        path = path / CORESET_FILE
    _refuse_other_formats(path)
    tensors, header = read_tensors(path, kind="coreset")
    provenance = header.get("provenance", {})
    missing = {"x", "y", "weight"} - tensors.keys()
    if missing or not isinstance(provenance, dict):
        raise ArtifactError(
            f"{path} is no whole coreset: it lacks {', '.join(sorted(missing)) or 'a provenance that is an object'}"
        )
    if odd := [name for name, tensor in tensors.items() if tensor.ndim == 0 or tensor.is_complex()]:
        raise ArtifactError(
            f"{path} is no usable coreset: {odd[0]} must be an array of real numbers, one entry per point"
        )
    try:
        return Coreset(
            tensors["x"], tensors["y"], tensors["weight"], tensors.get("indices"), provenance
        )
    except DataError as error:
        raise ArtifactError(f"{path} is no usable coreset: {error}") from error


def _on_cpu(tensor: Tensor) -> Tensor:
    # A copy even when nothing moves: safetensors refuses tensors that share memory, and states may
    # repeat one.
    return tensor.detach().to("cpu", copy=True).contiguous()


def _digest(tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> str:
    digest = hashlib.blake2b(digest_size=32)
    digest.update(
        strict_json.encode(
            {name: value for name, value in record.items() if name != "digest"}, sort_keys=True
        ).encode()
    )
    for name, tensor in sorted(tensors.items()):
        digest.update(
            strict_json.encode(
                [name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
            ).encode()
        )
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _refuse_no_file(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ArtifactError(f"there is no file {path}") from error
    if stat.S_ISDIR(mode):
        raise ArtifactError(f"{path} is a folder, not a file")
    if not stat.S_ISREG(mode):  # opening a pipe would wait for ever
        raise ArtifactError(f"{path} is not a regular file")


def _refuse_other_formats(path: Path) -> None:
    """Say of a file that never was a coreset that it is none; one that is merely damaged is left to
    the reader, and so is none at all.
    """
    head = b""
    with contextlib.suppress(OSError):  # the reader says why
        if path.is_file():
            with path.open("rb") as file:
                head = file.read(9)
    if head.startswith(b"PK\x03\x04"):
        raise ArtifactError(
            f"{path} is no coreset file but an archive, as export writes; an npz export cannot be evaluated or exported again, "
            f"give the run it came from or its {CORESET_FILE}"
        )
    if len(head) == 9 and not head.endswith(b"{"):  # safetensors: eight bytes of length, then JSON
        raise ArtifactError(
            f"{path} is no coreset file, or a damaged one; give a run or its {CORESET_FILE}"
        )


def _record(where: str, metadata: Mapping[str, str] | None, kind: str) -> dict[str, Any]:
    """The checked JSON object under our metadata entry."""
    if not metadata or _ENTRY not in metadata:
        raise ArtifactError(f"{where} was not written by pseudocore: it has no {_ENTRY!r} metadata")
    try:
        record = strict_json.decode(metadata[_ENTRY])
    except ValueError as error:
        raise ArtifactError(f"the {_ENTRY!r} metadata of {where} is not JSON ({error})") from error
    if (
        not isinstance(record, dict)
        or type(record.get("schema")) is not int
        or record["schema"] < 1
    ):
        raise ArtifactError(
            f"the {_ENTRY!r} metadata of {where} is not what pseudocore writes: it has no schema version"
        )
    if record["schema"] > SCHEMA:
        raise ArtifactError(
            f"{where} was written by a later pseudocore (schema {record['schema']}, this one reads up to {SCHEMA}); upgrade to read it"
        )
    if record.get("kind") != kind:
        raise ArtifactError(f"{where} holds {record.get('kind')!r}, not {kind!r}")
    return record
