"""Many evaluations as one table: seeds pooled, settings that differ named, the best marked.

A record is the configuration of a run and one evaluation of it. Records that differ in nothing but
seeds are measurements of one thing and become one row; every pair of run seed and evaluation seed
counts once.
"""

import math
import re
import statistics
from collections.abc import Hashable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Literal, NamedTuple

from pseudocore.core.errors import ArtifactError
from pseudocore.evaluation.names import (
    DETAILS,
    DIRECTIONS,
    TITLES,
    format_metric,
    metric_title,
    num_digits,
)

_PER_SEED = ("infer", "predict", "robustness", "diagnose")
"""Stages of an evaluation that every seed goes through."""

Record = tuple[Mapping[str, Any], Mapping[str, Any]]


class Estimate(NamedTuple):
    mean: float
    sd: float | None
    """Sample standard deviation; `None` when one measurement, or an infinite one, leaves it
    undefined.
    """


class Row(NamedTuple):
    method: str
    data: str
    per_class: int | Literal["all"] | None
    """Points per class; all for the method `full`, `None` where the budget was given otherwise."""
    inference: str
    variant: str
    """The settings that set this row apart from others of the same look; mostly empty."""
    num_runs: int
    num: int
    """Measurements behind every mean: run seeds × evaluation seeds."""
    metrics: dict[str, Estimate]
    cost: dict[str, Estimate] = {}  # noqa: RUF012  never written to
    """Seconds of each stage: of a reduction, and of an evaluation for each of its seeds."""
    settings: Mapping[str, Any] = {}
    """Everything that was set, flat."""


def comparison(records: Sequence[Record]) -> list[Row]:
    """One row per setting, by data set, points per class (`all` last) and the order in which
    methods appeared.
    """
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(repr(sorted(settings(*record).items())), []).append(record)
    rows = [_row(group) for group in groups.values()]
    texts = variants([row[:4] for row in rows], [settings(*group[0]) for group in groups.values()])
    rows = [row._replace(variant=text) for row, text in zip(rows, texts, strict=True)]
    methods = list(dict.fromkeys(row.method for row in rows))
    return sorted(
        rows, key=lambda row: (row.data, _budget_order(row.per_class), methods.index(row.method))
    )


def look(config: Mapping[str, Any]) -> tuple[str, str, int | Literal["all"] | None]:
    """What a run is called by: its method, its data set and its points per class."""
    method = str(config.get("method", "unknown"))
    per_class = _mapping(config.get("options")).get("per_class")
    budget = "all" if method == "full" else per_class if type(per_class) is int else None
    return method, str(_mapping(config.get("setup")).get("data", "unknown")), budget  # type: ignore[return-value]


def variants(looks: Sequence[Hashable], configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """For each of several flat settings, the ones by which it differs from others of the same look:
    `image_lr=0.01`.
    """
    texts = []
    for own_look, own in zip(looks, configs, strict=True):
        alike = [
            other
            for other_look, other in zip(looks, configs, strict=True)
            if other_look == own_look
        ]
        names = sorted({name for other in alike for name in other})
        differing = [name for name in names if len({repr(other.get(name)) for other in alike}) > 1]
        differing = [name for name in differing if not _is_said(name, differing, alike)]
        texts.append(
            ", ".join(f"{_short_name(name, names)}={_value(own.get(name))}" for name in differing)
        )
    return texts


def settings(config: Mapping[str, Any], evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that makes a measurement what it is, except seeds."""
    own = flat({name: value for name, value in config.items() if name != "seed"})
    words = ("options", "model", "data", "setup", "robust", "ood", "on", "against")
    how = flat({name: evaluation[name] for name in words if name in evaluation}, "inference.")
    return own | {"inference": evaluation.get("inference")} | how


def flat(mapping: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested mapping's values under dotted names."""
    result: dict[str, Any] = {}
    for name, value in mapping.items():
        if isinstance(value, Mapping):
            result |= flat(value, f"{prefix}{name}.")
        else:
            result[f"{prefix}{name}"] = value
    return result


def metric_names(rows: Sequence[Row], *, details: bool = False) -> list[str]:
    """Metrics of any row: the usual ones first, the others as they appear; `DETAILS` only when
    asked for.
    """
    found = dict.fromkeys(
        name for row in rows for name in row.metrics if details or name not in DETAILS
    )
    return [name for name in TITLES if name in found] + [
        name for name in found if name not in TITLES
    ]


def best(rows: Sequence[Row]) -> set[tuple[int, str]]:
    """(row number, metric) of the best mean among two or more of one data set and budget; equal as
    printed is equal.
    """
    marked = set()
    for number, row in enumerate(rows):
        rivals = [
            other.metrics
            for other in rows
            if (other.data, other.per_class) == (row.data, row.per_class)
        ]
        for name, choose in DIRECTIONS.items():
            means = [
                round(other[name].mean, 3)
                for other in rivals
                if name in other and math.isfinite(other[name].mean)
            ]
            if (
                len(means) > 1
                and name in row.metrics
                and round(row.metrics[name].mean, 3) == choose(means)
            ):
                marked.add((number, name))
    return marked


def markdown(rows: Sequence[Row]) -> str:
    """A Markdown table that also reads well as plain text, the best of each group in bold; empty
    for no rows.
    """
    if not rows:
        return ""
    names, marked = metric_names(rows), best(rows)
    words = ["method", "data", "per class", "inference"] + ["variant"] * any(
        row.variant for row in rows
    )
    table = [words + ["runs", "n"] + [metric_title(name) for name in names]]
    for number, row in enumerate(rows):
        budget = "–" if row.per_class is None else str(row.per_class)
        cells = [row.method, row.data, budget, row.inference, row.variant][: len(words)]
        cells += [str(row.num_runs), str(row.num)]
        for name in names:
            text = format_metric(*row.metrics.get(name, (None, None)), digits=num_digits(name))
            cells.append(f"**{text}**" if (number, name) in marked else text)
        table.append([_cell(cell) for cell in cells])
    return _aligned(table, num_left=len(words))


def _row(group: Sequence[Record]) -> Row:
    measurements: dict[tuple[str, str], Mapping[str, Any]] = {}
    for config, evaluation in group:
        for place, entry in enumerate(_per_seed(config, evaluation)):
            key = repr(config.get("seed")), repr(entry.get("seed", place))
            measurements[key] = {
                **measurements.get(key, {}),
                **entry,
            }  # one evaluation may have asked for more than another
    values: dict[str, list[float]] = {}
    for entry in measurements.values():
        for name, value in entry.items():
            if name != "seed" and (
                type(value) is float or (type(value) is int and abs(value) < 2**53)
            ):
                values.setdefault(name, []).append(float(value))
    method, data, per_class = look(group[0][0])
    tested = str(group[0][1].get("data", data))
    if tested not in (data, PurePath(data).stem):
        data = f"{data}, tested on {tested}"
    num_runs = len({run_seed for run_seed, _ in measurements})
    metrics = {name: _estimate(column) for name, column in values.items()}
    inference = str(group[0][1].get("inference", "unknown"))
    return Row(
        method,
        data,
        per_class,
        inference,
        "",
        num_runs,
        len(measurements),
        metrics,
        _costs(group),
        settings(*group[0]),
    )


def _costs(group: Sequence[Record]) -> dict[str, Estimate]:
    """Of the stages that the files tell of; loading and the like, done once for all seeds, is not
    divided.
    """
    values: dict[str, list[float]] = {}
    for config, evaluation in group:
        num_seeds = len(_per_seed(config, evaluation))
        for part in ("reduction_cost", "cost"):
            for name, entry in _mapping(evaluation.get(part)).items():
                seconds: Any = _mapping(entry).get("seconds")
                if (
                    type(seconds) is float
                    and math.isfinite(seconds)
                    and (part == "cost") == (name in _PER_SEED)
                ):
                    values.setdefault(str(name), []).append(
                        seconds / (num_seeds if part == "cost" else 1)
                    )
    return {name: _estimate(column) for name, column in values.items()}


def _per_seed(config: Mapping[str, Any], evaluation: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    entries = evaluation.get("per_seed")
    if (
        not isinstance(entries, list)
        or not entries
        or not all(isinstance(entry, Mapping) for entry in entries)
    ):
        method, data, _ = look(config)
        raise ArtifactError(
            f"an evaluation of {method!r} on {data!r} by {evaluation.get('inference', 'unknown')!r} holds no list of results per "
            "seed; evaluate the run again"
        )
    return entries


def _estimate(values: Sequence[float]) -> Estimate:
    if not all(map(math.isfinite, values)):
        return Estimate(sum(values) / len(values), None)
    return Estimate(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


def _budget_order(per_class: int | str | None) -> tuple[int, int]:
    if isinstance(per_class, int):
        return 0, per_class
    return (1, 0) if per_class is None else (2, 0)


def _is_said(name: str, differing: Sequence[str], alike: Sequence[Mapping[str, Any]]) -> bool:
    """Whether another name says the same: an evaluation's network follows from its setup, or is the
    reduction's throughout.
    """
    if name.startswith("inference.setup."):
        return "inference.options." + name.removeprefix("inference.setup.") in differing
    if not name.startswith("inference.model."):
        return False
    setup = "setup." + name.removeprefix("inference.model.")
    told = any(other.startswith("inference.setup.") for other in differing)
    return told or all(repr(settings.get(name)) == repr(settings.get(setup)) for settings in alike)


def _short_name(name: str, names: Sequence[str]) -> str:
    short = name.removeprefix("options.").removeprefix("setup.")
    short = short.replace("inference.options.", "inference.", 1).replace(
        "inference.setup.", "inference.", 1
    )
    clash = name.startswith("setup.") and f"options.{short}" in names
    return name if clash else short


def _value(value: Any) -> str:
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _aligned(table: Sequence[Sequence[str]], num_left: int) -> str:
    """Markdown of a table whose first columns are flush left and the others right; its first line
    is the head.
    """
    lines: list[list[str]] = [[] for _ in range(len(table) + 1)]
    for place, column in enumerate(zip(*table, strict=True)):
        width, left = max(3, *map(len, column)), place < num_left
        rule = "-" * width if left else "-" * (width - 1) + ":"
        for line, cell in zip(lines, [column[0], rule, *column[1:]], strict=True):
            line.append(cell.ljust(width) if left else cell.rjust(width))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(text: str) -> str:
    """A stranger's text as the content of one cell: on one line, without a column's or a tag's
    beginning.
    """
    printable = "".join(char if char.isprintable() else " " for char in text)
    return re.sub(r"([|<\\])", r"\\\1", printable)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
