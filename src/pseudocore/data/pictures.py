"""Folders of pictures: Tiny-ImageNet as it is distributed, and `DIR/train/<class>/*.png`,
`DIR/test/<class>/*.png`. Pillow is imported when the first picture is read.

A folder of class folders without the train/test level is split by file name. Within each class,
files are in the order of the BLAKE2 hash of `<class>/<file>`, and the first fifth is the test set.
Classes are numbered in the order of their names, or of their values when all names are whole
numbers.
"""

import hashlib
import itertools
import os
from collections.abc import Sequence
from pathlib import Path

import torch

from pseudocore.core.errors import DataError
from pseudocore.core.types import Dataset, Examples
from pseudocore.data.decoding import SUFFIXES, is_picture, pixels
from pseudocore.data.reading import damaged, existing, legible, text_of
from pseudocore.data.splits import TEST_FRACTION

Labelled = list[tuple[Path, int]]


def is_tiny_imagenet(folder: Path) -> bool:
    return (folder / "wnids.txt").is_file() and (folder / "train").is_dir()


def read_tiny_imagenet(folder: Path, name: str = "", size: int | None = None) -> Dataset:
    """`train/<wnid>/images/*.JPEG`, and `val/` with its annotations as the test set.

    Labels are in the order of `wnids.txt`.
    """
    wnids = text_of(folder / "wnids.txt").split()
    if not wnids:
        raise damaged(folder / "wnids.txt", "names no classes")
    train = _labelled([folder / "train" / wnid / "images" for wnid in wnids])
    test = _validation(folder / "val", wnids)
    train_set, test_set = (
        Examples(pixels([path for path, _ in part], grey=False, size=size), _labels(part))
        for part in (train, test)
    )
    words = _words(folder, wnids)
    return Dataset(name or "tiny-imagenet", train_set, test_set, len(wnids), words)


def is_class_folders(folder: Path) -> bool:
    """Whether there are pictures two levels down, or three under `train`."""
    top = folder / "train" if (folder / "train").is_dir() else folder
    return any(is_picture(path) for child in _subfolders(top) for path in child.iterdir())


def read_class_folders(folder: Path, name: str, size: int | None = None) -> Dataset:
    """A folder of class folders, with or without a level of train and test (or val).

    Args:
        folder: The folder.
        name: What to call the data set.
        size: Height and width to bring every picture to. By default all must have one size.
    """
    top = folder / "train"
    notes: tuple[str, ...] = ()
    if top.is_dir():
        held_out = next((folder / p for p in ("test", "val") if (folder / p).is_dir()), None)
        if held_out is None:
            message = f"{folder} has a train folder but no test or val folder beside it"
            raise DataError(message, code="missing-test-set", path=folder)
        classes = _class_names(top)
        if unknown := sorted(set(_class_names(held_out)) - set(classes)):
            message = f"{held_out} has a class {unknown[0]!r} that {top} does not have"
            raise DataError(message, code="unknown-class", path=held_out)
        train = _labelled([top / word for word in classes])
        words = [word for word in classes if (held_out / word).is_dir()]
        test = _labelled([held_out / word for word in words], list(map(classes.index, words)))
    else:
        classes = _class_names(folder)
        train, test = _split(_labelled([folder / word for word in classes]))
        notes = (
            f"{folder} has no test half: {len(test)} of {len(train) + len(test)} pictures are held"
            " out, chosen in each class by the hash of their names",
        )
    images = pixels([path for path, _ in train + test], size=size)
    x = images.split_with_sizes([len(train), len(test)])
    train_set, test_set = Examples(x[0], _labels(train)), Examples(x[1], _labels(test))
    return Dataset(
        name, train_set, test_set, len(classes), tuple(map(legible, classes)), notes=notes
    )


def _subfolders(folder: Path) -> list[Path]:
    return [
        path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith(".")
    ]


def _class_names(folder: Path) -> list[str]:
    names = [path.name for path in _subfolders(folder)]
    return sorted(names, key=int) if all(name.isdecimal() for name in names) else names


def _labelled(folders: Sequence[Path], labels: Sequence[int] | None = None) -> Labelled:
    """The pictures of every folder, with its label, which defaults to its place."""
    pictures: Labelled = []
    for folder, label in zip(folders, labels or range(len(folders)), strict=True):
        paths = sorted(filter(is_picture, folder.iterdir())) if folder.is_dir() else []
        if not paths:
            message = f"{folder} holds no pictures ({', '.join(SUFFIXES)}); every class needs some"
            raise DataError(message, code="empty-class", path=folder)
        pictures += [(path, label) for path in paths]
    return pictures


def _split(pictures: Labelled) -> tuple[Labelled, Labelled]:
    test: Labelled = []
    for _, group in itertools.groupby(pictures, key=lambda picture: picture[1]):
        own = sorted(group, key=lambda picture: _hash(picture[0]))
        num_test = max(1, round(TEST_FRACTION * len(own)))
        if num_test == len(own):
            folder = own[0][0].parent
            message = f"{folder} holds only {len(own)} picture; a class needs two, one to test on"
            raise DataError(message, code="too-few-pictures", path=folder)
        test += sorted(own[:num_test])
    held_out = set(test)
    return [picture for picture in pictures if picture not in held_out], test


def _hash(path: Path) -> bytes:
    return hashlib.blake2b(os.fsencode(f"{path.parent.name}/{path.name}")).digest()


def _labels(part: Labelled) -> torch.Tensor:
    return torch.tensor([label for _, label in part])


def _validation(folder: Path, wnids: Sequence[str]) -> Labelled:
    annotations = existing(folder / "val_annotations.txt")
    rows = [line.split("\t") for line in text_of(annotations).splitlines() if line.strip()]
    if not rows:
        raise damaged(annotations, "is empty")
    label = {wnid: i for i, wnid in enumerate(wnids)}
    for row in rows:
        if len(row) < 2 or row[1] not in label:
            raise damaged(annotations, f"has a line {' '.join(row)!r} of no class of wnids.txt")
        if Path(row[0]).name != row[0]:
            raise damaged(annotations, f"names the picture {row[0]!r}, which is no plain file name")
    return [(folder / "images" / row[0], label[row[1]]) for row in rows]


def _words(folder: Path, wnids: Sequence[str]) -> tuple[str, ...]:
    """The first word of each class in `words.txt`, or the wnids themselves."""
    path = folder / "words.txt"
    lines = (line.split("\t") for line in text_of(path).splitlines()) if path.is_file() else ()
    words = {line[0]: line[1].split(",")[0] for line in lines if len(line) == 2}
    return tuple(words.get(wnid, wnid) for wnid in wnids)
