"""What metrics are called in tables, and which way is better."""

from collections.abc import Callable
from typing import Any

_USUAL: dict[str, tuple[str, Callable[..., Any]]] = {
    "accuracy": ("accuracy", max),
    "nll": ("NLL", min),
    "ece": ("ECE", min),
    "brier": ("Brier", min),
}
_CALIBRATION = {"adaptive_ece": ("adaptive ECE", min), "classwise_ece": ("class-wise ECE", min)}
_CORRUPTED = {
    f"corrupted_{name}": (f"corrupted {title}", better) for name, (title, better) in _USUAL.items()
}
_PUBLISHED = {
    "published_accuracy": ("best accuracy", max),
    "published_nll": ("NLL as published", min),
    "published_ece": ("ECE as published", min),
}
_FOREIGN = {
    f"ood_{measure.lower()}_{score}": (f"OOD {measure}, {score}", better)
    for score in ("entropy", "information")
    for measure, better in (("AUROC", max), ("AUPR", max), ("FPR95", min))
}
_ALL = _USUAL | _CALIBRATION | _CORRUPTED | _PUBLISHED | _FOREIGN

TITLES = {name: title for name, (title, _) in _ALL.items()}
"""In the order of columns."""

DIRECTIONS = {name: better for name, (_, better) in _ALL.items()}
"""`max` or `min`: which of two values is the better one."""

DETAILS = frozenset(_CALIBRATION)
"""Metrics that every file keeps and tables leave out unless asked: a second opinion on the
calibration error.
"""


def metric_title(name: str) -> str:
    """A metric's name for a person, with the direction in which it improves."""
    arrow = {max: " ↑", min: " ↓"}.get(DIRECTIONS.get(name), "")  # type: ignore[arg-type]
    return TITLES.get(name, name) + arrow
