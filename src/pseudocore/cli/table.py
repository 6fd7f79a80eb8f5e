"""pseudocore table NAME: fill a published table, or our own, cell by cell; ours beside theirs."""

import json as jsons
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter, validators
from rich.table import Table

from pseudocore import presets
from pseudocore.cli import flags as flagging
from pseudocore.cli.console import err, out, print_json, progress
from pseudocore.cli.flags import AtLeastOne, Device, Json, Switch
from pseudocore.core.errors import ConfigError
from pseudocore.evaluation.tables import format_metric
from pseudocore.reproduce import pages, render
from pseudocore.reproduce.cells import cells, matching, table_names, title
from pseudocore.reproduce.planning import Planned, make_plan, refuse_if_idle
from pseudocore.reproduce.results import FINISHED, Result, commit, difference, keep, stored
from pseudocore.reproduce.running import CellRunner
from pseudocore.store.files import write_bytes, writing

NAME = "table"
_SHOWN = ("accuracy", "nll")


def make_app(words: Sequence[str]) -> App:
    """The verb; `words` are for telling how to go on."""
    return flagging.verb(NAME, _verb(words))


def _verb(words: Sequence[str]) -> Callable[..., Any]:
    def table(
        name: Annotated[str | None, Parameter(help="Table, as kim2022-1 or digits.")] = None,
        /,
        *,
        patterns: Annotated[
            list[str] | None,
            Parameter(
                name="--cells",
                negative="",
                help="Only cells whose name fits this, with * and ?; repeat for several.",
            ),
        ] = None,
        seeds: Annotated[
            int,
            AtLeastOne,
            Parameter(help="Fresh networks for a coreset; selectors also choose anew for each."),
        ] = 3,
        severity: Annotated[
            list[int] | None,
            Parameter(
                negative="",
                validator=validators.Number(gte=1, lte=5),
                help="Also score all 15 corruptions at this severity, 1 to 5; repeat for several.",
            ),
        ] = None,
        budget_minutes: Annotated[
            float | None,
            Parameter(
                validator=validators.Number(gt=0), help="After this long no further cell is begun."
            ),
        ] = None,
        settings: Annotated[
            list[str] | None,
            Parameter(
                name="--set",
                negative="",
                help="NAME=VALUE instead of a preset's: num_steps, setup.width, evaluate.num_steps, ...",
            ),
        ] = None,
        folder: Annotated[
            Path, Parameter(name="--out", help="Folder of results: TABLE/CELL.json.")
        ] = Path("benchmarks/results"),
        work: Annotated[
            Path, Parameter(help="Folder for the coresets and experts that cells share.")
        ] = Path("runs/tables"),
        plan: Annotated[
            bool, Switch, Parameter(help="Print what would be done, and stop.")
        ] = False,
        render: Annotated[
            bool,
            Switch,
            Parameter(help="Print the table as Markdown, from the stored results; run nothing."),
        ] = False,
        page: Annotated[
            Path | None, Parameter(help="With --render: write this .md or .html file instead.")
        ] = None,
        device: Device = "auto",
        json: Json = False,
    ) -> int:
        if page is not None and not render:
            raise ConfigError(f"--page {page} needs --render")
        if render and json:
            raise ConfigError("--render gives Markdown or HTML; --json without it gives the cells")
        if render:
            return _render(name, folder, page)
        if name is None:
            return _list(folder, json)
        chosen = matching(cells(name, presets.available()), *(patterns or ()))
        options: dict[str, Any] = {
            "seeds": seeds,
            "severities": tuple(severity or ()),
            "changes": _changes(settings or ()),
        }
        planned = make_plan(chosen, presets.available(), folder, **options)
        if plan:
            _show_plan(planned, json)
            return 0
        refuse_if_idle(planned)
        if not json:
            _show_plan(planned, False)
        shop = CellRunner(
            work, seeds, tuple(severity or ()), device, commit(), on_wait=_say_that_it_waits
        )
        try:
            results = _run(planned, shop, folder, budget_minutes, (err if json else out).print)
        except KeyboardInterrupt:
            err.print(
                f"interrupted; finished cells are kept, go on with: {shlex.join(['pseudocore', NAME, *words])}"
            )
            return 130
        if json:
            print_json(
                {
                    "table": name,
                    "cells": [_in_brief(one, results.get(one.cell.name)) for one in planned],
                }
            )
        return 2 if any(result.status != FINISHED for result in results.values()) else 0

    return table


def _changes(pairs: Sequence[str]) -> dict[str, Any]:
    found = {}
    for name, equals, value in (pair.partition("=") for pair in pairs):
        if not equals:
            raise ConfigError(f"--set {name} has no value; write --set {name}=VALUE")
        try:
            found[name] = jsons.loads(value)
        except jsons.JSONDecodeError:
            found[name] = value
    return found


def _list(folder: Path, as_json: bool) -> int:
    counts = {name: len(cells(name, presets.available())) for name in table_names()}
    if as_json:
        print_json(
            [{"name": name, "title": title(name), "cells": num} for name, num in counts.items()]
        )
        return 0
    for name, num in counts.items():
        out.print(f"{name:<14} {num:>4} cells  {title(name)}")
    err.print(
        f"next: pseudocore {NAME} NAME --plan, or pseudocore {NAME} --render for what {folder} holds"
    )
    return 0


def _render(name: str | None, folder: Path, page: Path | None) -> int:
    known = presets.available()
    blocks = (
        render.render_all(folder, known)
        if name is None
        else render.render_table(name, folder, known)
    )
    if page is None:
        out.print(pages.to_markdown(blocks), end="")
        return 0
    if page.suffix not in (".md", ".html"):
        raise ConfigError(f"--page {page} is neither a .md nor a .html file")
    text = (
        pages.to_markdown(blocks)
        if page.suffix == ".md"
        else pages.to_html(blocks, title=name or "reproduction")
    )
    with writing(page):
        page.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(page, text.encode())
    err.print(f"written: {page}")
    return 0


def _show_plan(planned: Sequence[Planned], as_json: bool) -> None:
    if as_json:
        print_json([_in_brief(one, None) for one in planned])
        return
    grid = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("cell", "preset", "what", "cost"):
        grid.add_column(column)
    for one in planned:
        what = (
            "done"
            if one.done
            else _short(one.obstacle) or (f"run again: {one.moved}" if one.moved else "run")
        )
        grid.add_row(
            one.cell.name,
            one.recipe.preset if one.recipe is not None else "–",
            what,
            one.estimate if one.to_run else "",
        )
    out.print(grid)
    known = [
        cost for one in planned if one.to_run and (cost := one.seconds or one.benched) is not None
    ]
    num_done, num_run = sum(one.done for one in planned), sum(one.to_run for one in planned)
    sums = (
        f", about {sum(known):.0f} s for the {len(known)} whose cost here is known" if known else ""
    )
    out.print(
        f"{len(planned)} cells: {num_done} done, {num_run} to run{sums}, {len(planned) - num_done - num_run} cannot be run here"
    )
    for obstacle in dict.fromkeys(
        one.obstacle for one in planned if _short(one.obstacle) != one.obstacle
    ):
        out.print(obstacle)


def _short(obstacle: str) -> str:
    """A missing data set without where it was looked for, which is said once below the plan."""
    return obstacle.partition(" (looked in")[0]


def _run(
    planned: Sequence[Planned],
    shop: CellRunner,
    folder: Path,
    minutes: float | None,
    say: Callable[[str], None],
) -> dict[str, Result]:
    """Run what is to be run, as long as there is time, and keep each result as soon as it is there."""
    began, results = time.monotonic(), dict[str, Result]()
    waiting = [one for one in planned if one.to_run]
    with progress(f"{NAME} {planned[0].cell.table}", len(waiting)) as advance:
        for number, one in enumerate(waiting):
            left = None if minutes is None else 60 * minutes - (time.monotonic() - began)
            if left is not None and (left <= 0 or (one.seconds or 0.0) > left):
                err.print(
                    f"out of time before {one.cell.name}: {len(waiting) - number} cells are left for another call"
                )
                break
            with shop.claim(one.cell) as is_ours:
                if is_ours and (result := _result(one, shop, folder)) is not None:
                    results[one.cell.name] = result
                    (err.print if result.status != FINISHED else say)(_line(result))
                elif not is_ours:
                    err.print(f"{one.cell.name}: another process is at it")
            advance(number + 1, {})
    return results


def _say_that_it_waits(what: str) -> None:
    err.print(f"waiting for another process that makes {what}")


def _result(one: Planned, shop: CellRunner, folder: Path) -> Result | None:
    """Of a cell, kept; nothing if another process has run it since the plan was made."""
    assert one.recipe is not None  # or it could not be run
    before = stored(folder, [one.cell], {one.cell.name: one.recipe}).get(one.cell.name)
    if before is not None and not difference(before, one.recipe, shop.seeds, shop.severities):
        return None
    result = shop.run(one.cell, one.recipe)
    if result.status == FINISHED or before is None or before.status != FINISHED:
        keep(folder, result)  # a failure never takes the place of numbers
    return result


def _line(result: Result) -> str:
    if result.status != FINISHED:
        return f"{result.cell}: {result.reason}"
    ways = []
    for name, one in result.evaluations.items():
        scores = [
            f"{metric} {format_metric(*one['metrics'][metric].values())}"
            for metric in _SHOWN
            if metric in one["metrics"]
        ]
        ways.append(f"{name}: {', '.join(scores)}")
    return f"{result.cell}  {'  '.join(ways)}  ({result.seconds:.1f} s)"


def _in_brief(one: Planned, result: Result | None) -> dict[str, Any]:
    result = result or one.result
    return {
        "cell": one.cell.name,
        "preset": one.recipe.preset if one.recipe is not None else None,
        "status": result.status if result is not None else "cannot" if one.obstacle else "waiting",
        "reason": result.reason if result is not None else one.obstacle,
        "to_run": one.to_run,
        "metrics": {name: way["metrics"] for name, way in result.evaluations.items()}
        if result is not None
        else {},
    }
