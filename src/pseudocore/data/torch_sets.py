"""Data sets and loaders of torch: any `Dataset` of pairs (input, label), stacked."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
    default_convert,
)
from torch.utils.data import Dataset as TorchDataset

from pseudocore.core.errors import DataError
from pseudocore.data.arrays import as_array
from pseudocore.data.decoding import array_of, stacked
from pseudocore.data.frames import library
from pseudocore.data.reading import Half, Layout, Raw, Reading

_KEYS = (
    ("x", "y"),
    ("input", "target"),
    ("inputs", "labels"),
    ("image", "label"),
    ("img", "label"),
)


def read(source: "TorchDataset[Any] | DataLoader[Any]", reading: Reading, what: str) -> Raw:
    """All items, in the order of the data set.

    A loader is read through its data set, so that shuffling changes nothing; one with a sampler or
    a way of batching of its own is iterated once.
    """
    items: Iterable[Any]
    if isinstance(source, DataLoader):
        if _is_plain(source):
            return read(source.dataset, reading, what)
        items = source if source.batch_sampler is None else _unbatched(source, what)
    elif isinstance(source, IterableDataset):
        items = source
    else:
        items = (source[place] for place in range(_length(source, what)))
    x, y, names = [], [], []
    first: Any = None
    for place, item in enumerate(items):
        one, label = _pair(item, place, what)
        names.append(f"item {place} of {what}")
        x.append(array_of(one, names[-1]) if library(one) == "PIL" else as_array(one))
        y.append(label.item() if hasattr(label, "item") else label)
        first = one if first is None else first
    if not x:
        raise DataError(f"{what} is empty", code="no-examples", where=what)
    layout: Layout | None = None if isinstance(first, np.ndarray) else "NCHW"
    inputs = stacked(x, names, reading.resize)
    return Raw((Half(inputs, np.array(y), f"the labels of {what}", what),), layout=layout)


def _is_plain(loader: "DataLoader[Any]") -> bool:
    """Whether a loader gives every item of its data set once, as it is."""
    return (
        type(loader.sampler) in (SequentialSampler, RandomSampler)
        and type(loader.batch_sampler) in (BatchSampler, type(None))
        and loader.collate_fn in (default_collate, default_convert)
        and not isinstance(loader.dataset, IterableDataset)
    )


def _length(source: Any, what: str) -> int:
    try:
        return len(source)
    except TypeError as error:
        message = f"{what} has no length; give a torch Dataset with one, or an IterableDataset"
        raise DataError(message, code="no-length", where=what) from error


def _unbatched(loader: "DataLoader[Any]", what: str) -> Iterable[Any]:
    for place, batch in enumerate(loader):
        x, y = _pair(batch, place, what)
        yield from zip(x, y, strict=True)


def _pair(item: Any, place: int, what: str) -> tuple[Any, Any]:
    if isinstance(item, Mapping):
        keys = next((keys for keys in _KEYS if keys[0] in item and keys[1] in item), None)
        if keys is not None:
            return item[keys[0]], item[keys[1]]
        shown = f"a mapping of {', '.join(map(str, item))}"
    elif isinstance(item, tuple | list):
        if len(item) == 2:
            return item[0], item[1]
        shown = f"{len(item)} parts"
    else:
        shown = type(item).__name__
    raise DataError(
        f"item {place} of {what} is {shown}; a pair (input, label) is needed",
        code="no-pair",
        where=what,
        place=place,
    )
