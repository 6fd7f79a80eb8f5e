"""Before anything is run: which cells are done, which can be run, at what cost, and why the others
cannot.
"""

import functools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from pseudocore.assembly import Reduction
from pseudocore.core.errors import ConfigError, DataError, PseudocoreError
from pseudocore.core.registry import did_you_mean
from pseudocore.data import available, load
from pseudocore.reproduce.cells import Cell
from pseudocore.reproduce.recipes import Missing, Recipe, changed, find_recipe
from pseudocore.reproduce.results import FINISHED, Result, difference, stored
from pseudocore.store.files import read_json
from pseudocore.store.folders import hardware

SHAPES = {
    "cifar10": "cifar",
    "cifar100": "cifar",
    "svhn": "cifar",
    "mnist": "fashion-mnist",
    "fashion-mnist": "fashion-mnist",
    "digits": "digits",
}
"""Whose images `bench` times in place of a data set's."""


class Planned(NamedTuple):
    cell: Cell
    recipe: Recipe | None
    result: Result | None
    """What is stored of it, with these settings or others."""
    done: bool
    """Whether what is stored answers it: made with these very settings, over as many seeds and
    corruptions or more.
    """
    obstacle: str
    """Why it cannot be run; empty when it can."""
    benched: float | None = None
    """Seconds its steps would take by a `bench` of this hardware."""
    moved: str = ""
    """How what is stored differs from what is asked for."""

    @property
    def to_run(self) -> bool:
        return not self.done and not self.obstacle

    @property
    def seconds(self) -> float | None:
        """What it took when it was last run on this hardware."""
        known = (
            self.result is not None
            and self.result.status == FINISHED
            and self.result.hardware == hardware()
        )
        return self.result.seconds if known and self.result is not None else None

    @property
    def estimate(self) -> str:
        if self.seconds is not None:
            return f"{self.seconds:.0f} s when last run here"
        if self.benched is not None:
            return f"about {self.benched:.0f} s of steps by bench"
        return (
            "cost unknown"
            if self.recipe is None or not self.recipe.cost
            else f"its preset says {self.recipe.cost}"
        )


def make_plan(
    cells: Sequence[Cell],
    presets: Mapping[str, Path],
    out: Path,
    *,
    seeds: int,
    severities: Sequence[int] = (),
    changes: Mapping[str, Any] | None = None,
) -> list[Planned]:
    """What is to be done about some cells of one table; reads results, runs nothing."""
    found = {cell.name: find_recipe(cell, presets) for cell in cells}
    recipes = {
        name: changed(one, changes or {}) for name, one in found.items() if isinstance(one, Recipe)
    }
    _refuse_idle_changes(changes or {}, recipes)
    results = stored(out, cells, recipes)
    at_hand, benched = functools.cache(_why_not), _benched(out)
    plan = []
    for cell in cells:
        recipe, result = recipes.get(cell.name), results.get(cell.name)
        if recipe is None:
            missing = found[cell.name]
            plan.append(
                Planned(
                    cell,
                    None,
                    result,
                    False,
                    missing.reason if isinstance(missing, Missing) else "",
                )
            )
            continue
        moved = "" if result is None else difference(result, recipe, seeds, severities)
        same = result is not None and not moved
        obstacle = "" if same else at_hand(_data(recipe))
        plan.append(Planned(cell, recipe, result, same, obstacle, _seconds(recipe, benched), moved))
    return plan


def refuse_if_idle(plan: Sequence[Planned]) -> None:
    """Refuse a plan of which nothing is done and nothing can be run, by its first obstacle."""
    if any(not one.obstacle for one in plan):
        return
    error = DataError if plan[0].recipe is not None else ConfigError
    rest = f" (as one of {len(plan)} cells that cannot be run)" if len(plan) > 1 else ""
    raise error(f"{plan[0].cell.name}: {plan[0].obstacle}{rest}")


def _refuse_idle_changes(changes: Mapping[str, Any], recipes: Mapping[str, Recipe]) -> None:
    applied = {name for recipe in recipes.values() for name in recipe.changes}
    if recipes and (idle := [name for name in changes if name not in applied]):
        known = {
            *(name for recipe in recipes.values() for name in recipe.table["options"]),
            "setup.width",
            "evaluate.num_steps",
        }
        raise ConfigError(
            f"no cell here has an option {idle[0]!r}{did_you_mean(idle[0], known)}; "
            "--set takes options of the methods, setup.NAME and evaluate.NAME"
        )


def _benched(out: Path) -> dict[tuple[str, str], float]:
    """Milliseconds of a step by method and shape of the images, from what `bench --out` wrote into
    `out`/bench on this hardware.
    """
    found: dict[tuple[str, str], float] = {}
    for path in sorted((out / "bench").glob("*.json")):
        with suppress(
            PseudocoreError, LookupError, TypeError, AttributeError
        ):  # an estimate is nothing to stop for
            document = read_json(path)
            if document["hardware"] == hardware():
                found |= {
                    (row["name"], document["workload"]["shape"]): float(row["ours"]["ms"])
                    for row in document["rows"]
                }
    return found


def _seconds(recipe: Recipe, benched: Mapping[tuple[str, str], float]) -> float | None:
    ms = benched.get((str(recipe.table["method"]), SHAPES.get(_data(recipe), "")))
    num_steps = (
        getattr(Reduction.from_config(recipe.table).method, "num_steps", None)
        if ms is not None
        else None
    )
    return None if ms is None or num_steps is None else num_steps * ms / 1000


def _data(recipe: Recipe) -> str:
    return str(recipe.table.get("data") or recipe.table["setup"]["data"])


def _why_not(data: str) -> str:
    """Why a data set cannot be used, in the words of whoever looked for it; empty when it is here."""
    if any(one.name == data and one.where is not None for one in available()):
        return ""
    try:
        load(data)
    except DataError as error:
        return str(error)
    return ""
