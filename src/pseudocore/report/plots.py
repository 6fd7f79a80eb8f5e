"""Figures of runs: curves over steps, reliability, comparisons, points and soft labels. Each
function returns an SVG file.

Every figure is drawn for a column of about 400 pixels, so that it stays readable on a phone; the
page puts them side by side.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import Tensor

from pseudocore.evaluation.metrics import Reliability
from pseudocore.evaluation.names import format_metric, metric_title
from pseudocore.evaluation.tables import Row
from pseudocore.report.figure import INK, PALETTE, draw, plain_text, plain_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_WIDTH, _HEIGHT = 4.2, 3.2
_MAX_POINTS = 1000
_LOG_RATIO = 30.0
_LINE_STYLES = ("-", "--", ":", "-.")
_MARKERS = "osD^vP*X"


class Curve(NamedTuple):
    label: str
    steps: Sequence[int]
    values: Sequence[float]


def curves(name: str, lines: Sequence[Curve], colour: str) -> bytes:
    """One quantity over the steps of one or more runs of a method; logarithmic where it is positive
    and spans a lot.
    """

    def paint(figure: "Figure") -> None:
        axes = figure.subplots()
        drawn = [_thinned(line) for line in lines]
        for place, (line, (steps, values)) in enumerate(zip(lines, drawn, strict=True)):
            style: dict[str, Any] = {
                "linestyle": _LINE_STYLES[place % 4],
                "label": plain_text(line.label),
            }
            if len(values) > 60:
                axes.plot(steps, values, color=colour, linewidth=0.6, alpha=0.25)
                values = _smooth(values)
            axes.plot(
                steps, values, color=colour, linewidth=1.4, alpha=max(0.5, 1 - 0.2 * place), **style
            )
        if _spans_a_lot(np.concatenate([values for _, values in drawn])):
            axes.set_yscale("log")
            plain_ticks(axes.yaxis)
        axes.set_xlabel("step")
        axes.set_ylabel(plain_text(name))
        axes.grid(axis="y")
        if len(lines) > 1:
            axes.legend()

    return draw(_WIDTH, _HEIGHT, paint)


def reliability(diagram: Reliability, colour: str) -> bytes:
    """What came true against what was claimed, over the number of claims in each bin."""

    def paint(figure: "Figure") -> None:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3.2, 1))
        num_bins = len(diagram.count)
        filled = [bin for bin in range(num_bins) if diagram.count[bin]]
        centres = [(bin + 0.5) / num_bins for bin in range(num_bins)]
        heights = [diagram.accuracy[bin] for bin in filled]
        above.bar(
            [centres[bin] for bin in filled],
            heights,
            width=0.92 / num_bins,
            color=colour,
            alpha=0.3,
        )
        above.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=(0, (4, 3)), alpha=0.7)
        above.plot(
            [diagram.confidence[bin] for bin in filled],
            heights,
            "o-",
            color=colour,
            markersize=3.5,
            linewidth=1.2,
        )
        above.set(xlim=(0, 1), ylim=(0, 1.02), ylabel="accuracy")
        above.grid(axis="y")
        below.bar(centres, diagram.count, width=0.92 / num_bins, color=INK, alpha=0.45)
        below.set(xlabel="confidence", ylabel="count")
        below.locator_params(axis="y", nbins=2)

    return draw(_WIDTH, _HEIGHT, paint)


def bars(rows: Sequence[Row], metric: str, colours: Mapping[str, str]) -> bytes:
    """One metric over the rows of a comparison, with standard deviations; a mean that is not finite
    has a word, no bar.
    """

    def paint(figure: "Figure") -> None:
        axes = figure.subplots()
        found = [row.metrics.get(metric) for row in rows]
        longest = max(
            (one.mean + (one.sd or 0) for one in found if one and math.isfinite(one.mean)),
            default=0.0,
        )
        longest = longest if longest > 0 else 1.0
        for place, (row, one) in enumerate(zip(rows, found, strict=True)):
            finite = one is not None and math.isfinite(one.mean)
            length, spread = (one.mean, one.sd or 0.0) if one and finite else (0.0, 0.0)
            axes.barh(place, length, height=0.62, color=colours[row.method], alpha=0.85)
            if spread:
                axes.errorbar(length, place, xerr=spread, color=INK, linewidth=1, capsize=2.5)
            end = max(length + spread, 0.0) + 0.02 * longest
            axes.text(end, place, format_metric(one.mean if one else None), va="center", fontsize=8)
        axes.set_yticks(range(len(rows)), row_labels(rows))
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(right=1.18 * longest)
        axes.set_xlabel(metric_title(metric))
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x")

    return draw(_WIDTH, 0.7 + 0.36 * len(rows), paint)


def row_labels(rows: Sequence[Row]) -> list[str]:
    """Short names for rows: the method, and whatever else not all of them share."""
    details = [(row.data, _budget(row.per_class), row.inference, row.variant) for row in rows]
    telling = [len(set(column)) > 1 for column in zip(*details, strict=True)]
    labels = []
    for row, parts in zip(rows, details, strict=True):
        rest = " · ".join(
            part for part, tells in zip(parts, telling, strict=True) if tells and part
        )
        labels.append("\n".join(plain_text(text, 34) for text in (row.method, rest) if text))
    return labels


def scatter(x: Tensor, classes: Sequence[str]) -> bytes:
    """Points of the plane (M, 2), their classes told apart by colour and shape."""

    def paint(figure: "Figure") -> None:
        axes = figure.subplots()
        points, of = x.double().numpy(), np.asarray(classes)
        names = list(dict.fromkeys(classes))
        for place, name in enumerate(names):
            own, style = points[of == name], place % len(PALETTE)
            marker = _MARKERS[(place // len(PALETTE) + style) % len(_MARKERS)]
            look: dict[str, Any] = {
                "color": PALETTE[style],
                "marker": marker,
                "edgecolors": INK,
                "linewidths": 0.4,
            }
            axes.scatter(own[:, 0], own[:, 1], s=34, label=plain_text(name, 18), **look)
        axes.set(xlabel="feature 1", ylabel="feature 2")
        axes.grid()
        if len(names) <= 12:
            figure.legend(loc="outside right upper", title="class", title_fontsize=8)

    return draw(_WIDTH, _HEIGHT, paint)


def heat_map(values: Tensor, row_classes: Sequence[str], names: Sequence[str]) -> bytes:
    """Soft labels (points, classes), a row per point; around zero in two hues where some are
    negative.
    """

    def paint(figure: "Figure") -> None:
        axes = figure.subplots()
        grid = values.double().numpy()
        high = float(np.abs(grid).max()) or 1.0
        signed = bool((grid < 0).any())
        hues, low = ("PuOr_r", -high) if signed else ("Blues", 0.0)
        picture = axes.imshow(
            grid, aspect="auto", interpolation="none", cmap=hues, vmin=low, vmax=high
        )
        _label_ticks(axes, names, row_classes)
        axes.set(xlabel="class", ylabel="point, by class")
        axes.tick_params(length=0)
        for side in axes.spines.values():
            side.set_visible(False)
        bar: Any = figure.colorbar(picture, ax=axes, shrink=0.8, aspect=18, pad=0.02)
        bar.outline.set_visible(False)
        bar.ax.tick_params(length=2, labelsize=7)

    return draw(_WIDTH, _HEIGHT, paint)


def corruptions(accuracy: Mapping[str, Mapping[str, float]]) -> bytes:
    """Accuracy under every corruption (rows) and severity (columns), the numbers written in."""

    def paint(figure: "Figure") -> None:
        axes = figure.subplots()
        kinds, severities = (
            list(accuracy),
            sorted({severity for of_kind in accuracy.values() for severity in of_kind}),
        )
        grid = np.array(
            [[accuracy[kind].get(severity, np.nan) for severity in severities] for kind in kinds]
        )
        axes.imshow(grid, aspect="auto", interpolation="none", cmap="viridis", vmin=0, vmax=1)
        for row, column in np.ndindex(grid.shape):
            ink = "white" if grid[row, column] < 0.6 else "black"
            axes.text(
                column,
                row,
                f"{grid[row, column]:.2f}".lstrip("0"),
                ha="center",
                va="center",
                fontsize=7,
                color=ink,
            )
        axes.set_xticks(range(len(severities)), severities)
        axes.set_yticks(range(len(kinds)), [kind.replace("_", " ") for kind in kinds], fontsize=7)
        axes.set(xlabel="severity")
        axes.tick_params(length=0)
        for side in axes.spines.values():
            side.set_visible(False)

    return draw(_WIDTH, _HEIGHT * max(1.0, len(accuracy) / 8), paint)


def _thinned(line: Curve) -> tuple[Any, Any]:
    """Steps and values as arrays of a drawable length; what no axis can hold becomes a gap."""
    stride = math.ceil(len(line.values) / _MAX_POINTS) or 1
    values = np.asarray(line.values, dtype=np.float64)[::stride]
    return np.asarray(line.steps)[::stride], np.where(np.abs(values) < 1e100, values, np.nan)


def _smooth(values: Any) -> Any:
    """Mean over a centred window of a twentieth of the curve, gaps passed over; nothing where it
    does not fit, at the ends.
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
    low, high = np.quantile(known, [0.02, 0.98])  # one lucky batch is no reason
    return bool(high / low > _LOG_RATIO)


def _budget(per_class: int | str | None) -> str:
    return f"{per_class} per class" if isinstance(per_class, int) else per_class or ""


def _label_ticks(axes: "Axes", names: Sequence[str], row_classes: Sequence[str]) -> None:
    """Names where they fit, else nothing: a row per point and a column per class soon leave no room
    for words.
    """
    if len(names) <= 20:
        long = max(len(name) for name in names) > 2
        axes.set_xticks(
            range(len(names)),
            [plain_text(name, 12) for name in names],
            rotation=60 if long else 0,
            fontsize=7,
        )
        if long:
            for text in axes.get_xticklabels():
                text.set(ha="right", rotation_mode="anchor")
    starts = [
        place
        for place, name in enumerate(row_classes)
        if place == 0 or row_classes[place - 1] != name
    ]
    if len(starts) <= 20:
        axes.set_yticks(
            starts, [plain_text(row_classes[place], 12) for place in starts], fontsize=7
        )
    else:
        axes.set_yticks([])
