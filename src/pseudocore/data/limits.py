"""How much memory reading a data set may take.

A small file may say of itself, or inflate to, more than fits into memory. Every reader checks the
size of what it is about to make first. Arrays that are mapped from a file are not counted.
"""

import gzip
import math
import os
import stat
import zlib
from pathlib import Path

from pseudocore.core.errors import ConfigError, DataError
from pseudocore.data.reading import damaged
from pseudocore.store.files import read_regular

VARIABLE = "PSEUDOCORE_DATA_LIMIT"
"""Environment variable with the limit in GiB, as `--data-limit` sets it."""

DEFAULT_GIB = 4.0


def data_limit() -> int:
    """Bytes that the arrays of one file may take in memory."""
    text = os.environ.get(VARIABLE) or str(DEFAULT_GIB)
    try:
        limit = float(text)
    except ValueError:
        limit = math.nan
    if not 0 < limit < 2**20:
        message = f"the data limit {text[:40]!r} is not a number of GiB above 0 (--data-limit"
        message = f"{message}, {VARIABLE})"
        raise ConfigError(message, code="out-of-range", option="data_limit")
    return int(limit * 2**30)


def check_size(path: Path, num_bytes: int, what: str = "its arrays") -> None:
    """Refuse a file that would take more memory than the limit."""
    limit = data_limit()
    if num_bytes > limit:
        raise DataError(
            f"{path} is too large: {what} would take {_gib(num_bytes)} GiB of memory, and the limit"
            f" is {_gib(limit)}; --data-limit GIB (or {VARIABLE}) raises it for files you trust",
            code="data-limit",
            path=path,
            num_bytes=num_bytes,
            limit=limit,
        )


def read_bytes(path: Path) -> bytes:
    """The content of a regular file within the limit."""
    if stat.S_ISREG((found := path.stat()).st_mode):
        check_size(path, found.st_size, "its content")
    return read_regular(path, DataError)


def gunzip(path: Path, expected: int | None = None) -> bytes:
    """The content of a gzipped file, inflated no further than one byte beyond `expected`, or else
    beyond the limit.
    """
    limit = data_limit() if expected is None else min(expected, data_limit())
    try:
        with gzip.open(path) as file:
            content = file.read(limit + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, f"cannot be read ({error})") from error
    if expected is None:
        check_size(path, len(content), "its content")
    return content


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.3g}"
