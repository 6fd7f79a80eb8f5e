"""How a cell is run: the configuration of its coreset, from a preset, and the ways it is evaluated;
or why it cannot be.

A cell of a selector that has no preset of its own takes that of another method of the same paper,
data set, budget and network, which fixes everything but the selection.
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pseudocore.assembly import Reduction, Setup, check_tables
from pseudocore.core import config
from pseudocore.core.registry import inferences, methods, models
from pseudocore.reproduce import digits as own
from pseudocore.reproduce import protocols as headers
from pseudocore.reproduce.cells import Cell, table_of
from pseudocore.reproduce.fields import fields
from pseudocore.reproduce.protocols import Way
from pseudocore.reproduce.published import printed
from pseudocore.store.files import read_toml

TRUE, PUBLISHED = "true", "published"
"""The two protocols: honest inference and metrics, and what is known to have produced the printed
numbers.
"""

_PER_CLASS = {"cifar10": 5000, "cifar100": 500}
"""Training examples per class, which a budget in percent is a share of."""

_LOSSES = {"ce": "cross-entropy", "focal": "focal", "margin": "multi-margin"}
_OF_THEIR_METHOD = ("rho", "num_dimensions")
"""Options of a preset that say nothing about another selector."""


@dataclass(frozen=True)
class Recipe:
    preset: str
    table: Mapping[str, Any]
    """What `Reduction.from_config` takes."""
    ways: Mapping[str, Way]
    """By protocol; by inference in a table of our own."""
    experts: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the experts' training that differ from the usual."""
    cost: str = ""
    """What the preset's header says it cost."""
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Missing:
    reason: str


def find_recipe(cell: Cell, presets: Mapping[str, Path]) -> Recipe | Missing:
    """The recipe of a cell, given the files of the presets there are."""
    if cell.table == own.NAME:
        ways = {name: Way(name, dict(options)) for name, options in own.ways().items()}
        return Recipe(own.PRESET, own.settings(cell.method, cell.budget), ways, own.experts())
    method, variant = _method(cell)
    if method not in methods:
        return Missing(f"there is no method {method!r} here")
    if cell.budget == "full":
        return Missing("the whole training set is not a coreset; no preset")
    stem = f"{cell.data}-ipc{_per_class(cell)}"
    for name in (
        f"{cell.paper}/{stem}-{method}{variant}",
        f"{cell.paper}/{stem}",
        f"condense/{stem}-{method}",
    ):
        if name in presets and (found := _read(name, presets[name]))["method"] == method:
            return _recipe(cell, name, presets[name], found)
    if methods[method].kind == "select":
        return _borrowed(cell, method, stem, variant, presets)
    return Missing(f"no preset {cell.paper}/{stem}-{method}{variant}")


def changed(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """With options of the method (`num_steps`), words of the setup (`setup.width`) or options of
    inference (`evaluate.num_steps`)
    replaced, each where it exists; what cannot be built is refused."""
    table = {
        **recipe.table,
        "setup": dict(recipe.table["setup"]),
        "options": dict(recipe.table["options"]),
    }
    ways = {name: way._replace(options=dict(way.options)) for name, way in recipe.ways.items()}
    applied = {}
    for key, value in changes.items():
        part, _, name = key.rpartition(".")
        if part == "setup" and name in fields(Setup) and _has(table["setup"].get("model"), name):
            applied[key] = table["setup"][name] = value
        elif part == "evaluate":
            for way in ways.values():
                if name in fields(inferences[way.inference].make):
                    applied[key] = way.options[name] = value
        elif part == "" and name in fields(methods[str(table["method"])].make):
            applied[key] = table["options"][name] = value
    Reduction.from_config(table)
    for way in ways.values():
        config.build(
            inferences[way.inference].make, way.options, what=f"evaluate by {way.inference}"
        )
    return Recipe(recipe.preset, table, ways, recipe.experts, recipe.cost, applied)


def _has(model: str | None, word: str) -> bool:
    """Whether a word of the setup that is a network's option is one of this network."""
    of_networks = frozenset[str]().union(*(fields(entry.make) for entry in models))
    return word not in of_networks or model not in models or word in fields(models[str(model)].make)


def _method(cell: Cell) -> tuple[str, str]:
    """A cell's method as the registry knows it, and what a preset's name says after it."""
    if losses := re.fullmatch(r"(bpc-cd)\[row=(\w+),col=(\w+)\]", cell.method):
        expert, energy = _LOSSES[losses[2]], _LOSSES[losses[3]]
        plain = expert == energy == "cross-entropy"
        return losses[1], "" if plain else f"-{expert}-{energy}"
    return cell.method, "-aug" if cell.inference.endswith("+aug") else ""


def _per_class(cell: Cell) -> int:
    if cell.budget.startswith("ipc"):
        return int(cell.budget.removeprefix("ipc"))
    return int(float(cell.budget.removesuffix("%")) / 100 * _PER_CLASS[cell.data] + 1e-9)


@functools.cache
def _read(name: str, path: Path) -> dict[str, Any]:
    found = read_toml(path)
    check_tables(found, what=f"preset {name}")
    return found


def _recipe(cell: Cell, name: str, path: Path, found: Mapping[str, Any]) -> Recipe:
    header = headers.read_header(
        path.read_text(encoding="utf-8"), found.get("evaluate", {}), preset=name
    )
    table = {
        "setup": {},
        "options": {},
        **{key: value for key, value in found.items() if key != "seed"},
    }
    return Recipe(name, table, _ways(cell, header.ways), cost=header.cost)


def _borrowed(
    cell: Cell, method: str, stem: str, variant: str, presets: Mapping[str, Path]
) -> Recipe | Missing:
    """The recipe of another method of the same paper, of this variant and table where possible,
    with this selector in its place.
    """
    network = cell.model.partition("->")[0]
    taken = fields(methods[method].make) - set(_OF_THEIR_METHOD)
    alike = {
        name: _read(name, path)
        for name, path in presets.items()
        if name.startswith(f"{cell.paper}/{stem}-")
    }
    beside = {one.method for one in printed() if table_of(one) == cell.table}

    def unlike(name: str) -> tuple[bool, bool, bool]:
        method = alike[name]["method"]
        return not name.endswith(variant), method not in beside, methods[method].kind != "select"

    for name in sorted(alike, key=unlike):
        found = alike[name]
        if found.get("setup", {}).get("model") == network:
            options = {key: value for key, value in found["options"].items() if key in taken}
            options |= {"features": "network"} if "features" in taken else {}
            recipe = _recipe(
                cell, name, presets[name], {**found, "method": method, "options": options}
            )
            return Recipe(name, recipe.table, recipe.ways)
    return Missing(
        f"no preset {cell.paper}/{stem}-* with {network} to take the rest of the settings from"
    )


def _ways(cell: Cell, found: Mapping[str, Way]) -> dict[str, Way]:
    """What the header says, as far as it is about this cell's inference; else the inference with
    its defaults.
    """
    wanted = cell.inference.removesuffix("+aug")
    wanted = wanted if wanted in inferences and wanted != "sghmc" else f"a-{wanted}"
    launch, published = found[headers.LAUNCH], found.get(headers.PUBLISHED)
    if wanted == "a-sghmc" and headers.A_SGHMC in found:
        published = found[headers.A_SGHMC]
    ways = {TRUE: launch if launch.inference == wanted else Way(wanted, {})}
    if published is not None and published.inference == wanted:
        ways[PUBLISHED] = published
        ways[TRUE] = ways[TRUE]._replace(setup={**published.setup, **ways[TRUE].setup})
    _, _, target = cell.model.partition("->")
    if not target:
        return ways
    return {name: way._replace(setup={**way.setup, "model": target}) for name, way in ways.items()}
