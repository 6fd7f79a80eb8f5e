"""Numbers out of files that may come from a stranger."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value from a file is a number; whole numbers can be too long to draw."""
    return type(value) is float or (type(value) is int and abs(value) < 2**53)


def is_finite(value: Any) -> TypeGuard[float]:
    """Whether a value from a file is a number with a place on an axis."""
    return is_number(value) and math.isfinite(value)


def finite_values(entries: Any, name: str) -> list[float]:
    """The finite numbers under `name` in a list of tables from a file, whatever else is there."""
    tables = [one for one in entries if isinstance(one, Mapping)] if type(entries) is list else []
    return [float(table[name]) for table in tables if is_finite(table.get(name))]


def estimate(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation, None for a single value."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None
