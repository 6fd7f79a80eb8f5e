"""Ours beside theirs: a table's stored results as blocks, which `pages.py` writes as Markdown or
HTML.

A difference is in standard errors of our mean over n seeds and of the printed one. Its sd counts as
that of a single run where the paper does not say over how many it was taken. What is said of a
missing cell is the same on every machine.
"""

import collections
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pseudocore.assembly.presets import PUBLISHED, TRUE, sheet
from pseudocore.evaluation.names import DETAILS, format_metric, metric_title
from pseudocore.evaluation.tables import Estimate
from pseudocore.reproduce.cells import DIGITS, Cell, cells, table_names, title, varied
from pseudocore.reproduce.pages import Block, Bullets, Grid, Heading, Paragraph
from pseudocore.reproduce.published import Printed
from pseudocore.reproduce.recipes import Missing, Recipe, find_recipe
from pseudocore.reproduce.results import FINISHED, Result, stored

_FOOT = (
    "Δ is the difference to the printed mean in standard errors, positive when ours is higher. "
    "*Ours* is honest inference, the last iterate, metrics over the whole test set; *their "
    "protocol* is what is known to have produced the printed numbers, choices on the test set "
    "included."
)


@dataclass(frozen=True)
class Row:
    """A cell with what is known of it."""

    cell: Cell
    recipe: Recipe | Missing
    result: Result | None

    @property
    def filled(self) -> Result | None:
        """The result, if it finished."""
        return self.result if self.result and self.result.status == FINISHED else None

    @property
    def obstacle(self) -> str:
        """Why the cell is not filled."""
        if self.result is not None:
            return f"failed: {self.result.reason}"
        return self.recipe.reason if isinstance(self.recipe, Missing) else "not run yet"


def render_table(table: str, out: Path) -> list[Block]:
    """One table with all its cells."""
    return [*_blocks(table, table_rows(table, out)), *_variant_blocks(table, out)]


def render_all(out: Path) -> list[Block]:
    """Every table that has results, and why the others have none."""
    blocks: list[Block] = [
        Heading(1, "Reproduction"),
        Paragraph(
            "Printed numbers and ours, from the results stored in `benchmarks/results`. "
            "[tables.md](tables.md) says how cells are run."
        ),
        Paragraph(
            "Written by `pseudocore table --render`. The site has a page of it for each table."
        ),
    ]
    empty = []
    for table in table_names():
        rows = table_rows(table, out)
        if any(row.result for row in rows):
            blocks += [*_blocks(table, rows), *_variant_blocks(table, out)]
        else:
            empty.append(f"`{table}` ({title(table)}): {_counted(rows)}")
    if empty:
        blocks += [Heading(2, "Tables without results"), Bullets(tuple(empty))]
    return blocks


def table_rows(table: str, out: Path, variant: str = "") -> list[Row]:
    """Every cell of a table, or of a variant, with what is known of it."""
    found = varied(cells(table), variant) if variant else cells(table)
    results = stored(out, found)
    return [Row(cell, find_recipe(cell), results.get(cell.name)) for cell in found]


def filled(rows: Sequence[Row]) -> list[tuple[Cell, Result]]:
    """The cells that finished, with their results."""
    return [(row.cell, row.filled) for row in rows if row.filled]


class Compared(NamedTuple):
    """A printed number and ours."""

    metric: str
    printed: float
    ours: float
    gap: float | None
    """In standard errors; by the published protocol where it was run."""


def compared(row: Row) -> list[Compared]:
    """Every printed number of a filled cell beside ours, by the published protocol if we have it."""
    found = []
    if (result := row.filled) is not None:
        for metric, theirs in row.cell.printed.items():
            ours = _as_published(result, metric) or _estimate(result.evaluations[TRUE], metric)
            if theirs is not None and ours is not None:
                gap = difference(ours, result.num, theirs)
                found.append(Compared(metric, theirs.mean, ours.mean, gap))
    return found


def difference(ours: Estimate, num: int, theirs: Printed) -> float | None:
    """Ours minus theirs in standard errors; None where no deviation is known."""
    variance = (ours.sd or 0.0) ** 2 / num + (theirs.sd or 0.0) ** 2 / (theirs.num_seeds or 1)
    if variance <= 0 or not math.isfinite(ours.mean):
        return None
    return (ours.mean - theirs.mean) / math.sqrt(variance)


def _blocks(table: str, rows: Sequence[Row]) -> list[Block]:
    done = filled(rows)
    is_printed = any(row.cell.printed for row in rows)
    blocks: list[Block] = [
        Heading(2, f"{table}: {title(table)}"),
        Paragraph(f"{len(done)} of {len(rows)} cells are filled."),
    ]
    if table == DIGITS:
        blocks.append(Paragraph(sheet(table)["note"]))
    if is_printed:
        blocks += [_beside(rows), Paragraph(_FOOT), *_caveats(rows)]
    if done:
        blocks += [Heading(3, "All metrics, and cost"), _everything(done)]
    if not is_printed and len(done) < len(rows):
        blocks.append(Paragraph(_counted([row for row in rows if not row.filled])))
    return blocks


def _variant_blocks(table: str, out: Path) -> list[Block]:
    """The cells that were run by a variant of their presets, variant by variant."""
    blocks: list[Block] = []
    paper = table.partition("-")[0]
    shared = sheet(paper).get("shared", ())
    for variant in dict.fromkeys(one["variant"] for one in shared if "variant" in one):
        rows = [row for row in table_rows(table, out, variant) if row.filled]
        if rows:
            blocks += [Heading(3, f"Variant `{variant}`"), _beside(rows), _everything(filled(rows))]
    return blocks


def _beside(rows: Sequence[Row]) -> Grid:
    """A line for every printed number, and one for every cell of ours that has none."""
    lines: list[tuple[str, ...]] = []
    for row in rows:
        printed: Mapping[str, Printed | None] = row.cell.printed or {"accuracy": None}
        for metric, theirs in printed.items():
            number = "–" if theirs is None else format_metric(theirs.mean, theirs.sd)
            line = (row.cell.name, metric_title(metric), number)
            if (result := row.filled) is None:
                lines.append((*line, "", "", "", "", "", row.obstacle))
                continue
            true = _estimate(result.evaluations[TRUE], metric)
            ours = [
                *_against(true, result.num, theirs),
                *_against(_as_published(result, metric), result.num, theirs),
            ]
            lines.append((*line, *ours, str(result.num), _remarks(row.recipe, result)))
    header = ("cell", "metric", "printed", "ours", "Δ", "ours, their protocol", "Δ", "n", "remarks")
    return Grid(header, tuple(lines))


def _against(ours: Estimate | None, num: int, theirs: Printed | None) -> tuple[str, str]:
    if ours is None:
        return "–", "–"
    gap = None if theirs is None else difference(ours, num, theirs)
    return format_metric(*ours), "–" if gap is None else f"{gap:+.1f}"


def _everything(filled: Sequence[tuple[Cell, Result]]) -> Grid:
    """A line for every cell and protocol."""
    evaluations = [one for _, result in filled for one in result.evaluations.values()]
    names = dict.fromkeys(
        name for one in evaluations for name in one["metrics"] if name not in DETAILS
    )
    lines = []
    for cell, result in filled:
        seconds = sum(part["seconds"] for part in result.cost.values())
        peak = max((part["peak_mib"] or 0 for part in result.cost.values()), default=0)
        about = (str(result.num), result.hardware, str(result.commit or "–"))
        for name, one in result.evaluations.items():
            protocol = name if name in (TRUE, PUBLISHED) else ""
            scores = [
                format_metric(**one["metrics"][metric]) if metric in one["metrics"] else "–"
                for metric in names
            ]
            line = (cell.name, one["inference"], protocol, *scores, f"{seconds:.1f}", str(peak))
            lines.append((*line, *about))
    cost = ("making, s", "peak, MiB", "n", "hardware", "commit")
    return Grid(("cell", "inference", "protocol", *map(metric_title, names), *cost), tuple(lines))


def _caveats(rows: Sequence[Row]) -> list[Block]:
    """What is known against the printed numbers, and of which."""
    numbers: dict[str, dict[str, None]] = {}
    for row in rows:
        for metric, theirs in row.cell.printed.items():
            of = numbers.setdefault(theirs.caveat, {})
            of[f"{metric} by {theirs.inference}"] = None
    items = tuple(f"{', '.join(of)}: {caveat}." for caveat, of in numbers.items() if caveat)
    return [Paragraph("Of the printed numbers:"), Bullets(items)] if items else []


def _as_published(result: Result, metric: str) -> Estimate | None:
    """By the published protocol, or by honest inference with the published form of the metric."""
    published = result.evaluations.get(PUBLISHED)
    if published is None:
        return _estimate(result.evaluations[TRUE], f"published_{metric}")
    return _estimate(published, f"published_{metric}") or _estimate(published, metric)


def _estimate(evaluation: Mapping[str, Any], metric: str) -> Estimate | None:
    found = evaluation["metrics"].get(metric)
    return None if found is None else Estimate(found["mean"], found["sd"])


def _remarks(recipe: Recipe | Missing, result: Result) -> str:
    """Where a result is not that of the preset as it stands, and its note."""
    if isinstance(recipe, Missing):
        return result.note
    tables = recipe.tables
    now = {
        **tables["options"],
        **{f"setup.{name}": value for name, value in tables["setup"].items()},
        **{f"evaluate.{name}": value for name, value in tables.get("evaluate", {}).items()},
    }
    remarks = [
        f"{name} = {value}"
        for name, value in result.changes.items()
        if name not in now or now[name] != value
    ]
    made, changes = result.settings.get("config", {}), result.changes
    remarks += _stale("", made.get("options", {}), tables["options"], changes)
    remarks += _stale("setup.", made.get("setup", {}), tables["setup"], changes)
    for name, protocol in result.settings.get("ways", {}).items():
        if name in recipe.protocols:
            current = recipe.protocols[name]
            remarks += _stale("evaluate.", protocol["options"], current.options, changes)
            remarks += _stale("evaluate.", protocol["setup"], current.setup, changes)
    return "; ".join(dict.fromkeys([*remarks, *filter(None, [result.note])]))


def _stale(
    prefix: str, made: Mapping[str, Any], now: Mapping[str, Any], changes: Mapping[str, Any]
) -> list[str]:
    """Settings that have another value in the preset by now."""
    return [
        f"{prefix}{name} = {made.get(name, 'unset')}, where the preset now has {value}"
        for name, value in now.items()
        if f"{prefix}{name}" not in changes and made.get(name) != value
    ]


def _counted(rows: Sequence[Row]) -> str:
    """`36 not run yet, 1 no preset ...`."""
    reasons = collections.Counter(row.obstacle for row in rows)
    return ", ".join(f"{num} {reason}" for reason, num in reasons.most_common())
