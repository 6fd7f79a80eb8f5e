"""Data sets: found by name or path, read from their official files, made into what a network sees.
Nothing is downloaded.
"""

from pseudocore.data.augment import DSA
from pseudocore.data.builtin import digits, logistic, moons
from pseudocore.data.dataset import columns, dataset, read
from pseudocore.data.reading import Reading
from pseudocore.data.sources import (
    Found,
    available,
    find,
    import_dataset,
    load,
    search_path,
    user_folder,
)
from pseudocore.data.splits import split

__all__ = [
    "DSA",
    "Found",
    "Reading",
    "available",
    "columns",
    "dataset",
    "digits",
    "find",
    "import_dataset",
    "load",
    "logistic",
    "moons",
    "read",
    "search_path",
    "split",
    "user_folder",
]
