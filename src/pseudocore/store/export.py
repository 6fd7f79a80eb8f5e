"""A coreset for other programs: an npz archive, or a folder of pictures with a table of labels."""

import csv
import io
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, bfloat16

from pseudocore.core.errors import ConfigError, DataError, RunError
from pseudocore.core.types import Coreset
from pseudocore.store.files import StrPath, encode_json, file_error, replacing, write_bytes, writing

LABELS_FILE = "labels.csv"

Pixels = npt.NDArray[np.uint8]


def export_npz(coreset: Coreset, path: StrPath) -> None:
    """Write `x`, `y`, `weight`, `indices` of selected points and `provenance`, a JSON text.

    The archive reads without pickle. An earlier export is replaced, any other file left alone.
    """
    path = Path(path)
    if path.is_file() and not _is_export(path):
        message = "exists and is no export of a coreset; name another file"
        raise file_error(path, message, "foreign-file", RunError)
    arrays: dict[str, Any] = {"provenance": np.array(encode_json(coreset.provenance))}
    for name in ("x", "y", "weight", "indices"):
        tensor = getattr(coreset, name)
        if tensor is not None:
            arrays[name] = _array(tensor)
    with replacing(path) as file:
        np.savez(file, **arrays)


def export_pngs(coreset: Coreset, folder: StrPath) -> None:
    """Write one picture per point and then the table: a folder with a `labels.csv` is complete.

    When writing fails, the pictures are removed again.
    """
    folder, pictures = Path(folder), to_uint8(coreset.x)
    labels = coreset.labels.tolist()
    names = [f"{number:05d}_class{label}.png" for number, label in enumerate(labels)]
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            message = "is not empty; pictures go to a new or empty folder"
            raise file_error(folder, message, "folder-not-empty", RunError)
        try:
            for name, image in zip(names, pictures, strict=True):
                (folder / name).write_bytes(encode_png(image))
            write_bytes(folder / LABELS_FILE, _labels_table(coreset, names).encode())
        except BaseException:
            for name in names:
                (folder / name).unlink(missing_ok=True)
            raise


def encode_png(image: Pixels) -> bytes:
    """The PNG file of a grey (h, w) or colour (h, w, 3) image, by the standard library alone."""
    is_image = image.ndim == 2 or (image.ndim == 3 and image.shape[2] == 3)
    if image.dtype != np.uint8 or not is_image or image.size == 0:
        message = f"a picture must be uint8 (h, w) or (h, w, 3), not {image.dtype} {image.shape}"
        raise DataError(message, code="not-an-image", shape=image.shape)
    height, width = image.shape[:2]
    colour_type = 0 if image.ndim == 2 else 2
    rows = image.reshape(height, -1)
    no_filter = np.zeros((height, 1), np.uint8)  # every row names its filter
    header = struct.pack(">IIBBBBB", width, height, 8, colour_type, 0, 0, 0)
    pixels = zlib.compress(np.concatenate([no_filter, rows], axis=1).tobytes(), 9)
    chunks = ((b"IHDR", header), (b"IDAT", pixels), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks
    )


def to_uint8(x: Tensor) -> Pixels:
    """Images (M, c, h, w) in pixel units as 8-bit (M, h, w) or, for three channels, (M, h, w, 3).

    Values outside [0, 1] are clipped.
    """
    if x.ndim != 4 or x.shape[1] not in (1, 3):
        message = (
            f"points of shape {tuple(x.shape[1:])} cannot become pictures, only images of 1 or 3"
        )
        message = f"{message} channels; export npz instead"
        raise ConfigError(message, code="not-an-image", shape=tuple(x.shape))
    levels: Pixels = (x.detach().float().cpu().clamp(0, 1) * 255).round().byte().numpy()
    return levels[:, 0] if x.shape[1] == 1 else levels.transpose(0, 2, 3, 1)


def _is_export(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return {"x.npy", "y.npy", "weight.npy", "provenance.npy"} <= set(archive.namelist())
    except (zipfile.BadZipFile, OSError):
        return False


def _labels_table(coreset: Coreset, names: list[str]) -> str:
    soft = coreset.y.double().tolist() if coreset.is_soft else [[] for _ in names]
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["file", "label", "weight", *(f"soft_{label}" for label in range(len(soft[0])))])
    rows = zip(names, coreset.labels.tolist(), coreset.weight.double().tolist(), soft, strict=True)
    table.writerows([name, label, weight, *targets] for name, label, weight, targets in rows)
    return text.getvalue()


def _array(tensor: Tensor) -> npt.NDArray[np.generic]:
    tensor = tensor.detach().cpu()
    return np.asarray((tensor.float() if tensor.dtype == bfloat16 else tensor).numpy())
