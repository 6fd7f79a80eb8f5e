"""The cells of a table: what a row of numbers is about, under a name of its own. Tables are
`kim2022-1`, `lcmat2023-4`, ..., `digits`.
"""

import fnmatch
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pseudocore.core.errors import ConfigError
from pseudocore.core.registry import did_you_mean
from pseudocore.reproduce import digits as own
from pseudocore.reproduce.published import PAPERS, Printed, printed


@dataclass(frozen=True)
class Cell:
    """A coreset, and how it is used; `printed` are the paper's numbers for it, by metric, none in a
    table of our own.
    """

    table: str
    name: str
    data: str
    model: str
    budget: str
    method: str
    inference: str
    printed: Mapping[str, Printed] = field(default_factory=dict)

    @property
    def paper(self) -> str:
        return self.table.partition("-")[0]


def table_names() -> list[str]:
    return [*dict.fromkeys(table_of(one) for one in printed()), own.NAME]


def title(table: str) -> str:
    """Where a table comes from, in words."""
    return next((one.source for one in printed() if table_of(one) == table), own.TITLE)


def cells(table: str, presets: Iterable[str] = ()) -> tuple[Cell, ...]:
    """The cells of a table; a paper known from its summary alone also has those of `presets` that
    are named after it.
    """
    if table == own.NAME:
        rows = own.methods_and_budgets()
        return tuple(
            Cell(table, f"{budget}-{method}", own.NAME, own.model(method), budget, method, "")
            for method, budget in rows
        )
    if table not in table_names():
        raise ConfigError(
            f"unknown table {table!r}{did_you_mean(table, table_names())} (known: {', '.join(table_names())})"
        )
    found = {cell.name: cell for cell in _printed_cells(table)}
    for name in presets if table in PAPERS else ():
        if name.startswith(f"{table}/"):
            unprinted = _of_preset(table, name)
            found.setdefault(unprinted.name, unprinted)
    return tuple(found.values())


def matching(found: Sequence[Cell], *patterns: str) -> list[Cell]:
    """Those whose name fits one of some patterns with * and ?, all without any; refuses a pattern
    that fits none.
    """
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(cell.name, pattern) for cell in found):
            names = [cell.name for cell in found]
            raise ConfigError(
                f"no cell of {found[0].table} fits {pattern!r}{did_you_mean(pattern, names)} "
                f"(there are {len(names)}, as {', '.join(names[:3])}; --plan lists them)"
            )
    return [
        cell
        for cell in found
        if not patterns or any(fnmatch.fnmatchcase(cell.name, pattern) for pattern in patterns)
    ]


def table_of(one: Printed) -> str:
    """The name of the table that a printed number stands in."""
    return one.paper if one.table == "summary" else f"{one.paper}-{one.table}"


@functools.cache
def _printed_cells(table: str) -> tuple[Cell, ...]:
    groups: dict[str, list[Printed]] = {}
    for one in printed():
        if table_of(one) == table:
            groups.setdefault(_name(one), []).append(one)
    return tuple(
        Cell(
            table,
            name,
            one.data,
            one.model,
            one.budget,
            one.method,
            one.inference,
            {row.metric: row for row in rows},
        )
        for name, rows in groups.items()
        for one in rows[:1]
    )


def _name(one: Printed) -> str:
    target = one.model.partition("->")[2]
    words = [
        one.data,
        one.budget.replace("%", "pc"),
        one.method,
        one.inference,
        *([target] if target else []),
    ]
    return re.sub(r"[^a-z0-9.]+", "-", "-".join(words).lower()).strip("-")


def _of_preset(table: str, preset: str) -> Cell:
    """`vbpc2025/fashion-mnist-ipc1`: a setting the paper reports and the summary does not."""
    found = re.fullmatch(rf"{table}/(?P<data>.+)-(?P<budget>ipc\d+)(-(?P<method>.+))?", preset)
    if found is None:
        raise ConfigError(
            f"preset {preset!r} does not say its data set and budget, as {table}/cifar10-ipc10 does"
        )
    method = found["method"] or table.rstrip("0123456789")
    return Cell(table, f"{found['data']}-{found['budget']}-{method}-last-layer-vi", found["data"], "convnet", found["budget"], method,
                "last-layer-vi")  # fmt: skip
