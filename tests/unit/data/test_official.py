"""idx, CIFAR and SVHN files written in their official layouts: the arrays written are the arrays
read; damage is named.
"""

import gzip
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io

from pseudocore.core.errors import DataError
from pseudocore.core.types import Dataset
from pseudocore.data import load
from pseudocore.data.matlab import read_matlab
from pseudocore.data.unpickle import unpickle

RANDOM = np.random.default_rng(0)


def pixels(*shape: int) -> np.ndarray:
    return RANDOM.integers(0, 256, shape, dtype=np.uint8)


def labels(n: int, num_classes: int) -> np.ndarray:
    return RANDOM.permutation(np.arange(n) % num_classes).astype(np.uint8)


def assert_holds(
    data: Dataset, train_x: np.ndarray, train_y: np.ndarray, test_x: np.ndarray, test_y: np.ndarray
) -> None:
    np.testing.assert_array_equal(data.train.x, train_x)
    np.testing.assert_array_equal(data.train.y, train_y)
    np.testing.assert_array_equal(data.test.x, test_x)
    np.testing.assert_array_equal(data.test.y, test_y)


# idx


def idx_bytes(array: np.ndarray) -> bytes:
    return (
        bytes([0, 0, 8, array.ndim])
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.tobytes()
    )


def write_idx(folder: Path, *, dotted: bool = False, zipped: bool = False) -> list[np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    arrays = [pixels(20, 5, 4), labels(20, 3), pixels(9, 5, 4), labels(9, 3)]
    for stem, array in zip(
        ("train-images", "train-labels", "t10k-images", "t10k-labels"), arrays, strict=True
    ):
        name = f"{stem}{'.' if dotted else '-'}idx{array.ndim}-ubyte"
        content = idx_bytes(array)
        (folder / (f"{name}.gz" if zipped else name)).write_bytes(
            gzip.compress(content) if zipped else content
        )
    return arrays


@pytest.mark.parametrize("dotted", [False, True])
@pytest.mark.parametrize("zipped", [False, True])
def test_idx_files_are_read(tmp_path: Path, dotted: bool, zipped: bool) -> None:
    train_x, train_y, test_x, test_y = write_idx(tmp_path / "letters", dotted=dotted, zipped=zipped)
    data = load(tmp_path / "letters")
    assert_holds(data, train_x[:, None], train_y, test_x[:, None], test_y)
    assert (data.name, data.num_classes) == ("letters", 3)


def damage_idx(folder: Path, kind: str) -> None:
    path = folder / "t10k-images-idx3-ubyte"
    content = path.read_bytes()
    path.unlink()
    damaged = {
        "truncated": content[:-1],
        "long": content + b"0",
        "empty": b"",
        "header": content[:9],
        "magic": b"\1" + content[1:],
        "labels": idx_bytes(labels(9, 3)),
    }
    if kind in damaged:
        path.write_bytes(damaged[kind])


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing", "t10k-images-idx3-ubyte is missing"),
        ("truncated", r"has 195 bytes.*\(9, 5, 4\), that is 196"),
        ("long", "has 197 bytes"),
        ("empty", "has 0 bytes, fewer than the 16 of its header"),
        ("header", "has 9 bytes, fewer than the 16 of its header"),
        ("magic", "begins with 01000803, not with 00000803"),
        ("labels", "not with 00000803"),
    ],
)
def test_damaged_idx_files_are_named(tmp_path: Path, kind: str, message: str) -> None:
    write_idx(tmp_path)
    damage_idx(tmp_path, kind)
    with pytest.raises(DataError, match=message) as error:
        load(tmp_path)
    assert "t10k-images" in str(error.value)


def test_huge_sizes_in_an_idx_header_allocate_nothing(tmp_path: Path) -> None:
    write_idx(tmp_path)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(bytes([0, 0, 8, 3]) + b"\xff" * 12)
    with pytest.raises(DataError, match="has 16 bytes"):
        load(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"not gzip", gzip.compress(b"\0\0\10\1\0\0\0\24" + b"0" * 20, mtime=0)[:-9]],
    ids=["text", "cut off"],
)
def test_damaged_gzip_is_named(tmp_path: Path, content: bytes) -> None:
    write_idx(tmp_path, zipped=True)
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(content)
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte.gz cannot be read"):
        load(tmp_path)


# CIFAR


class Python2Pickler(pickle._Pickler):
    """Writes byte strings as Python 2 did, which is how the official files were made."""

    dispatch = dict(pickle._Pickler.dispatch)  # noqa: RUF012

    def save_python2_bytes(self, value: bytes) -> None:
        self.write(b"T" + struct.pack("<i", len(value)) + value)
        self.memoize(value)

    dispatch[bytes] = save_python2_bytes


def write_pickle(path: Path, content: Any, *, old: bool) -> None:
    with path.open("wb") as file:
        if old:
            Python2Pickler(file, protocol=2).dump(content)
        else:
            pickle.dump(content, file, protocol=2)
    if old:  # NumPy's constructor lived in numpy.core then
        path.write_bytes(
            path.read_bytes().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
        )


def cifar(num_classes: int, version: str, folder: Path) -> list[np.ndarray]:
    """A small set in the binary, Python (as made by Python 2) or Python (made today) version;
    returns what was written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sizes = (30, 12) if num_classes == 10 else (200, 12)
    (train_x, train_y), (test_x, test_y) = (
        (pixels(n, 3, 32, 32), labels(n, num_classes)) for n in sizes
    )
    train_files = [f"data_batch_{i}" for i in range(1, 6)] if num_classes == 10 else ["train"]
    step = len(train_x) // len(train_files)
    parts = {
        name: (train_x[i * step : (i + 1) * step], train_y[i * step : (i + 1) * step])
        for i, name in enumerate(train_files)
    }
    parts["test_batch" if num_classes == 10 else "test"] = (test_x, test_y)
    for name, (x, y) in parts.items():
        rows = x.reshape(len(x), -1)
        if version == "binary":
            columns = (
                [y[:, None], rows] if num_classes == 10 else [y[:, None] // 5, y[:, None], rows]
            )
            (folder / f"{name}.bin").write_bytes(np.concatenate(columns, 1).tobytes())
        else:
            key = b"labels" if num_classes == 10 else b"fine_labels"
            write_pickle(
                folder / name,
                {b"data": rows, key: y.tolist(), b"batch_label": b"some"},
                old=version == "python2",
            )
    names = [f"class{i}" for i in range(num_classes)]
    if version == "binary":
        (folder / "fine_label_names.txt").write_text("\n".join(names))
    else:
        write_pickle(
            folder / "meta",
            {b"fine_label_names": [name.encode() for name in names]},
            old=version == "python2",
        )
    return [train_x, train_y, test_x, test_y]


@pytest.mark.parametrize("version", ["binary", "python2", "python3"])
@pytest.mark.parametrize("num_classes", [10, 100])
def test_cifar_is_read(tmp_path: Path, num_classes: int, version: str) -> None:
    written = cifar(num_classes, version, tmp_path)
    data = load(tmp_path)
    assert_holds(data, *written)
    assert (data.name, data.num_classes) == (f"cifar{num_classes}", num_classes)
    assert data.class_names[3] == ("cat" if num_classes == 10 else "class3")


def test_damaged_cifar_binaries_are_named(tmp_path: Path) -> None:
    cifar(10, "binary", tmp_path)
    path = tmp_path / "data_batch_4.bin"
    good = path.read_bytes()
    path.write_bytes(good[:-1])
    with pytest.raises(
        DataError, match=r"data_batch_4.bin has \d+ bytes, which is no whole number of 3073"
    ):
        load(tmp_path)
    path.write_bytes(b"\x0b" + good[1:])
    with pytest.raises(DataError, match=r"data_batch_4.bin holds label 11"):
        load(tmp_path)
    path.unlink()
    with pytest.raises(DataError, match=r"data_batch_4.bin is missing"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({b"data": pixels(6, 3071), b"labels": [0] * 6}, "rows of 3072"),
        ({b"data": pixels(6, 3072).astype(float), b"labels": [0] * 6}, "no uint8 array"),
        ({b"data": pixels(6, 3072), b"labels": [0] * 5}, "6 whole numbers"),
        ({b"data": pixels(6, 3072), b"labels": [0.5] * 6}, "6 whole numbers"),
        ([1, 2], "no uint8 array"),
    ],
)
def test_foreign_pickles_are_named(tmp_path: Path, content: Any, message: str) -> None:
    cifar(10, "python3", tmp_path)
    write_pickle(tmp_path / "data_batch_2", content, old=False)
    with pytest.raises(DataError, match=f"data_batch_2.*{message}"):
        load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x80\x02}q\x00(U\x04da"])
def test_damaged_pickles_are_named(tmp_path: Path, content: bytes) -> None:
    cifar(10, "python3", tmp_path)
    (tmp_path / "test_batch").write_bytes(content)
    with pytest.raises(DataError, match="test_batch is no readable pickle"):
        load(tmp_path)


class Payload:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_malicious_pickle_is_refused_and_runs_nothing(tmp_path: Path, protocol: int) -> None:
    mark = tmp_path / "mark"
    payloads = [
        Payload(os.system, f"touch {mark}"),
        Payload(eval, f"open({str(mark)!r}, 'w')"),
        Payload(getattr, Payload(np.ndarray, (1,)), "__class__"),
        [np.zeros(2), {"deep": Payload(os.mkdir, str(mark))}],
    ]
    for payload in payloads:
        path = tmp_path / "data_batch_1"
        path.write_bytes(pickle.dumps(payload, protocol=protocol))
        with pytest.raises(DataError, match="nothing in it was run"):
            unpickle(path)
        assert not mark.exists()


FORGED = {
    # A state of numpy.dtype whose fields name addresses made NumPy write there.
    "a type with fields": (
        b"\x80\x02cnumpy\ndtype\nU\x02V8K\x00K\x01\x87R"
        b"(K\x03U\x01|NU\x01a}U\x01a(h\x00K\x00tsK\x08K\x01K\x10tb."
    ),
    "an array of objects": (
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x01\x85cnumpy\ndtype\nU\x02O8K\x00K\x01\x87R\x89U\x08aaaaaaaatb."
    ),
    "a deep key": b"\x80\x02}K\x01\x85" + b"2\x86" * 60 + b"K\x01s.",  # 2^60 leaves to hash
    "a huge byte array": b"\x80\x05\x96" + (1 << 40).to_bytes(8, "little") + b".",
    "an attribute of a function": b"\x80\x02c_codecs\nencode\n}U\x01aK\x01sb.",
}


@pytest.mark.parametrize("content", FORGED.values(), ids=FORGED)
def test_a_forged_pickle_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "data_batch_1"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        unpickle(path)
    assert caught.value.code in {"forbidden-pickle", "damaged-data"}


def test_plain_values_and_arrays_pass(tmp_path: Path) -> None:
    content = {
        b"a": [1, 2.5, "text", None, (True, b"\xff")],
        "array": np.arange(6, dtype=np.int16).reshape(2, 3),
    }
    write_pickle(tmp_path / "file", content, old=False)
    result = unpickle(tmp_path / "file")
    np.testing.assert_array_equal(result.pop("array"), content.pop("array"))
    assert result == content


# SVHN


def write_svhn(folder: Path) -> list[np.ndarray]:
    arrays = [pixels(30, 3, 32, 32), labels(30, 10), pixels(10, 3, 32, 32), labels(10, 10)]
    for part, x, y in (("train", *arrays[:2]), ("test", *arrays[2:])):
        stored = np.where(y == 0, 10, y).astype(np.uint8)[:, None]
        scipy.io.savemat(folder / f"{part}_32x32.mat", {"X": x.transpose(2, 3, 1, 0), "y": stored})
    return arrays


def test_svhn_is_read_and_its_tens_are_zeros(tmp_path: Path) -> None:
    written = write_svhn(tmp_path)
    data = load(tmp_path)
    assert_holds(data, *written)
    assert (data.name, data.num_classes) == ("svhn", 10)


def test_damaged_svhn_is_named(tmp_path: Path) -> None:
    write_svhn(tmp_path)
    path = tmp_path / "test_32x32.mat"
    good = scipy.io.loadmat(path)
    for content, message in (
        ({"X": good["X"]}, "no array y"),
        ({"X": good["X"], "y": good["y"] + 1}, "labels in 1..10"),
        ({"X": good["X"][:, :, :2], "y": good["y"]}, "no uint8 array X"),
    ):
        scipy.io.savemat(path, content)
        with pytest.raises(DataError, match=f"test_32x32.mat.*{message}"):
            load(tmp_path)
    path.write_bytes(b"MATLAB 5.0 MAT-file, but cut")
    with pytest.raises(DataError, match=r"test_32x32.mat cannot be read"):
        load(tmp_path)
    path.unlink()
    with pytest.raises(DataError, match=r"test_32x32.mat is missing"):
        load(tmp_path)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i4", "i8", "u8", "f4", "f8"])
def test_matlab_arrays_are_scipys(tmp_path: Path, compressed: bool, dtype: str) -> None:
    arrays = {
        "X": RANDOM.integers(0, 100, (3, 4, 2)).astype(dtype),
        "y": np.arange(5, dtype=dtype)[:, None],
        "other": np.arange(3000.0),
    }
    scipy.io.savemat(tmp_path / "file.mat", arrays, do_compression=compressed)
    found = read_matlab(tmp_path / "file.mat", ("X", "y"))
    known = scipy.io.loadmat(tmp_path / "file.mat")
    assert found.keys() == {"X", "y"}
    for name, array in found.items():
        np.testing.assert_array_equal(array, known[name])
        assert array.dtype == known[name].dtype


def test_matlab_files_of_the_other_byte_order_are_read(tmp_path: Path) -> None:
    def element(kind: int, content: bytes) -> bytes:
        return struct.pack(">II", kind, len(content)) + content + bytes(-len(content) % 8)

    flags, sizes = struct.pack(">II", 6, 0), struct.pack(">ii", 2, 3)
    values = np.arange(6, dtype=">i2").tobytes()  # a double array whose values fit into less
    matrix = element(6, flags) + element(5, sizes) + element(1, b"X") + element(3, values)
    content = b" " * 124 + b"\1\0MI" + struct.pack(">II", 14, len(matrix)) + matrix
    (tmp_path / "file.mat").write_bytes(content)
    found = read_matlab(tmp_path / "file.mat", ("X",))["X"]
    np.testing.assert_array_equal(found, np.arange(6.0).reshape(2, 3, order="F"))
