"""Frames of pandas, Polars and Arrow as tables. Recognised by the module of their type, so that
none of these libraries is imported here.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pseudocore.core.errors import DataError
from pseudocore.data.tables import Table


def library(value: Any) -> str:
    """The top-level package that a value's type, or an ancestor of it, comes from."""
    known = ("pandas", "polars", "pyarrow", "datasets", "torch", "PIL", "scipy")
    roots = (kind.__module__.partition(".")[0] for kind in type(value).__mro__)
    return next((root for root in roots if root in known), "")


def is_frame(value: Any) -> bool:
    if type(value).__name__ == "LazyFrame":  # whose columns cost a query, with a warning
        return library(value) == "polars"
    return library(value) in ("pandas", "polars", "pyarrow") and hasattr(value, "columns")


def is_ordered(column: Any) -> bool:
    """Whether a column of pandas holds categories that have an order."""
    return str(column.dtype) == "category" and bool(column.dtype.ordered)


def table_of(frame: Any, what: str) -> Table:
    """The columns of a frame."""
    if library(frame) == "pyarrow":
        return table_of_arrow(frame, what)
    names = [str(name) for name in frame.columns]
    repeated = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if repeated is not None:
        message = f"{what} has two columns named {repeated!r}"
        raise DataError(message, code="repeated-column", where=what, column=repeated)
    if library(frame) == "pandas":
        columns = [frame.iloc[:, place] for place in range(len(names))]
        return {n: _of_pandas(c, n, what) for n, c in zip(names, columns, strict=True)}
    columns = frame.get_columns()
    return {n: _of_polars(c, n, what) for n, c in zip(names, columns, strict=True)}


def table_of_arrow(table: Any, what: str) -> Table:
    """The columns of a `pyarrow.Table`."""
    return {
        name: _of_arrow(column, name, what)
        for name, column in zip(table.column_names, table.columns, strict=True)
    }


def column_of(series: Any, what: str) -> np.ndarray:
    """The values of a pandas or Polars series, as a table holds them."""
    of = _of_pandas if library(series) == "pandas" else _of_polars
    return of(series, str(series.name or "labels"), what)


def as_column(values: np.ndarray, name: str, what: str) -> np.ndarray:
    """The values of an array (n,), as a table holds them."""
    if values.dtype.kind in "biuf":
        return values.astype(np.float64)
    values = values.astype(object)
    is_gap = np.array([value is None or value != value for value in values])
    return _of_objects(values, is_gap, name, what)


def _of_pandas(series: Any, name: str, what: str) -> np.ndarray:
    kind = series.dtype.kind
    if kind in "biuf":
        values: np.ndarray = series.to_numpy(dtype=np.float64, na_value=np.nan)
        return values
    if kind != "O":
        raise _unfit(name, what, str(series.dtype))
    is_gap, values = series.isna().to_numpy(), series.astype(object).to_numpy()
    if str(series.dtype) == "category":
        return _texts([None if gap else str(v) for v, gap in zip(values, is_gap, strict=True)])
    return _of_objects(values, is_gap, name, what)


def _of_polars(series: Any, name: str, what: str) -> np.ndarray:
    kind = str(series.dtype)
    if series.dtype.is_numeric() or kind in ("Boolean", "Null"):
        values: np.ndarray = series.cast(float).to_numpy()
        return values
    if not kind.startswith(("String", "Categorical", "Enum")):
        raise _unfit(name, what, kind)
    return _texts(series.cast(str).to_list())


def _of_arrow(column: Any, name: str, what: str) -> np.ndarray:
    kind = str(column.type)
    if kind.startswith("dictionary"):
        kind = str(column.type.value_type)
    if kind in ("string", "large_string", "string_view"):
        return _texts(column.to_pylist())
    if kind == "null" or kind.startswith(("bool", "int", "uint", "float", "halffloat", "double")):
        values = [np.nan if value is None else value for value in column.to_pylist()] if kind in (
            "null", "bool"
        ) else column.to_numpy()  # fmt: skip
        return np.asarray(values, dtype=np.float64)
    raise _unfit(name, what, kind)


def _of_objects(values: np.ndarray, is_gap: np.ndarray, name: str, what: str) -> np.ndarray:
    """Python values: numbers if all are, texts if all are texts or numbers."""
    present = values[~is_gap]
    odd = next(
        (v for v in present if not isinstance(v, str | bool | int | float | np.generic)), None
    )
    if odd is not None:
        raise _unfit(name, what, f"{type(odd).__name__} values")
    if not any(isinstance(value, str) for value in present):
        numbers = np.full(len(values), np.nan)
        numbers[~is_gap] = present.astype(np.float64)
        return numbers
    return _texts([None if gap else str(v) for v, gap in zip(values, is_gap, strict=True)])


def _texts(values: Sequence[str | None]) -> np.ndarray:
    texts = np.empty(len(values), dtype=object)
    texts[:] = list(values)
    return texts


def _unfit(name: str, what: str, kind: str) -> DataError:
    return DataError(
        f"column {name!r} of {what} holds {kind}, neither numbers nor texts; turn it into one of"
        " them, or leave it out (drop=…)",
        code="unfit-column",
        where=what,
        column=name,
    )
