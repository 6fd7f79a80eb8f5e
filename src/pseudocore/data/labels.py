"""Labels of any kind, numbered 0, 1, 2, ….

Whole numbers that are 0, 1, 2, … already stay as they are. Others, and texts, are numbered in
their order, and their texts become the names of the classes.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pseudocore.core.errors import DataError
from pseudocore.data.targets import refuse_several

_MAX_DIGITS = 1000
"""Python refuses to make a number of many more."""

_MAX_DISTINCT = 20
"""More values than this, in most rows another, are no classes."""


class Numbered(NamedTuple):
    parts: list[Tensor]
    """Labels of the training half, and of the test half if there is one, int64 (n,)."""
    num_classes: int
    names: tuple[str, ...]
    """Empty where the labels came as 0, 1, 2, … without names."""
    note: str
    """What was renumbered, or nothing."""


def number(parts: Sequence[Any], names: Sequence[str], what: Sequence[str]) -> Numbered:
    """Number the labels of one or two halves alike.

    Args:
        parts: The labels of each half: numbers or texts, (n,) or (n, 1).
        names: Names of the classes 0, 1, 2, …; where there are as many as distinct labels, the
            names of these in their order.
        what: What to call each half in a sentence.
    """
    halves = [_plain(part, where) for part, where in zip(parts, what, strict=True)]
    if any(half.dtype == object for half in halves):
        halves = [np.array([_text(label) for label in half], dtype=object) for half in halves]
    values = _distinct(halves[0], what[0])
    is_whole = all(half.dtype != object for half in halves)
    highest = max((int(half.max()) for half in halves if is_whole and len(half)), default=0)
    are_places = is_whole and bool(values) and values[0] >= 0 and highest < len(names)
    if is_whole and (are_places or values == list(range(len(values)))):
        num_classes = len(names) if are_places else max(1, len(values))
        _check_known(halves, range(num_classes), what)
        kept = tuple(names) if len(names) == num_classes else ()
        return Numbered([torch.from_numpy(half) for half in halves], num_classes, kept, "")
    _check_known(halves, values, what)
    place = {value: number for number, value in enumerate(values)}
    tensors = [torch.tensor([place[label] for label in half.tolist()]).long() for half in halves]
    kept = tuple(map(str, names if len(names) == len(values) else values))
    note = f"labels {_some(values)} are numbered {_some(range(len(values)))}" if is_whole else ""
    return Numbered(tensors, len(values), kept, note)


def _plain(labels: Any, what: str) -> np.ndarray:
    """Labels as int64, or as an object array of texts and numbers; gaps and fractions refused."""
    y: np.ndarray = np.asarray(labels)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    refuse_several(y, what)
    if y.ndim != 1 or y.dtype.kind not in "biufUSO":
        shape = f"{y.dtype} {y.shape}"
        raise _unfit(
            what, f"must be one label per example, a whole number or a string, not {shape}"
        )
    if y.dtype.kind in "US":
        texts = [_text(label) for label in y.tolist()]
        return np.array(texts, dtype=object)
    if y.dtype == object:
        missing = [row for row, label in enumerate(y) if label is None or label != label]
        if missing:
            raise _unfit(what, f"has no label in row {missing[0] + 1} ({len(missing)} in all)")
        is_whole = all(isinstance(label, int | np.integer) for label in y)
        return y.astype(np.int64) if is_whole and len(y) else y
    if y.dtype.kind == "f":
        bad = np.flatnonzero(np.isnan(y))
        if len(bad):
            raise _unfit(what, f"has no label in row {bad[0] + 1} ({len(bad)} in all)")
        bad = np.flatnonzero(~np.isfinite(y) | (y != np.rint(y)))
        if len(bad):
            raise _unfit(
                what,
                f"holds values that are not whole numbers, such as {y[bad[0]]:g} in row"
                f" {bad[0] + 1}, which are no classes; for numbers say task = 'regression'",
            )
    if y.dtype.kind in "fu" and len(y) and y.max() >= 2**63:
        raise _unfit(what, f"holds the label {y.max():g}, which is too large")
    return y.astype(np.int64)


def _text(label: Any) -> str:
    return label.decode("utf-8", "replace") if isinstance(label, bytes) else str(label)


def _distinct(labels: np.ndarray, what: str) -> list[Any]:
    """The sorted labels of the training half; texts of whole numbers in the order of these."""
    values: list[Any] = (
        sorted(set(labels.tolist())) if labels.dtype == object else np.unique(labels).tolist()
    )
    if len(values) > _MAX_DISTINCT and len(values) > len(labels) / 2:
        raise _unfit(
            what,
            f"holds {len(values)} different values in {len(labels)} rows, too many for classes; for"
            " numbers say task = 'regression'",
        )
    if labels.dtype == object and all(map(_is_short_number, values)):
        return sorted(values, key=int)
    return values


def _is_short_number(text: str) -> bool:
    return text.isdecimal() and len(text) < _MAX_DIGITS


def _check_known(halves: list[np.ndarray], values: Any, what: Sequence[str]) -> None:
    for half, where in zip(halves[1:], what[1:], strict=True):
        unknown = sorted(set(half.tolist()).difference(values))
        if unknown:
            raise DataError(
                f"{where} has the label {unknown[0]!r}, which no training example has",
                code="unknown-class",
                where=where,
                label=unknown[0],
            )


def _some(values: Sequence[Any]) -> str:
    shown = [*values[:3], "…", values[-1]] if len(values) > 4 else values
    return ", ".join(map(str, shown))


def _unfit(what: str, problem: str) -> DataError:
    return DataError(f"{what} {problem}", code="unfit-labels", where=what)
