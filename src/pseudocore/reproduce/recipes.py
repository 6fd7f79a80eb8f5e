"""How a cell is run: the configuration of its coreset and the protocols it is evaluated by, from a
preset; or why it cannot be run.

A selector without a preset takes the one that the paper's sheet names for its table under
`[selectors]`, which has the same data, budget and network.
"""

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pseudocore.assembly import Reduction, Setup
from pseudocore.assembly.presets import (
    PUBLISHED,
    TRUE,
    EvaluationProtocol,
    Preset,
    available,
    find,
    sheet,
    variants,
)
from pseudocore.core import config
from pseudocore.core.budget import with_budget
from pseudocore.core.registry import inferences, methods, models
from pseudocore.reproduce.cells import DIGITS, Cell, field_names

_TRAINING_EXAMPLES_PER_CLASS = {"cifar10": 5000, "cifar100": 500}
"""What a budget in percent is a share of."""

_NETWORK_FIELDS = ("width", "depth", "norm", "init")
"""Setup fields that only some networks have."""


@dataclass(frozen=True)
class Recipe:
    preset: str
    tables: Mapping[str, Any]
    """What `Reduction.from_config` takes."""
    protocols: Mapping[str, EvaluationProtocol]
    """By name; by inference in a table of our own."""
    experts: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the experts' training that differ from their defaults."""
    cost: str = ""
    """The cost that the sheet records."""
    changes: Mapping[str, Any] = field(default_factory=dict)


FORMER: Mapping[str, Mapping[str, Any]] = {
    "hmc": {
        "select": "cold",
        "num_draws": 20,
        "num_burn": 100,
        "num_leapfrog": 10,
        "mass": "fan-in",
    },
    "a-sghmc": {"temperature": 0.1, "prior": "fan-in", "prior_scale": 8.0},
}
"""Options of inferences that were defaults when the tables were measured: what their own protocol
sets where a preset names none. The sheets write them out.
"""

FORMER_WEIGHTING: Mapping[str, str | None] = {
    "craig": "clusters",
    "gradmatch": "scaled",
    "gradmatch-val": "scaled",
    "full": None,
    "psvi": None,
}
"""`weighting` of methods when the tables were measured, before it was an option; of others ones."""


@dataclass(frozen=True)
class Missing:
    reason: str


def find_recipe(cell: Cell) -> Recipe | Missing:
    """The recipe of a cell."""
    if cell.table == DIGITS:
        if cell.variant:
            return Missing(f"the table of the digits has no variant {cell.variant!r}")
        return _digits_recipe(cell)
    if cell.budget == "full":
        return Missing("the whole training set is not a coreset; no preset")
    rules = sheet(cell.paper)
    method = rules.get("rows", {}).get(cell.method, cell.method)
    variant = "-aug" if cell.inference.endswith("+aug") else ""
    stem = f"{cell.data}-ipc{_per_class(cell)}"
    name = f"{cell.paper}/{stem}-{method}{variant}"
    for known in (name, f"{cell.paper}/{stem}", f"condense/{stem}-{method}"):
        if known in available():
            if cell.variant and cell.variant not in variants(known):
                return Missing(f"preset {known} has no variant {cell.variant!r}")
            preset = find(f"{known}@{cell.variant}" if cell.variant else known)
            return Recipe(preset.name, preset.tables, _protocols(cell, preset), cost=preset.cost)
    if method not in methods:
        return Missing(f"there is no method {method!r} here")
    if methods[method].kind == "select":
        for tables, donor in rules["selectors"]["like"].items():
            known = f"{cell.paper}/{stem}-{donor}{variant}"
            if fnmatch.fnmatchcase(cell.table, tables) and known in available():
                return _borrowed(cell, known, method, rules["selectors"])
    return Missing(f"no preset {name}")


def changed(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """A recipe with some settings replaced, each where it exists; what cannot be built is refused.

    Args:
        recipe: What to change.
        changes: Options of the method (`num_steps`), setup fields (`setup.width`) and options of
            the inference (`evaluate.num_steps`).
    """
    setup, options = dict(recipe.tables["setup"]), dict(recipe.tables["options"])
    tables = {**recipe.tables, "setup": setup, "options": options}
    protocols = {
        name: one._replace(options=dict(one.options)) for name, one in recipe.protocols.items()
    }
    applied = {}
    for key, value in changes.items():
        section, _, name = key.rpartition(".")
        if section == "setup" and name in field_names(Setup) and _has(setup.get("model"), name):
            applied[key] = setup[name] = value
        elif section == "evaluate":
            for one in protocols.values():
                if name in field_names(inferences[one.inference].make):
                    applied[key] = one.options[name] = value
        elif section == "" and name in field_names(methods[str(tables["method"])].make):
            applied[key] = value
            options = tables["options"] = with_budget(options, {name: value})
    Reduction.from_config(tables)
    for one in protocols.values():
        make = inferences[one.inference].make
        config.build(make, one.options, what=f"evaluate by {one.inference}")
    return replace(recipe, tables=tables, protocols=protocols, changes=applied)


def _digits_recipe(cell: Cell) -> Recipe:
    """The method's own settings in the sheet, and the shared ones where it has such an option."""
    shared = sheet(DIGITS)
    options = dict(shared["method"].get(cell.method, {}))
    setup = {"data": DIGITS, **options.pop("setup", shared["setup"])}
    known = field_names(methods[cell.method].make)
    for name, value in shared["options"].items():
        if name in known:
            options.setdefault(name, value)
    if cell.budget != "full":
        options["per_class"] = int(cell.budget.removeprefix("ipc"))
    tables = {"method": cell.method, "setup": setup, "options": options}
    protocols = {
        name: EvaluationProtocol(name, dict(given)) for name, given in shared["inference"].items()
    }
    return Recipe("tables/digits.toml", tables, protocols, shared["experts"])


def _borrowed(cell: Cell, donor: str, method: str, rules: Mapping[str, Any]) -> Recipe | Missing:
    """The settings of another method's preset, wherever this selector has such an option; of a
    variant those it has under `[selectors.variants]`, too.
    """
    known, preset = field_names(methods[method].make), find(donor)

    def options(preset: Preset, own: Mapping[str, Any]) -> dict[str, Any]:
        given = {**preset.tables["options"], **rules.get("options", {})}
        given |= {**rules.get("own", {}).get(method, {}), **own}
        without = rules.get("without", ())
        return {name: of for name, of in given.items() if name in known and name not in without}

    found = options(preset, {})
    if cell.variant:
        other = find(f"{donor}@{cell.variant}")
        usual, own = found, rules.get("variants", {}).get(cell.variant, {}).get(method, {})
        found = options(other, own)
        if found == usual:
            return Missing(f"there is no variant {cell.variant!r} of {method} there")
        donor = other.name
    tables = {**preset.tables, "method": method, "options": found}
    return Recipe(donor, tables, _protocols(cell, preset))


def _protocols(cell: Cell, preset: Preset) -> dict[str, EvaluationProtocol]:
    """The preset's protocols by the cell's inference, or the inference with its defaults."""
    wanted = cell.inference.removesuffix("+aug")
    if wanted not in inferences or wanted == "sghmc":
        wanted = f"a-{wanted}"
    true = preset.protocols[TRUE]
    found = {TRUE: true if true.inference == wanted else _true(wanted)}
    for name, one in preset.protocols.items():
        if name != TRUE and one.inference == wanted:
            found[PUBLISHED] = one
            found[TRUE] = found[TRUE]._replace(setup={**one.setup, **found[TRUE].setup})
    if target := cell.model.partition("->")[2]:
        return {
            name: one._replace(setup={**one.setup, "model": target}) for name, one in found.items()
        }
    return found


def _true(inference: str) -> EvaluationProtocol:
    return EvaluationProtocol(inference, dict(FORMER.get(inference, {})))


def _per_class(cell: Cell) -> int:
    if cell.budget.startswith("ipc"):
        return int(cell.budget.removeprefix("ipc"))
    share = float(cell.budget.removesuffix("%")) / 100
    return int(share * _TRAINING_EXAMPLES_PER_CLASS[cell.data] + 1e-9)


def _has(model: str | None, name: str) -> bool:
    """Whether a setup field applies to this network."""
    return name not in _NETWORK_FIELDS or (
        model is not None and name in field_names(models[model].make)
    )
