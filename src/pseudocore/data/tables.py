"""Tables of columns as features: numbers as they are, texts one-hot encoded, gaps filled.

What is learned from the training rows, the values of text columns and the fillings of gaps, is an
`Encoding`, plain enough to be stored with a coreset. It does the same to other rows.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pseudocore.core.errors import ConfigError, DataError
from pseudocore.core.registry import did_you_mean
from pseudocore.data.reading import Missing

Table = dict[str, np.ndarray]
"""Columns by name: numbers as float64 with NaN for gaps, or texts in an object array with None."""

MAX_VALUES = 100
"""Different texts that a column may hold: an identifier or a free text is no category."""

_FEW = 20
"""More than so many texts, another in every row, are no categories either."""


class Column(NamedTuple):
    """How one column becomes features."""

    name: str
    values: tuple[str, ...] | None
    """The texts of a one-hot encoded column; None for a column of numbers."""
    fill: float | str | None
    """What takes the place of a gap; None where gaps are refused."""


class Encoding(NamedTuple):
    columns: tuple[Column, ...]

    def describe(self) -> list[dict[str, Any]]:
        """Plain values, the inverse of `encoding_from`."""
        return [
            {
                "name": column.name,
                **({} if column.values is None else {"values": list(column.values)}),
                **({} if column.fill is None else {"fill": column.fill}),
            }
            for column in self.columns
        ]


def encoding_from(description: Sequence[Mapping[str, Any]]) -> Encoding:
    """The encoding that described itself, as it is stored in a coreset's provenance."""
    return Encoding(
        tuple(
            Column(
                str(one["name"]),
                tuple(map(str, one["values"])) if "values" in one else None,
                one.get("fill"),
            )
            for one in description
        )
    )


class Rows(NamedTuple):
    """Some rows of a table."""

    table: Table
    numbers: np.ndarray
    """Of each row in its source, from 1."""
    what: str
    """What to call the source in a sentence."""

    def take(self, index: Any) -> "Rows":
        table = {name: values[index] for name, values in self.table.items()}
        return self._replace(table=table, numbers=self.numbers[index])


def take_target(
    table: Table, target: str | None, drop: Sequence[str], what: str
) -> tuple[Table, np.ndarray]:
    """A table without its target and the columns to drop, and the target."""
    listed = ", ".join(list(table)[:8]) + (", …" if len(table) > 8 else "")
    if target is None:
        message = f"name the column of {what} that holds the labels: target=… or --target"
        raise ConfigError(f"{message} (columns: {listed})", code="missing-target", where=what)
    for name in (target, *drop):
        if name not in table:
            hint = did_you_mean(name, table)
            message = f"{what} has no column {name!r}{hint} (columns: {listed})"
            raise ConfigError(message, code="unknown-column", where=what, column=name)
    if target in drop:
        message = f"column {target!r} is the target and cannot be dropped"
        raise ConfigError(message, code="unknown-column", where=what, column=target)
    features = {k: values for k, values in table.items() if k != target and k not in drop}
    if not features:
        raise DataError(f"{what} has no columns beside its target", code="no-columns", where=what)
    return features, table[target]


def fit(rows: Rows, missing: Missing) -> tuple[Encoding, list[str]]:
    """Learn an encoding from training rows; also notes on what was decided."""
    columns, notes = [], []
    for name, values in rows.table.items():
        is_gap = gaps(values)
        num_gaps = int(is_gap.sum())
        if num_gaps == len(values):
            raise _unfit(rows, name, "holds no values; drop it", "empty-column")
        if num_gaps and missing == "refuse":
            raise _gap(rows, name, is_gap)
        present = values[~is_gap]
        kinds: tuple[str, ...] | None = None
        fill: float | str | None = None
        if values.dtype == object:
            texts, counts = np.unique(present.astype(str), return_counts=True)
            kinds = tuple(texts.tolist())
            _check_values(rows.take(~is_gap), name, kinds)
            fill = kinds[int(counts.argmax())] if missing == "impute" else None
            notes.append(f"column {name!r} is one-hot encoded ({len(kinds)} values)")
        elif missing == "impute":
            fill = float(np.median(present))
        columns.append(Column(name, kinds, fill))
        if num_gaps:
            typical = f"median, {fill:g}" if kinds is None else f"most frequent text, {fill!r}"
            notes.append(f"{num_gaps} gaps in column {name!r} are filled with its {typical}")
    return Encoding(tuple(columns)), notes


def encode(rows: Rows, encoding: Encoding) -> tuple[np.ndarray, list[str]]:
    """The features (n, d) of rows, float32; also notes on what training rows never held."""
    blocks, notes = [], []
    for name, kinds, fill in encoding.columns:
        if name not in rows.table:
            raise _unfit(rows, name, "is missing", "unknown-column")
        values = rows.table[name]
        is_gap = gaps(values)
        if is_gap.any():
            if fill is None:
                raise _gap(rows, name, is_gap)
            values = np.where(is_gap, fill, values)
        if kinds is None:
            blocks.append(_numbers(rows, name, values)[:, None])
            continue
        texts = np.array([_as_text(value) for value in values.tolist()], dtype=object)
        one_hot = texts[:, None] == np.array(kinds, dtype=object)
        new = np.flatnonzero(~one_hot.any(1))
        if len(new):
            notes.append(
                f"{len(new)} rows of {rows.what} hold a value of column {name!r} that no training"
                f" row holds, such as {texts[new[0]]!r}: all its features are 0 there"
            )
        blocks.append(one_hot.astype(np.float32))
    return np.concatenate(blocks, axis=1), notes


def gaps(values: np.ndarray) -> np.ndarray:
    """Which values are missing."""
    if values.dtype == object:
        return np.array([value is None for value in values], dtype=bool)
    missing: np.ndarray = np.isnan(values)
    return missing


def _as_text(value: Any) -> str:
    """A number in a column of texts as a file would spell it."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _numbers(rows: Rows, name: str, values: np.ndarray) -> np.ndarray:
    if values.dtype == object:
        for value, number in zip(values, rows.numbers, strict=True):
            if not is_number(str(value)):
                problem = f"holds {value!r} in row {number}, where training rows hold numbers"
                raise _unfit(rows, name, problem, "not-a-number", row=int(number))
    with np.errstate(over="ignore"):  # what becomes infinite is refused here
        numbers: np.ndarray = values.astype(np.float64).astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(numbers))
    if len(bad):
        number = int(rows.numbers[bad[0]])
        problem = f"holds {values[bad[0]]} in row {number}, which is infinite or too large"
        raise _unfit(rows, name, problem, "not-finite", row=number)
    return numbers


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _check_values(rows: Rows, name: str, texts: Sequence[str]) -> None:
    is_identifier = _FEW < len(texts) <= MAX_VALUES and len(texts) == len(rows.numbers)
    if len(texts) <= MAX_VALUES and not is_identifier:
        return
    odd = [text for text in texts if not is_number(text)]
    if len(odd) < len(texts) / 2:
        number = rows.numbers[[str(value) for value in rows.table[name]].index(odd[0])]
        problem = f"holds {odd[0]!r} in row {number} where most rows hold numbers"
    elif is_identifier:
        problem = f"holds another text in every row, such as {texts[0]!r}, as an identifier does"
    else:
        problem = f"holds {len(texts)} different texts, such as {texts[0]!r}"
        problem = f"{problem}; categories have at most {MAX_VALUES}"
    advice = "mend it, or leave the column out (drop=… or --drop)"
    raise _unfit(rows, name, f"{problem}; {advice}", "too-many-values")


def _gap(rows: Rows, name: str, is_gap: np.ndarray) -> DataError:
    number = int(rows.numbers[is_gap][0])
    problem = (
        f"has no value in row {number} ({int(is_gap.sum())} in all); missing='impute', or"
        " --missing impute, fills gaps with the median or the most frequent text"
    )
    return _unfit(rows, name, problem, "missing-values", row=number)


def _unfit(rows: Rows, name: str, problem: str, code: str, **fields: Any) -> DataError:
    message = f"column {name!r} of {rows.what} {problem}"
    return DataError(message, code=code, where=rows.what, column=name, **fields)
