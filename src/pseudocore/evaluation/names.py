"""Titles of metrics, which direction is better, and how their values are written."""

import math
import re
from collections.abc import Callable
from typing import Any

_MAIN: dict[str, tuple[str, Callable[..., Any]]] = {
    "accuracy": ("accuracy", max),
    "nll": ("NLL", min),
    "ece": ("ECE", min),
    "brier": ("Brier", min),
}
_REGRESSION: dict[str, tuple[str, Callable[..., Any]]] = {
    "rmse": ("RMSE", min),
    "crps": ("CRPS", min),
    "width_90": ("90 % width", min),
}
_COVERAGE = {"coverage_50": "50 % coverage", "coverage_90": "90 % coverage"}
"""Best at their own level: neither direction is better."""
_CALIBRATION = {"adaptive_ece": ("adaptive ECE", min), "classwise_ece": ("class-wise ECE", min)}
_CORRUPTED = {
    f"corrupted_{name}": (f"corrupted {title}", better) for name, (title, better) in _MAIN.items()
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
_FIDELITY = {
    "fidelity_kl": ("KL to full", min),
    "fidelity_tv": ("TV to full", min),
    "fidelity_agreement": ("agreement with full", max),
}
_FIDELITY_DETAILS = {
    "fidelity_reverse_kl": ("reverse KL to full", min),
    "fidelity_entropy_correlation": ("entropy correlation with full", max),
    "fidelity_nll_gap": ("NLL gap to full", min),
    "fidelity_parameter_kl": ("parameter KL to full", min),
    "fidelity_parameter_w2": ("parameter W2 to full", min),
    "fidelity_w2": ("W2 to full", min),
}
_DISCREPANCY = {"mmd": ("MMD to the data", min), "ksd": ("KSD to the classes", min)}
_ALL = (
    _MAIN
    | _REGRESSION
    | _FIDELITY
    | _FIDELITY_DETAILS
    | _DISCREPANCY
    | _CALIBRATION
    | _CORRUPTED
    | _PUBLISHED
    | _FOREIGN
)
_FLOORS = {
    name.replace("fidelity_", "fidelity_floor_"): f"floor of {title}"
    for name, (title, _) in (_FIDELITY | _FIDELITY_DETAILS).items()
}

TITLES = {name: title for name, (title, _) in _ALL.items()} | _COVERAGE | _FLOORS
"""In the order of columns."""

DIRECTIONS = {name: better for name, (_, better) in _ALL.items()}
"""`max` or `min`: which of two values is the better one."""

DETAILS = (
    frozenset(_CALIBRATION) | _FIDELITY_DETAILS.keys() | _FLOORS.keys() - {"fidelity_floor_kl"}
)
"""Metrics that every file holds and tables leave out by default."""


def metric_title(name: str) -> str:
    """A metric's name for a person, with the direction in which it improves."""
    arrow = {max: " ↑", min: " ↓"}.get(DIRECTIONS.get(name), "")  # type: ignore[arg-type]
    return TITLES.get(name, name) + arrow


def num_digits(name: str) -> int:
    """Digits after the point of a metric: divergences are worth telling apart near 0."""
    return 4 if name.startswith("fidelity_") and name.endswith("kl") else 3


def format_metric(mean: float | None, sd: float | None = None, *, digits: int = 3) -> str:
    """`.931 ± .012`; a dash for nothing, `inf` and `nan` without a deviation."""
    if mean is None:
        return "–"
    if sd is None or not math.isfinite(mean) or not math.isfinite(sd):
        return _number(mean, digits)
    return f"{_number(mean, digits)} ± {_number(sd, digits)}"


def _number(value: float, digits: int) -> str:
    if not math.isfinite(value):
        return str(float(value))
    if abs(value) >= 1e4:
        return f"{value:.4g}"
    text = f"{round(value, digits) + 0.0:.{digits}f}"  # adding zero takes the sign from a zero
    return re.sub(r"^(-?)0\.", r"\1.", text)
