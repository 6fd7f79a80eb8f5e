"""Flags from configuration classes: every field of a method, an inference or a setup is a flag,
declared nowhere else.
"""

import dataclasses
import functools
import inspect
import operator
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter, Token, validators

from pseudocore.core import config

SPELLING = {"per_class": ("--ipc", "--per-class")}
"""Fields whose flag is not their name alone."""


def whole_number(_: Any, tokens: Sequence[Token]) -> int:
    """An integer as it was typed; 3.5 is refused, not rounded."""
    try:
        number = int(tokens[0].value)
    except ValueError:
        raise ValueError(f"{tokens[0].value!r} is not a whole number") from None
    if abs(number) >= 2**63:
        raise ValueError(f"{number} is too large")
    return number


Whole = Parameter(converter=whole_number)
AtLeastOne = Parameter(converter=whole_number, validator=validators.Number(gte=1))
Switch = Parameter(negative="", show_default=False)
Device = Annotated[
    Literal["auto", "cpu", "cuda"],
    Parameter(help="Where to compute; auto takes a GPU when there is one."),
]
Json = Annotated[
    bool, Switch, Parameter(help="Print one JSON document on standard output and nothing else.")
]


def parameters(cls: type, title: str, *, skip: Iterable[str] = ()) -> list[inspect.Parameter]:
    """One keyword parameter per field, all defaulting to None: what was not given must not shadow a
    preset.
    """
    group = Group.create_ordered(title)
    return [
        _parameter(option, group) for option in config.options(cls) if option.name not in set(skip)
    ]


def command(function: Callable[..., Any], *more: list[inspect.Parameter]) -> Callable[..., Any]:
    """`function` with further keyword parameters in its signature; they arrive in its `**flags`."""
    own = [
        p
        for p in inspect.signature(function, eval_str=True).parameters.values()
        if p.kind is not p.VAR_KEYWORD
    ]

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    call.__doc__, call.__name__ = function.__doc__, function.__name__
    call.__signature__ = inspect.Signature([*own, *(p for group in more for p in group)])  # type: ignore[attr-defined]
    return call


def given(flags: Mapping[str, Any], cls: type) -> dict[str, Any]:
    """The fields of `cls` that were given on the command line."""
    names = {option.name for option in config.options(cls)}
    return {name: value for name, value in flags.items() if name in names and value is not None}


def asked_for(words: Sequence[str], flag: str) -> str | None:
    """The value of a flag, read before parsing: other flags depend on it."""
    for place, word in enumerate(words):
        if word == flag and place + 1 < len(words):
            return words[place + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None


def _parameter(option: config.Option, group: Group) -> inspect.Parameter:
    # Without None, or the word "none" would be taken for it.
    kinds = [kind for kind in config.alternatives(option.type) if kind is not types.NoneType]
    default = (
        "" if option.default in (None, dataclasses.MISSING) else f" [default: {option.default}]"
    )
    declared = Parameter(
        name=SPELLING.get(option.name),
        help=option.help + default,
        group=group,
        show_default=False,
        converter=whole_number if kinds == [int] else None,
    )
    kind = functools.reduce(operator.or_, kinds)
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind, declared],
    )
