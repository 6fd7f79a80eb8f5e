"""Data larger than memory, copied piece by piece into arrays that are memory-mapped from then on.

The source is a Parquet file, or a folder of Parquet files or of .npz shards. A file called `test` is
the test half; without one, random examples are held out. One piece is in memory at a time, and the
labels.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pseudocore.core.errors import ConfigError, DataError
from pseudocore.core.optional import optional_module
from pseudocore.data import arrays
from pseudocore.data.splits import TEST_FRACTION
from pseudocore.store.files import writing

ROWS = 65_536
"""Rows of a Parquet file that are read at once."""

MOST_HELD_OUT = 10_000
"""Examples that are held out for a test half, at most."""

Piece = tuple[np.ndarray, np.ndarray]
"""Inputs (n, …) and labels (n,)."""


class Pieces(NamedTuple):
    """A source, which can be read again and again."""

    read: Callable[[], Iterator[Piece]]
    labels: Callable[[], Iterator[np.ndarray]]


def import_streamed(
    source: Path, folder: Path, *, target: str | None = None, half: bool = False, seed: int = 0
) -> Path:
    """Copy a data set into a folder of .npy files, in place of an earlier one.

    Args:
        source: A Parquet file, or a folder of .parquet or .npz files.
        folder: Where `load` will find it.
        target: Column of a Parquet file that holds the labels.
        half: Keep features in half precision.
        seed: Decides which examples are held out, where there is no test file.

    Returns:
        The folder.
    """
    train, test = _halves(source, target)
    y, names = _coded(train.labels(), source)
    if test is None:
        num_held = min(MOST_HELD_OUT, int(TEST_FRACTION * len(y)))
        held = np.zeros(len(y), bool)
        held[np.random.default_rng(seed).permutation(len(y))[:num_held]] = True
        parts = {"train": (train, y, ~held), "test": (train, y, held)}
    else:
        y_test, _ = _coded(test.labels(), source, names)
        every = (np.ones(len(one), bool) for one in (y, y_test))
        parts = {"train": (train, y, next(every)), "test": (test, y_test, next(every))}
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            for name, (pieces, labels, kept) in parts.items():
                np.save(partial / f"{name}_y.npy", labels[kept])
                _write(partial / f"{name}_x.npy", pieces.read(), kept, half, source)
            np.save(partial / "class_names.npy", np.array(list(map(str, names))))
            if folder.is_dir():
                shutil.rmtree(folder)
            partial.rename(folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    return folder


def _halves(source: Path, target: str | None) -> tuple[Pieces, Pieces | None]:
    paths = [source]
    if source.is_dir():
        found = [path for path in sorted(source.iterdir()) if path.suffix in (".parquet", ".npz")]
        suffixes = {path.suffix for path in found}
        if len(suffixes) != 1:
            raise DataError(
                f"{source} must hold .parquet files or .npz shards, of one kind",
                code="unknown-layout",
                path=source,
            )
        paths = found
    is_parquet = paths[0].suffix == ".parquet"
    if not is_parquet and target is not None:
        raise ConfigError(
            f"target = {target!r} is a column of a table, and {source} holds arrays; leave it out",
            code="unused-option",
            option="target",
        )
    if paths[0].suffix not in (".parquet", ".npz"):
        raise DataError(
            f"{source} cannot be streamed; .parquet files and folders of .npz shards can",
            code="unknown-layout",
            path=source,
        )
    make = _of_parquet if is_parquet else _of_shards
    test = [path for path in paths if path.stem == "test"]
    train = [path for path in paths if path.stem != "test"]
    if not train:
        raise DataError(f"{source} has no training examples", code="no-examples", path=source)
    return make(train, target), make(test, target) if test else None


def _of_parquet(paths: list[Path], target: str | None) -> Pieces:
    arrow = optional_module("pyarrow", "pyarrow", "parquet")
    parquet = optional_module("pyarrow.parquet", "pyarrow", "parquet")

    def batches(path: Path, columns: list[str] | None) -> Iterator[Any]:
        try:
            with parquet.ParquetFile(path) as file:
                names = file.schema_arrow.names
                if target not in names:
                    raise ConfigError(
                        f"name the column of {path} that holds the labels (--target), one of"
                        f" {', '.join(names[-8:])}",
                        code="unknown-column",
                        column=target,
                    )
                for field in file.schema_arrow:
                    kinds = arrow.types
                    is_number = kinds.is_integer(field.type) or kinds.is_floating(field.type)
                    if field.name != target and not (is_number or kinds.is_boolean(field.type)):
                        raise DataError(
                            f"column {field.name!r} of {path} holds {field.type}; only numbers can"
                            " be streamed",
                            code="text-column",
                            column=field.name,
                        )
                yield from file.iter_batches(batch_size=ROWS, columns=columns)
        except (arrow.ArrowException, OSError) as error:
            message = f"{path} cannot be read as a Parquet file ({error})".splitlines()[0]
            raise DataError(message, code="damaged-data", path=path) from error

    def column(batch: Any, name: str) -> np.ndarray:
        values: np.ndarray = batch.column(name).to_numpy(zero_copy_only=False)
        return values

    def read() -> Iterator[Piece]:
        for path in paths:
            for batch in batches(path, None):
                names = [name for name in batch.schema.names if name != target]
                x = np.column_stack([column(batch, name).astype(np.float32) for name in names])
                yield x, column(batch, str(target))

    def labels() -> Iterator[np.ndarray]:
        for path in paths:
            for batch in batches(path, None if target is None else [target]):
                yield column(batch, str(target))

    return Pieces(read, labels)


def _of_shards(paths: list[Path], target: str | None) -> Pieces:
    def read() -> Iterator[Piece]:
        for path in paths:
            half = arrays.read_npz(path).halves[0]
            yield np.asarray(half.x), np.asarray(half.y)

    return Pieces(read, lambda: (y for _, y in read()))


def _coded(
    labels: Iterator[np.ndarray], source: Path, names: list[Any] | None = None
) -> tuple[np.ndarray, list[Any]]:
    """Places of labels among the sorted classes, and the classes."""
    codes: dict[Any, int] = {}
    found = []
    for part in labels:
        values, inverse = np.unique(part, return_inverse=True)
        if values.dtype.kind == "f" and not (np.isfinite(values) & (values % 1 == 0)).all():
            raise DataError(
                f"labels of {source} must be whole numbers or texts; regressions cannot be streamed",
                code="labels",
            )
        values = values.astype(np.int64) if values.dtype.kind in "fbiu" else values
        places = [codes.setdefault(value, len(codes)) for value in values.tolist()]
        found.append(np.array(places, np.int64)[inverse.reshape(-1)])
    if not found:
        raise DataError(f"{source} has no examples", code="no-examples", path=source)
    classes = sorted(codes, key=lambda one: (isinstance(one, str), one)) if names is None else names
    if unknown := [name for name in codes if name not in classes]:
        raise DataError(
            f"the test half of {source} has a class {unknown[0]!r} that the training half has not",
            code="empty-class",
        )
    place = {name: number for number, name in enumerate(classes)}
    order = np.array([place[name] for name in codes])
    return order[np.concatenate(found)], classes


def _write(path: Path, pieces: Iterator[Piece], kept: np.ndarray, half: bool, source: Path) -> None:
    """The inputs of some examples, a piece at a time."""
    start = at = 0
    out: np.ndarray | None = None
    for x, _ in pieces:
        part = x[kept[start : start + len(x)]]
        start += len(x)
        if out is None:
            dtype = np.dtype(np.float16) if half else np.dtype(np.float32)
            dtype = x.dtype if x.dtype == np.uint8 else dtype
            shape = (int(kept.sum()), *x.shape[1:])
            out = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
        if part.shape[1:] != out.shape[1:]:
            raise DataError(
                f"inputs of {source} have shapes {out.shape[1:]} and {part.shape[1:]}",
                code="shapes-differ",
            )
        if half and np.abs(part).max(initial=0) > np.finfo(np.float16).max:
            raise DataError(
                f"{source} holds values above 65,504, which half precision has not; leave out half",
                code="out-of-range",
            )
        out[at : at + len(part)] = part
        at += len(part)
    if out is not None and isinstance(out, np.memmap):
        out.flush()
