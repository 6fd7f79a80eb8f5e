"""The cells of a table: what a row of printed numbers is about, under a name of its own.

Tables are `kim2022-1`, `lcmat2023-4`, ..., and our own, `digits`: every method of the registry at
1, 5 and 10 digits per class, by two inferences. A new method is a new row.
"""

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from pseudocore.assembly.presets import available, sheet
from pseudocore.core.errors import ConfigError
from pseudocore.core.registry import did_you_mean, methods
from pseudocore.reproduce.published import Printed, printed

DIGITS = "digits"


@dataclass(frozen=True)
class Cell:
    """A coreset and how it is used."""

    table: str
    name: str
    data: str
    model: str
    budget: str
    method: str
    inference: str
    printed: Mapping[str, Printed] = field(default_factory=dict)
    """The paper's numbers by metric; none in a table of our own."""
    variant: str = ""
    """Of its preset; none for the preset itself."""

    @property
    def paper(self) -> str:
        return self.table.partition("-")[0]


def table_names() -> list[str]:
    return [*dict.fromkeys(one.table_name for one in printed()), DIGITS]


def title(table: str) -> str:
    """Where a table comes from."""
    return next(
        (one.source for one in printed() if one.table_name == table), sheet(DIGITS)["title"]
    )


def cells(table: str) -> tuple[Cell, ...]:
    """The cells of a table; the presets of a paper known from its summary alone are cells too."""
    if table == DIGITS:
        return tuple(
            Cell(table, f"{budget}-{method}", table, "", budget, method, "")
            for method, budget in _digits_rows()
        )
    if table not in table_names():
        raise ConfigError(
            f"unknown table {table!r}{did_you_mean(table, table_names())} "
            f"(known: {', '.join(table_names())})",
            code="unknown-table",
            table=table,
        )
    groups: dict[str, list[Printed]] = {}
    for one in printed():
        if one.table_name == table:
            groups.setdefault(_name(one), []).append(one)
    found = {name: _cell(table, name, rows) for name, rows in groups.items()}
    for preset in available():
        if preset.startswith(f"{table}/"):
            unprinted = _of_preset(table, preset)
            found.setdefault(unprinted.name, unprinted)
    return tuple(found.values())


def varied(found: Sequence[Cell], variant: str) -> list[Cell]:
    """Cells by a variant of their presets, under names of their own: `NAME@VARIANT`."""
    return [replace(cell, name=f"{cell.name}@{variant}", variant=variant) for cell in found]


def matching(found: Sequence[Cell], *patterns: str) -> list[Cell]:
    """Cells whose name matches one of some patterns with * and ?; all if no pattern is given."""
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(cell.name, pattern) for cell in found):
            names = [cell.name for cell in found]
            raise ConfigError(
                f"no cell of {found[0].table} matches {pattern!r}{did_you_mean(pattern, names)} "
                f"(there are {len(names)}, as {', '.join(names[:3])}; --plan lists them)",
                code="no-cell",
                pattern=pattern,
            )
    return [
        cell
        for cell in found
        if not patterns or any(fnmatch.fnmatchcase(cell.name, pattern) for pattern in patterns)
    ]


def field_names(make: Any) -> set[str]:
    """Of a configuration class."""
    return {one.name for one in fields(make)}


def _digits_rows() -> list[tuple[str, str]]:
    """Methods and budgets; a method without a budget, `full`, has one row."""
    budgeted = [entry.name for entry in methods if "per_class" in field_names(entry.make)]
    rows = [(name, f"ipc{budget}") for budget in sheet(DIGITS)["budgets"] for name in budgeted]
    return rows + [(entry.name, "full") for entry in methods if entry.name not in budgeted]


def _cell(table: str, name: str, rows: Sequence[Printed]) -> Cell:
    one = rows[0]
    metrics = {row.metric: row for row in rows}
    return Cell(table, name, one.data, one.model, one.budget, one.method, one.inference, metrics)


def _name(one: Printed) -> str:
    target = one.model.partition("->")[2]
    budget = one.budget.replace("%", "pc")
    words = [one.data, budget, one.method, one.inference, *([target] if target else [])]
    return re.sub(r"[^a-z0-9.]+", "-", "-".join(words).lower()).strip("-")


def _of_preset(table: str, preset: str) -> Cell:
    """`vbpc2025/fashion-mnist-ipc1`: a setting the paper reports and the summary does not."""
    data, _, budget = preset.removeprefix(f"{table}/").rpartition("-")
    method, inference = table.rstrip("0123456789"), "last-layer-vi"
    name = f"{data}-{budget}-{method}-{inference}"
    return Cell(table, name, data, "convnet", budget, method, inference)
