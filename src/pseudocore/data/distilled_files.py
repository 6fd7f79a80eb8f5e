"""The files that distilled sets are saved in: tensors under the names that repositories give them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pseudocore.core.errors import ConfigError, DataError
from pseudocore.core.types import Dataset
from pseudocore.data import arrays
from pseudocore.data.decoding import is_picture, pixels
from pseudocore.data.table_files import read_csv
from pseudocore.data.torch_files import SUFFIXES, read_torch
from pseudocore.store.files import reading as opening

_IMAGES = ("images", "image", "images_syn", "image_syn", "x", "x_syn", "syn_images", "train_x", "train_images", "data")  # fmt: skip
_LABELS = ("probabilities", "soft_labels", "soft_label", "labels", "label", "labels_syn", "label_syn", "y", "y_syn", "syn_labels", "train_y", "train_labels", "targets", "target")  # fmt: skip
_WEIGHTS = ("weight", "weights")
_LABEL_FILES = ("labels.csv", "labels.npy", "labels.pt")


class Stored(NamedTuple):
    """One set, as it was saved."""

    x: Tensor
    y: Tensor | None
    weight: Tensor | None = None


def stored_in(path: Path, data: Dataset, number: int, *, has_labels: bool) -> Stored:
    """One of the sets in a file or folder; without labels of its own where it `has_labels` elsewhere."""
    if path.is_dir():
        return _of_folder(path, data, has_labels=has_labels)
    if path.suffix == ".npz":
        return _named(_archive(path), path)
    if path.suffix not in SUFFIXES:
        raise DataError(
            f"{path} is no distilled set known here: a .pt or .npz file or a folder of pictures",
            code="unknown-layout",
            path=path,
        )
    sets = list(_sets(read_torch(path), path))
    if not 0 <= number < len(sets):
        raise ConfigError(
            f"{path} holds {len(sets)} sets, 0 to {len(sets) - 1}, and no number {number}",
            code="out-of-range",
            option="number",
        )
    beside = path.with_name(path.name.replace("images", "labels"))
    if sets[number].y is None and not has_labels and beside != path and beside.is_file():
        return sets[number]._replace(y=labels_in(beside))
    return sets[number]


def labels_in(path: Path) -> Tensor:
    """The labels in a file of their own."""
    with opening(path, DataError):
        if path.suffix in SUFFIXES:
            found = read_torch(path)
            if isinstance(found, Tensor):
                return found
            found = _named(found, path, _LABELS) if isinstance(found, Mapping) else None
            if found is not None:
                return found.x
        elif path.suffix == ".npz":
            return _named(_archive(path), path, _LABELS).x
        elif path.suffix == ".npy":
            return torch.from_numpy(np.array(arrays.open_array(path)))
        elif path.suffix == ".csv":
            y = _of_table(path, None).y
            if y is not None:
                return y
    message = f"{path} holds no labels: a .pt, .npz, .npy or .csv file of one row for each point"
    raise DataError(message, code="no-labels", path=path)


def _archive(path: Path) -> dict[str, np.ndarray]:
    known = {*_IMAGES, *_LABELS, *_WEIGHTS}
    return arrays.load_archive(path, lambda names: [n for n in names if n.lower() in known])


def _named(found: Mapping[Any, Any], path: Path, first: Sequence[str] = _IMAGES) -> Stored:
    """The tensors or arrays of a mapping under known names."""
    by_name = {str(name).lower(): value for name, value in found.items()}

    def pick(names: Sequence[str]) -> Tensor | None:
        for name in names:
            value = by_name.get(name)
            if isinstance(value, np.ndarray) and value.dtype.kind in "biuf" and value.size:
                return torch.from_numpy(value)
            if isinstance(value, Tensor):
                return value
        return None

    x = pick(first)
    if x is None:
        kind = "images" if first is _IMAGES else "labels"
        raise DataError(
            f"{path} holds {', '.join(sorted(by_name)) or 'nothing'}, and no tensor of {kind} under a"
            f" name such as {', '.join(first[:4])}",
            code="unknown-layout",
            path=path,
        )
    return Stored(x, pick(_LABELS), pick(_WEIGHTS))


def _sets(found: Any, path: Path) -> Iterator[Stored]:
    """The sets that a file of `torch.save` holds."""
    if isinstance(found, Mapping):
        found = {str(name).lower(): value for name, value in found.items()}
        if isinstance(found.get("data"), list | tuple):
            yield from _sets(found["data"], path)
        else:
            yield _named(found, path)
    elif isinstance(found, Tensor):
        yield Stored(found, None)
    elif isinstance(found, list | tuple) and found:
        if len(found) >= 2 and all(isinstance(part, Tensor) for part in found[:2]):
            yield Stored(found[0], found[1])
            return
        for one in found:
            yield from _sets(one, path)
    else:
        message = f"{path} holds {type(found).__name__} where images and labels should be"
        raise DataError(message, code="unknown-layout", path=path)


def _of_folder(folder: Path, data: Dataset, *, has_labels: bool) -> Stored:
    """Pictures and the file of their labels, or the folders of their classes."""
    own = [path for path in sorted(folder.iterdir()) if is_picture(path)]
    classes = [path for path in sorted(folder.iterdir()) if path.is_dir() and path.name[0] != "."]
    if not own and not classes:
        raise DataError(f"{folder} holds no pictures", code="unknown-layout", path=folder)

    def read(paths: Sequence[Path]) -> Tensor:
        return pixels(paths, grey=data.shape[0] == 1)

    if own:
        file = next((folder / name for name in _LABEL_FILES if (folder / name).is_file()), None)
        if file is not None and file.suffix == ".csv" and not has_labels:
            return _of_table(file, read)
        y = None if file is None or has_labels else labels_in(file)
        return Stored(read(own), y)
    names = [path.name for path in classes]
    if len(names) != data.num_classes:
        message = f"{folder} has {len(names)} class folders, and {data.name!r} {data.num_classes}"
        raise DataError(message, code="coreset-classes", path=folder)
    known = list(data.class_names)
    order = known if sorted(known) == sorted(names) else _in_number(names)
    pictures = [sorted(filter(is_picture, (folder / name).iterdir())) for name in order]
    y = torch.tensor([place for place, some in enumerate(pictures) for _ in some])
    return Stored(read([path for some in pictures for path in some]), y)


def _in_number(names: Sequence[str]) -> list[str]:
    return sorted(names, key=int) if all(name.isdecimal() for name in names) else sorted(names)


def _of_table(path: Path, read: Callable[[Sequence[Path]], Tensor] | None) -> Stored:
    """Labels of pictures by file name: a column `file`, one `label` or one for each class that begins
    with p_, and perhaps a `weight`. With `read`, the pictures too.
    """
    table, _ = read_csv(path)
    soft = [name for name in table if name.startswith("p_")]
    wanted = soft or ["label"]
    if missing := [name for name in ("file", *wanted) if name not in table]:
        message = (
            f"{path} lacks the column {missing[0]!r}; it must have file and label, or file and"
        )
        raise DataError(f"{message} p_CLASS of each class", code="no-labels", path=path)
    columns = [table[name] for name in [*wanted, *(["weight"] if "weight" in table else [])]]
    if any(column.dtype == object or np.isnan(column).any() for column in columns):
        message = f"{path} has labels or weights that are no numbers"
        raise DataError(message, code="no-labels", path=path)
    y = torch.from_numpy(np.stack(columns[: len(wanted)], 1))
    weight = torch.from_numpy(columns[-1]) if "weight" in table else None
    names = [str(name) for name in table["file"]]
    if odd := [name for name in names if Path(name).name != name]:
        message = f"{path} names the picture {odd[0]!r}, which is no plain file name"
        raise DataError(message, code="unfit-file", path=path)
    x = torch.zeros(0) if read is None else read([path.parent / name for name in names])
    return Stored(x, y, weight)
