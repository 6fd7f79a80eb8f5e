"""Folders of pictures: Tiny-ImageNet as it is distributed, and `DIR/train/<class>/*.png`,
`DIR/test/<class>/*.png`.

A folder of class folders without the train/test level is split by file name: within each class,
files in the order of the BLAKE2 hash of `<class>/<file>`, the first fifth to the test set; where
the folder lies and what the pictures show plays no part. Classes are numbered in the order of their
names, or of their values when all names are whole numbers.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch

from pseudocore.core.errors import DataError
from pseudocore.core.types import Dataset, Examples
from pseudocore.data.pictures import is_picture, read_pictures

TEST_FRACTION = 0.2
Labelled = list[tuple[Path, int]]


def recognise_tiny_imagenet(folder: Path) -> bool:
    return (folder / "wnids.txt").is_file() and (folder / "train").is_dir()


def read_tiny_imagenet(folder: Path, name: str = "") -> Dataset:
    """`train/<wnid>/images/*.JPEG`, and `val/` with its annotations as test set; labels in the
    order of `wnids.txt`.
    """
    wnids = (folder / "wnids.txt").read_text().split()
    if not wnids:
        raise DataError(
            f"{folder / 'wnids.txt'} names no classes; unpack tiny-imagenet-200.zip again"
        )
    label = {wnid: i for i, wnid in enumerate(wnids)}
    parts = (
        [
            (path, label[wnid])
            for wnid in wnids
            for path in _pictures(folder / "train" / wnid / "images")
        ],
        _validation(folder / "val", label),
    )
    train, test = (
        Examples(torch.from_numpy(read_pictures([p for p, _ in part], grey=False)), _labels(part))
        for part in parts
    )
    return Dataset(name or "tiny-imagenet", train, test, len(wnids), _words(folder, wnids))


def recognise_folders(folder: Path) -> bool:
    """Whether there are pictures two levels down, or three under `train`."""
    top = folder / "train" if (folder / "train").is_dir() else folder
    return any(is_picture(path) for child in _subfolders(top) for path in child.iterdir())


def read_folders(folder: Path, name: str) -> Dataset:
    """A folder of class folders, with or without a level of train and test (or val)."""
    if (folder / "train").is_dir():
        held_out = next(
            (folder / part for part in ("test", "val") if (folder / part).is_dir()), None
        )
        if held_out is None:
            raise DataError(f"{folder} has a train folder but no test or val folder beside it")
        classes = _class_names(folder / "train")
        if unknown := sorted(set(_class_names(held_out)) - set(classes)):
            raise DataError(
                f"{held_out} has a class {unknown[0]!r} that {folder / 'train'} does not have"
            )
        train = [
            (path, i)
            for i, word in enumerate(classes)
            for path in _pictures(folder / "train" / word)
        ]
        test = [
            (path, i)
            for i, word in enumerate(classes)
            if (held_out / word).is_dir()
            for path in _pictures(held_out / word)
        ]
    else:
        classes = _class_names(folder)
        train, test = _split([_pictures(folder / word) for word in classes])
    pictures = torch.from_numpy(read_pictures([path for path, _ in train + test]))
    x = pictures.split_with_sizes([len(train), len(test)])
    return Dataset(
        name,
        Examples(x[0], _labels(train)),
        Examples(x[1], _labels(test)),
        len(classes),
        tuple(classes),
    )


def _subfolders(folder: Path) -> list[Path]:
    return [
        path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith(".")
    ]


def _class_names(folder: Path) -> list[str]:
    names = [path.name for path in _subfolders(folder)]
    return sorted(names, key=int) if all(name.isdecimal() for name in names) else names


def _pictures(folder: Path) -> list[Path]:
    paths = sorted(path for path in folder.iterdir() if is_picture(path)) if folder.is_dir() else []
    if not paths:
        raise DataError(f"{folder} holds no .png, .jpg or .jpeg pictures; every class needs some")
    return paths


def _split(classes: Sequence[Sequence[Path]]) -> tuple[Labelled, Labelled]:
    train: Labelled = []
    test: Labelled = []
    for label, paths in enumerate(classes):
        ordered = sorted(
            paths,
            key=lambda path: hashlib.blake2b(f"{path.parent.name}/{path.name}".encode()).digest(),
        )
        num_test = max(1, round(TEST_FRACTION * len(paths)))
        if num_test == len(paths):
            raise DataError(
                f"{paths[0].parent} holds only {len(paths)} picture; a class needs two, one to train and one to test on"
            )
        test += [(path, label) for path in sorted(ordered[:num_test])]
        train += [(path, label) for path in sorted(ordered[num_test:])]
    return train, test


def _labels(part: Labelled) -> torch.Tensor:
    return torch.tensor([label for _, label in part])


def _validation(folder: Path, label: dict[str, int]) -> Labelled:
    annotations = folder / "val_annotations.txt"
    if not annotations.is_file():
        raise DataError(f"{annotations} is missing; unpack tiny-imagenet-200.zip again")
    rows = [line.split("\t") for line in annotations.read_text().splitlines() if line.strip()]
    for row in rows:
        if len(row) < 2 or row[1] not in label:
            raise DataError(
                f"{annotations} has the line {' '.join(row)!r}, which names no class of wnids.txt"
            )
        if Path(row[0]).name != row[0]:
            raise DataError(
                f"{annotations} names the picture {row[0]!r}, which is not a plain file name"
            )
    if not rows:
        raise DataError(f"{annotations} is empty; unpack tiny-imagenet-200.zip again")
    return [(folder / "images" / row[0], label[row[1]]) for row in rows]


def _words(folder: Path, wnids: Sequence[str]) -> tuple[str, ...]:
    """The first word of each class in `words.txt`, or the wnids themselves."""
    path = folder / "words.txt"
    lines = (line.split("\t") for line in path.read_text().splitlines()) if path.is_file() else ()
    words = {line[0]: line[1].split(",")[0] for line in lines if len(line) == 2}
    return tuple(words.get(wnid, wnid) for wnid in wnids)
