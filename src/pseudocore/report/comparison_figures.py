"""Figures that compare runs: metrics, corruptions, networks, stages of classes."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pseudocore.evaluation.names import format_metric, metric_title, num_digits
from pseudocore.evaluation.tables import Record, Row, look
from pseudocore.report import svg
from pseudocore.report.evaluation_figures import corruptions
from pseudocore.report.values import estimate, finite_values

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def of_comparison(
    rows: Sequence[Row],
    records: Sequence[Record],
    staged: Sequence[Record],
    colour_of: Mapping[str, str],
) -> list[svg.Image]:
    """Figures that compare the rows of a table, evaluations, and class-incremental results."""
    charts = [
        bars(rows, name, colour_of)
        for name in ("accuracy", "nll")
        if len(rows) > 1 and any(name in row.metrics for row in rows)
    ]
    found = (
        _architectures(records, colour_of),
        _radar(records, colour_of),
        _stages(staged, colour_of),
    )
    return charts + [one for one in found if one is not None]


def bars(rows: Sequence[Row], metric: str, colours: Mapping[str, str]) -> svg.Image:
    """One metric over the rows of a comparison, with standard deviations; a mean that is not finite
    is a word without a bar.
    """

    def paint(figure: "Figure") -> None:
        axes = figure.subplots()
        found = [row.metrics.get(metric) for row in rows]
        finite = [one for one in found if one and math.isfinite(one.mean)]
        longest = max((one.mean + (one.sd or 0) for one in finite), default=0.0)
        longest = longest if longest > 0 else 1.0
        for place, (row, one) in enumerate(zip(rows, found, strict=True)):
            has_bar = one is not None and math.isfinite(one.mean)
            length, spread = (one.mean, one.sd or 0.0) if one and has_bar else (0.0, 0.0)
            axes.barh(place, length, height=0.62, color=colours[row.method], alpha=0.85)
            if spread:
                axes.errorbar(length, place, xerr=spread, color=svg.INK, linewidth=1, capsize=2.5)
            end = max(length + spread, 0.0) + 0.02 * longest
            axes.text(
                end,
                place,
                format_metric(one.mean if one else None, digits=num_digits(metric)),
                va="center",
                fontsize=8,
            )
        axes.set_yticks(range(len(rows)), row_labels(rows))
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(right=1.18 * longest)
        axes.set_xlabel(metric_title(metric))
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x")

    alt = f"bar chart of {metric} by row of the table"
    return svg.figure(paint, alt, height=0.7 + 0.36 * len(rows))


def row_labels(rows: Sequence[Row]) -> list[str]:
    """The method of each row, and on a second line whatever not all rows share."""
    details = []
    for row in rows:
        budget = f"{row.per_class} per class" if type(row.per_class) is int else row.per_class
        details.append((row.data, budget, row.inference, row.variant))
    differs = [len(set(column)) > 1 for column in zip(*details, strict=True)]
    labels = []
    for row, parts in zip(rows, details, strict=True):
        rest = " · ".join(
            str(part) for part, shown in zip(parts, differs, strict=True) if shown and part
        )
        labels.append("\n".join(svg.plain_text(text, 34) for text in (row.method, rest) if text))
    return labels


def _radar(records: Sequence[Record], colour_of: Mapping[str, str]) -> svg.Image | None:
    """Accuracy under each corruption, a spoke each, of two or more evaluations."""
    found: dict[str, dict[str, float]] = {}
    method_of: dict[str, str] = {}
    for config, evaluation in records:
        table = corruptions(evaluation)
        if len(table) > 2:
            name = _name(config, evaluation)
            means = {kind: statistics.fmean(row.values()) for kind, row in table.items()}
            found.setdefault(name, means)
            method_of[name] = look(config)[0]
    if not 2 <= len(found) <= svg.MAX_SERIES:
        return None
    colour = _distinct(method_of, colour_of)

    def paint(figure: "Figure") -> None:
        axes: Any = figure.subplots(subplot_kw={"projection": "polar"})
        kinds = list(dict.fromkeys(kind for row in found.values() for kind in row))
        angles = [2 * math.pi * place / len(kinds) for place in range(len(kinds))]
        for place, (name, row) in enumerate(found.items()):
            values = [row.get(kind, np.nan) for kind in kinds]
            style = svg.line(name, place, colour[name])
            axes.plot([*angles, angles[0]], [*values, values[0]], linewidth=1.3, **style)
        names = [svg.plain_text(kind.replace("_", " "), 18) for kind in kinds]
        axes.set_xticks(angles, names, fontsize=6.5)
        axes.set_ylim(0, 1)
        axes.tick_params(axis="y", labelsize=6.5)
        for text, angle in zip(axes.get_xticklabels(), angles, strict=True):
            side = "left" if math.cos(angle) > 0 else "right"  # outside the circle
            text.set_horizontalalignment("center" if abs(math.cos(angle)) < 0.1 else side)
        figure.legend(loc="outside lower center", ncols=2)

    return svg.figure(
        paint,
        "radar chart of accuracy under corruptions",
        "Accuracy under each corruption, averaged over severities.",
        height=4.6,
    )


def _architectures(records: Sequence[Record], colour_of: Mapping[str, str]) -> svg.Image | None:
    """Accuracy by network (groups of bars), where a coreset was evaluated with several."""
    values: dict[str, dict[str, list[float]]] = {}
    method_of: dict[str, str] = {}
    for config, evaluation in records:
        model = evaluation.get("model")
        network = model.get("name") if isinstance(model, Mapping) else None
        accuracies = finite_values(evaluation.get("per_seed"), "accuracy")
        if network and accuracies:
            name = _name(config, evaluation)
            values.setdefault(name, {}).setdefault(str(network), []).extend(accuracies)
            method_of[name] = look(config)[0]
    several = {name: row for name, row in values.items() if len(row) > 1}
    if not 1 <= len(several) <= svg.MAX_SERIES:
        return None
    colour = _distinct({name: method_of[name] for name in several}, colour_of)

    def paint(figure: "Figure") -> None:
        axes: Axes = figure.subplots()
        networks = list(dict.fromkeys(network for row in several.values() for network in row))
        width = 0.8 / len(several)
        for place, (name, row) in enumerate(several.items()):
            known = [network for network in networks if network in row]
            offset = (place - (len(several) - 1) / 2) * width
            centres = [networks.index(network) + offset for network in known]
            means, deviations = zip(*(estimate(row[network]) for network in known), strict=True)
            label = svg.plain_text(name, 28)
            axes.bar(centres, means, 0.92 * width, color=colour[name], alpha=0.85, label=label)
            style: dict[str, Any] = {"fmt": "none", "color": svg.INK, "capsize": 2}
            axes.errorbar(centres, means, [sd or 0.0 for sd in deviations], linewidth=0.9, **style)
        names = [svg.plain_text(network, 14) for network in networks]
        axes.set_xticks(range(len(networks)), names, rotation=30, ha="right")
        axes.set(ylabel="accuracy", ylim=(0, 1))
        axes.grid(axis="y")
        if len(several) > 1:
            figure.legend(loc="outside lower center", ncols=2)

    return svg.figure(
        paint,
        "bar chart of accuracy by network",
        "Accuracy by the network that was fitted on the coreset.",
    )


def _stages(records: Sequence[Record], colour_of: Mapping[str, str]) -> svg.Image | None:
    """Accuracy over all classes seen, after each stage of class-incremental learning."""
    lines: dict[str, list[tuple[float, float, float]]] = {}
    method_of: dict[str, str] = {}
    for config, table in records:
        found: dict[int, list[float]] = {}
        entries = table.get("stages")
        for stage in entries if isinstance(entries, list) else []:
            num = stage.get("num_classes") if isinstance(stage, Mapping) else None
            if type(num) is int and (accuracy := finite_values([stage.get("metrics")], "accuracy")):
                found.setdefault(num, []).extend(accuracy)
        if not found:
            continue
        options = table.get("options")
        named = sorted(options.items()) if isinstance(options, Mapping) else []
        name = ", ".join([_name(config, table), *(f"{key}={value}" for key, value in named)])
        name = f"{name}, {len(found)} stages" if name in lines else name
        points = [(num, *estimate(values)) for num, values in sorted(found.items())]
        lines[name] = [(num, mean, sd or 0.0) for num, mean, sd in points]
        method_of[name] = look(config)[0]
    if not 1 <= len(lines) <= svg.MAX_SERIES:
        return None
    colour = _distinct(method_of, colour_of)

    def paint(figure: "Figure") -> None:
        axes: Axes = figure.subplots()
        for place, (name, points) in enumerate(lines.items()):
            style = svg.line(name, place, colour[name])
            svg.error_bars(axes, points, linewidth=1.3, **style)
        axes.set_xticks(sorted({num for points in lines.values() for num, _, _ in points}))
        axes.set(xlabel="classes seen", ylabel="accuracy on all of them", ylim=(0, 1))
        axes.grid(axis="y")
        if len(lines) > 1:
            figure.legend(loc="outside lower center", ncols=2)

    return svg.figure(
        paint,
        "accuracy over stages of classes",
        "Classes arrive in stages: accuracy on all seen so far, of a network fitted to the memory.",
    )


def _name(config: Mapping[str, Any], evaluation: Mapping[str, Any]) -> str:
    parts = [*look(config), evaluation.get("inference", "unknown")]
    return " · ".join(str(part) for part in parts if part is not None)


def _distinct(method_of: Mapping[str, str], colour_of: Mapping[str, str]) -> dict[str, str]:
    """The methods' own colours while each has one line; else a colour per line."""
    if len(set(method_of.values())) == len(method_of):
        return {name: colour_of[method] for name, method in method_of.items()}
    return svg.colours(method_of)
