"""Data sets of the Hugging Face library `datasets`, in memory or by a name `hf://OWNER/NAME`.

A name is looked for in the library's cache and, unless it is offline, on the Hub. Scripts are
never run.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from pseudocore.core.errors import ConfigError, DataError
from pseudocore.core.optional import optional_module
from pseudocore.data.decoding import array_of, stacked
from pseudocore.data.frames import table_of_arrow
from pseudocore.data.reading import Half, Raw, Reading
from pseudocore.data.tables import Rows, take_target

PREFIX = "hf://"
"""How the names of its data sets begin."""
_TEST_SPLITS = ("test", "validation", "valid", "val")


def load(name: str) -> Any:
    """The data set `hf://OWNER/NAME` or `hf://OWNER/NAME:CONFIGURATION`, all its splits."""
    library = optional_module("datasets", "datasets", "huggingface")
    path = name.removeprefix(PREFIX).removeprefix("datasets/")
    path, _, configuration = path.partition(":")
    if not path:
        message = f"{name!r} names no data set; write hf://OWNER/NAME"
        raise ConfigError(message, code="invalid-name", name=name)
    try:
        return library.load_dataset(path, configuration or None)
    except Exception as error:  # the library has no base class of what goes wrong on the way
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(
            f"{name} cannot be read: it is not in the cache of Hugging Face, and the Hub cannot be"
            f" reached or does not have it ({reason})",
            code="unreachable-data",
            name=name,
        ) from error


def read(source: Any, reading: Reading, what: str) -> Raw:
    """A `datasets.Dataset`, or a `DatasetDict` with a train split."""
    if not isinstance(source, Mapping):
        return _read_split(source, reading, what)
    if "train" not in source:
        message = f"{what} has the splits {', '.join(source)}, but no train"
        raise DataError(message, code="no-train-split", where=what)
    held_out = next((name for name in _TEST_SPLITS if name in source), None)
    names = ["train", *([held_out] if held_out else [])]
    raws = [_read_split(source[name], reading, f"split {name} of {what}") for name in names]
    notes: tuple[str, ...] = ()
    if held_out not in (None, "test"):
        notes = (f"{what} has no test split: its split {held_out} is tested on",)
    return raws[0]._replace(halves=tuple(raw.halves[0] for raw in raws), notes=notes)


def _read_split(split: Any, reading: Reading, what: str) -> Raw:
    if not hasattr(split, "features") or not hasattr(split, "__len__"):
        message = f"{what} is a {type(split).__name__}; load it without streaming"
        raise DataError(message, code="unfit-data", where=what)
    kinds = {name: type(kind).__name__ for name, kind in split.features.items()}
    labels = [name for name, kind in kinds.items() if kind == "ClassLabel"]
    target = reading.target or (labels[0] if len(labels) == 1 else None)
    images = [name for name, kind in kinds.items() if kind == "Image" and name not in reading.drop]
    plain = split.with_format(None)
    if target is not None and target in kinds and len(images) == 1:
        names = [f"row {row} of {what}" for row in range(1, len(split) + 1)]
        pictures = list(map(array_of, plain[images[0]], names))
        x = stacked(pictures, names, reading.resize)
        others = set(kinds) - {target, images[0], *reading.drop}
        notes = [f"column {name!r} of {what} is left out" for name in sorted(others)]
        half = Half(x, np.array(list(plain[target])), f"column {target!r} of {what}", what)
        used = ("target", "drop")
        return Raw((half,), _class_names(split, target), "NCHW", tuple(notes), used)
    table = split.with_format("arrow")[:]
    features, y = take_target(table_of_arrow(table, what), target, reading.drop, what)
    rows = Rows(features, np.arange(1, len(y) + 1), what)
    half = Half(rows, y, f"column {target!r} of {what}", what)
    return Raw((half,), _class_names(split, str(target)))


def _class_names(split: Any, target: str) -> tuple[str, ...]:
    return tuple(getattr(split.features[target], "names", None) or ())
