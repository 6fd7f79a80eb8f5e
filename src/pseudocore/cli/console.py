"""Where words go: results to standard output, progress and messages to standard error."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from pseudocore.evaluation.tables import Row, format_metric, metric_names, metric_title
from pseudocore.store import strict_json

__all__ = ["comparison_table", "err", "out", "print_json", "progress"]

out = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 160)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def print_json(document: Any) -> None:
    """One JSON document on standard output, valid everywhere (no NaN or Infinity literals)."""
    out.file.write(json.dumps(json.loads(strict_json.encode(document)), indent=2) + "\n")


@contextmanager
def progress(title: str, total: int, start: int = 0, *, quiet: bool = False) -> Iterator[Callable[[int, dict[str, float]], None]]:
    """A bar with rate and time left; the block gets a function to call with (done, numbers to show)."""
    columns = (
        TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TaskProgressColumn(show_speed=True),
        TextColumn("{task.fields[rate]}"), TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("[dim]{task.fields[numbers]}"),
    )  # fmt: skip
    with Progress(*columns, console=err, transient=True, disable=quiet or total == 0) as bar:
        task = bar.add_task(title, total=total, completed=start, rate="", numbers="")

        def advance(done: int, numbers: dict[str, float]) -> None:
            speed = bar.tasks[0].speed
            rate = f"{speed:.1f}/s" if speed else ""
            bar.update(task, completed=done, rate=rate, numbers="  ".join(f"{name} {value:.3g}" for name, value in numbers.items()))

        yield advance


def comparison_table(rows: list[Row]) -> Table:
    """The comparison as a terminal table."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    names = metric_names(rows)
    varied = any(row.variant for row in rows)
    for title in ("data", "ipc", "method", "inference", *(["variant"] if varied else [])):
        table.add_column(title, no_wrap=True)
    for name in names:
        table.add_column(metric_title(name), justify="right", no_wrap=True)
    table.add_column("n", justify="right")
    for row in rows:
        words = [
            row.data,
            "" if row.per_class is None else str(row.per_class),
            row.method,
            row.inference,
            *([row.variant] if varied else []),
        ]
        cells = [format_metric(*row.metrics[name]) if name in row.metrics else "" for name in names]
        table.add_row(*words, *cells, str(row.num))
    return table
