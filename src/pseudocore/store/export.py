"""A coreset for other programs: one npz archive, or a folder of pictures with a table of labels."""

import csv
import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pseudocore.core.errors import ConfigError, RunError
from pseudocore.core.types import Coreset
from pseudocore.store import png, strict_json
from pseudocore.store.files import StrPath, write_bytes, writing

LABELS_FILE = "labels.csv"


def export_npz(coreset: Coreset, path: StrPath) -> None:
    """Write `x`, `y`, `weight`, `indices` (when points were chosen) and `provenance` (JSON text);
    reads without pickle.

    An earlier export is replaced, any other file left alone.
    """
    if Path(path).is_file() and not _is_export(Path(path)):
        raise RunError(
            f"{path} is there already and is no export of a coreset, so it is left alone; name another file"
        )
    arrays: dict[str, Any] = {
        "x": _array(coreset.x),
        "y": _array(coreset.y),
        "weight": _array(coreset.weight),
    }
    if coreset.indices is not None:
        arrays["indices"] = _array(coreset.indices)
    archive = io.BytesIO()
    np.savez(archive, provenance=np.array(strict_json.encode(coreset.provenance)), **arrays)
    write_bytes(path, archive.getvalue())


def _is_export(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return {"x.npy", "y.npy", "weight.npy", "provenance.npy"} <= set(archive.namelist())
    except (zipfile.BadZipFile, OSError):
        return False


def export_pngs(coreset: Coreset, folder: StrPath) -> None:
    """Write one picture per point and, last, the table: a folder with a `labels.csv` is whole.

    When it cannot be completed, what was written so far is taken away again.
    """
    if coreset.x.ndim != 4 or coreset.x.shape[1] not in (1, 3):
        raise ConfigError(
            f"the points of this coreset have shape {tuple(coreset.x.shape[1:])}; only images of 1 or 3 channels can become "
            "pictures, export it as npz instead"
        )
    folder = Path(folder)
    names = [
        f"{number:05d}_class{label}.png" for number, label in enumerate(coreset.labels.tolist())
    ]
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise RunError(f"{folder} is not empty; pictures go to a new or empty folder")
        try:
            for name, image in zip(names, png.to_uint8(coreset.x), strict=True):
                (folder / name).write_bytes(png.encode(image))
            write_bytes(folder / LABELS_FILE, _labels_table(coreset, names).encode())
        except BaseException:
            for name in names:
                (folder / name).unlink(missing_ok=True)
            raise


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
    return np.asarray(
        (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    )  # numpy has no bfloat16
