"""Which targets are classes and which are numbers, in every form of data; what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import TensorDataset

import pseudocore
from pseudocore.core.errors import ConfigError, DataError
from pseudocore.data.reading import Reading
from pseudocore.data.sources import import_dataset, load

X = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
Y = (1e9 + X @ [1.0, 2.0, 3.0]).astype(np.float64)


def csv(folder: Path) -> Path:
    path = folder / "table.csv"
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "y": Y}).to_csv(path, index=False)
    return path


FORMS: dict[str, Callable[[Path], Any]] = {
    "arrays": lambda _: pseudocore.dataset(X, Y),
    "a column": lambda _: pseudocore.dataset(X, Y[:, None]),
    "torch": lambda _: pseudocore.dataset(torch.tensor(X), torch.tensor(Y)),
    "pandas": lambda _: pseudocore.dataset(pd.DataFrame(X, columns=[*"abc"]), pd.Series(Y)),
    "a frame": lambda _: pseudocore.dataset(
        pd.DataFrame(X, columns=[*"abc"]).assign(y=Y), target="y"
    ),
    "a torch data set": lambda _: pseudocore.dataset(
        TensorDataset(torch.tensor(X), torch.tensor(Y))
    ),
    "a mapping": lambda _: pseudocore.dataset({"X": X, "y": Y}),
    "a CSV file": lambda folder: pseudocore.dataset(csv(folder), target="y"),
}


@pytest.mark.parametrize("form", FORMS)
def test_fractions_are_a_regression(form: str, tmp_path: Path) -> None:
    data = FORMS[form](tmp_path)
    assert (data.task, data.num_classes, data.class_counts.tolist()) == ("regression", 1, [16])
    assert any("this is a regression" in note for note in data.notes)
    found = torch.cat([data.train.y, data.test.y])[:, 0].sort().values
    assert torch.allclose(found, torch.tensor(Y).sort().values, rtol=0, atol=1e-4)
    assert "regression" in repr(data)


def test_whole_numbers_are_classes_unless_said() -> None:
    counts = np.arange(20) % 4
    assert pseudocore.dataset(X, counts).task == "classification"
    data = pseudocore.dataset(X, counts, task="regression")
    assert data.task == "regression"
    assert data.train.y.dtype == torch.float64


@pytest.mark.parametrize("dtype", [int, float])
def test_many_whole_numbers_of_few_rows_are_asked_about(dtype: type) -> None:
    """As the targets of scikit-learn's `load_diabetes`; 0, 1, 2, … are classes all the same."""
    x, y = np.random.default_rng(0).normal(size=(100, 2)), 25 + 3 * (np.arange(100) % 30)
    with pytest.raises(DataError, match="30 different whole numbers in 100 rows; say task = 'reg"):
        pseudocore.dataset(x, y.astype(dtype))
    assert pseudocore.dataset(x, y.astype(dtype), task="regression").num_classes == 1
    assert pseudocore.dataset(x, y.astype(dtype), task="classification").num_classes == 30
    assert pseudocore.dataset(x, (y - 25).astype(dtype) // 3).num_classes == 30
    assert pseudocore.dataset(np.tile(x, (4, 1)), np.tile(y, 4)).num_classes == 30
    names = np.array([f"class {number}" for number in range(30)])
    assert pseudocore.dataset({"X": x, "y": y, "class_names": names}).num_classes == 30


def test_an_import_keeps_its_task(tmp_path: Path) -> None:
    np.savez(tmp_path / "counts.npz", X=X, y=np.arange(20.0))
    path = import_dataset(tmp_path / "counts.npz", "counts", tmp_path, Reading(task="regression"))
    assert load(path).task == "regression"
    with pytest.raises(ConfigError, match="is for regression, not classification"):
        pseudocore.data.read(load(path), Reading(task="classification"))


REFUSED: dict[str, tuple[Callable[[], Any], str, str]] = {
    "several labels": (
        lambda: pseudocore.dataset(X, np.eye(3)[np.arange(20) % 3]),
        "several-targets",
        "holds 3 columns; targets of several labels or several numbers are not supported: one class"
        " or one number per example is supported",
    ),
    "several numbers": (lambda: pseudocore.dataset(X, X[:, :2]), "several-targets", "2 columns"),
    "a frame of targets": (
        lambda: pseudocore.dataset(pd.DataFrame(X), pd.DataFrame(X[:, :2])),
        "several-targets",
        "2 columns",
    ),
    "an ordinal target": (
        lambda: pseudocore.dataset(
            pd.DataFrame(X), pd.Series(pd.Categorical(["low", "high"] * 10, ordered=True))
        ),
        "ordinal-target",
        "ordinal targets are not supported: one class or one number per example is supported",
    ),
    "texts": (
        lambda: pseudocore.dataset(X, ["a", "b"] * 10, task="regression"),
        "unfit-targets",
        "must be one number per example",
    ),
    "a gap": (
        lambda: pseudocore.dataset(X, np.where(np.arange(20) == 3, np.nan, Y)),
        "unfit-targets",
        "no finite target in row 4",
    ),
    "the same everywhere": (
        lambda: pseudocore.dataset(X, np.full(20, 0.5)), "constant-targets", "is the same"
    ),
    "an unknown task": (
        lambda: pseudocore.dataset(X, Y, task="ranking"),  # type: ignore[arg-type]
        "unknown-choice",
        "'classification', 'regression'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what: str) -> None:
    make, code, part = REFUSED[what]
    with pytest.raises((DataError, ConfigError)) as caught:
        make()
    assert caught.value.code == code
    assert part in str(caught.value)


def test_an_ordinal_target_passes_where_its_meaning_is_said() -> None:
    y = pd.Series(pd.Categorical(["low", "high"] * 10, ordered=True))
    assert pseudocore.dataset(pd.DataFrame(X), y, task="classification").num_classes == 2
