"""Flags from configuration classes: each field of a method, an inference or a setup is a flag."""

import dataclasses
import functools
import inspect
import operator
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from cyclopts import App, Group, Parameter, Token, convert, validators

from pseudocore.core import config
from pseudocore.runtime import COMPILE_HELP, Compile

_SPELLINGS = {"per_class": ("--ipc", "--per-class")}
"""Fields whose flag is not only their name."""


def typed(kind: Any, tokens: Sequence[Token]) -> Any:
    """A value of `kind` without None, which the word "none" would otherwise give; 3.5 is no int."""
    if kind is not int:
        return convert(kind, tokens)
    try:
        number = int(tokens[0].value)
    except ValueError:
        raise ValueError(f"{tokens[0].value!r} is not a whole number") from None
    if abs(number) >= 2**63:
        raise ValueError(f"{number} is too large")
    return number


FAULTS = "Published faults, to reproduce printed numbers"
"""Heading of the switches that make something wrong on purpose."""

Whole = Parameter(converter=typed)
AtLeastOne = Parameter(converter=typed, validator=validators.Number(gte=1))
Switch = Parameter(negative="", show_default=False)
CompileMode = Annotated[Compile, Parameter(help=COMPILE_HELP)]
Device = Annotated[
    Literal["auto", "cpu", "cuda"],
    Parameter(help="Device to compute on; auto takes a GPU when there is one."),
]
Json = Annotated[
    bool, Switch, Parameter(help="Print one JSON document on standard output and nothing else.")
]


def parameters(cls: type, title: str, *, skip: Collection[str] = ()) -> list[inspect.Parameter]:
    """One keyword parameter per field; all default to None, so that presets are not overridden."""
    group, faults = Group.create_ordered(title), Group.create_ordered(FAULTS)
    shown = [one for one in config.options(cls) if one.name not in skip]
    return [_parameter(one, faults if one.is_fault else group) for one in shown]


def extend(function: Callable[..., Any], more: Iterable[inspect.Parameter]) -> Callable[..., Any]:
    """Add keyword parameters to the signature of `function`, which takes them as `**flags`."""
    signature = inspect.signature(function, eval_str=True)
    own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    extended = signature.replace(parameters=[*own, *more])
    function.__signature__ = extended  # type: ignore[attr-defined]
    return function


def verb(name: str, function: Callable[..., Any], more: Iterable[inspect.Parameter] = ()) -> App:
    """A verb that calls `function`, with further keyword parameters in its `**flags`."""
    app = App(name=name)
    app.default(extend(function, more))
    return app


def given(flags: Mapping[str, Any], cls: type) -> dict[str, Any]:
    """The fields of `cls` that were given on the command line."""
    names = {option.name for option in config.options(cls)}
    return {name: value for name, value in flags.items() if name in names and value is not None}


def value_of(words: Sequence[str], flag: str) -> str | None:
    """The value of a flag, read before parsing because other flags depend on it."""
    for place, word in enumerate(words):
        if word == flag and place + 1 < len(words):
            return words[place + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None


def _parameter(option: config.Option, group: Group) -> inspect.Parameter:
    kinds = [kind for kind in config.alternatives(option.type) if kind is not types.NoneType]
    has_default = option.default not in (None, dataclasses.MISSING)
    flag = Parameter(
        name=_SPELLINGS.get(option.name),
        help=option.help.removeprefix(config.FAULT)
        + (f" [default: {option.default}]" if has_default else ""),
        group=group,
        show_default=False,
        converter=None if kinds == [bool] else typed,
    )
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[functools.reduce(operator.or_, kinds) | None, flag],
    )
