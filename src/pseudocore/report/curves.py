"""Figures of runs and their comparison: curves over the steps, bars of metrics."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pseudocore.report import svg
from pseudocore.report.values import is_finite, is_number
from pseudocore.store.run_folder import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MAX_CURVES = 4
_MAX_POINTS = 1000
_LOG_RATIO = 30.0


class Curve(NamedTuple):
    """One quantity over the steps of one run."""

    label: str
    steps: Sequence[int]
    values: Sequence[float]


def run_curves(runs: Sequence[Run], colour: str) -> list[svg.Image]:
    """What was logged over the steps of runs that differ in their seed, the loss first."""
    logs = [run.metrics() for run in runs]
    found = dict.fromkeys(name for log in logs for entry in log for name in entry if name != "step")
    images = []
    for name in sorted(found, key=lambda name: name != "loss")[:_MAX_CURVES]:
        lines = []
        for run, log in zip(runs, logs, strict=True):
            points = [
                (entry["step"], float(entry[name]))
                for entry in log
                if is_number(entry["step"]) and is_number(entry.get(name))
            ]
            if any(is_finite(value) for _, value in points):
                label = f"seed {run.config.get('seed', run.path.name)}"
                lines.append(Curve(label, *zip(*points, strict=True)))
        if lines:
            images.append(curves(name, lines, colour))
    return images


def curves(name: str, lines: Sequence[Curve], colour: str) -> svg.Image:
    """One quantity over the steps of one or more runs of a method; logarithmic where it is positive
    and spans a lot.
    """

    def paint(figure: "Figure") -> None:
        axes = figure.subplots()
        drawn = [_thinned(line) for line in lines]
        for place, (line, (steps, values)) in enumerate(zip(lines, drawn, strict=True)):
            if len(values) > 60:
                axes.plot(steps, values, color=colour, linewidth=0.6, alpha=0.25)
                values = _smooth(values)
            style = svg.line(line.label, place, colour, 32)
            axes.plot(steps, values, linewidth=1.4, alpha=max(0.5, 1 - 0.2 * place), **style)
        if _spans_a_lot(np.concatenate([values for _, values in drawn])):
            axes.set_yscale("log")
            svg.plain_ticks(axes.yaxis)
        axes.set_xlabel("step")
        axes.set_ylabel(svg.plain_text(name))
        axes.grid(axis="y")
        if len(lines) > 1:
            axes.legend()

    return svg.figure(paint, f"curve of {name} over the steps")


def _thinned(line: Curve) -> tuple[Any, Any]:
    """Steps and values as arrays of a drawable length; values too large for an axis become gaps."""
    stride = math.ceil(len(line.values) / _MAX_POINTS) or 1
    values = np.asarray(line.values, dtype=np.float64)[::stride]
    return np.asarray(line.steps)[::stride], np.where(np.abs(values) < 1e100, values, np.nan)


def _smooth(values: Any) -> Any:
    """Mean over a centred window of a twentieth of the curve, ignoring gaps; a gap at the ends,
    where the window does not fit.
    """
    half = max(1, len(values) // 40)
    known, window = np.isfinite(values), np.ones(2 * half + 1)
    num = np.convolve(known, window, mode="valid")
    total = np.convolve(np.where(known, values, 0.0), window, mode="valid")
    ends = np.full(half, np.nan)
    return np.concatenate([ends, np.where(num > 0, total / np.maximum(num, 1), np.nan), ends])


def _spans_a_lot(values: Any) -> bool:
    known = values[np.isfinite(values)]
    if not len(known) or known.min() <= 0:
        return False
    low, high = np.quantile(known, [0.02, 0.98])  # one lucky batch does not count
    return bool(high / low > _LOG_RATIO)
