"""A coreset for other programs: an npz archive, a CSV table, a folder of pictures with a table of
labels, a frame, or a Hugging Face data set.

Each has the class every point stands for (`label`, and `class` where classes have names), its
probabilities of all classes (`p_NAME`) and its weight. Last-layer outputs, which some methods learn
as targets, are no labels: they are only written as `raw_targets` of an npz archive.
"""

import csv
import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from torch import Tensor, bfloat16

from pseudocore.core.errors import ConfigError, DataError, PseudocoreError, RunError
from pseudocore.core.optional import optional_module
from pseudocore.core.types import Coreset
from pseudocore.store.coreset_file import save_coreset
from pseudocore.store.files import StrPath, encode_json, file_error, replacing, write_bytes, writing
from pseudocore.store.png import encode_png, to_uint8

LABELS_FILE = "labels.csv"

Format = Literal["safetensors", "npz", "csv", "png"]


def export(coreset: Coreset, path: StrPath, format: Format | None = None) -> None:
    """Write a coreset in a format, by default the one of the file's suffix.

    An earlier export is replaced, any other file left alone.
    """
    path = Path(path)
    suffix, files = (
        path.suffix.lower().removeprefix("."),
        [name for name in _WRITERS if name != "png"],
    )
    wanted = suffix if format is None else format
    if format is None and suffix not in files:
        advice = "format='png' or --format png writes a folder of pictures"
        message = f"must end in .{', .'.join(files)} to say what to write; {advice}"
        raise file_error(path, message, "wrong-format", ConfigError)
    if wanted not in _WRITERS:
        message = f"cannot hold {wanted!r}; the formats are {', '.join(_WRITERS)}"
        raise file_error(path, message, "wrong-format", ConfigError)
    if suffix != ("" if wanted == "png" else wanted):
        ending = "be a folder, without a suffix," if wanted == "png" else f"end in .{wanted}"
        message = f"must {ending} to hold {wanted}"
        raise file_error(path, message, "wrong-format", ConfigError)
    _WRITERS[wanted](coreset, path)


def export_npz(coreset: Coreset, path: StrPath) -> None:
    """Write `x`, `y` (labels), `probabilities`, `weight`, `class_names`, `indices` of selected
    points, `raw_targets` where they are last-layer outputs, and `provenance`, a JSON text.

    The archive reads without pickle.
    """
    path = Path(path)
    if path.is_file() and not _is_npz_export(path):
        raise _foreign(path)
    is_numbers = coreset.task == "regression"
    arrays: dict[str, Any] = {
        "x": _array(coreset.x),
        "y": _array(coreset.y[:, 0] if is_numbers else coreset.labels),
        **({} if is_numbers else {"probabilities": _array(coreset.probabilities)}),
        "weight": _array(coreset.weight),
        "class_names": np.array(coreset.class_names, dtype=str),
        "provenance": np.array(encode_json(coreset.provenance)),
    }
    if coreset.indices is not None:
        arrays["indices"] = _array(coreset.indices)
    if coreset.is_soft and coreset.targets is not coreset.y:
        arrays["raw_targets"] = _array(coreset.y)
    with replacing(path) as file:
        np.savez(file, **arrays)


def export_csv(coreset: Coreset, path: StrPath) -> None:
    """Write one line per point: label, class, weight, probabilities and then all values of x."""
    path, columns = Path(path), table_of(coreset)
    if path.is_file() and not _is_csv_export(path):
        raise _foreign(path)
    write_bytes(path, _csv(columns).encode())


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
                write_bytes(folder / name, encode_png(image))
            table = _csv({"file": names, **_targets(coreset)})
            write_bytes(folder / LABELS_FILE, table.encode())
        except BaseException:
            for name in names:
                (folder / name).unlink(missing_ok=True)
            raise


def table_of(coreset: Coreset) -> dict[str, list[Any]]:
    """Columns: `label`, `class`, `weight`, `p_NAME` of each class, or `target` and `weight` of a
    regression. Then the values of x under the names of their features, or `x0`, `x1`, … in the
    order of memory.
    """
    values = coreset.x.detach().cpu().double().flatten(1)
    names = coreset.feature_names or [f"x{place}" for place in range(values.shape[1])]
    columns = _targets(coreset)
    if taken := [name for name in names if name in columns]:
        names = [f"feature {name}" if name in taken else name for name in names]
    return {**columns, **dict(zip(names, values.T.tolist(), strict=True))}


def to_frame(coreset: Coreset, library: Literal["pandas", "polars"] = "pandas") -> Any:
    """A frame of `table_of`."""
    if library not in ("pandas", "polars"):
        message = f"unknown library {library!r} for frames; there are pandas and polars"
        raise ConfigError(message, code="unknown-choice", library=library)
    return optional_module(library, library, library).DataFrame(table_of(coreset))


def to_hf(coreset: Coreset) -> Any:
    """A Hugging Face `datasets.Dataset`: the columns of `table_of`, but `label` a class label, and
    of images `x`, exact, and `image`, an 8-bit picture, instead of single values.
    """
    library = optional_module("datasets", "datasets", "huggingface")
    columns = table_of(coreset) if coreset.x.ndim == 2 else _targets(coreset)
    columns.pop("class", None)
    features: dict[str, Any] = dict.fromkeys(columns, library.Value("float32"))
    if coreset.task == "classification":
        names = list(coreset.class_names) or [str(label) for label in range(coreset.num_classes)]
        features["label"] = library.ClassLabel(names=names)
    if coreset.x.ndim == 4:
        channels, height, width = coreset.x.shape[1:]
        features["x"] = library.Array3D((channels, height, width), "float32")
        columns["x"] = list(coreset.x.detach().cpu().float().numpy())
        if channels in (1, 3):
            features["image"] = library.Image()
            columns["image"] = [
                {"bytes": encode_png(one), "path": None} for one in to_uint8(coreset.x)
            ]
    elif coreset.x.ndim != 2:
        message = f"points of shape {tuple(coreset.x.shape[1:])} are neither images nor features"
        raise DataError(message, code="not-an-image")
    about = library.DatasetInfo(
        description=encode_json(coreset.provenance), features=library.Features(features)
    )
    return library.Dataset.from_dict(columns, features=about.features, info=about)


_WRITERS: dict[str, Callable[[Coreset, Path], None]] = {
    "safetensors": lambda coreset, path: save_coreset(path, coreset),
    "npz": export_npz,
    "csv": export_csv,
    "png": export_pngs,
}


def _targets(coreset: Coreset) -> dict[str, list[Any]]:
    """What each point stands for, by column."""
    if coreset.task == "regression":
        columns = {"target": coreset.y[:, 0], "weight": coreset.weight}
        return {name: values.detach().cpu().double().tolist() for name, values in columns.items()}
    labels, names = coreset.labels.tolist(), coreset.class_names
    found: dict[str, list[Any]] = {"label": labels}
    if names:
        found["class"] = [names[label] for label in labels]
    found["weight"] = coreset.weight.detach().cpu().double().tolist()
    probabilities = coreset.probabilities.detach().cpu().double().T.tolist()
    for label, values in enumerate(probabilities):
        found[f"p_{names[label] if names else label}"] = values
    return found


def _csv(columns: dict[str, list[Any]]) -> str:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(columns)
    table.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()


def _foreign(path: Path) -> PseudocoreError:
    message = "exists and is no export of a coreset; name another file"
    return file_error(path, message, "foreign-file", RunError)


def _is_npz_export(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return {"x.npy", "y.npy", "weight.npy", "provenance.npy"} <= set(archive.namelist())
    except (zipfile.BadZipFile, OSError):
        return False


def _is_csv_export(path: Path) -> bool:
    """Whether a file begins as our tables do."""
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        header = next(csv.reader(file), [])
    if header[:2] == ["target", "weight"]:
        return True
    return (
        header[:1] == ["label"]
        and "weight" in header[:3]
        and any(name.startswith("p_") for name in header)
    )


def _array(tensor: Tensor) -> npt.NDArray[np.generic]:
    tensor = tensor.detach().cpu()
    return np.asarray((tensor.float() if tensor.dtype == bfloat16 else tensor).numpy())
