"""What a coreset loses against full data, by its number of points."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pseudocore.evaluation.tables import Row, variants
from pseudocore.report import svg
from pseudocore.report.conclusion import Scales, full_row, scale_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LABELS = {
    "fidelity_kl": ("KL to full-data inference, nats", "floor"),
    "accuracy": ("accuracy below that of all data", "sd of all data"),
}
_BUDGET = ("options.per_class", "options.points", "options.fraction")
Point = tuple[float, float, float]
"""Points, mean, deviation."""


class Lines(NamedTuple):
    """A line for each method and setting: never two settings in one."""

    of: dict[str, list[Point]]
    """By label."""
    methods: list[str]
    floor: float | None
    """What full data differ by among themselves."""


def gap(
    rows: Sequence[Row], metric: str, scales: Scales, colour_of: Mapping[str, str]
) -> svg.Image | None:
    """By the number of points: the divergence `fidelity_kl`, or how far accuracy is below that of
    all data. None where there are not several budgets to compare.
    """
    lines = _lines(rows, metric, scales)
    return None if lines is None else _figure(lines, metric, colour_of)


def _lines(rows: Sequence[Row], metric: str, scales: Scales) -> Lines | None:
    found: dict[tuple[str, ...], list[Point]] = {}
    floors, configs = list[float](), list[dict[str, object]]()
    for row in rows:
        scale = scale_of(row, scales)
        if row.per_class == "all" or scale is None or metric not in row.metrics:
            continue
        mean, sd = row.metrics[metric]
        whole = row.metrics.get("fidelity_floor_kl")
        if metric == "accuracy":
            full = full_row(row, rows)
            if full is None or metric not in full.metrics:
                continue
            whole = full.metrics[metric]
            mean, floor = whole.mean - mean, whole.sd
        else:
            floor = None if whole is None else whole.mean
        if math.isfinite(mean):
            own = {name: one for name, one in row.settings.items() if name not in _BUDGET}
            key = (
                row.method,
                row.data,
                row.inference,
                repr(sorted(own.items())) if own else row.variant,
            )
            configs += [] if key in found else [own or {"variant": row.variant}]
            found.setdefault(key, []).append((scale.points, mean, sd or 0.0))
            floors += [] if floor is None else [floor]
    if len({points for line in found.values() for points, _, _ in line}) < 2:
        return None
    if len(found) > svg.MAX_SERIES:
        return None
    texts = variants([key[:3] for key in found], configs)
    names = named([(*key[:3], text) for key, text in zip(found, texts, strict=True)])
    lines = dict(zip(svg.labels(names), found.values(), strict=True))
    return Lines(lines, [key[0] for key in found], max(floors, default=None))


def _figure(lines: Lines, metric: str, colour_of: Mapping[str, str]) -> svg.Image:
    own = {name: colour_of[one] for name, one in zip(lines.of, lines.methods, strict=True)}
    colour = own if len(set(lines.methods)) == len(own) else svg.colours(own)
    label, floor = _LABELS[metric]

    def paint(figure: "Figure") -> None:
        axes = figure.subplots()
        for place, (name, points) in enumerate(lines.of.items()):
            style = svg.line(name, place, colour[name])
            svg.error_bars(axes, sorted(points), linewidth=1.3, **style)
        is_log = all(mean > 0 for line in lines.of.values() for _, mean, _ in line)
        axes.set_xscale("log")
        if is_log:
            axes.set_yscale("log", nonpositive="clip")
        elif lines.floor is None:
            axes.axhline(0, **svg.DASHED, linewidth=1)
        if lines.floor:
            axes.axhline(lines.floor, **svg.DASHED, linewidth=1, label=floor)
        places = sorted({points for line in lines.of.values() for points, _, _ in line})
        svg.plain_ticks(axes.xaxis)
        axes.set_xticks(places, [f"{place:g}" for place in places])
        if is_log:
            svg.plain_ticks(axes.yaxis)
        axes.set(xlabel="points", ylabel=label)
        axes.grid(axis="y")
        figure.legend(loc="outside lower center", ncols=2)

    return svg.figure(paint, f"{label}, by number of points", height=3.6)


def named(keys: Sequence[tuple[str, ...]]) -> list[str]:
    """Names of several things by the parts they do not share; the first part always."""
    differs = [len(set(column)) > 1 for column in zip(*keys, strict=True)]
    shown = [place == 0 or differ for place, differ in enumerate(differs)]
    return [
        " · ".join(part for part, is_shown in zip(key, shown, strict=True) if is_shown and part)
        for key in keys
    ]
