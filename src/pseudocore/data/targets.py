"""Targets: which of them are classes and which are numbers, and the numbers of a regression."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pseudocore.core.errors import DataError
from pseudocore.core.likelihood import Task

SUPPORTED = "one class or one number per example is supported"
"""What is said beside every refusal of another kind of target."""


_MAX_CLASSES, _FEWEST_ROWS = 20, 10
"""More whole numbers than this, with fewer rows each, may be classes or numbers."""


def task_of(parts: Sequence[Any], asked: Task | None) -> tuple[Task, str]:
    """The task asked for; by default regression where the training targets hold fractions. Also a
    note on what was decided.
    """
    if asked is not None:
        return asked, ""
    y = _column(parts[0])
    if y.ndim != 1 or y.dtype.kind != "f":
        return "classification", ""
    with np.errstate(invalid="ignore"):
        has_fractions = bool((np.isfinite(y) & (y != np.rint(y))).any())
    if has_fractions:
        return "regression", "the targets hold fractions: this is a regression"
    return "classification", ""


def refuse_unclear(part: Any, what: str) -> None:
    """Refuse many whole numbers of few rows each, unless they are 0, 1, 2, …."""
    y = _column(part)
    if y.ndim != 1 or y.dtype.kind not in "iuf":
        return
    values = np.unique(y[np.isfinite(y)])
    is_few = len(values) <= max(_MAX_CLASSES, len(y) / _FEWEST_ROWS)
    if not is_few and not np.array_equal(values, np.arange(len(values))):
        raise DataError(
            f"{what} holds {len(values)} different whole numbers in {len(y)} rows; say task ="
            " 'regression' if they are numbers, 'classification' if they are classes",
            code="unclear-task",
            where=what,
        )


def numbers(parts: Sequence[Any], what: Sequence[str]) -> list[Tensor]:
    """The targets of one or two halves, float64 (n, 1)."""
    return [_numbers(part, where) for part, where in zip(parts, what, strict=True)]


def refuse_several(y: np.ndarray, what: str) -> None:
    """Refuse targets of several columns."""
    if y.ndim == 2 and y.shape[1] > 1:
        raise DataError(
            f"{what} holds {y.shape[1]} columns; targets of several labels or several numbers are"
            f" not supported: {SUPPORTED}",
            code="several-targets",
            where=what,
        )


def _numbers(part: Any, what: str) -> Tensor:
    y = _column(part)
    refuse_several(y, what)
    if y.ndim != 1 or y.dtype.kind not in "biuf":
        problem = f"must be one number per example for a regression, not {y.dtype} {y.shape}"
        raise DataError(f"{what} {problem}", code="unfit-targets", where=what)
    values = y.astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        problem = f"has no finite target in row {bad[0] + 1} ({len(bad)} in all)"
        raise DataError(f"{what} {problem}", code="unfit-targets", where=what)
    return torch.from_numpy(values)[:, None]


def _column(part: Any) -> np.ndarray:
    y: np.ndarray = np.asarray(part)
    return y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
