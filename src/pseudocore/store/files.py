"""Bytes, JSON and TOML in files: written whole or not at all, read with an error that says why not.

JSON is strict: NaN and the infinities are written as the strings "NaN", "Infinity" and "-Infinity".
Reading turns exactly these strings back into floats, so a text that equals one of them comes back
as a number.
"""

import contextlib
import errno
import functools
import glob
import json
import math
import os
import re
import secrets
import shutil
import stat
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from torch import Tensor

from pseudocore.core.errors import ArtifactError, ConfigError, PseudocoreError, RunError

StrPath = str | os.PathLike[str]


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that replaces `path` atomically when the block ends; nothing changes if it fails.

    Several writers do not disturb each other: each has a new file of its own, and the last one to
    end wins. A device or pipe is not replaced.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):  # the system refuses a folder
        raise file_error(path, "is no regular file and is not replaced", "not-a-file", RunError)
    if not path.name:  # ".", "/" or nothing
        raise file_error(path, "is a folder; name a file in it", "not-a-file", RunError)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(6)}.partial")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    with writing(path):
        handle = os.open(partial, flags | getattr(os, "O_BINARY", 0), 0o666)
        try:
            with open(handle, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


def write_bytes(path: StrPath, data: bytes) -> None:
    """Replace a file atomically: after a crash it holds the old bytes or the new ones."""
    with replacing(Path(path)) as file:
        file.write(data)


@contextlib.contextmanager
def writing(path: StrPath) -> Iterator[None]:
    """Turn an `OSError` in the block into a `RunError` about writing `path`."""
    try:
        yield
    except OSError as error:
        message = f"cannot write {path}: {_reason(error)}; what was saved before is intact"
        raise RunError(message, code="unwritable-file", path=path) from error


@contextlib.contextmanager
def reading(path: StrPath, error: type[PseudocoreError] = ArtifactError) -> Iterator[None]:
    """Turn an `OSError` in the block into an `error` about reading `path`."""
    try:
        yield
    except OSError as cause:
        message = f"cannot read {cause.filename or path}: {_reason(cause)}"
        raise error(message, code="unreadable-file", path=path) from cause


def read_regular(path: StrPath, error: type[PseudocoreError] = ArtifactError) -> bytes:
    """The content of a regular file; a pipe or device, which may never end, is refused."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with reading(path, error):
        handle = os.open(path, flags)
        try:
            mode = os.fstat(handle).st_mode
            if stat.S_ISDIR(mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
            if not stat.S_ISREG(mode):
                raise file_error(path, "is not a regular file", "not-a-file", error)
            with open(handle, "rb", closefd=False) as file:
                return file.read()
        finally:
            os.close(handle)


def file_error(
    path: StrPath, what: str, code: str, error: type[PseudocoreError] = ArtifactError, **fields: Any
) -> PseudocoreError:
    """The error that says `what` of a file or folder."""
    return error(f"{path} {what}", code=code, path=path, **fields)


def refuse_link(path: Path) -> None:
    """Refuse to write through a symbolic link inside a folder of ours: it may lead anywhere."""
    if path.is_symlink():
        message = "is a symbolic link, which is not followed; remove it"
        raise file_error(path, message, "symbolic-link", RunError)


def remove_partials(path: Path) -> None:
    """Remove what killed writers of `path` have left."""
    for partial in path.parent.glob(f".{glob.escape(path.name)}*.partial"):
        partial.unlink(missing_ok=True)


def reserve(folder: Path, num_bytes: int, advice: str) -> None:
    """Refuse to begin what does not fit on the disk."""
    free = shutil.disk_usage(folder).free
    if num_bytes > free:
        sizes = f"{free / 2**20:.0f} MiB free, {num_bytes / 2**20:.0f} MiB are needed"
        raise file_error(folder, f"has {sizes}; {advice}", "disk-full", RunError, free=free)


def encode_json(value: Any, *, indent: int | None = None, sort_keys: bool = False) -> str:
    """JSON of nested mappings, sequences, paths, plain values and one-element arrays or tensors."""
    encode = functools.partial(
        json.dumps, default=_plain, indent=indent, sort_keys=sort_keys, allow_nan=False
    )
    try:
        return encode(value)
    except (TypeError, ValueError):  # a NaN, an infinity or an odd key
        return encode(_all_plain(value))


def decode_json(text: str | bytes) -> Any:
    """The value of a JSON text; `ValueError` when it is not JSON."""
    try:
        return _restored(json.loads(text, object_hook=_restored_table))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def write_json(path: StrPath, value: Any) -> None:
    """Replace a JSON file atomically."""
    write_bytes(path, (encode_json(value, indent=2) + "\n").encode())


def read_json(path: StrPath) -> dict[str, Any]:
    """The object in a JSON file."""
    try:
        value = decode_json(read_regular(path))
    except ValueError as error:
        message = f"is damaged: it is not JSON ({error})"
        raise file_error(path, message, "damaged-file") from error
    if not isinstance(value, dict):
        message = f"is damaged: it holds {type(value).__name__}, not a JSON object"
        raise file_error(path, message, "damaged-file")
    return value


def encode_toml(mapping: Mapping[str, Any]) -> str:
    """TOML of a nested mapping; tuples become arrays, plain values precede tables."""
    return "\n".join(_table_lines(mapping, ())) + "\n" if mapping else ""


def decode_toml(text: str, *, source: str = "TOML") -> dict[str, Any]:
    """The mapping of a TOML text; errors name it `source`."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"{source}: it is nested too deeply", code="invalid-toml") from None
    except ValueError as error:
        message, line = str(error), text.count("\n") + (not text.endswith("\n"))
        if found := re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", message):
            message, line = message[: found.start()], int(found[1] or line)
        message = f"{source}, line {line}: {message}"
        raise ConfigError(message, code="invalid-toml", source=source, line=line) from error


def read_toml(path: StrPath) -> dict[str, Any]:
    """The mapping in a TOML file."""
    data = read_regular(path, ConfigError)
    try:
        return decode_toml(data.decode(), source=os.fspath(path))
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        message = f"{path}, line {line}: byte {data[error.start]:#04x} is not UTF-8 text"
        raise ConfigError(message, code="invalid-toml", source=path, line=line) from error


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, np.generic | Tensor):
        return value.item()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _all_plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _all_plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_all_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    is_plain = value is None or isinstance(value, str | int | float)
    return value if is_plain else _all_plain(_plain(value))


def _restored_table(table: dict[str, Any]) -> dict[str, Any]:
    return {key: _restored(entry) for key, entry in table.items()}


def _restored(value: Any) -> Any:
    if isinstance(value, list):
        return [_restored(entry) for entry in value]
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value


_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _table_lines(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    lines = []
    for name, value in table.items():
        if not isinstance(value, Mapping):
            lines.append(f"{_key(name)} = {_value(value, (*path, name))}")
    for name, value in table.items():
        if isinstance(value, Mapping):
            lines += [""] if lines or path else []
            lines += [f"[{'.'.join(map(_key, (*path, name)))}]"]
            lines += _table_lines(value, (*path, name))
    return lines


def _key(name: Any) -> str:
    if not isinstance(name, str):
        raise ConfigError(f"a TOML key must be a string, not {name!r}", code="not-toml")
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _text(name)


def _value(value: Any, path: tuple[str, ...]) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return float.__repr__(value)  # TOML shares its exponents, inf and nan
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(entry, path) for entry in value) + "]"
    if isinstance(value, Mapping):
        entries = (f"{_key(name)} = {_value(entry, path)}" for name, entry in value.items())
        return "{" + ", ".join(entries) + "}"
    hint = "; leave it out instead" if value is None else ""
    message = f"{'.'.join(path)} = {value!r} cannot be written as TOML{hint}"
    raise ConfigError(message, code="not-toml")


def _text(text: str) -> str:
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise ConfigError(f"{text!r} is not valid Unicode, as TOML must be", code="not-toml")
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _reason(error: OSError) -> str:
    """The operating system's words, for the middle of a sentence."""
    words = error.strerror or str(error) or type(error).__name__
    return words[:1].lower() + words[1:]


def _sync_folder(folder: Path) -> None:
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:  # Windows opens no folders, and one may be writable but not readable
        return
    try:
        os.fsync(handle)
    except OSError as error:  # some file systems cannot sync a folder; the file is in place
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)
