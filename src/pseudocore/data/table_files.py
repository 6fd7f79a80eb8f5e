"""CSV and Parquet files as tables. A folder may hold `train.csv` and `test.csv` (or `.parquet`)."""

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from pseudocore.core.errors import DataError
from pseudocore.core.optional import optional_module
from pseudocore.data.frames import table_of_arrow
from pseudocore.data.limits import check_size
from pseudocore.data.reading import Half, Raw, Reading
from pseudocore.data.tables import Rows, Table, is_number, take_target

GAPS = frozenset(["", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "?"])
"""Fields of a CSV file that stand for a missing value."""

SUFFIXES = (".csv", ".tsv", ".parquet")
_DELIMITERS = ",;\t|"
_BLOCK = 10_000
_GROWTH = 4
"""Bytes in memory for a byte of a CSV file: a digit and a comma are a float."""


def is_table(path: Path) -> bool:
    """Whether a path is a CSV or Parquet file, or a folder with one called `train`."""
    return path.suffix.lower() in SUFFIXES if path.is_file() else _part(path, "train") is not None


def read_table(path: Path, reading: Reading) -> Raw:
    """The halves of a file, or of the two files of a folder."""
    paths = [path]
    if path.is_dir():
        paths = [part for name in ("train", "test") if (part := _part(path, name)) is not None]
    halves, notes = [], []
    for one in paths:
        read = _read_parquet if one.suffix.lower() == ".parquet" else read_csv
        table, said = read(one)
        features, y = take_target(table, reading.target, reading.drop, str(one))
        numbers = np.arange(1, len(y) + 1)
        label = f"column {reading.target!r} of {one}"
        halves.append(Half(Rows(features, numbers, str(one)), y, label, str(one)))
        notes += said
    return Raw(tuple(halves), notes=tuple(notes))


def _part(folder: Path, name: str) -> Path | None:
    paths = [folder / f"{name}{suffix}" for suffix in SUFFIXES]
    return next((path for path in paths if path.is_file()), None)


def _read_parquet(path: Path) -> tuple[Table, list[str]]:
    arrow = optional_module("pyarrow", "pyarrow", "parquet")
    parquet = optional_module("pyarrow.parquet", "pyarrow", "parquet")
    try:
        with parquet.ParquetFile(path) as file:
            about = file.metadata
            groups = (about.row_group(number) for number in range(about.num_row_groups))
            stored = sum(max(0, group.total_byte_size) for group in groups)
            shown = 8 * about.num_rows * max(1, about.num_columns)
            check_size(path, max(stored, shown), "its columns")
            return table_of_arrow(file.read(), str(path)), []
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        message = f"{path} cannot be read as a Parquet file ({error})".splitlines()[0]
        raise DataError(message, code="damaged-data", path=path) from error


def read_csv(path: Path) -> tuple[Table, list[str]]:
    """Numbers in one pass, a block of rows at once; columns of texts in a second one."""
    check_size(path, _GROWTH * path.stat().st_size, "its columns")
    known: dict[str, str] = {}  # of equal texts one is kept
    with _opened(path) as lines:
        header = _header(path, next(lines, []))
        numbers: dict[str, list[np.ndarray]] = {name: [] for name in header}
        num_rows = 0
        for block in _blocks(path, lines, len(header)):
            num_rows += len(block)
            for name, fields in zip(header, zip(*block, strict=True), strict=True):
                if name in numbers and (floats := _floats(fields)) is not None:
                    numbers[name].append(floats)
                else:
                    numbers.pop(name, None)
    if not num_rows:
        raise DataError(f"{path} has no rows below its header", code="no-examples", path=path)
    texts = {name: np.empty(num_rows, object) for name in header if name not in numbers}
    if texts:
        with _opened(path) as lines:
            next(lines)
            start = 0
            for block in _blocks(path, lines, len(header)):
                part = slice(start, start := start + len(block))
                for name, fields in zip(header, zip(*block, strict=True), strict=True):
                    if name in texts:
                        texts[name][part] = [_known(field, known) for field in fields]
    table = {
        name: texts[name] if name in texts else np.concatenate(numbers[name]) for name in header
    }
    if "" in table:
        del table[""]
        return table, [f"a column without a name in {path} is left out"]
    return table, []


def _floats(fields: tuple[str, ...]) -> np.ndarray | None:
    """The numbers that fields spell, NaN for gaps; None if one spells no number."""
    try:
        return np.array(list(map(float, fields)))
    except ValueError:
        texts = map(_text, fields)
    try:
        return np.array([np.nan if text is None else float(text) for text in texts])
    except ValueError:
        return None


def _text(field: str) -> str | None:
    text = field.strip()
    return None if text in GAPS else text


def _known(field: str, known: dict[str, str]) -> str | None:
    text = _text(field)
    return text if text is None else known.setdefault(text, text)


def _header(path: Path, fields: list[str]) -> list[str]:
    names = [name.strip() for name in fields]
    if not any(names):
        raise DataError(f"{path} has no header line", code="no-header", path=path)
    if all(is_number(name) for name in names):
        message = f"the first line of {path} must name the columns, but holds only numbers"
        raise DataError(message, code="no-header", path=path)
    repeated = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if repeated is not None:
        message = f"{path} has two columns named {repeated!r}"
        raise DataError(message, code="repeated-column", path=path, column=repeated)
    return names


def _blocks(path: Path, lines: Iterator[list[str]], width: int) -> Iterator[list[list[str]]]:
    """Rows of `width` fields, many at a time; blank lines are skipped."""
    block: list[list[str]] = []
    number = 0
    for fields in lines:
        if not fields:
            continue
        number += 1
        if len(fields) != width:
            raise DataError(
                f"row {number} of {path} has {len(fields)} fields, but there are {width} columns",
                code="ragged-row",
                path=path,
                row=number,
            )
        block.append(fields)
        if len(block) == _BLOCK:
            yield block
            block = []
    if block:
        yield block


@contextmanager
def _opened(path: Path) -> Iterator[Iterator[list[str]]]:
    """The fields of each line; errors of decoding and of the format name the file."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            counts = {mark: first.count(mark) for mark in _DELIMITERS}
            yield csv.reader(file, delimiter=max(counts, key=lambda mark: counts[mark]))
    except UnicodeDecodeError as error:
        byte = f"{error.object[error.start]:#04x}"
        message = f"{path} is not UTF-8 text (it holds the byte {byte}); save it as UTF-8"
        raise DataError(message, code="damaged-data", path=path) from error
    except csv.Error as error:
        message = f"{path} cannot be read as CSV ({error})"
        raise DataError(message, code="damaged-data", path=path) from error
