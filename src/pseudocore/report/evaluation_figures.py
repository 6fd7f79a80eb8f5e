"""Figures of the evaluations of one run: calibration, chains, corruptions, spectra, losses.

An evaluation may come from a stranger's file: what is missing or cannot be drawn is left out, so
that one odd number does not cost the page.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pseudocore.evaluation.metrics import Reliability
from pseudocore.report import svg
from pseudocore.report.values import estimate, finite_values, is_finite

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_VALUES = 1000


def of_evaluation(evaluation: Mapping[str, Any], colour: str) -> list[svg.Image]:
    """Figures of one evaluation."""
    found = (
        _reliability(evaluation, colour),
        _traces(evaluation),
        _corruption_map(evaluation),
        _landscape(evaluation, colour),
    )
    return [one for one in found if one is not None]


def of_run(evaluations: Sequence[Mapping[str, Any]], colour: str) -> list[svg.Image]:
    """Figures of a run as a whole: its images' spectrum, and NLL over temperature."""
    spectra = [found for one in evaluations if (found := _spectrum(one, colour)) is not None]
    temperatures = _temperatures(evaluations)
    return spectra[:1] + ([] if temperatures is None else [temperatures])


def _reliability(evaluation: Mapping[str, Any], colour: str) -> svg.Image | None:
    """Accuracy against confidence, over the number of predictions in each bin."""
    diagram = _diagram(evaluation.get("reliability"))
    if diagram is None:
        return None

    def paint(figure: "Figure") -> None:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3.2, 1))
        num_bins = len(diagram.count)
        width = 0.92 / num_bins
        filled = [bin for bin in range(num_bins) if diagram.count[bin]]
        centres = [(bin + 0.5) / num_bins for bin in range(num_bins)]
        confidence = [diagram.confidence[bin] for bin in filled]
        accuracy = [diagram.accuracy[bin] for bin in filled]
        above.bar([centres[bin] for bin in filled], accuracy, width=width, color=colour, alpha=0.3)
        above.plot([0, 1], [0, 1], linewidth=0.8, alpha=0.7, **svg.DASHED)
        above.plot(confidence, accuracy, "o-", color=colour, markersize=3.5, linewidth=1.2)
        above.set(xlim=(0, 1), ylim=(0, 1.02), ylabel="accuracy")
        above.grid(axis="y")
        below.bar(centres, diagram.count, width=width, color=svg.INK, alpha=0.45)
        below.set(xlabel="confidence", ylabel="count")
        below.locator_params(axis="y", nbins=2)

    inference = evaluation.get("inference", "unknown")
    return svg.figure(
        paint,
        f"reliability diagram of {inference}",
        f"{inference}: accuracy against confidence, with the number of test points in each bin.",
    )


def _diagram(value: Any) -> Reliability | None:
    """A diagram with at least one filled bin."""
    table = value if isinstance(value, Mapping) else {}
    columns = [table.get(name) for name in Reliability._fields]
    if not all(isinstance(column, list) for column in columns):
        return None
    confidence, accuracy, count = (tuple(column or ()) for column in columns)
    if not len(confidence) == len(accuracy) == len(count):
        return None
    if not all(type(number) is int and is_finite(number) and number >= 0 for number in count):
        return None
    filled = [place for place, number in enumerate(count) if number]
    shares = [part[place] for part in (confidence, accuracy) for place in filled]
    if not filled or not all(is_finite(share) and 0 <= share <= 1 for share in shares):
        return None
    return Reliability(confidence, accuracy, count)


def _traces(evaluation: Mapping[str, Any]) -> svg.Image | None:
    """The chains of the first seed over their draws, a panel per number and a colour per chain."""
    table = evaluation.get("traces")
    named = table.items() if isinstance(table, Mapping) else ()
    panels = {str(name): chains for name, chains in named if _is_chains(chains)}
    if not panels:
        return None

    def paint(figure: "Figure") -> None:
        grid: Any = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        for axes, (name, chains) in zip(grid, panels.items(), strict=True):
            for place, chain in enumerate(chains):
                values = [math.nan if value is None else value for value in chain]
                colour = svg.PALETTE[place % len(svg.PALETTE)]
                axes.plot(
                    range(1, len(values) + 1), values, color=colour, linewidth=0.8, alpha=0.85
                )
            label = svg.plain_text(name.replace("_", " "), 24).replace(" ", "\n")
            axes.set_ylabel(label, fontsize=7)
            axes.tick_params(labelsize=7)
            axes.locator_params(axis="y", nbins=3)
            axes.grid(axis="y")
        grid[-1].set_xlabel("kept draw")

    inference = evaluation.get("inference", "unknown")
    return svg.figure(
        paint,
        f"traces of {inference}",
        f"{inference}: each chain over its kept draws, first seed; a colour per chain.",
        height=0.5 + 1.05 * len(panels),
    )


def _is_chains(value: Any) -> bool:
    if not isinstance(value, list) or not 1 <= len(value) <= 64:
        return False
    if not all(isinstance(chain, list) and len(chain) <= _MAX_VALUES for chain in value):
        return False
    known = [number for chain in value for number in chain if number is not None]
    return bool(known) and all(map(is_finite, known))


def _corruption_map(evaluation: Mapping[str, Any]) -> svg.Image | None:
    """Accuracy under every corruption (rows) and severity (columns), the numbers written in."""
    accuracy = corruptions(evaluation)
    if not accuracy:
        return None

    def paint(figure: "Figure") -> None:
        axes = figure.subplots()
        severities = sorted({severity for row in accuracy.values() for severity in row})
        grid = np.array(
            [[row.get(name, np.nan) for name in severities] for row in accuracy.values()]
        )
        axes.imshow(grid, aspect="auto", interpolation="none", cmap="viridis", vmin=0, vmax=1)
        for row, column in np.ndindex(grid.shape):
            text = f"{grid[row, column]:.2f}".lstrip("0")
            ink = "white" if grid[row, column] < 0.6 else "black"
            axes.text(column, row, text, ha="center", va="center", fontsize=7, color=ink)
        axes.set_xticks(range(len(severities)), severities)
        names = [kind.replace("_", " ") for kind in accuracy]
        axes.set_yticks(range(len(names)), names, fontsize=7)
        axes.set(xlabel="severity")
        axes.tick_params(length=0)
        for side in axes.spines.values():
            side.set_visible(False)

    inference = evaluation.get("inference", "unknown")
    return svg.figure(
        paint,
        f"corruption heat map of {inference}",
        f"{inference}: accuracy on corrupted test images, by corruption and severity.",
        height=svg.HEIGHT * max(1.0, len(accuracy) / 8),
    )


def corruptions(evaluation: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Accuracy by corruption and severity, sound numbers only."""
    table = evaluation.get("corruptions")
    rows = {
        str(kind): {str(s): float(v) for s, v in row.items() if is_finite(v)}
        for kind, row in (table.items() if isinstance(table, Mapping) else ())
        if isinstance(row, Mapping)
    }
    return {kind: row for kind, row in rows.items() if row}


def _spectrum(evaluation: Mapping[str, Any], colour: str) -> svg.Image | None:
    """Power by spatial frequency of the coreset's images and of the data's."""
    series = _series(evaluation.get("spectrum"), ("frequency", "coreset", "data"))
    if series is None or not any(value > 0 for value in series[1]):
        return None

    def paint(figure: "Figure") -> None:
        axes: Axes = figure.subplots()
        _coreset_and_data(axes, series, colour, "training images")
        axes.set_yscale("log")
        svg.plain_ticks(axes.yaxis)
        axes.set(xlabel="cycles per pixel", ylabel="power")
        axes.grid()
        axes.legend()

    return svg.figure(
        paint,
        "frequency spectrum of the coreset and of the data",
        "Power of the images by spatial frequency: noise is flat, natural images fall.",
    )


def _landscape(evaluation: Mapping[str, Any], colour: str) -> svg.Image | None:
    """Losses of coreset and data along the line between a network trained on either."""
    series = _series(evaluation.get("landscape"), ("at", "coreset", "data"))
    if series is None:
        return None

    def paint(figure: "Figure") -> None:
        axes: Axes = figure.subplots()
        _coreset_and_data(axes, series, colour, "training set")
        for place in (0, 1):
            axes.axvline(place, color=svg.INK, linewidth=0.6, alpha=0.35)
        axes.set_xticks([0, 1], ["trained on\nthe coreset", "trained on\nthe data"])
        axes.set(ylabel="mean loss")
        axes.grid(axis="y")
        axes.legend()

    return svg.figure(
        paint,
        "loss along a line between two networks",
        "Mean loss along the line between two networks, one trained on the coreset and one on the "
        "data.",
    )


def _coreset_and_data(axes: "Axes", series: list[list[float]], colour: str, data: str) -> None:
    at, of_coreset, of_data = series
    axes.plot(at, of_data, linewidth=1.1, label=data, **svg.DASHED)
    axes.plot(at, of_coreset, color=colour, linewidth=1.5, label="coreset")


def _series(table: Any, names: Sequence[str]) -> list[list[float]] | None:
    """Lists of finite numbers of one length by name, or nothing."""
    found = [table.get(name) if isinstance(table, Mapping) else None for name in names]
    lists = [values for values in found if isinstance(values, list)]
    if len(lists) < len(names) or len({len(values) for values in lists}) > 1:
        return None
    if not 1 < len(lists[0]) <= _MAX_VALUES or not all(is_finite(v) for one in lists for v in one):
        return None
    return [[float(value) for value in values] for values in lists]


def _temperatures(evaluations: Sequence[Mapping[str, Any]]) -> svg.Image | None:
    """NLL of one run's samplers over temperature, where one prior has two or more."""
    lines: dict[str, dict[float, tuple[float, float | None]]] = {}
    for evaluation in evaluations:
        options = evaluation.get("options")
        values = finite_values(evaluation.get("per_seed"), "nll")
        temperature = options.get("temperature") if isinstance(options, Mapping) else None
        if isinstance(options, Mapping) and is_finite(temperature) and temperature > 0 and values:
            prior = f"{options.get('prior', '')} {options.get('prior_scale', 'of chosen scale')}"
            line = lines.setdefault(f"{evaluation.get('inference', 'unknown')} {prior}", {})
            line[float(temperature)] = estimate(values)
    lines = {label: line for label, line in lines.items() if len(line) > 1}
    if not 1 <= len(lines) <= svg.MAX_SERIES:
        return None
    return svg.image(
        temperatures("NLL", lines),
        "curve of NLL over temperature",
        "Test NLL over temperature: a colder posterior that predicts better suggests that "
        "likelihood or prior are misspecified.",
    )


def temperatures(
    metric: str,
    lines: Mapping[str, Mapping[float, tuple[float, float | None]]],
    level: tuple[str, float] | None = None,
) -> bytes:
    """The cold-posterior curve: mean and deviation of a metric over temperature, a line per prior;
    `level` is another protocol's name and value.
    """

    def paint(figure: "Figure") -> None:
        axes: Axes = figure.subplots()
        for place, (label, line) in enumerate(lines.items()):
            points = [(at, mean, sd or 0.0) for at, (mean, sd) in sorted(line.items())]
            style = svg.line(label, place // len(svg.PALETTE), svg.PALETTE[place % 8], 32)
            svg.error_bars(axes, points, linewidth=1.2, **style)
        if level is not None:
            label = svg.plain_text(level[0])
            axes.axhline(level[1], linewidth=0.8, alpha=0.8, label=label, **svg.DASHED)
        axes.set_xscale("log")
        svg.plain_ticks(axes.xaxis)
        axes.set(xlabel="temperature", ylabel=svg.plain_text(metric))
        axes.grid()
        axes.legend()

    return svg.draw(svg.WIDTH, svg.HEIGHT, paint)
