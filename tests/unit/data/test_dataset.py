"""`dataset` in every form of data: the same numbers make the same set, whatever holds them; what
cannot be read is refused in one sentence.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
from pseudocore.core.types import Dataset
from pseudocore.data import digits

Fails = Callable[..., Any]

RNG = np.random.default_rng(0)
X, XT = (RNG.normal(size=(n, 3)).astype(np.float32) for n in (40, 10))
Y, YT = np.arange(40) % 2, np.arange(10) % 2
NAMES = ["a", "b", "c"]
EXPECTED = pseudocore.dataset(X, Y, test=(XT, YT)).fingerprint


def frames(make: Callable[[dict[str, Any]], Any]) -> tuple[Any, Any]:
    """Training and test rows as frames, the target among the columns."""
    halves = []
    for x, y in ((X, Y), (XT, YT)):
        columns = {name: x[:, place] for place, name in enumerate(NAMES)}
        halves.append(make({"a": columns["a"], "y": y, "b": columns["b"], "c": columns["c"]}))
    return halves[0], halves[1]


def files(folder: Path, suffix: str) -> Path:
    for name, frame in zip(("train", "test"), frames(pd.DataFrame), strict=True):
        path = folder / f"{name}{suffix}"
        if suffix == ".parquet":
            frame.to_parquet(path)
        else:
            frame.to_csv(path, index=False, sep="\t" if suffix == ".tsv" else ",")
    return folder


def npy(folder: Path) -> Path:
    arrays = {"train_x": X, "train_y": Y, "test_x": XT, "test_y": YT}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return folder


class Pairs(TorchDataset[Any]):
    """Items with numpy inputs and plain labels."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, place: int) -> Any:
        return self.x[place], int(self.y[place])


class Stream(IterableDataset[Any]):
    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.x, self.y = x, y

    def __iter__(self) -> Any:
        return zip(torch.from_numpy(self.x), self.y, strict=True)


def torch_halves(make: Callable[[Any, Any], Any]) -> Dataset:
    return pseudocore.dataset(
        make(torch.from_numpy(X), torch.from_numpy(Y)),
        test=make(torch.from_numpy(XT), torch.from_numpy(YT)),
    )


def of_frames(make: Callable[[dict[str, Any]], Any]) -> Dataset:
    train, test = frames(make)
    return pseudocore.dataset(train, target="y", test=test)


FORMS: dict[str, Callable[[Path], Dataset]] = {
    "torch tensors": lambda _: torch_halves(lambda x, y: (x, y)),
    "a tuple of four": lambda _: pseudocore.dataset((X, Y, XT, YT)),
    "a tuple of pairs": lambda _: pseudocore.dataset(((X, Y), (XT, YT))),
    "a mapping": lambda _: pseudocore.dataset({"X": X, "y": Y, "Xt": XT, "yt": YT}),
    "lists": lambda _: pseudocore.dataset(X.tolist(), Y.tolist(), test=(XT.tolist(), YT.tolist())),
    "pandas": lambda _: of_frames(pd.DataFrame),
    "pandas, nullable": lambda _: of_frames(lambda c: pd.DataFrame(c).convert_dtypes()),
    "pandas, objects": lambda _: of_frames(lambda c: pd.DataFrame(c).astype(object)),
    "pandas and a series": lambda _: pseudocore.dataset(
        pd.DataFrame(X, columns=NAMES),
        pd.Series(Y),
        test=(pd.DataFrame(XT, columns=NAMES), pd.Series(YT)),
    ),
    "the target as y": lambda _: pseudocore.dataset(
        frames(pd.DataFrame)[0], "y", test=frames(pd.DataFrame)[1]
    ),
    "polars": lambda _: of_frames(pl.DataFrame),
    "arrow": lambda _: of_frames(pa.table),
    "csv": lambda folder: pseudocore.dataset(files(folder, ".csv"), target="y"),
    "tsv": lambda folder: pseudocore.dataset(files(folder, ".tsv"), target="y"),
    "two csv files": lambda folder: pseudocore.dataset(
        files(folder, ".csv") / "train.csv", test=folder / "test.csv", target="y"
    ),
    "parquet": lambda folder: pseudocore.dataset(files(folder, ".parquet"), target="y"),
    "npy": lambda folder: pseudocore.dataset(npy(folder)),
    "TensorDataset": lambda _: torch_halves(TensorDataset),
    "a torch Dataset of numpy items": lambda _: pseudocore.dataset(Pairs(X, Y), test=Pairs(XT, YT)),
    "a torch Dataset of mappings": lambda _: torch_halves(lambda x, y: StackDataset(x=x, y=y)),
    "an IterableDataset": lambda _: pseudocore.dataset(Stream(X, Y), test=Stream(XT, YT)),
    "a shuffled DataLoader": lambda _: torch_halves(
        lambda x, y: DataLoader(TensorDataset(x, y), batch_size=7, shuffle=True)
    ),
    "a loader without batches": lambda _: torch_halves(
        lambda x, y: DataLoader(TensorDataset(x, y), batch_size=None)
    ),
    "a Bunch": lambda _: pseudocore.dataset(
        Bunch(data=X, target=Y, feature_names=NAMES), test=(XT, YT)
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_same_numbers_make_the_same_set(form: str, tmp_path: Path) -> None:
    assert FORMS[form](tmp_path).fingerprint == EXPECTED


def test_a_bunch_keeps_its_names() -> None:
    bunch = Bunch(data=X, target=Y, feature_names=NAMES, target_names=np.array(["no", "yes"]))
    data = pseudocore.dataset(bunch)
    assert data.class_names == ("no", "yes")
    assert [one["name"] for one in data.encoding] == NAMES
    assert data.fingerprint == pseudocore.dataset(X, Y).fingerprint
    framed = Bunch(data=pd.DataFrame(X, columns=NAMES), target=pd.Series(Y), feature_names=NAMES)
    assert pseudocore.dataset(framed).fingerprint == data.fingerprint


def test_what_was_held_out_is_said_and_seeded() -> None:
    data, other = pseudocore.dataset(X, Y), pseudocore.dataset(X, Y, seed=1)
    assert data.test.y.bincount().tolist() == [4, 4]
    assert "8 of 40 examples are held out, chosen by class with seed 0" in data.notes[0]
    assert data.notes[0] in repr(data)
    assert not torch.equal(data.test.x, other.test.x)
    assert pseudocore.dataset(X, Y, seed=1).fingerprint == other.fingerprint
    assert pseudocore.dataset(X, Y, test=(XT, YT)).notes == ()


@pytest.mark.parametrize(
    ("labels", "names", "expected"),
    [
        (["cat", "dog", "cat", "ant"], ("ant", "cat", "dog"), [1, 2, 1, 0]),
        ([10, 2, 10, 7], ("2", "7", "10"), [2, 0, 2, 1]),
        (["10", "9", "10", "9"], ("9", "10"), [1, 0, 1, 0]),
        ([-1, 1, 1, -1], ("-1", "1"), [0, 1, 1, 0]),
        ([b"x", b"y", b"x", b"y"], ("x", "y"), [0, 1, 0, 1]),
        (np.array(["b", 3, "b", 3], dtype=object), ("3", "b"), [1, 0, 1, 0]),
        ([0, 1, 2, 1], (), [0, 1, 2, 1]),
        ([True, False, True, False], (), [1, 0, 1, 0]),
        (pd.Series(["u", "v", "u", "v"], dtype="category"), ("u", "v"), [0, 1, 0, 1]),
    ],
)
def test_labels_of_any_kind_are_numbered_and_named(
    labels: Any, names: tuple[str, ...], expected: list[int]
) -> None:
    data = pseudocore.dataset(X[:4], labels, test=(X[:2], labels[:2]))
    assert data.class_names == names
    assert data.train.y.tolist() == expected
    assert data.test.y.tolist() == expected[:2]


def test_renumbered_labels_are_noted_and_names_stand_for_them() -> None:
    labels = [5, 3, 9, 5]
    data = pseudocore.dataset(X[:4], labels, test=(X[:2], labels[:2]), class_names=("a", "b", "c"))
    assert data.notes == ("labels 3, 5, 9 are numbered 0, 1, 2",)
    assert (data.class_names, data.train.y.tolist()) == (("a", "b", "c"), [1, 0, 2, 1])


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (0.0, 1.0), (0, 65535), (-3.0, 5.0)])
def test_pixel_ranges_are_recognised_or_declared(low: float, high: float) -> None:
    unit = np.round(RNG.random((6, 4, 4)) * 255) / 255
    unit.flat[:2] = 0, 1
    kind = np.uint16 if high == 65535 else np.float32
    images, labels = (unit * (high - low) + low).astype(kind), np.arange(6) % 2
    declared = {} if high == 1 else {"pixel_range": (low, high)}
    data = pseudocore.dataset(images, labels, test=(images, labels), **declared)
    assert torch.allclose(data.train.x[:, 0].double(), torch.from_numpy(unit), atol=1e-4)
    assert bool(data.notes) == (low == -1)  # recognised, not declared


def test_images_are_resized_from_their_centre() -> None:
    data = digits()
    small = pseudocore.dataset(data, resize=4)
    assert (small.shape, small.train.x.dtype) == ((1, 4, 4), torch.uint8)
    pictures = [Image.fromarray(x[0].numpy()).resize((4, 4), 2) for x in data.train.x[:50]]
    theirs = torch.from_numpy(np.stack([np.asarray(one) for one in pictures]))
    assert (small.train.x[:50, 0].int() - theirs.int()).abs().max() <= 1  # Pillow's, but rounding
    wide = np.zeros((4, 8, 20), np.uint8)
    wide[:, :, 6:14] = RNG.integers(0, 256, (4, 8, 8))
    cut = pseudocore.dataset(wide, [0, 1, 0, 1], test=(wide, [0, 1, 0, 1]), resize=8)
    np.testing.assert_array_equal(cut.train.x[:, 0], wide[:, :, 6:14])
    assert pseudocore.dataset(data, resize=8).train.x is data.train.x


def test_pictures_of_torch_data_sets(fails: Fails) -> None:
    pixels = RNG.integers(0, 256, (6, 5, 4, 3), dtype=np.uint8)
    labels = np.arange(6) % 2

    class Pictures(Pairs):
        def __getitem__(self, place: int) -> Any:
            return Image.fromarray(self.x[place]), self.y[place]

    data = pseudocore.dataset(Pictures(pixels, labels))
    expected = pseudocore.dataset(pixels, labels)
    assert data.fingerprint == expected.fingerprint
    mixed: Any = [*pixels[:5], pixels[5, :, :3]]
    with fails("mixed-sizes", "item 5 of the data set has shape (3, 5, 3)", "resize=SIZE"):
        pseudocore.dataset(Pictures(mixed, labels))
    assert pseudocore.dataset(Pictures(mixed, labels), resize=4).shape == (3, 4, 4)


def test_npy_files_are_memory_mapped(tmp_path: Path) -> None:
    data = pseudocore.dataset(npy(tmp_path))
    data.train.x[0, 0] = 5.0  # a private copy of the page, not the file
    assert np.load(tmp_path / "train_x.npy")[0, 0] == X[0, 0]
    images = RNG.integers(0, 256, (6, 4, 4), dtype=np.uint8)
    for name in ("train", "test"):
        np.save(tmp_path / f"{name}_x.npy", images)
        np.save(tmp_path / f"{name}_y.npy", np.arange(6) % 2)
    mapped = pseudocore.dataset(tmp_path)
    assert _mapped_from(mapped.train.x) == str(tmp_path / "train_x.npy")
    assert mapped.fingerprint == pseudocore.dataset((images, np.arange(6) % 2) * 2).fingerprint


def _mapped_from(x: torch.Tensor) -> str | None:
    """The file whose pages hold a tensor."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, *_, name = line.split()
        start, end = (int(text, 16) for text in span.split("-"))
        if start <= x.data_ptr() < end:
            return name
    return None


def no_pairs() -> Any:
    return TensorDataset(torch.from_numpy(X))


REFUSED: dict[str, tuple[Callable[[], Any], str, str]] = {
    "fractions": (
        lambda: pseudocore.dataset(X, X[:, 0], task="classification"),
        "unfit-labels",
        "for numbers say task = 'regression'",
    ),
    "many labels": (
        lambda: pseudocore.dataset(X, np.arange(40)),
        "unfit-labels",
        "the labels of training data holds 40 different values in 40 rows",
    ),
    "a gap in labels": (
        lambda: pseudocore.dataset(X[:3], ["a", None, "b"]), "unfit-labels", "no label in row 2"
    ),
    "a new test label": (
        lambda: pseudocore.dataset(X, Y, test=(XT, YT + 1)),
        "unknown-class",
        "the labels of test data has the label 2, which no training example has",
    ),
    "lengths": (
        lambda: pseudocore.dataset(X, Y, test=(XT, YT[:3])),
        "lengths-differ",
        "test data has 10 inputs but 3 labels",
    ),
    "an unknown target": (
        lambda: pseudocore.dataset(frames(pd.DataFrame)[0], target="yy"),
        "unknown-column",
        "no column 'yy'; did you mean 'y'? (columns: a, y, b, c)",
    ),
    "no target": (
        lambda: pseudocore.dataset(frames(pl.DataFrame)[0]), "missing-target", "columns: a, y, b, c"
    ),
    "an unknown column to drop": (
        lambda: pseudocore.dataset(frames(pd.DataFrame)[0], target="y", drop="a, q"),
        "unknown-column",
        "no column 'q'",
    ),
    "all columns dropped": (
        lambda: pseudocore.dataset(frames(pd.DataFrame)[0], target="y", drop=["a", "b", "c"]),
        "no-columns",
        "no columns beside its target",
    ),
    "no pairs": (lambda: pseudocore.dataset(no_pairs()), "no-pair", "item 0 of the data set is 1 "),
    "an empty data set": (
        lambda: pseudocore.dataset(TensorDataset(torch.zeros(0, 2), torch.zeros(0))),
        "no-examples",
        "the data set is empty",
    ),
    "two test halves": (
        lambda: pseudocore.dataset((X, Y, XT, YT), test=(XT, YT)), "two-test-sets", "leave out test"
    ),
    "a test half beside a name": (
        lambda: pseudocore.dataset("digits", test=(XT, YT)), "two-test-sets", "digits is no CSV"
    ),
    "a target of arrays": (
        lambda: pseudocore.dataset((X, Y), target="y"), "unused-option", "target has no effect"
    ),
    "a size of features": (
        lambda: pseudocore.dataset(X, Y, resize=3), "unused-option", "features are no images"
    ),
    "a size of a table": (
        lambda: pseudocore.dataset(frames(pd.DataFrame)[0], "y", resize=3),
        "unused-option",
        "a table holds no images",
    ),
    "gaps of images": (
        lambda: pseudocore.dataset(digits(), missing="impute"), "unused-option", "it has no gaps"
    ),
    "a seed without a split": (
        lambda: pseudocore.dataset(X, Y, test=(XT, YT), seed=3), "unused-option", "has a test half"
    ),
    "an unknown choice": (
        lambda: pseudocore.dataset(X, Y, missing="drop"),  # type: ignore[arg-type]
        "unknown-choice",
        "'refuse', 'impute'",
    ),
    "a size of 0": (lambda: pseudocore.dataset(digits(), resize=0), "out-of-range", "resize = 0"),
    "a reversed range": (
        lambda: pseudocore.dataset(X, Y, pixel_range=(1, 0)), "out-of-range", "the smaller first"
    ),
    "pixels out of range": (
        lambda: pseudocore.dataset(RNG.normal(size=(6, 4, 4)) * 3, np.arange(6) % 2),
        "unfit-arrays",
        "float images in 0..1 or -1..1; pixel_range=(black, white)",
    ),
    "a sparse matrix": (
        lambda: pseudocore.dataset(__import__("scipy.sparse").sparse.eye(4), [0, 1, 0, 1]),
        "unfit-arrays",
        ".toarray() makes it dense",
    ),
    "a name of nothing": (lambda: pseudocore.dataset("hf://"), "invalid-name", "hf://OWNER/NAME"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_read_is_refused(what: str, fails: Fails) -> None:
    call, code, part = REFUSED[what]
    with fails(code, part):
        call()


@pytest.mark.parametrize("value", [[1, 2], 3, X, None, (X,), (X, Y, XT)])
def test_what_is_no_data_is_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError, match=r"must be .*not"):
        pseudocore.dataset(value)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, fails: Fails) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with fails("missing-package", 'pip install "pseudocore[huggingface]"'):
        pseudocore.dataset("hf://somebody/something")


def test_no_optional_library_is_imported_before_it_is_needed(tmp_path: Path) -> None:
    """Neither by the package, nor by arrays, nor by a CSV file."""
    path = files(tmp_path, ".csv")
    code = (
        "import sys, numpy as np, pseudocore, pseudocore.data, pseudocore.api\n"
        f"pseudocore.dataset({str(path)!r}, target='y')\n"
        "pseudocore.dataset(np.eye(4), [0, 1, 0, 1])\n"
        "known = {'pandas', 'polars', 'pyarrow', 'datasets', 'PIL', 'scipy', 'sklearn'}\n"
        "print(sorted(known & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert result.stdout.strip() == "[]"
