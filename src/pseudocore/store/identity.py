"""Whether two descriptions say the same: nested tables of words and numbers, compared and told
apart in words.
"""

import math
from collections.abc import Mapping
from typing import Any

NEAR = 1e-4
"""Relative: a mean computed on a GPU is that of a CPU up to rounding."""


def differences(stored: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """`model.width: stored 32, given 128` for every entry that differs."""
    old, new = _flat(stored), _flat(given)
    return [
        f"{key}: stored {_word(old.get(key))}, given {_word(new.get(key))}"
        for key in dict.fromkeys((*old, *new))
        if not _same(old.get(key), new.get(key))
    ]


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=NEAR, abs_tol=NEAR)
    return type(one) is type(other) and bool(one == other)


def _word(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
