"""What a table's cells need before anything is run: which are done, which can be run and at what
cost, and why the others cannot.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pseudocore.assembly import Reduction
from pseudocore.core.errors import ConfigError, DataError
from pseudocore.core.registry import did_you_mean
from pseudocore.core.types import Iterative
from pseudocore.data import available, load
from pseudocore.reproduce import records
from pseudocore.reproduce.cells import Cell
from pseudocore.reproduce.recipes import Missing, Recipe, changed, find_recipe
from pseudocore.reproduce.results import FINISHED, Result, difference, stored
from pseudocore.store.folders import hardware

_BENCH_SHAPES = {
    "cifar10": "cifar",
    "cifar100": "cifar",
    "svhn": "cifar",
    "mnist": "fashion-mnist",
    "fashion-mnist": "fashion-mnist",
    "digits": "digits",
}
"""The images that `bench` times in place of a data set's."""


@dataclass(frozen=True)
class Planned:
    cell: Cell
    recipe: Recipe | None
    result: Result | None
    """What is stored, with these settings or others."""
    done: bool = False
    """Whether the stored result has these settings, over as many seeds and corruptions or more."""
    obstacle: str = ""
    """Why the cell cannot be run; empty if it can."""
    benched: float | None = None
    """Seconds its steps would take by a `bench` of this hardware."""
    moved: str = ""
    """How the stored result differs from the one asked for."""

    @property
    def to_run(self) -> bool:
        return not self.done and not self.obstacle

    @property
    def seconds(self) -> float | None:
        """What it took when it was last run on this hardware."""
        result = self.result
        if result is None or result.status != FINISHED or result.hardware != hardware():
            return None
        return result.seconds

    @property
    def estimate(self) -> str:
        if self.seconds is not None:
            return f"{self.seconds:.0f} s when last run here"
        if self.benched is not None:
            return f"about {self.benched:.0f} s of steps by bench"
        if self.recipe is None or not self.recipe.cost:
            return "cost unknown"
        return f"its preset says {self.recipe.cost}"


def make_plan(
    cells: Sequence[Cell],
    out: Path,
    *,
    seeds: int,
    severities: Sequence[int] = (),
    changes: Mapping[str, Any] | None = None,
) -> list[Planned]:
    """What is to be done about some cells of one table; reads results, runs nothing."""
    found = {cell.name: find_recipe(cell) for cell in cells}
    recipes = {
        name: changed(one, changes or {}) for name, one in found.items() if isinstance(one, Recipe)
    }
    _refuse_unused_changes(changes or {}, recipes)
    results = stored(out, cells)
    data_obstacle, step_ms = functools.cache(_data_obstacle), _benched_steps(out)
    plan = []
    for cell in cells:
        recipe, result = found[cell.name], results.get(cell.name)
        if isinstance(recipe, Missing):
            plan.append(Planned(cell, None, result, obstacle=recipe.reason))
            continue
        recipe = recipes[cell.name]
        moved = "" if result is None else difference(result, recipe, seeds, severities)
        done = result is not None and not moved
        obstacle = "" if done else data_obstacle(_data(recipe))
        benched = _benched_seconds(recipe, step_ms)
        plan.append(Planned(cell, recipe, result, done, obstacle, benched, moved))
    return plan


def refuse_if_idle(plan: Sequence[Planned]) -> None:
    """Refuse a plan of which nothing is done and nothing can be run, by its first obstacle."""
    if any(not one.obstacle for one in plan):
        return
    error = DataError if plan[0].recipe is not None else ConfigError
    rest = f" (as one of {len(plan)} cells that cannot be run)" if len(plan) > 1 else ""
    cell = plan[0].cell.name
    raise error(f"{cell}: {plan[0].obstacle}{rest}", code="cannot-run", cell=cell)


def _refuse_unused_changes(changes: Mapping[str, Any], recipes: Mapping[str, Recipe]) -> None:
    applied = {name for recipe in recipes.values() for name in recipe.changes}
    unused = [name for name in changes if name not in applied]
    if recipes and unused:
        known = {name for recipe in recipes.values() for name in recipe.tables["options"]}
        near = did_you_mean(unused[0], {*known, "setup.width", "evaluate.num_steps"})
        raise ConfigError(
            f"no cell here has an option {unused[0]!r}{near}; "
            "--set takes options of the methods, setup.NAME and evaluate.NAME",
            code="unknown-option",
            option=unused[0],
        )


def _benched_steps(out: Path) -> dict[tuple[str, str], float]:
    """Milliseconds of a step by method and shape of the images, as `bench --out` kept them for this
    hardware.
    """
    return {
        (row["name"], record["workload"]["shape"]): float(row["ours"]["ms"])
        for record in records.read(out / "bench.jsonl").values()
        if record.get("hardware") == hardware()
        for row in record.get("rows", ())
    }


def _benched_seconds(recipe: Recipe, step_ms: Mapping[tuple[str, str], float]) -> float | None:
    shape = _BENCH_SHAPES.get(_data(recipe), "")
    ms = step_ms.get((str(recipe.tables["method"]), shape))
    method = Reduction.from_config(recipe.tables).method if ms is not None else None
    return (
        method.num_steps * ms / 1000 if ms is not None and isinstance(method, Iterative) else None
    )


def _data(recipe: Recipe) -> str:
    return str(recipe.tables.get("data") or recipe.tables["setup"]["data"])


def _data_obstacle(data: str) -> str:
    """Why a data set cannot be used; empty if it is here."""
    if any(one.name == data and one.where is not None for one in available()):
        return ""
    try:
        load(data)
    except DataError as error:
        return str(error)
    return ""
