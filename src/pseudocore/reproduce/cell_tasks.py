"""Cells of a table by the workers of an engine."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pseudocore import engine
from pseudocore.core.errors import ConfigError
from pseudocore.engine import Engine, Item
from pseudocore.reproduce.cells import cells
from pseudocore.reproduce.planning import Planned
from pseudocore.reproduce.recipes import Missing, changed, find_recipe
from pseudocore.reproduce.results import Result
from pseudocore.reproduce.running import CellRunner
from pseudocore.workflows.on_engine import FOLDER


def run_cell(options: Mapping[str, Any], seed: int, folder: Path) -> dict[str, Any]:
    """Run a cell in the work folder that all cells share."""
    cell = next(one for one in cells(options["table"]) if one.name == options["cell"])
    recipe = find_recipe(cell)
    if isinstance(recipe, Missing):
        raise ConfigError(recipe.reason, code="cannot-run", cell=cell.name)
    runner = CellRunner(
        Path(options["work"]),
        options["seeds"],
        tuple(options["severities"]),
        options["device"],
        options["commit"],
    )
    return asdict(runner.run(cell, changed(recipe, options["changes"])))


def run_cells(
    chosen: Engine, planned: Sequence[Planned], runner: CellRunner, changes: Mapping[str, Any]
) -> Iterator[tuple[Planned, Result]]:
    """Cells and their results as they finish; the same numbers on every engine."""
    shared = {
        "work": str(runner.folder.resolve()),
        "seeds": runner.seeds,
        "severities": list(runner.severities),
        "device": runner.device,
        "commit": runner.commit,
        "changes": dict(changes),
    }
    waiting = {(one.cell.table, one.cell.name): one for one in planned if one.to_run}
    items = [Item({**shared, "table": table, "cell": name}) for table, name in waiting]
    work = runner.folder / FOLDER
    for done in engine.map(
        run_cell, items, folder=work, engine=chosen.on(runner.device), again=True, keep=False
    ):
        where = done.item.config["table"], done.item.config["cell"]
        yield waiting[where], Result(**done.result)
