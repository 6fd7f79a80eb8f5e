"""The TOML that configurations need: nested tables of text, numbers, booleans and lists, written so
that they read back equal.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pseudocore.core.errors import ConfigError
from pseudocore.store.files import StrPath, reason_of


def dumps(mapping: Mapping[str, Any]) -> str:
    """TOML of a nested mapping; tuples become arrays, plain values come before tables."""
    return "\n".join(_table_lines(mapping, ())) + "\n" if mapping else ""


def loads(text: str, *, source: str = "TOML") -> dict[str, Any]:
    """The mapping behind a text; `source` is what an error calls it."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"{source}: it is nested too deeply") from None
    except ValueError as error:
        message, line = _without_position(str(error))
        line = line or text.count("\n") + (
            not text.endswith("\n")
        )  # an unexpected end has no position of its own
        raise ConfigError(f"{source}, line {line}: {message}") from error


def read(path: StrPath) -> dict[str, Any]:
    """The mapping in a TOML file."""
    where = os.fspath(path)
    try:
        data = Path(path).read_bytes()
        return loads(data.decode(), source=where)
    except OSError as error:
        raise ConfigError(f"cannot read {where}: {reason_of(error)}") from error
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(
            f"{where}, line {line}: byte {data[error.start]:#04x} is not UTF-8 text"
        ) from error


def _table_lines(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    lines = []
    for name, value in table.items():
        if not isinstance(value, Mapping):
            lines.append(f"{_key(name)} = {_value(value, (*path, name))}")
    for name, value in table.items():
        if isinstance(value, Mapping):
            lines += (
                ["", f"[{'.'.join(map(_key, (*path, name)))}]"]
                if lines or path
                else [f"[{_key(name)}]"]
            )
            lines += _table_lines(value, (*path, name))
    return lines


def _key(name: Any) -> str:
    if not isinstance(name, str):
        raise ConfigError(f"a TOML key must be a text, not {name!r}")
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _text(name)


def _value(value: Any, path: tuple[str, ...]) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return float.__repr__(value)  # repr's exponents, inf and nan are TOML's too
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(entry, path) for entry in value) + "]"
    if isinstance(value, Mapping):
        return (
            "{"
            + ", ".join(
                f"{_key(name)} = {_value(entry, (*path, name))}" for name, entry in value.items()
            )
            + "}"
        )
    hint = "; leave it out instead" if value is None else ""
    raise ConfigError(f"{'.'.join(path)} = {value!r} cannot be written as TOML{hint}")


_ESCAPES = {
    '"': '\\"',
    "\\": "\\\\",
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\f": "\\f",
    "\r": "\\r",
}


def _text(text: str) -> str:
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise ConfigError(f"the text {text!r} cannot be written as TOML: it is not valid Unicode")
    return (
        '"'
        + re.sub(
            r'["\\\x00-\x1f\x7f]',
            lambda found: _ESCAPES.get(found[0], f"\\u{ord(found[0]):04x}"),
            text,
        )
        + '"'
    )


def _without_position(message: str) -> tuple[str, int | None]:
    found = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", message)
    if found is None:
        return message, None
    return message[: found.start()], int(found[1]) if found[1] else None
