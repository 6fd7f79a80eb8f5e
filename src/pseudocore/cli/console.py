"""Where words go: results to standard output, progress and messages to standard error.

Names and paths from outside are printed as they are: rich's markup and emoji codes are off.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from pseudocore.evaluation.names import metric_title
from pseudocore.evaluation.tables import Row, format_metric, metric_names

_WIDE = 1000
"""Columns of a file or pipe: tables keep one line a row there and wrap on a terminal only."""

out = Console(
    highlight=False,
    markup=False,
    emoji=False,
    soft_wrap=True,
    width=None if sys.stdout and sys.stdout.isatty() else _WIDE,
)
err = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)

_SECONDS_BETWEEN_LINES = 30.0
"""How often progress is told where there is no terminal to draw a bar on."""

Advance = Callable[[int, dict[str, float]], None]
"""Called with how much is done and numbers to show."""


def print_json(document: Any) -> None:
    """One JSON document on standard output, valid everywhere (no NaN or Infinity literals)."""
    from pseudocore.store.files import (
        encode_json,  # it knows tensors, and main must start before torch is loaded
    )

    out.print(json.dumps(json.loads(encode_json(document)), indent=2))


@contextmanager
def progress(title: str, total: int, start: int = 0) -> Iterator[Advance]:
    """A bar with rate and time left; a line now and then when standard error is no terminal."""
    if not err.is_terminal:
        yield _lines(title, total)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=16),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
        TimeRemainingColumn(),
        TextColumn("{task.fields[numbers]}", style="dim", markup=False),
    )
    room = (
        err.width - len(title) - 2 * len(str(total)) - 38
    )  # what the other columns leave; too long a line would squeeze them
    with Progress(*columns, console=err, transient=True, disable=total == 0) as bar:
        task = bar.add_task(title, total=total, completed=start, numbers="", rate="")

        def advance(done: int, numbers: dict[str, float]) -> None:
            speed = bar.tasks[0].speed
            bar.update(
                task,
                completed=done,
                rate=f"{speed:.3g}/s" if speed else "",
                numbers=_in_words(numbers, room),
            )

        yield advance


def comparison_table(rows: list[Row], *, details: bool = False) -> Table:
    """The comparison as a terminal table; with `details`, also the metrics tables leave out and the
    seconds of every stage.
    """
    table = Table(box=None, header_style="bold", pad_edge=False)
    names = metric_names(rows, details=details)
    stages = list(dict.fromkeys(name for row in rows for name in row.cost)) if details else []
    varied = any(row.variant for row in rows)
    for title in ("data", "ipc", "method", "inference", *(["variant"] if varied else [])):
        table.add_column(title)
    for name in names:
        table.add_column(metric_title(name), justify="right")
    for name in stages:
        table.add_column(f"{name}, s", justify="right")
    table.add_column("n", justify="right")
    for row in rows:
        budget = "" if row.per_class is None else str(row.per_class)
        words = [row.data, budget, row.method, row.inference, *([row.variant] if varied else [])]
        cells = [format_metric(*row.metrics[name]) if name in row.metrics else "" for name in names]
        cells += [format_metric(row.cost[name].mean) if name in row.cost else "" for name in stages]
        table.add_row(*words, *cells, str(row.num))
    return table


def _lines(title: str, total: int) -> Advance:
    last = time.monotonic()

    def advance(done: int, numbers: dict[str, float]) -> None:
        nonlocal last
        if time.monotonic() - last >= _SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            err.print(f"{title}: {done}/{total}  {_in_words(numbers)}")

    return advance


def _in_words(numbers: dict[str, float], room: int = _WIDE) -> str:
    """`loss 0.31  accuracy 0.9`, as many of them as there is room for."""
    text = ""
    for name, value in numbers.items():
        longer = f"{text}  {name} {value:.3g}".lstrip()
        if len(longer) > room:
            break
        text = longer
    return text
