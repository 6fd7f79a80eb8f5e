"""Another value for an option, and what a change of it needs to show."""

from collections.abc import Mapping
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pseudocore.core import config
from pseudocore.core.config import Option


class Effect(NamedTuple):
    """What the change of one field needs for the result to change."""

    options: Mapping[str, Any] = {}
    """Values of other fields."""
    problem: Mapping[str, Any] = {}
    """Arguments of `small_problem`."""
    other: Any = None
    """The value to change to. Defaults to `other_value`."""


OF_BUDGETS = {
    "points": Effect({"points": 20}),
    "fraction": Effect({"fraction": 0.2}),
    "allocate": Effect({"points": 25, "allocate": "equal"}, {"imbalanced": True}),
}
"""What the fields of a `Budget` need."""


def other_value(option: Option, value: Any) -> Any:
    """A valid value unlike `value`: a bool flipped, the next choice of a Literal, a number doubled
    or else halved or moved by 1 as its bounds allow. None becomes 2 or the first choice.
    """
    kind = next(one for one in config.alternatives(option.type) if one is not NoneType)
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        return choices[0] if value is None else choices[(choices.index(value) + 1) % len(choices)]
    if kind is bool:
        return not value
    if kind is not str:
        number = 1 if value is None else value
        for other in map(kind, (2 * number, number / 2, number + 1, number - 1, number + 0.5)):
            if other != value and not (option.bounds and option.bounds.complaint(other)):
                return other
    raise TypeError(f"an Effect must give another value of {option.name} than {value!r}")
