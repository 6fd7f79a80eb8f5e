"""NumPy archives in every shape that is promised, and those that are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pseudocore.core.errors import DataError
from pseudocore.core.types import Dataset
from pseudocore.data import load, split

RANDOM = np.random.default_rng(0)
Y, YT = np.array([0, 1, 2, 0, 1, 2]), np.array([2, 0])


def saved(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "set.npz", **arrays)
    return folder / "set.npz"


def images(*shape: int) -> np.ndarray:
    return RANDOM.integers(0, 256, shape, dtype=np.uint8)


def loaded(folder: Path, x: np.ndarray, xt: np.ndarray, **more: Any) -> Dataset:
    return load(saved(folder, train_x=x, train_y=Y, test_x=xt, test_y=YT, **more))


@pytest.mark.parametrize(
    "spelling",
    [("train_x", "train_y", "test_x", "test_y"), ("X", "y", "Xt", "yt"), ("x", "y", "xt", "yt")],
)
def test_features_are_read_under_each_spelling(tmp_path: Path, spelling: tuple[str, ...]) -> None:
    x, xt = RANDOM.normal(size=(6, 4)), RANDOM.normal(size=(2, 4))
    data = load(saved(tmp_path, **dict(zip(spelling, (x, Y, xt, YT), strict=True))))
    np.testing.assert_array_equal(data.train.x, x.astype(np.float32))
    np.testing.assert_array_equal(data.test.x, xt.astype(np.float32))
    assert data.train.y.tolist() == Y.tolist()
    assert data.test.y.tolist() == YT.tolist()
    assert (data.name, data.num_classes, data.is_images) == ("set", 3, False)


def test_whole_number_features_become_floats(tmp_path: Path) -> None:
    x = images(6, 4) % 2
    data = loaded(tmp_path, x, x[:2])
    assert data.train.x.dtype == torch.float32
    np.testing.assert_array_equal(data.train.x, x)


@pytest.mark.parametrize("channels", [1, 3])
def test_image_axes_are_recognised(tmp_path: Path, channels: int) -> None:
    x, xt = images(6, channels, 5, 4), images(2, channels, 5, 4)
    first = loaded(tmp_path, x, xt)
    last = loaded(tmp_path, x.transpose(0, 2, 3, 1), xt.transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(first.train.x, x)
    assert first.fingerprint == last.fingerprint
    if channels == 1:
        assert loaded(tmp_path, x[:, 0], xt[:, 0]).fingerprint == first.fingerprint
    assert (
        loaded(tmp_path, x.astype(np.int64), xt.astype(np.int16)).fingerprint == first.fingerprint
    )


def test_ambiguous_axes_need_a_layout(tmp_path: Path) -> None:
    x, xt = images(6, 3, 5, 3), images(2, 3, 5, 3)
    with pytest.raises(DataError, match="both the second and the last axis"):
        loaded(tmp_path, x, xt)
    assert loaded(tmp_path, x, xt, layout="NCHW").shape == (3, 5, 3)
    data = loaded(tmp_path, x, xt, layout="NHWC")
    np.testing.assert_array_equal(data.train.x, x.transpose(0, 3, 1, 2))
    with pytest.raises(DataError, match="neither the second nor the last axis"):
        loaded(tmp_path, images(6, 2, 5, 4), images(2, 2, 5, 4))
    data = loaded(tmp_path, images(6, 5, 4, 2), images(2, 5, 4, 2), layout="NHWC")
    assert data.shape == (2, 5, 4)
    with pytest.raises(DataError, match="'chw' beside it; use NCHW or NHWC"):
        loaded(tmp_path, x, xt, layout="chw")


def test_float_images_stay_in_pixel_units(tmp_path: Path) -> None:
    x = RANDOM.uniform(size=(6, 5, 4, 3))
    np.testing.assert_array_equal(
        loaded(tmp_path, x, x[:2]).train.x, x.transpose(0, 3, 1, 2).astype(np.float32)
    )
    with pytest.raises(DataError, match=r"train_x of .* float images in 0\.\.1"):
        loaded(tmp_path, x * 255, x[:2])
    with pytest.raises(DataError, match=r"0\.\.255"):
        loaded(tmp_path, images(6, 5, 4).astype(np.int64) - 300, images(2, 5, 4))


@pytest.mark.parametrize("shape", [(6, 4), (6, 5, 4, 3)])
def test_nan_and_infinity_are_counted(tmp_path: Path, shape: tuple[int, ...]) -> None:
    x = RANDOM.uniform(size=shape)
    x[1].flat[0], x[4].flat[2] = np.nan, np.inf
    with pytest.raises(DataError, match="train split of 'set': 2 of 6 inputs hold NaN or infinite"):
        loaded(tmp_path, x, RANDOM.uniform(size=(2, *shape[1:])))


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        (np.array([-1, 1, 1, -1]), [0, 1, 1, 0]),
        (np.array([-1.0, 1.0, 1.0, -1.0]), [0, 1, 1, 0]),
        (np.array([False, True, True, False]), [0, 1, 1, 0]),
        (np.array([0.0, 2.0, 1.0, 0.0]), [0, 2, 1, 0]),
        (np.array([[0], [1], [1], [0]], dtype=np.uint8), [0, 1, 1, 0]),
    ],
)
def test_labels_of_many_types_are_understood(
    tmp_path: Path, y: np.ndarray, expected: list[int]
) -> None:
    x = RANDOM.normal(size=(4, 2))
    data = load(saved(tmp_path, X=x, y=y, Xt=x, yt=y))
    assert data.train.y.tolist() == data.test.y.tolist() == expected


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.array([0, np.nan, 1, 1]), r"has no label in row 2 \(1 in all\)"),
        (np.array([0, np.inf, 1, 1]), "not whole numbers, such as inf in row 2"),
        (np.array([0, 0.5, np.inf, 1]), r"has no finite target in row 3 \(1 in all\)"),
        (np.eye(4), "holds 4 columns; .* one class or one number per example is supported"),
        (
            np.eye(4).reshape(4, 4, 1, 1),
            r"must be one label per example, .* not float64 \(4, 4, 1, 1\)",
        ),
        (np.array([5, 6, 5, 6]), "test_y|yt of .* has the label 0, which no training example has"),
        (np.array([0, 1, 1]), "4 inputs but 3 labels"),
        (np.array([0, 1, 2**64, 1], dtype=np.float64), "too large"),
    ],
)
def test_unfit_labels_are_refused(tmp_path: Path, y: np.ndarray, message: str) -> None:
    x = RANDOM.normal(size=(4, 2))
    path = saved(tmp_path, X=x, y=y, Xt=x[:2], yt=np.array([0, 1]))
    with pytest.raises(DataError, match=message):
        load(path)


def test_a_missing_test_set_is_split_off(tmp_path: Path) -> None:
    x, y = RANDOM.normal(size=(50, 2)).astype(np.float32), np.arange(50) % 5
    data = load(saved(tmp_path, X=x, y=y))
    train, test = split(torch.from_numpy(y), 0.2, seed=0)
    np.testing.assert_array_equal(data.train.x, x[train])
    np.testing.assert_array_equal(data.test.x, x[test])
    assert data.test.y.bincount().tolist() == [2] * 5
    with pytest.raises(DataError, match="50 inputs but 49 labels"):
        load(saved(tmp_path, X=x, y=y[:-1]))
    assert "10 of 50 examples are held out" in data.notes[0]


def test_features_too_large_for_float32_get_one_complaint(tmp_path: Path) -> None:
    """And no warning of numpy's before it, which would be an error here."""
    x = np.array([[1.0, 2.0]] * 5 + [[1e300, 0.0]])
    with pytest.raises(DataError, match="1 of 6 inputs hold NaN or infinite values"):
        loaded(tmp_path, x, np.ones((2, 2)))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"data": np.zeros(3)}, r"arrays \['data'\]; train_x"),
        ({"X": np.zeros((6, 2)), "y": Y, "Xt": np.zeros((2, 2))}, "only one of Xt and yt"),
        (
            {"X": np.zeros((6, 2)), "y": Y, "Xt": np.zeros((2, 3)), "yt": YT},
            "every value|but test inputs",
        ),
        ({"X": np.zeros((6, 2)), "y": Y, "Xt": np.zeros((2, 2)), "yt": YT}, "every value"),
        ({"X": np.zeros(6), "y": Y}, r"shape \(6,\)"),
        ({"X": np.array(["a"] * 6).reshape(6, 1), "y": Y}, "has type <U1"),
        ({"X": np.zeros((0, 2)), "y": np.zeros(0, int)}, "is empty"),
        ({"X": np.array([[{}]] * 6, dtype=object), "y": Y}, "plain arrays"),
    ],
)
def test_unfit_archives_are_refused(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(saved(tmp_path, **arrays))


def test_damaged_archives_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, X=RANDOM.normal(size=(400, 2)), y=np.arange(400) % 2)
    content = bytearray(path.read_bytes())
    for damaged in (b"", b"garbage", content[:300], content[:500] + b"\0\1\2" + content[503:]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"set\.npz cannot be read"):
            load(path)
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(DataError, match="one NumPy array"):
        load(path)


def test_class_names_travel(tmp_path: Path) -> None:
    x = RANDOM.normal(size=(6, 2))
    for words, kept in (("abc", ("a", "b", "c")), ("ab", ())):
        data = loaded(tmp_path, x, x[:2], class_names=np.array(list(words)))
        assert data.class_names == kept
    y = np.zeros(6, int)  # a single name may come without a list
    for names in (np.array("all"), np.array(["all"])):
        data = load(saved(tmp_path, X=x, y=y, Xt=x[:2], yt=y[:2], class_names=names))
        assert (data.num_classes, data.class_names) == (1, ("all",))
