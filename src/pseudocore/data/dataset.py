"""`dataset(...)`: a data set of whatever holds one. Every form of data is recognised here."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from pseudocore.core.errors import ConfigError, DataError
from pseudocore.core.likelihood import Task
from pseudocore.core.types import Dataset
from pseudocore.data import arrays, hugging_face, sources, table_files, torch_sets
from pseudocore.data.assemble import adapted, assemble
from pseudocore.data.frames import as_column, column_of, is_frame, is_ordered, library, table_of
from pseudocore.data.reading import Half, Missing, Raw, Reading
from pseudocore.data.tables import Rows, Table, take_target
from pseudocore.data.targets import SUPPORTED, refuse_several


def dataset(
    x: Any,
    y: Any = None,
    *,
    test: Any = None,
    name: str | None = None,
    class_names: Sequence[str] = (),
    target: str | None = None,
    drop: Sequence[str] | str = (),
    missing: Missing = "refuse",
    resize: int | None = None,
    pixel_range: tuple[float, float] | None = None,
    layout: Literal["NCHW", "NHWC"] | None = None,
    task: Task | None = None,
    seed: int = 0,
) -> Dataset:
    """A data set of arrays, a frame, a torch or Hugging Face data set, a file or a name.

    Args:
        x: Training inputs beside `y`, numpy or torch: images, features (n, d), or a frame of
            columns. Images are uint8 or floats from 0 to 1 or -1 to 1, of shape (n, height, width),
            (n, height, width, channels) or (n, channels, height, width). Or all of a data set: a
            frame with a `target` (pandas, Polars, Arrow), a torch `Dataset` or `DataLoader`, a
            Hugging Face data set, or a scikit-learn Bunch. A mapping of arrays as an npz file
            holds, a tuple `(x, y)` or `(x, y, test_x, test_y)`, a path and a name work, too.
        y: Labels (n,): whole numbers or texts of any kind; the numbers of a regression; or the name
            of the target column.
        test: Test inputs and labels as a tuple, or the test half in the form of `x`. Defaults to
            the source's own, or else to a fifth of the training set.
        name: What to call it. Defaults to the source's own name.
        class_names: Names of the classes. Defaults to the labels themselves where they are not 0,
            1, 2, ….
        target: Column of a frame or table that holds the labels.
        drop: Columns to leave out; in one text, separated by commas.
        missing: What to do about gaps in features: "refuse" them, or "impute" the median of
            training values, and the most frequent text.
        resize: Height and width to bring images to, from their centre square.
        pixel_range: Values of black and white in image arrays. By default recognised.
        layout: Where the channels of image arrays are. By default found from the shape.
        task: "classification" or "regression". Defaults to regression where the targets hold
            fractions; whole numbers are classes, counts too.
        seed: Decides which examples are held out where there is no test half.

    Returns:
        The data set, checked. Its `notes` say what was decided on the way.
    """
    if isinstance(y, str):
        target, y = y, None
    if missing not in get_args(Missing):
        message = f"missing = {missing!r} is not one of {', '.join(map(repr, get_args(Missing)))}"
        raise ConfigError(message, code="unknown-choice", option="missing")
    if resize is not None and (type(resize) is not int or resize < 1):
        message = f"resize = {resize!r} is not a whole number of at least 1"
        raise ConfigError(message, code="out-of-range", option="resize")
    if pixel_range is not None and not pixel_range[0] < pixel_range[1]:
        message = f"pixel_range = {pixel_range!r} must be (black, white), the smaller first"
        raise ConfigError(message, code="out-of-range", option="pixel_range")
    if task not in (None, *get_args(Task)):
        message = f"task = {task!r} is not one of {', '.join(map(repr, get_args(Task)))}"
        raise ConfigError(message, code="unknown-choice", option="task")
    reading = Reading(
        target=target,
        drop=columns(drop),
        missing=missing,
        resize=resize,
        pixel_range=pixel_range,
        layout=layout,
        task=task,
        seed=seed,
    )
    if y is not None:
        x = (x, y)
    return read(x, reading, test=test, name=name, class_names=class_names)


def read(
    source: Any,
    reading: Reading,
    *,
    test: Any = None,
    name: str | None = None,
    class_names: Sequence[str] = (),
    root: Path | None = None,
) -> Dataset:
    """`dataset` for one source and options that are made already; `root` is a folder in which
    names are looked for first.
    """
    data = _whole(source, reading, root) if test is None else None
    if data is not None:
        if class_names and tuple(class_names) != data.class_names:
            data = replace(data, class_names=tuple(class_names))
        return data if name is None else replace(data, name=name)
    raw, own_name = _raw(source, reading, "training data" if test is not None else "")
    if test is not None:
        if len(raw.halves) > 1:
            message = f"{raw.halves[0].what} has a test half of its own; leave out test="
            raise ConfigError(message, code="two-test-sets")
        other, _ = _raw(test, reading, "test data")
        halves = (raw.halves[0], _alike(other.halves[0], raw.halves[0]))
        raw = raw._replace(halves=halves, notes=raw.notes + other.notes)
    if class_names:
        raw = raw._replace(class_names=tuple(map(str, class_names)))
    return assemble(raw, own_name if name is None else name, reading)


def _alike(half: Half, train: Half) -> Half:
    """A test half in the form of the training half: features get the names of its columns."""
    if isinstance(half.x, Rows) == isinstance(train.x, Rows):
        return half
    x = half.x
    if not isinstance(x, Rows) and x.ndim == 2 and x.shape[1] == len(train.x.table):
        table = {name: x[:, i].astype(np.float64) for i, name in enumerate(train.x.table)}
        return half._replace(x=Rows(table, np.arange(1, len(x) + 1), half.what))
    message = f"{half.what} and {train.what} must both be tables, of the same columns, or arrays"
    raise DataError(message, code="halves-differ")


def columns(names: Sequence[str] | str) -> tuple[str, ...]:
    """Names of columns, given one by one or as one text with commas."""
    texts = names.split(",") if isinstance(names, str) else names
    return tuple(name for text in texts if (name := text.strip()))


def _whole(source: Any, reading: Reading, root: Path | None) -> Dataset | None:
    """The data set of a source that is one already, or has a reader of its own."""
    if isinstance(source, Dataset):
        return adapted(source, reading)
    if isinstance(source, str) and source.startswith(hugging_face.PREFIX):
        return None
    if isinstance(source, str | Path):
        return sources.load(source, root=root, reading=reading)
    return None


def _raw(source: Any, reading: Reading, what: str) -> tuple[Raw, str]:
    """What a source holds, and its name; `what` to call it if it has no name."""
    if isinstance(source, str) and source.startswith(hugging_face.PREFIX):
        return hugging_face.read(hugging_face.load(source), reading, source), source
    if isinstance(source, str | Path):
        path = Path(source).expanduser()
        if not table_files.is_table(path):
            message = "only tables, arrays and data sets in memory take a test half of their own"
            raise ConfigError(f"{path} is no CSV or Parquet file: {message}", code="two-test-sets")
        return table_files.read_table(path, reading), path.stem
    if library(source) == "datasets":
        return hugging_face.read(source, reading, what or "the data set"), "hugging-face"
    if isinstance(source, tuple):
        return _of_tuple(source, reading, what), "arrays"
    if is_frame(source):
        return _of_frame(source, None, reading, what or "the frame"), "frame"
    if isinstance(source, Mapping):
        return _of_mapping(source, reading, what), "arrays"
    if isinstance(source, TorchDataset | DataLoader):
        return torch_sets.read(source, reading, what or "the data set"), "torch"
    given = type(source).__name__
    if isinstance(source, np.ndarray | Tensor):
        raise TypeError(
            f"{what or 'data'} must be inputs and labels, (x, y), not an array without labels"
        )
    raise TypeError(
        "data must be a name, a path, a Dataset, a tuple (x, y), a frame with a target, a torch or"
        f" Hugging Face data set or a Bunch, not {given}; dataset(x, y, test=(xt, yt)) makes one of"
        " arrays"
    )


def _of_tuple(source: tuple[Any, ...], reading: Reading, what: str) -> Raw:
    """`(x, y)`, `(x, y, test_x, test_y)` or `((x, y), (test_x, test_y))`."""
    if len(source) == 2 and all(isinstance(part, tuple) and len(part) == 2 for part in source):
        source = (*source[0], *source[1])
    if len(source) not in (2, 4):
        raise TypeError(
            f"a tuple of data must be (x, y) or (x, y, test_x, test_y), not of {len(source)} parts"
        )
    names = [what or "training data", "test data"]
    halves: list[Half] = []
    for place, title in zip(range(0, len(source), 2), names, strict=False):
        x, y = source[place : place + 2]
        halves += _pair(x, y, reading, title).halves
    return Raw(tuple(halves))


def _pair(x: Any, y: Any, reading: Reading, what: str) -> Raw:
    """Inputs and labels that come apart."""
    if is_frame(x):
        return _of_frame(x, y, reading, what)
    return Raw(
        (Half(arrays.as_array(x), _labels(y, what, reading), f"the labels of {what}", what),)
    )


def _labels(y: Any, what: str, reading: Reading) -> Any:
    if library(y) in ("pandas", "polars"):
        if is_frame(y) and y.shape[1] > 1:
            refuse_several(np.empty(tuple(y.shape)), what)
        column = y[y.columns[0]] if is_frame(y) else y
        _refuse_ordinal(column, what, reading)
        return column_of(column, what)
    return arrays.as_array(y)


def _refuse_ordinal(column: Any, what: str, reading: Reading) -> None:
    """Refuse the ordered categories of pandas, whose order no likelihood here would use."""
    if reading.task is None and library(column) == "pandas" and is_ordered(column):
        raise DataError(
            f"the target of {what} holds ordered categories; ordinal targets are not supported:"
            f" {SUPPORTED}. task = 'classification' ignores the order; their numbers with task ="
            " 'regression' keep it",
            code="ordinal-target",
            where=what,
        )


def _of_frame(frame: Any, y: Any, reading: Reading, what: str) -> Raw:
    if type(frame).__name__ == "LazyFrame":  # of Polars
        frame = frame.collect()
    table = table_of(frame, what)
    if y is None:
        features, target = take_target(table, reading.target, reading.drop, what)
        _refuse_ordinal(frame[reading.target], what, reading)
        return _rows(features, target, f"column {reading.target!r} of {what}", what)
    reading.refuse(("target",), what, "its labels come apart")
    features, target = take_target({**table, "": np.empty(0)}, "", reading.drop, what)
    return _rows(features, _labels(y, what, reading), f"the labels of {what}", what)


def _of_columns(columns: Mapping[str, Any], reading: Reading, what: str) -> Raw:
    """Columns under their names, as those of a frame."""
    wrong = [name for name, values in columns.items() if values.ndim != 1]
    if wrong or len({len(values) for values in columns.values()}) > 1:
        name = wrong[0] if wrong else next(iter(columns))
        message = f"{what} must hold columns of one length, and {name!r} is none"
        raise DataError(message, code="unfit-column", where=what, column=name)
    table = {name: as_column(values, name, what) for name, values in columns.items()}
    features, target = take_target(table, reading.target, reading.drop, what)
    return _rows(features, target, f"column {reading.target!r} of {what}", what)


def _rows(table: Table, y: Any, what_y: str, what: str) -> Raw:
    num = len(next(iter(table.values())))
    return Raw((Half(Rows(table, np.arange(1, num + 1), what), y, what_y, what),))


def _of_mapping(source: Mapping[str, Any], reading: Reading, what: str) -> Raw:
    """A Bunch of scikit-learn, or arrays under the names of an npz file."""
    if reading.target is not None and reading.target in source:
        columns = {str(name): arrays.as_array(values) for name, values in source.items()}
        return _of_columns(columns, reading, what or "the mapping")
    if "data" not in source or "target" not in source:
        return arrays.raw_of(source, what or "the mapping")
    x, y, what = source["data"], source["target"], what or "the Bunch"
    names = source.get("feature_names")
    if not is_frame(x) and names is not None and np.ndim(x) == 2 and len(names) == x.shape[1]:
        values = arrays.as_array(x)
        if values.dtype.kind in "biuf":
            table = {str(name): values[:, i].astype(np.float64) for i, name in enumerate(names)}
            raw = _rows(table, _labels(y, what, reading), f"the target of {what}", what)
            return raw._replace(class_names=_class_names(source))
    return _pair(x, y, reading, what)._replace(class_names=_class_names(source))


def _class_names(bunch: Mapping[str, Any]) -> tuple[str, ...]:
    names = bunch.get("target_names")
    return () if names is None else tuple(map(str, names))
