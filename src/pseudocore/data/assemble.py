"""From what a reader returned to a checked `Dataset`: labels numbered, a missing test half held
out, tables encoded, images brought to one range and size.

Whatever is learned from the data, as the filling of gaps, is learned from the training half alone.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pseudocore.core.errors import ConfigError, DataError
from pseudocore.core.types import Dataset, Examples
from pseudocore.data import arrays, labels, tables, targets
from pseudocore.data.reading import Layout, Raw, Reading, class_names
from pseudocore.data.resize import resized
from pseudocore.data.splits import TEST_FRACTION, split
from pseudocore.data.tables import Rows


def assemble(raw: Raw, name: str, reading: Reading) -> Dataset:
    """The data set that was read."""
    if "labels" not in raw.used:
        reading.refuse(("labels",), raw.halves[0].what, "it brings labels of its own")
    names: tuple[str, ...] = ()
    own, what_y = [half.y for half in raw.halves], [half.what_y for half in raw.halves]
    asked = reading.task or raw.task
    task, said_of_y = targets.task_of(own, asked)
    if task == "classification" and asked is None and not raw.class_names:
        targets.refuse_unclear(own[0], what_y[0])
    if task == "regression":
        y, num_classes = targets.numbers(own, what_y), 1
    else:
        y, num_classes, names, said_of_y = labels.number(own, raw.class_names, what_y)
    notes = [*raw.notes, *([said_of_y] if said_of_y else [])]
    x: list[Any] = [
        half.x if isinstance(half.x, Rows) else arrays.as_array(half.x) for half in raw.halves
    ]
    what = [half.what for half in raw.halves]
    for inputs, part, where in zip(x, y, what, strict=True):
        if not isinstance(inputs, Rows):
            arrays.check(inputs, where)
        num = len(inputs.numbers if isinstance(inputs, Rows) else inputs)
        if num != len(part):
            message = f"{where} has {num} inputs but {len(part)} labels"
            raise DataError(message, code="lengths-differ", where=where)
    if len(x) == 1:
        strata = y[0] if task == "classification" else torch.zeros(len(y[0]), dtype=torch.int64)
        places = [part.numpy() for part in split(strata, TEST_FRACTION, reading.seed)]
        by_class = "by class " if task == "classification" else ""
        notes.append(
            f"{what[0]} has no test half: {len(places[1])} of {len(y[0])} examples are held out,"
            f" chosen {by_class}with seed {reading.seed}"
        )
        x = [x[0].take(p) if isinstance(x[0], Rows) else x[0][p] for p in places]
        y, what = [y[0][place] for place in places], what * 2
    else:
        reading.refuse(("seed",), what[0], "it has a test half")
    left = replace(reading, **{name: getattr(Reading(), name) for name in raw.used})
    features, encoding, said = _features(x, what, left, raw.layout)
    if reading.resize is not None and features[0].ndim == 4:
        features = [resized(images, reading.resize) for images in features]
    return Dataset(
        name,
        Examples(features[0], y[0]),
        Examples(features[1], y[1]),
        num_classes,
        names if task == "regression" else names or class_names(name, num_classes),
        encoding,
        tuple(notes + said),
        task=task,
    )


def adapted(data: Dataset, reading: Reading) -> Dataset:
    """A data set that is whole already, under the options that can still change it."""
    what = f"data set {data.name!r}"
    reading.refuse(("target", "drop"), what, "it is no table")
    reading.refuse(("labels",), what, "it brings labels of its own")
    reading.refuse(("missing",), what, "it has no gaps")
    reading.refuse(("pixel_range", "layout"), what, "it is read already")
    reading.refuse(("seed",), what, "it has a test half")
    if reading.task not in (None, data.task):
        raise ConfigError(
            f"{what} is for {data.task}, not {reading.task}", code="wrong-task", task=data.task
        )
    if reading.resize is None:
        return data
    if not data.is_images:
        reading.refuse(("resize",), what, "features are no images")
        return data
    train, test = (
        part._replace(x=resized(part.x, reading.resize)) for part in (data.train, data.test)
    )
    return replace(data, train=train, test=test)


def _features(
    x: list[Any], what: list[str], reading: Reading, layout: Layout | None
) -> tuple[list[Tensor], tuple[dict[str, Any], ...], list[str]]:
    """The inputs of both halves, how columns became features, and notes."""
    if isinstance(x[0], Rows):
        reading.refuse(("pixel_range", "layout", "resize"), what[0], "a table holds no images")
        encoding, notes = tables.fit(x[0], reading.missing)
        encoded = [tables.encode(rows, encoding) for rows in x]
        notes += [note for _, said in encoded for note in said]
        return [torch.from_numpy(one) for one, _ in encoded], tuple(encoding.describe()), notes
    reading.refuse(("target", "drop"), what[0], "its columns have no names")
    notes = []
    if reading.missing == "impute":
        if x[0].ndim != 2 or x[0].dtype.kind not in "biuf":
            reading.refuse(("missing",), what[0], "only gaps in features can be filled")
        x, notes = _imputed(x)
    features, said = arrays.inputs(x, what, reading, layout)
    return features, (), notes + said


def _imputed(x: list[np.ndarray]) -> tuple[list[np.ndarray], list[str]]:
    """Features with NaN replaced by the median of the training values of their column."""
    is_gap = [np.isnan(part) for part in x]
    if not any(part.any() for part in is_gap):
        return x, []
    empty = np.flatnonzero(is_gap[0].all(0))
    if len(empty):
        message = f"feature {empty[0] + 1} holds no training values; leave it out"
        raise DataError(message, code="empty-column", column=int(empty[0]))
    median = np.nanmedian(x[0], axis=0)
    filled = [np.where(gaps, median, part) for gaps, part in zip(is_gap, x, strict=True)]
    note = f"{sum(int(part.sum()) for part in is_gap)} gaps are filled with medians"
    return filled, [note]
