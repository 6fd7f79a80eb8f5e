"""Flags from configuration classes: every field of a method, an inference or a setup is a flag, declared nowhere else."""

import dataclasses
import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

from cyclopts import Group, Parameter

from pseudocore.core import config

__all__ = ["SPELLING", "command", "given", "parameters"]

SPELLING = {"per_class": "--ipc"}
"""Fields whose flag is not their name."""


def parameters(cls: type, title: str, *, skip: Iterable[str] = ()) -> list[inspect.Parameter]:
    """One keyword parameter per field, all defaulting to None: what was not given must not shadow a preset."""
    group = Group(title, sort_key=10)
    return [_parameter(option, group) for option in config.options(cls) if option.name not in set(skip)]


def command(function: Callable[..., Any], *more: list[inspect.Parameter]) -> Callable[..., Any]:
    """`function` with further keyword parameters in its signature; they arrive in its `**flags`."""
    own = [p for p in inspect.signature(function, eval_str=True).parameters.values() if p.kind is not p.VAR_KEYWORD]

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    call.__doc__, call.__name__ = function.__doc__, function.__name__
    call.__signature__ = inspect.Signature([*own, *(p for group in more for p in group)])  # type: ignore[attr-defined]
    return call


def given(flags: Mapping[str, Any], cls: type) -> dict[str, Any]:
    """The fields of `cls` that were given on the command line."""
    names = {option.name for option in config.options(cls)}
    return {name: value for name, value in flags.items() if name in names and value is not None}


def _parameter(option: config.Option, group: Group) -> inspect.Parameter:
    kind = option.type if types.NoneType in config.alternatives(option.type) else option.type | None
    default = "" if option.default in (None, dataclasses.MISSING) else f" [default: {option.default}]"
    flag = SPELLING.get(option.name)
    declared = Parameter(name=flag, help=option.help + default, group=group, show_default=False)
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, declared])
