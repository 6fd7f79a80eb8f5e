"""Configuration is a frozen dataclass of plain values (bool, int, float, str, Literal, or one of
these or None).

Command-line flags and their help, TOML presets and the checks all come from a class's fields: name,
annotation, default and the docstring under the field. Bounds live in the annotation (`Count`,
`Positive`, or `Annotated[int | None, Range(low=1)]`), choices in `Literal`. A field that may be
None has None as its default, so that leaving it out of a file means the same.
"""

import ast
import dataclasses
import inspect
import itertools
import math
import textwrap
import types
import typing
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import numpy as np

from pseudocore.core.errors import ConfigError
from pseudocore.core.registry import suggestion

T = TypeVar("T")


@dataclass(frozen=True)
class Range:
    """Inclusive bounds of a number; `above` is an exclusive lower bound."""

    low: float | None = None
    high: float | None = None
    above: float | None = None

    def complaint(self, value: float) -> str | None:
        if self != Range() and not math.isfinite(value):
            return "must be a finite number"
        if (
            self != Range()
            and isinstance(value, float)
            and (abs(value) > 1e30 or (self.above is not None and 0 < value < 1e-30))
        ):
            # float32 has to hold it, and to divide by it
            return "must be of ordinary size, 1e-30 to 1e+30"
        if self.low is not None and not value >= self.low:
            return f"must be at least {self.low:g}"
        if self.above is not None and not value > self.above:
            return f"must be above {self.above:g}"
        if self.high is not None and not value <= self.high:
            return f"must be at most {self.high:g}"
        return None


ALIASES = {"ipc": "per_class"}
"""Other names of options."""

FORMER_NAMES = {"features": "space"}
"""Of options in configurations that earlier versions wrote."""

FAULT = "Published fault: "
"""How the help of options begins that are wrong on purpose."""

Count = Annotated[int, Range(low=1)]
Whole = Annotated[int, Range(low=0)]
Positive = Annotated[float, Range(above=0)]
NonNegative = Annotated[float, Range(low=0)]
Fraction = Annotated[float, Range(low=0, high=1)]


@dataclass(frozen=True)
class Option:
    """One field of a configuration, as the command line and the docs need it."""

    name: str
    type: Any
    """The bare type: int, float, bool, str, a Literal, or `T | None`."""
    default: Any
    """`dataclasses.MISSING` when the field must be given."""
    help: str
    bounds: Range | None

    @property
    def is_fault(self) -> bool:
        """Whether it is a fault of published code, kept to reproduce printed numbers."""
        return self.help.startswith(FAULT)


_known: dict[type, tuple[Option, ...]] = {}


def options(cls: type) -> tuple[Option, ...]:
    """The fields of a configuration class, in order; a class that is no dataclass has none."""
    if cls not in _known:
        _known[cls] = _read_options(cls)
    return _known[cls]


def _read_options(cls: type) -> tuple[Option, ...]:
    """What `options` keeps: the documentation of fields is read from the source, which takes
    milliseconds.
    """
    if not dataclasses.is_dataclass(cls):
        return ()
    hints = typing.get_type_hints(cls, include_extras=True)
    docs = _field_docs(cls)
    result = []
    for field in dataclasses.fields(cls):
        bare, bounds = hints[field.name], None
        if typing.get_origin(bare) is Annotated:
            bare, bounds = typing.get_args(bare)
        result.append(Option(field.name, bare, field.default, docs.get(field.name, ""), bounds))
    return tuple(result)


def without_aliases(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same options under their own names: `per_class` for `ipc`."""
    for alias, name in ALIASES.items():
        if alias in values and name in values:
            raise ConfigError(
                f"{alias} and {name} are the same option; give one of them",
                code="option-given-twice",
                options=[alias, name],
            )
    return {ALIASES.get(name, name): value for name, value in values.items()}


def with_present_names(known: Container[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """The same options, former names replaced where only the present one is known."""
    present = {
        former: name
        for former, name in FORMER_NAMES.items()
        if former not in known and name in known
    }
    return {present.get(name, name): value for name, value in values.items()}


def build(cls: type[T], values: Mapping[str, Any], *, what: str = "") -> T:
    """An instance from a mapping such as a TOML table; every problem is reported at once."""
    known = {option.name: option for option in options(cls)}
    values = with_present_names(known, without_aliases(values))
    problems = []
    for name in values:
        if name not in known:
            meant = suggestion(name, known)
            problems.append(f"unknown option {name!r}" + (f" ({meant})" if meant else ""))
    given = {name: _plain(value) for name, value in values.items() if name in known}
    given = {
        name: float(value) if _wants_float(known[name].type) and type(value) is int else value
        for name, value in given.items()
    }
    problems += [text for name, value in given.items() if (text := _problem(known[name], value))]
    problems += [
        f"{name} is required"
        for name, option in known.items()
        if option.default is dataclasses.MISSING and name not in given
    ]
    _raise(problems, what or cls.__name__)
    return cls(**given)


def check(instance: Any) -> None:
    """Refuse an instance whose values are out of type or bounds, naming all of them."""
    problems = [
        text
        for option in options(type(instance))
        if (text := _problem(option, _plain(getattr(instance, option.name))))
    ]
    _raise(problems, type(instance).__name__)


def to_dict(instance: Any) -> dict[str, Any]:
    """The plain values behind an instance; `None`s are left out, as TOML has no word for them."""
    return {
        option.name: value
        for option in options(type(instance))
        if (value := _plain(getattr(instance, option.name))) is not None
    }


def _plain(value: Any) -> Any:
    """A number of numpy's as Python's own: sweeps are written with both."""
    return value.item() if isinstance(value, np.generic) else value


def _raise(problems: list[str], what: str) -> None:
    if problems:
        raise ConfigError(f"{what}: " + "; ".join(problems))


def _problem(option: Option, value: Any) -> str | None:
    if not _is_a(option.type, value):
        return f"{option.name} = {value!r} is not {_describe(option.type)}"
    if option.bounds is not None and value is not None and (text := option.bounds.complaint(value)):
        return f"{option.name} = {value!r} {text}"
    return None


def alternatives(kind: Any) -> tuple[Any, ...]:
    """The members of a union, or the type itself."""
    union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return typing.get_args(kind) if union else (kind,)


def _is_a(kind: Any, value: Any) -> bool:
    for one in alternatives(kind):
        if typing.get_origin(one) is Literal:
            if any(
                value == choice and type(value) is type(choice) for choice in typing.get_args(one)
            ):
                return True
        elif one is float:
            if type(value) in (int, float):
                return True
        elif one is types.NoneType:
            if value is None:
                return True
        elif type(value) is one:
            return True
    return False


def _wants_float(kind: Any) -> bool:
    return float in alternatives(kind) and int not in alternatives(kind)


def _describe(kind: Any) -> str:
    words = []
    for one in alternatives(kind):
        if typing.get_origin(one) is Literal:
            words.append("one of " + ", ".join(map(repr, typing.get_args(one))))
        elif one is not types.NoneType:
            words.append(
                {
                    int: "a whole number",
                    float: "a number",
                    bool: "true or false",
                    str: "a string",
                }.get(one, str(one))
            )
    return " or ".join(words)


def _field_docs(cls: type) -> dict[str, str]:
    """The string under each annotated field, read from the source of the class and of the settings
    it extends.
    """
    docs: dict[str, str] = {}
    for parent in cls.__bases__:
        docs |= _field_docs(parent)
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError):  # builtins, and classes typed into a shell: no source, no help
        return docs
    body = typing.cast(ast.ClassDef, tree.body[0]).body
    for field, text in itertools.pairwise(body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                value=ast.Constant(value=str(words))
            ):
                docs[name] = " ".join(words.split())
    return docs
