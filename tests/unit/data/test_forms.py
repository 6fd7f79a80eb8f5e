"""Every form of data under five methods: the coreset of a form is that of an npz archive of the
same numbers, bit for bit.
"""

import gzip
import struct
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from PIL import Image
from sklearn.utils import Bunch
from torch.utils.data import DataLoader, IterableDataset, StackDataset, TensorDataset
from torch.utils.data import Dataset as TorchDataset

import pseudocore
from pseudocore.core.types import Coreset

pytestmark = pytest.mark.filterwarnings("ignore:lcmat-s chose points")  # the data are noise

METHODS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "herding": {},
    "lcmat-s": {},
    "vbpc": {"num_steps": 2},
    "psvi": {"num_steps": 2},
}
RNG = np.random.default_rng(0)
KINDS = np.arange(48) % 5 == 0
NUMBERS = RNG.normal(size=(48, 2)).astype(np.float32)
X = np.column_stack([NUMBERS, KINDS, ~KINDS]).astype(np.float32)  # the last two of one-hot texts
Y = np.arange(48) % 3
NAMES = ["a", "b", "kind=u", "kind=v"]
WORDS = np.array(["ant", "bee", "cow"])
PICTURES = {part: RNG.integers(0, 256, (12, 6, 5, 3), dtype=np.uint8) for part in ("train", "test")}
GREY = {part: images[..., 0] for part, images in PICTURES.items()}
CLASS = np.arange(12) // 6  # as the files of folders are ordered

Source = tuple[Any, dict[str, Any]]
"""Data as `reduce` takes it, and the options that it needs."""


class Items(TorchDataset[Any]):
    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, place: int) -> Any:
        return self.x[place], int(self.y[place])


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return zip(torch.from_numpy(X), Y, strict=True)


def columns(**more: Any) -> dict[str, Any]:
    return {name: X[:, place] for place, name in enumerate(NAMES)} | {"y": Y} | more


def tensors() -> TensorDataset:
    return TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))


def csv(folder: Path, suffix: str = ".csv", sep: str = ",", *, texts: bool = False) -> str:
    frame = pd.DataFrame(columns())
    if texts:
        frame = frame[["a", "b"]].assign(kind=np.where(KINDS, "u", "v"), y=WORDS[Y])
    frame.to_csv(path := folder / f"mine{suffix}", index=False, sep=sep)
    return str(path)


def parquet(folder: Path) -> str:
    pd.DataFrame(columns()).to_parquet(path := folder / "mine.parquet")
    return str(path)


def npy(folder: Path) -> str:
    np.save(folder / "train_x.npy", X)
    np.save(folder / "train_y.npy", Y)
    return str(folder)


def one_npy(folder: Path) -> Source:
    np.save(folder / "x.npy", X)
    np.save(folder / "labels.npy", Y)
    return str(folder / "x.npy"), {"labels": str(folder / "labels.npy")}


def hub_name(folder: Path) -> str:
    """The library reads a folder of CSV files under the name of its path."""
    (folder / "mine").mkdir()
    pd.DataFrame(columns()).to_csv(folder / "mine" / "train.csv", index=False)
    return f"hf://{folder}/mine"


def files(folder: Path, suffix: str, images: dict[str, Any] = PICTURES, **options: Any) -> str:
    for part, arrays in images.items():
        for number, (array, label) in enumerate(zip(arrays, CLASS, strict=True)):
            path = folder / part / f"class{label}" / f"{number:02d}{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(array).save(path, **options)
    return str(folder)


def as_decoded(folder: Path, suffix: str) -> dict[str, np.ndarray]:
    """What Pillow makes of the pictures of a format that loses something."""

    def colours(path: Path) -> np.ndarray:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB"))

    paths = {part: sorted((folder / part).rglob(f"*{suffix}")) for part in PICTURES}
    return {part: np.stack([colours(path) for path in some]) for part, some in paths.items()}


def idx(folder: Path) -> str:
    for prefix, part in (("train", "train"), ("t10k", "test")):
        image = struct.pack(">4i", 2051, 12, 6, 5) + GREY[part].tobytes()
        label = struct.pack(">2i", 2049, 12) + CLASS.astype(np.uint8).tobytes()
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(image)
        (folder / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(label))
    return str(folder)


def hugging_face_pictures() -> Any:
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    )
    splits = {
        part: datasets.Dataset.from_dict(
            {"image": [Image.fromarray(one) for one in images], "label": CLASS}, features=features
        )
        for part, images in PICTURES.items()
    }
    return datasets.DatasetDict(splits)


TABLES: dict[str, Callable[[Path], Any]] = {
    "npz": lambda folder: npz(folder, X=X, y=Y),
    "numpy": lambda _: (X, Y),
    "float64": lambda _: (X.astype(np.float64), Y.astype(np.uint8)),
    "torch": lambda _: (torch.from_numpy(X), torch.from_numpy(Y)),
    "lists": lambda _: (X.tolist(), Y.tolist()),
    "a mapping": lambda _: {"X": X, "y": Y},
    "labels as texts": lambda _: (X, WORDS[Y]),
    "labels from 10": lambda _: (X, 10 * (Y + 1)),
    "pandas": lambda _: (pd.DataFrame(columns()), {"target": "y"}),
    "pandas categories": lambda _: (
        pd.DataFrame(
            {"a": X[:, 0], "b": X[:, 1], "kind": pd.Categorical(np.where(KINDS, "u", "v")), "y": Y}
        ),
        {"target": "y"},
    ),
    "pandas and a series": lambda _: (pd.DataFrame(X, columns=NAMES), pd.Series(Y)),
    "a column to drop": lambda _: (
        pd.DataFrame(columns(key=range(48))),
        {"target": "y", "drop": "key"},
    ),
    "polars": lambda _: (pl.DataFrame(columns()), {"target": "y"}),
    "arrow": lambda _: (pa.table(columns()), {"target": "y"}),
    "torch Dataset": lambda _: Items(X, Y),
    "TensorDataset": lambda _: tensors(),
    "mappings": lambda _: StackDataset(x=torch.from_numpy(X), y=torch.from_numpy(Y)),
    "IterableDataset": lambda _: Stream(),
    "DataLoader": lambda _: DataLoader(tensors(), batch_size=7, shuffle=True),
    "Bunch": lambda _: Bunch(data=X, target=Y, feature_names=NAMES, target_names=WORDS),
    "Hugging Face table": lambda _: (datasets.Dataset.from_dict(columns()), {"target": "y"}),
    "hf:// name": lambda folder: (hub_name(folder), {"target": "y"}),
    "csv": lambda folder: (csv(folder), {"target": "y"}),
    "csv with texts": lambda folder: (csv(folder, texts=True), {"target": "y"}),
    "csv with semicolons": lambda folder: (csv(folder, sep=";"), {"target": "y"}),
    "tsv": lambda folder: (csv(folder, ".tsv", "\t"), {"target": "y"}),
    "parquet": lambda folder: (parquet(folder), {"target": "y"}),
    "npy folder": npy,
    "one npy": one_npy,
}
COLOURS: dict[str, Callable[[Path], Any]] = {
    "npz": lambda folder: image_npz(folder, PICTURES),
    "numpy, channels first": lambda _: halves(
        {part: images.transpose(0, 3, 1, 2) for part, images in PICTURES.items()}
    ),
    "torch": lambda _: tuple(
        map(torch.from_numpy, (PICTURES["train"], CLASS, PICTURES["test"], CLASS))
    ),
    "Hugging Face": lambda _: hugging_face_pictures(),
    "png": lambda folder: files(folder, ".png"),
    "bmp": lambda folder: files(folder, ".bmp"),
    "tiff": lambda folder: files(folder, ".tiff"),
    "webp": lambda folder: files(folder, ".webp", lossless=True),
    "train and val": lambda folder: renamed(files(folder, ".PNG")),
}
LOSSY = (".jpeg", ".jpg", ".gif")
GREYS: dict[str, Callable[[Path], Any]] = {
    "png": lambda folder: files(folder, ".png", GREY),
    "idx": idx,
    "numpy with a channel": lambda _: halves({p: x[:, None] for p, x in GREY.items()}),
}
DEEP = {p: x.astype(np.uint16) * 257 - np.uint16(3) * (x > 0) for p, x in GREY.items()}


def npz(folder: Path, **arrays: Any) -> str:
    np.savez(path := folder / "numbers.npz", **arrays)
    return str(path)


def image_npz(folder: Path, images: dict[str, Any]) -> str:
    x, y, xt, yt = halves(images)
    return npz(folder, train_x=x, train_y=y, test_x=xt, test_y=yt)


def halves(images: dict[str, Any]) -> tuple[Any, ...]:
    return images["train"], CLASS, images["test"], CLASS


def renamed(folder: str) -> str:
    (Path(folder) / "test").rename(Path(folder) / "val")
    return folder


def made(method: str, given: Any) -> Coreset:
    source, options = given if type(given) is tuple and type(given[-1]) is dict else (given, {})
    options = {"per_class": 2, "model": "linear", **METHODS[method], **options}
    return pseudocore.reduce(method, source, **options).coreset


@cache
def of_numbers(method: str, kind: str, folder: Path) -> Coreset:
    folder.mkdir(exist_ok=True)
    if kind == "table":
        return made(method, npz(folder, X=X, y=Y))
    return made(method, image_npz(folder, {"colour": PICTURES, "grey": GREY}[kind]))


def same(one: Coreset, other: Coreset) -> bool:
    assert torch.equal(one.x, other.x)
    assert torch.equal(one.y, other.y)
    assert torch.equal(one.weight, other.weight)
    assert (one.indices is None) == (other.indices is None)
    return one.indices is None or torch.equal(one.indices, other.indices)


@pytest.fixture
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.getbasetemp() / "numbers"


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("form", TABLES)
def test_tables(form: str, method: str, tmp_path: Path, numbers: Path) -> None:
    assert same(made(method, TABLES[form](tmp_path)), of_numbers(method, "table", numbers))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("form", COLOURS)
def test_pictures(form: str, method: str, tmp_path: Path, numbers: Path) -> None:
    assert same(made(method, COLOURS[form](tmp_path)), of_numbers(method, "colour", numbers))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("form", GREYS)
def test_grey_pictures(form: str, method: str, tmp_path: Path, numbers: Path) -> None:
    assert same(made(method, GREYS[form](tmp_path)), of_numbers(method, "grey", numbers))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("suffix", LOSSY)
def test_pictures_that_lose_something(suffix: str, method: str, tmp_path: Path) -> None:
    source = files(tmp_path / "pictures", suffix)
    reference = image_npz(tmp_path, as_decoded(tmp_path / "pictures", suffix))
    assert same(made(method, source), made(method, reference))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_pictures_of_16_bits(suffix: str, method: str, tmp_path: Path) -> None:
    source = files(tmp_path / "pictures", suffix, DEEP)
    scaled = {p: x.astype(np.float32) / np.float32(65535) for p, x in DEEP.items()}
    assert same(made(method, source), made(method, image_npz(tmp_path, scaled)))


@pytest.mark.parametrize("method", METHODS)
def test_floats_from_minus_one_to_one(method: str, tmp_path: Path) -> None:
    unit = {part: x / np.float32(255) for part, x in GREY.items()}
    signed = {part: 2 * x - 1 for part, x in unit.items()}
    unit = {part: (x - np.float32(-1)) / np.float32(2) for part, x in signed.items()}
    assert same(made(method, halves(signed)), made(method, image_npz(tmp_path, unit)))
