"""Ours beside theirs: a table's stored results as blocks of text and tables, which `pages.py`
writes as Markdown or HTML.

A difference is in standard errors: of our mean over n seeds and of the printed one, whose sd counts
as that of a single run where the paper does not say over how many it was taken. What is said of a
missing cell is the same on every machine.
"""

import collections
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pseudocore.evaluation.names import DETAILS, metric_title
from pseudocore.evaluation.tables import Estimate, format_metric
from pseudocore.reproduce import digits as own
from pseudocore.reproduce.cells import Cell, cells, table_names, title
from pseudocore.reproduce.pages import Block, Grid, Heading, Items, Words
from pseudocore.reproduce.published import Printed
from pseudocore.reproduce.recipes import PUBLISHED, TRUE, Missing, Recipe, find_recipe
from pseudocore.reproduce.results import FINISHED, Result, stored

NOT_RUN = "not run yet"
_FOOT = (
    "Δ is the difference to the printed mean in standard errors, positive when ours is higher. *Ours* is honest inference, the last "
    "iterate, metrics over the whole test set; *their protocol* is what is known to have produced the printed numbers, choices on "
    "the test set included."
)


def render_table(table: str, out: Path, presets: Mapping[str, Path]) -> list[Block]:
    """One table, every cell of it."""
    found = cells(table, presets)
    recipes = {cell.name: find_recipe(cell, presets) for cell in found}
    results = stored(
        out, found, {name: one for name, one in recipes.items() if isinstance(one, Recipe)}
    )
    filled = [
        cell
        for cell in found
        if (result := results.get(cell.name)) is not None and result.status == FINISHED
    ]
    blocks: list[Block] = [
        Heading(2, f"{table}: {title(table)}"),
        Words(f"{len(filled)} of {len(found)} cells are filled."),
    ]
    if table == own.NAME:
        blocks.append(Words(own.note()))
    if any(cell.printed for cell in found):
        blocks += [_beside(found, recipes, results), Words(_FOOT), *_caveats(found)]
    if filled:
        blocks += [
            Heading(3, "All metrics, and cost"),
            _everything([(cell, results[cell.name]) for cell in filled]),
        ]
    if not any(cell.printed for cell in found) and len(filled) < len(found):
        blocks.append(
            Words(
                _in_short(
                    [
                        _why(recipes[cell.name], results.get(cell.name))
                        for cell in found
                        if cell not in filled
                    ]
                )
            )
        )
    return blocks


def render_all(out: Path, presets: Mapping[str, Path]) -> list[Block]:
    """Every table with something in it, and what is to be said of the others."""
    blocks: list[Block] = [
        Heading(1, "Reproduction"),
        Words(
            "Printed numbers and ours, from the results stored in `benchmarks/results`. [tables.md](tables.md) says how cells are run."
        ),
        Words(
            "Written by `pseudocore table --render --page docs/reproduction.md`; a test checks that it matches the stored results."
        ),
    ]
    empty = []
    for table in table_names():
        found = cells(table, presets)
        recipes = {cell.name: find_recipe(cell, presets) for cell in found}
        if stored(
            out, found, {name: one for name, one in recipes.items() if isinstance(one, Recipe)}
        ):
            blocks += render_table(table, out, presets)
        else:
            empty.append(
                f"`{table}` ({title(table)}): {_in_short([_why(one, None) for one in recipes.values()])}"
            )
    return (
        [*blocks, Heading(2, "Tables with nothing in them yet"), Items(tuple(empty))]
        if empty
        else blocks
    )


def difference(ours: Estimate, num: int, theirs: Printed) -> float | None:
    """Ours minus theirs in standard errors; None where no deviation is known."""
    variance = (ours.sd or 0.0) ** 2 / num + (theirs.sd or 0.0) ** 2 / (theirs.num_seeds or 1)
    return (
        (ours.mean - theirs.mean) / math.sqrt(variance)
        if variance > 0 and math.isfinite(ours.mean)
        else None
    )


def _beside(
    found: Sequence[Cell], recipes: Mapping[str, Recipe | Missing], results: Mapping[str, Result]
) -> Grid:
    """A row for every printed number, and one for every cell of ours that has none."""
    rows = []
    for cell in found:
        result, recipe = results.get(cell.name), recipes[cell.name]
        printed: Mapping[str, Printed | None] = cell.printed or {"accuracy": None}
        for metric, theirs in printed.items():
            words = [
                cell.name,
                metric_title(metric),
                "–" if theirs is None else format_metric(theirs.mean, theirs.sd),
            ]
            if result is None or result.status != FINISHED:
                rows.append((*words, "", "", "", "", "", _why(recipe, result)))
                continue
            numbers = []
            for ours in (_honest(result, metric), _as_published(result, metric)):
                gap = (
                    None if ours is None or theirs is None else difference(ours, result.num, theirs)
                )
                numbers += [
                    format_metric(*ours) if ours is not None else "–",
                    f"{gap:+.1f}" if gap is not None else "–",
                ]
            rows.append((*words, *numbers, str(result.num), _remarks(recipe, result)))
    return Grid(
        ("cell", "metric", "printed", "ours", "Δ", "ours, their protocol", "Δ", "n", "remarks"),
        tuple(rows),
    )


def _everything(filled: Sequence[tuple[Cell, Result]]) -> Grid:
    """A row for every cell and way of using its coreset."""
    names = dict.fromkeys(
        name
        for _, result in filled
        for one in result.evaluations.values()
        for name in one["metrics"]
        if name not in DETAILS
    )
    rows = []
    for cell, result in filled:
        for way, one in result.evaluations.items():
            shown = way if way in (TRUE, PUBLISHED) else ""
            scores = [
                format_metric(**one["metrics"][name]) if name in one["metrics"] else "–"
                for name in names
            ]
            making = sum(part["seconds"] for part in result.cost.values())
            peak = max((part["peak_mib"] or 0 for part in result.cost.values()), default=0)
            cost = (f"{making:.1f}", str(peak))
            rows.append(
                (
                    cell.name,
                    one["inference"],
                    shown,
                    *scores,
                    *cost,
                    str(result.num),
                    result.hardware,
                    str(result.commit or "–"),
                )
            )
    header = (
        "cell",
        "inference",
        "protocol",
        *map(metric_title, names),
        "making, s",
        "peak, MiB",
        "n",
        "hardware",
        "commit",
    )
    return Grid(header, tuple(rows))


def _caveats(found: Sequence[Cell]) -> list[Block]:
    """What is known against the printed numbers, and of which."""
    of: dict[str, list[str]] = {}
    for cell in found:
        for metric, theirs in cell.printed.items():
            of.setdefault(theirs.caveat, []).append(f"{metric} by {theirs.inference}")
    items = tuple(
        f"{', '.join(dict.fromkeys(what))}: {caveat}." for caveat, what in of.items() if caveat
    )
    return [Words("Of the printed numbers:"), Items(items)] if items else []


def _honest(result: Result, metric: str) -> Estimate | None:
    return _estimate(result.evaluations[TRUE], metric)


def _as_published(result: Result, metric: str) -> Estimate | None:
    """By the published protocol, where it was run; or the published way of taking this metric from
    honest inference.
    """
    if PUBLISHED in result.evaluations:
        evaluation = result.evaluations[PUBLISHED]
        return _estimate(evaluation, f"published_{metric}") or _estimate(evaluation, metric)
    return _estimate(result.evaluations[TRUE], f"published_{metric}")


def _estimate(
    evaluation: Mapping[str, Mapping[str, Mapping[str, float]]], metric: str
) -> Estimate | None:
    found = evaluation["metrics"].get(metric)
    return None if found is None else Estimate(found["mean"], found["sd"])


def _why(recipe: Recipe | Missing, result: Result | None) -> str:
    if result is not None and result.status != FINISHED:
        return f"failed: {result.reason}"
    return recipe.reason if isinstance(recipe, Missing) else NOT_RUN


def _remarks(recipe: Recipe | Missing, result: Result) -> str:
    """Where a result is not that of the preset as it stands, and what was noted when it was made."""
    today = _values(recipe) if isinstance(recipe, Recipe) else {}
    words = [
        f"{name} = {value}"
        for name, value in result.changes.items()
        if name not in today or today[name] != value
    ]
    if isinstance(recipe, Recipe):
        made, now = result.settings.get("config", {}), recipe.table
        words += _stale("", made.get("options", {}), now["options"], result.changes)
        words += _stale("setup.", made.get("setup", {}), now["setup"], result.changes)
        for name, way in result.settings.get("ways", {}).items():
            if name in recipe.ways:
                words += _stale(
                    "evaluate.", way["options"], recipe.ways[name].options, result.changes
                )
                words += _stale("evaluate.", way["setup"], recipe.ways[name].setup, result.changes)
    return "; ".join(dict.fromkeys([*words, *filter(None, [result.note])]))


def _values(recipe: Recipe) -> dict[str, Any]:
    """What a preset says, by the names that changes go by."""
    sections = {"": "options", "setup.": "setup", "evaluate.": "evaluate"}
    return {
        f"{prefix}{name}": value
        for prefix, section in sections.items()
        for name, value in recipe.table.get(section, {}).items()
    }


def _stale(
    prefix: str, made: Mapping[str, Any], now: Mapping[str, Any], changes: Mapping[str, Any]
) -> list[str]:
    """What has another value in the preset by now."""
    names = [
        name
        for name, value in now.items()
        if f"{prefix}{name}" not in changes and made.get(name) != value
    ]
    return [
        f"{prefix}{name} = {made.get(name, 'unset')}, where the preset now has {now[name]}"
        for name in names
    ]


def _in_short(reasons: Sequence[str]) -> str:
    """`36 not run yet, 1 no preset ...`."""
    return ", ".join(
        f"{num} {reason}" for reason, num in collections.Counter(reasons).most_common()
    )
