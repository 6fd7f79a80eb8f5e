"""Our own small table: every method at 1, 5 and 10 digits per class, each used in several ways. Its
settings are in `digits.toml`.

A method of the registry that the file says nothing of runs with the settings common to all, so a
new method is a new row.
"""

import functools
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from pseudocore.core.registry import methods
from pseudocore.reproduce.fields import fields
from pseudocore.store.files import decode_toml

NAME = "digits"
PRESET = "tables/digits.toml"
TITLE = "our own: every method on the built-in digits"


def methods_and_budgets() -> list[tuple[str, str]]:
    """In the order of rows; a method without a budget, `full`, has one row."""
    found = [
        (entry.name, f"ipc{budget}")
        for budget in _file()["budgets"]
        for entry in methods
        if "per_class" in _fields(entry.name)
    ]
    return found + [
        (entry.name, "full") for entry in methods if "per_class" not in _fields(entry.name)
    ]


def model(method: str) -> str:
    return str(settings(method, "full")["setup"]["model"])


def settings(method: str, budget: str) -> dict[str, Any]:
    """What a preset would hold for a cell."""
    special = _file()["method"].get(method, {})
    common = {name: value for name, value in _file()["options"].items() if name in _fields(method)}
    options = {**common, **{name: value for name, value in special.items() if name != "setup"}}
    if budget != "full":
        options["per_class"] = int(budget.removeprefix("ipc"))
    return {
        "method": method,
        "setup": {"data": NAME, **(special.get("setup") or _file()["setup"])},
        "options": options,
    }


def ways() -> Mapping[str, Mapping[str, Any]]:
    """Inferences and their options, by name."""
    return dict(_file()["inference"])


def note() -> str:
    """How the settings were chosen, and what cannot be compared."""
    return str(_file()["note"])


def experts() -> dict[str, Any]:
    """How experts are trained, for the methods that learn from some."""
    return dict(_file()["experts"])


def _fields(method: str) -> frozenset[str]:
    return fields(methods[method].make)


@functools.cache
def _file() -> dict[str, Any]:
    return decode_toml(
        files("pseudocore.reproduce").joinpath("digits.toml").read_text(encoding="utf-8"),
        source=PRESET,
    )
