"""Figures that compare runs: metrics, corruptions, networks, stages of classes."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pseudocore.evaluation.names import format_metric, metric_title, num_digits
from pseudocore.evaluation.tables import Record, Row, flat, look, settings, variants
from pseudocore.report import svg
from pseudocore.report.evaluation_figures import corruptions
from pseudocore.report.gap_figure import named
from pseudocore.report.values import estimate, finite_values

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def of_comparison(
    rows: Sequence[Row],
    records: Sequence[Record],
    staged: Sequence[Record],
    colour_of: Mapping[str, str],
    bars_of: Sequence[str] = ("accuracy", "nll"),
) -> list[svg.Image]:
    """Figures that compare the rows of a table, evaluations, and class-incremental results."""
    charts = [
        bars(rows, name, colour_of)
        for name in bars_of
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
    rests = [
        " · ".join(str(part) for part, shown in zip(parts, differs, strict=True) if shown and part)
        for parts in details
    ]
    alike: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        alike.setdefault(row.method, []).append(place)
    for places in alike.values():
        cut = svg.labels([rests[place] for place in places], 26)
        for place, text in zip(places, cut, strict=True):
            rests[place] = text if rests[place] else ""
    return [
        "\n".join(text for text in (svg.plain_text(row.method, 34), rest) if text)
        for row, rest in zip(rows, rests, strict=True)
    ]


def _radar(records: Sequence[Record], colour_of: Mapping[str, str]) -> svg.Image | None:
    """Accuracy under each corruption, a spoke each, of two or more evaluations."""
    records = [record for record in records if len(corruptions(record[1])) > 2]
    values: dict[str, dict[str, list[float]]] = {}
    method_of: dict[str, str] = {}
    for name, (config, evaluation) in zip(_names(records), records, strict=True):
        own = values.setdefault(name, {})
        for kind, row in corruptions(evaluation).items():
            own.setdefault(kind, []).append(statistics.fmean(row.values()))
        method_of[name] = look(config)[0]
    if not 2 <= len(values) <= svg.MAX_SERIES:
        return None
    found = {
        name: {kind: statistics.fmean(means) for kind, means in own.items()}
        for name, own in values.items()
    }
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
    records = [(config, one) for config, one in records if _network(one)]
    names = _names(records, apart=("inference.model.", "inference.setup."))
    networks = _networks([evaluation for _, evaluation in records])
    for name, network, (config, evaluation) in zip(names, networks, records, strict=True):
        accuracies = finite_values(evaluation.get("per_seed"), "accuracy")
        if accuracies:
            values.setdefault(name, {}).setdefault(network, []).extend(accuracies)
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
            style: dict[str, Any] = {"color": colour[name], "alpha": 0.85, "label": name}
            axes.bar(centres, means, 0.92 * width, **style)
            style = {"fmt": "none", "color": svg.INK, "capsize": 2}
            axes.errorbar(centres, means, [sd or 0.0 for sd in deviations], linewidth=0.9, **style)
        axes.set_xticks(range(len(networks)), networks, rotation=30, ha="right")
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
    values: dict[str, dict[int, list[float]]] = {}
    method_of: dict[str, str] = {}
    for name, (config, table) in zip(_names(records), records, strict=True):
        found: dict[int, list[float]] = {}
        entries = table.get("stages")
        for stage in entries if isinstance(entries, list) else []:
            num = stage.get("num_classes") if isinstance(stage, Mapping) else None
            if type(num) is int and (accuracy := finite_values([stage.get("metrics")], "accuracy")):
                found.setdefault(num, []).extend(accuracy)
        for num, accuracy in found.items():
            values.setdefault(name, {}).setdefault(num, []).extend(accuracy)
            method_of[name] = look(config)[0]
    if not 1 <= len(values) <= svg.MAX_SERIES:
        return None
    lines: dict[str, list[tuple[float, float, float]]] = {}
    for name, found in values.items():
        points = [(num, *estimate(accuracies)) for num, accuracies in sorted(found.items())]
        lines[name] = [(num, mean, sd or 0.0) for num, mean, sd in points]
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


def _names(records: Sequence[Record], apart: tuple[str, ...] = ()) -> list[str]:
    """A name for each record: equal where records differ in seeds alone, and in settings that begin
    with one of `apart`. Otherwise names are distinct, so that no figure pools what was set
    differently.
    """
    found = []
    for config, evaluation in records:
        stages = evaluation.get("stages")
        counted = {"stages": len(stages)} if isinstance(stages, list) else {}
        own = flat(settings(config, evaluation)) | counted
        found.append({name: value for name, value in own.items() if not name.startswith(apart)})
    looks = [(*look(config), one.get("inference")) for config, one in records]
    texts = variants(looks, found)
    keys = [
        tuple("" if part is None else str(part) for part in (*own, text))
        for own, text in zip(looks, texts, strict=True)
    ]
    unique = list(dict.fromkeys(keys))
    label = dict(zip(unique, svg.labels(named(unique)), strict=True))
    return [label[key] for key in keys]


def _network(evaluation: Mapping[str, Any]) -> str:
    model = evaluation.get("model")
    name = model.get("name") if isinstance(model, Mapping) else None
    return str(name) if name else ""


def _networks(evaluations: Sequence[Mapping[str, Any]]) -> list[str]:
    """The network of each evaluation, with what sets it apart from others of its name."""
    own = [
        flat({part: one.get(part) for part in ("model", "setup") if part in one})
        for one in evaluations
    ]
    for table in own:
        table.pop("model.num_parameters", None)  # follows from the others
    names = [_network(one) for one in evaluations]
    keys = list(zip(names, variants(names, own), strict=True))
    unique = list(dict.fromkeys(keys))
    label = dict(
        zip(unique, svg.labels([" ".join(filter(None, key)) for key in unique], 20), strict=True)
    )
    return [label[key] for key in keys]


def _distinct(method_of: Mapping[str, str], colour_of: Mapping[str, str]) -> dict[str, str]:
    """The methods' own colours while each has one line; else a colour per line."""
    if len(set(method_of.values())) == len(method_of):
        return {name: colour_of[method] for name, method in method_of.items()}
    return svg.colours(method_of)
