"""Results go to standard output, progress and messages to standard error.

Names and paths from outside are printed as they are, without rich's markup and emoji codes and
with control characters spelled out.
"""

import json
import sys
from typing import Any

from rich.table import Table

from pseudocore.evaluation.names import format_metric, metric_title, num_digits
from pseudocore.evaluation.tables import Row, metric_names
from pseudocore.workflows.progress import PlainConsole, console, is_quiet
from pseudocore.workflows.progress import progress as progress

err = console
"""Standard error, shared with progress bars."""

_PIPE_WIDTH = 1000
"""Columns of a file or pipe, where a table row stays on one line; on a terminal it wraps."""

out = PlainConsole(
    highlight=False,
    markup=False,
    emoji=False,
    soft_wrap=True,
    width=None if sys.stdout and sys.stdout.isatty() else _PIPE_WIDTH,
)


def hint(text: str) -> None:
    """Say on standard error where something went or what to do next, unless asked to be quiet."""
    if not is_quiet():
        err.print(text)


def print_json(document: Any) -> None:
    """Print one JSON document on standard output, without NaN or Infinity literals."""
    from pseudocore.store.files import encode_json  # imports torch, which `--help` must not

    out.print(json.dumps(json.loads(encode_json(document)), indent=2))


def comparison_table(rows: list[Row], *, details: bool = False) -> Table:
    """The comparison as a terminal table; `details` adds the calibration errors that tables leave
    out and the seconds of every stage.
    """
    table = Table(box=None, header_style="bold", pad_edge=False)
    names = metric_names(rows, details=details)
    stages = list(dict.fromkeys(name for row in rows for name in row.cost)) if details else []
    has_variants = any(row.variant for row in rows)
    for title in ("data", "ipc", "method", "inference", *["variant"] * has_variants):
        table.add_column(title)
    for title in (*map(metric_title, names), *(f"{name}, s" for name in stages), "n"):
        table.add_column(title, justify="right")
    for row in rows:
        budget = "" if row.per_class is None else str(row.per_class)
        cells = [row.data, budget, row.method, row.inference, *[row.variant] * has_variants]
        cells += [
            format_metric(*row.metrics[name], digits=num_digits(name))
            if name in row.metrics
            else ""
            for name in names
        ]
        cells += [format_metric(row.cost[name].mean) if name in row.cost else "" for name in stages]
        table.add_row(*cells, str(row.num))
    return table
