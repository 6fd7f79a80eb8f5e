"""Our own small table: every method at 1, 5 and 10 digits per class, by two inferences.

Its settings are in `sheets/digits.toml`; a method that the sheet does not name runs with the shared
ones, so a new method is a new row.
"""

from dataclasses import fields
from typing import Any

from pseudocore.core.registry import methods
from pseudocore.presets import EvaluationProtocol, sheet

NAME = "digits"
PRESET = "tables/digits.toml"
TITLE = "our own: every method on the built-in digits"


def rows() -> list[tuple[str, str]]:
    """Methods and budgets; a method without a budget, `full`, has one row."""
    budgeted = [entry.name for entry in methods if "per_class" in _fields(entry.name)]
    found = [(name, f"ipc{budget}") for budget in sheet(NAME)["budgets"] for name in budgeted]
    return found + [(entry.name, "full") for entry in methods if entry.name not in budgeted]


def tables(method: str, budget: str) -> dict[str, Any]:
    """The configuration of a row, as `Reduction.from_config` takes it."""
    shared = sheet(NAME)
    special = dict(shared["method"].get(method, {}))
    setup = special.pop("setup", shared["setup"])
    known = _fields(method)
    options = {name: value for name, value in shared["options"].items() if name in known} | special
    if budget != "full":
        options["per_class"] = int(budget.removeprefix("ipc"))
    return {"method": method, "setup": {"data": NAME, **setup}, "options": options}


def protocols() -> dict[str, EvaluationProtocol]:
    """By inference."""
    return {
        name: EvaluationProtocol(name, dict(options))
        for name, options in sheet(NAME)["inference"].items()
    }


def _fields(method: str) -> set[str]:
    return {field.name for field in fields(methods[method].make)}
