"""pseudocore table NAME: fill a published table, or our own, cell by cell; ours beside theirs."""

import json as jsons
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter, validators
from rich.table import Table

from pseudocore.cli import engine
from pseudocore.cli.console import err, hint, out, print_json, progress
from pseudocore.cli.flags import AtLeastOne, Device, Json, Switch, verb
from pseudocore.core.errors import ConfigError
from pseudocore.engine import Engine
from pseudocore.evaluation.names import format_metric
from pseudocore.reproduce import pages, render
from pseudocore.reproduce.cell_tasks import run_cells
from pseudocore.reproduce.cells import cells, matching, table_names, title, varied
from pseudocore.reproduce.planning import Planned, make_plan, refuse_if_idle
from pseudocore.reproduce.results import FINISHED, Result, commit, difference, keep, stored
from pseudocore.reproduce.running import CellRunner
from pseudocore.store.files import write_bytes, writing

NAME = "table"
_SEVERITY = Parameter(negative="", validator=validators.Number(gte=1, lte=5))
_ABOVE_ZERO = Parameter(validator=validators.Number(gt=0))


def make_app(words: Sequence[str]) -> App:
    """The verb; `words` are repeated in the hint how to resume."""
    return verb(NAME, _function(words), engine.parameters())


def _function(words: Sequence[str]) -> Callable[..., Any]:
    def table(
        name: str | None = None,
        /,
        *,
        patterns: Annotated[list[str] | None, Parameter(name="--cells", negative="")] = None,
        seeds: Annotated[int, AtLeastOne] = 3,
        severity: Annotated[list[int] | None, _SEVERITY] = None,
        budget_minutes: Annotated[float | None, _ABOVE_ZERO] = None,
        settings: Annotated[list[str] | None, Parameter(name="--set", negative="")] = None,
        variant: str = "",
        folder: Annotated[Path, Parameter(name="--out")] = Path("benchmarks/results"),
        work: Path = Path("runs/tables"),
        plan: Annotated[bool, Switch] = False,
        render: Annotated[bool, Switch] = False,
        page: Path | None = None,
        device: Device = "auto",
        json: Json = False,
        **given: Any,
    ) -> int:
        """Fill a table.

        Args:
            name: Table, as kim2022-1 or digits.
            patterns: Only cells whose name matches this, with * and ?; repeat for several.
            seeds: Fresh networks per coreset; selectors also select anew for each.
            severity: Also score all 15 corruptions at this severity, 1 to 5; repeat for several.
            budget_minutes: Start no cell after this long.
            settings: NAME=VALUE instead of a preset's: num_steps, setup.width, evaluate.num_steps.
            variant: Variant of the presets, as `authors`; its results stand beside theirs.
            folder: Folder of results: TABLE.jsonl.
            work: Folder for the coresets and experts that cells share.
            plan: Print the plan and run nothing.
            render: Print the table as Markdown from the stored results and run nothing.
            page: With --render: write this .md or .html file instead.
        """
        if page is not None and not render:
            raise ConfigError(f"--page {page} needs --render", code="page-without-render")
        if render and json:
            raise ConfigError(
                "--render gives Markdown or HTML; --json without it gives the cells",
                code="render-json",
            )
        if render:
            return _render(name, folder, page)
        if name is None:
            return _list(folder, json)
        severities, changes = tuple(severity or ()), _changes(settings or ())
        chosen = engine.chosen(given, device)
        if chosen is not None and budget_minutes is not None:
            raise ConfigError(
                "--budget-minutes is kept by one process; leave it out with --engine",
                code="conflicting-options",
            )
        wanted = matching(cells(name), *(patterns or ()))
        planned = make_plan(
            varied(wanted, variant) if variant else wanted,
            folder,
            seeds=seeds,
            severities=severities,
            changes=changes,
        )
        if plan:
            _show_plan(planned, json)
            return 0
        refuse_if_idle(planned)
        if not json:
            _show_plan(planned, False)
        runner = CellRunner(work, seeds, severities, device, commit(), on_wait=_say_waiting)
        try:
            say = (err if json else out).print
            if chosen is None:
                results = _run(planned, runner, folder, budget_minutes, say)
            else:
                results = _run_on(chosen, planned, runner, folder, changes, say)
        except KeyboardInterrupt:
            command = shlex.join(["pseudocore", NAME, *words])
            err.print(f"interrupted; finished cells are kept, resume with: {command}")
            return 130
        if json:
            briefs = [_brief(one, results.get(one.cell.name)) for one in planned]
            print_json({"table": name, "cells": briefs})
        return 2 if any(result.status != FINISHED for result in results.values()) else 0

    return table


def _changes(pairs: Sequence[str]) -> dict[str, Any]:
    found = {}
    for name, equals, value in (pair.partition("=") for pair in pairs):
        if not equals:
            raise ConfigError(
                f"--set {name} has no value; write --set {name}=VALUE", code="set-without-value"
            )
        try:
            found[name] = jsons.loads(value)
        except jsons.JSONDecodeError:
            found[name] = value
    return found


def _list(folder: Path, as_json: bool) -> int:
    tables = [
        {"name": name, "title": title(name), "cells": len(cells(name))} for name in table_names()
    ]
    if as_json:
        print_json(tables)
        return 0
    for one in tables:
        out.print(f"{one['name']:<14} {one['cells']:>4} cells  {one['title']}")
    hint(
        f"next: pseudocore {NAME} NAME --plan, or pseudocore {NAME} --render for the results in "
        f"{folder}"
    )
    return 0


def _render(name: str | None, folder: Path, page: Path | None) -> int:
    blocks = render.render_all(folder) if name is None else render.render_table(name, folder)
    if page is None:
        out.print(pages.to_markdown(blocks), end="")
        return 0
    if page.suffix not in (".md", ".html"):
        raise ConfigError(f"--page {page} is neither a .md nor a .html file", code="page-suffix")
    text = (
        pages.to_markdown(blocks)
        if page.suffix == ".md"
        else pages.to_html(blocks, title=name or "reproduction")
    )
    with writing(page):
        page.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(page, text.encode())
    hint(f"written: {page}")
    return 0


def _show_plan(planned: Sequence[Planned], as_json: bool) -> None:
    if as_json:
        print_json([_brief(one, None) for one in planned])
        return
    grid = Table("cell", "preset", "what", "cost", box=None, header_style="bold", pad_edge=False)
    for one in planned:
        what = "done" if one.done else _short(one.obstacle) or "run"
        if one.to_run and one.moved:
            what = f"run again: {one.moved}"
        preset = one.recipe.preset if one.recipe is not None else "–"
        grid.add_row(one.cell.name, preset, what, one.estimate if one.to_run else "")
    out.print(grid)
    num_done, to_run = sum(one.done for one in planned), [one for one in planned if one.to_run]
    known = [cost for one in to_run if (cost := one.seconds or one.benched) is not None]
    sums = ""
    if known:
        sums = f", about {sum(known):.0f} s for the {len(known)} whose cost here is known"
    out.print(
        f"{len(planned)} cells: {num_done} done, {len(to_run)} to run{sums}, "
        f"{len(planned) - num_done - len(to_run)} cannot be run here"
    )
    for obstacle in dict.fromkeys(one.obstacle for one in planned):
        if _short(obstacle) != obstacle:
            out.print(obstacle)


def _short(obstacle: str) -> str:
    """Without the folders a data set was looked for in, which are printed once below the plan."""
    return obstacle.partition(" (looked in")[0]


def _run(
    planned: Sequence[Planned],
    runner: CellRunner,
    folder: Path,
    minutes: float | None,
    say: Callable[[str], None],
) -> dict[str, Result]:
    """Run cells while there is time, and keep each result as soon as there is one."""
    began, results = time.monotonic(), dict[str, Result]()
    waiting = [one for one in planned if one.to_run]
    with progress(f"{NAME} {planned[0].cell.table}", len(waiting)) as advance:
        for number, one in enumerate(waiting):
            left = None if minutes is None else 60 * minutes - (time.monotonic() - began)
            if left is not None and (left <= 0 or (one.seconds or 0.0) > left):
                rest = len(waiting) - number
                err.print(f"out of time before {one.cell.name}: {rest} cells are left to run")
                break
            with runner.claim(one.cell) as is_ours:
                if not is_ours:
                    err.print(f"{one.cell.name}: another process is running it")
                elif (result := _result(one, runner, folder)) is not None:
                    results[one.cell.name] = result
                    (err.print if result.status != FINISHED else say)(_line(result))
            advance(number + 1, {})
    return results


def _run_on(
    chosen: Engine,
    planned: Sequence[Planned],
    runner: CellRunner,
    folder: Path,
    changes: Mapping[str, Any],
    say: Callable[[str], None],
) -> dict[str, Result]:
    """As `_run`, by the workers of an engine."""
    results: dict[str, Result] = {}
    with progress(f"{NAME} {planned[0].cell.table}", sum(one.to_run for one in planned)) as advance:
        for one, result in run_cells(chosen, planned, runner, changes):
            _keep(one, result, folder)
            results[one.cell.name] = result
            (err.print if result.status != FINISHED else say)(_line(result))
            advance(len(results), {})
    return results


def _say_waiting(what: str) -> None:
    err.print(f"waiting for another process that makes {what}")


def _result(one: Planned, runner: CellRunner, folder: Path) -> Result | None:
    """Of a cell, kept; None if another process has run it since the plan was made."""
    assert one.recipe is not None  # or it could not be run
    before = stored(folder, [one.cell]).get(one.cell.name)
    if before is not None and not difference(before, one.recipe, runner.seeds, runner.severities):
        return None
    result = runner.run(one.cell, one.recipe)
    _keep(one, result, folder)
    return result


def _keep(one: Planned, result: Result, folder: Path) -> None:
    """Write a result down; a failure never replaces numbers."""
    before = stored(folder, [one.cell]).get(one.cell.name)
    if result.status == FINISHED or before is None or before.status != FINISHED:
        keep(folder, result)


def _line(result: Result) -> str:
    if result.status != FINISHED:
        return f"{result.cell}: {result.reason}"
    parts = []
    for name, one in result.evaluations.items():
        scores = [
            f"{metric} {format_metric(*one['metrics'][metric].values())}"
            for metric in ("accuracy", "nll")
            if metric in one["metrics"]
        ]
        parts.append(f"{name}: {', '.join(scores)}")
    return f"{result.cell}  {'  '.join(parts)}  ({result.seconds:.1f} s)"


def _brief(one: Planned, result: Result | None) -> dict[str, Any]:
    result = result or one.result
    brief: dict[str, Any] = {
        "cell": one.cell.name,
        "preset": one.recipe.preset if one.recipe is not None else None,
        "status": "cannot" if one.obstacle else "waiting",
        "reason": one.obstacle,
        "to_run": one.to_run,
        "metrics": {},
    }
    if result is not None:
        metrics = {name: found["metrics"] for name, found in result.evaluations.items()}
        brief |= {"status": result.status, "reason": result.reason, "metrics": metrics}
    return brief
