"""Data sets of strangers: bombs are refused before they are inflated, pipes do not hang, every
malformed file is one sentence.
"""

import gzip
import os
import pickle
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np
import pytest
import scipy.io

from pseudocore.data import load, unpickle
from pseudocore.data.limits import VARIABLE, data_limit
from pseudocore.data.reading import Reading
from pseudocore.store.png import encode_png

MIB = 2**20
Fails = Callable[..., AbstractContextManager[None]]


@pytest.fixture
def fails() -> Fails:
    from pseudocore.core.errors import PseudocoreError

    @contextmanager
    def expected(code: str, *parts: object) -> Iterator[None]:
        with pytest.raises(PseudocoreError) as caught:
            yield
        assert caught.value.code == code, caught.value
        assert [part for part in map(str, parts) if part not in str(caught.value)] == []

    return expected


@pytest.fixture(autouse=True)
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(8 / 1024))  # 8 MiB


@contextmanager
def at_most(num_bytes: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < num_bytes
    finally:
        tracemalloc.stop()


def npy(array: np.ndarray) -> bytes:
    header = str({"descr": array.dtype.str, "fortran_order": False, "shape": array.shape})
    header = header.ljust(117) + "\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header.encode() + array.tobytes()


def write_archive(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def small(n: int = 40) -> dict[str, bytes]:
    x, y = np.random.default_rng(0).normal(size=(n, 2)), np.arange(n) % 2
    return {"X": npy(x), "y": npy(y)}


def test_unused_arrays_of_an_archive_are_not_inflated(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "set.npz", **small(), unused=npy(np.zeros(64 * MIB, "u1")))
    with at_most(16 * MIB):
        assert load(path).num_train == 32


def test_needed_arrays_beyond_the_limit_are_not_inflated(tmp_path: Path, fails: Fails) -> None:
    bomb = npy(np.zeros((MIB, 64), "u1"))
    path = write_archive(tmp_path / "set.npz", X=bomb, y=npy(np.arange(MIB) % 2))
    with at_most(16 * MIB), fails("data-limit", path, "--data-limit"):
        load(path)


def test_a_header_that_promises_more_than_the_member_holds(tmp_path: Path, fails: Fails) -> None:
    lying = npy(np.zeros((4, 2))).replace(b"(4, 2)", b"(9**9, )")
    for content in (lying, b"\x93NUMPY\1\0\xff\xff{", b"\x93NUMPY\3\0" + bytes(99), b""):
        path = write_archive(tmp_path / "set.npz", X=content, y=small()["y"])
        with at_most(16 * MIB), fails("unfit-arrays", "cannot be read as an npz"):
            load(path)


@pytest.mark.parametrize("method", [0, 8, 12, 14, 99])
def test_archives_of_any_compression_are_read_or_refused(
    tmp_path: Path, fails: Fails, method: int
) -> None:
    path = write_archive(tmp_path / "set.npz", **small())
    content = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\3\4", 8), (b"PK\1\2", 10)):
        place = -1
        while (place := content.find(mark, place + 1)) >= 0:
            content[place + offset : place + offset + 2] = struct.pack("<H", method)
    path.write_bytes(content)
    if method == 8:
        assert load(path).num_train == 32
    else:
        with fails("unfit-arrays", "cannot be read as an npz"):
            load(path)


def idx(shape: tuple[int, ...], content: bytes) -> bytes:
    return bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + content


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (bytes(64 * MIB), "damaged-data"),  # a wrong magic
        (idx((4, 2, 2), bytes(64 * MIB)), "damaged-data"),
        (idx((64 * MIB, 1, 1), bytes(64 * MIB)), "data-limit"),
    ],
)
def test_gzip_bombs_are_not_inflated(
    tmp_path: Path, fails: Fails, content: bytes, code: str
) -> None:
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(content))
    with at_most(20 * MIB), fails(code, "train-images-idx3-ubyte.gz"):
        load(tmp_path)


def test_pictures_beyond_the_limit_are_not_decoded(tmp_path: Path, fails: Fails) -> None:
    big = encode_png(np.zeros((1200, 1200, 3), "u1"))
    for label in "ab":
        (tmp_path / label).mkdir()
        for number in range(2):
            (tmp_path / label / f"{number}.png").write_bytes(big)
    with at_most(8 * MIB), fails("data-limit", "its 4 pictures"):
        load(tmp_path)
    chunk = b"IHDR" + struct.pack(">IIBBBBB", 8000, 8000, 8, 2, 0, 0, 0)
    one = (
        b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    )
    (tmp_path / "a" / "0.png").write_bytes(one + big[33:])
    with at_most(8 * MIB), fails("data-limit", "0.png"):
        load(tmp_path, reading=Reading(resize=8))


def test_other_formats_are_not_decoded_whatever_they_are_called(
    tmp_path: Path, fails: Fails
) -> None:
    (tmp_path / "a").mkdir()
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n"
    for name in ("0.png", "1.png"):
        (tmp_path / "a" / name).write_bytes(script)
    with fails("damaged-data", "cannot be read as a picture"):
        load(tmp_path)


def test_pipes_do_not_hang(tmp_path: Path, fails: Fails) -> None:
    (tmp_path / "pictures" / "a").mkdir(parents=True)
    os.mkfifo(tmp_path / "pictures" / "a" / "0.png")
    os.mkfifo(tmp_path / "set.npz")
    os.mkfifo(tmp_path / "set.npy")
    (tmp_path / "idx").mkdir()
    os.mkfifo(tmp_path / "idx" / "train-images-idx3-ubyte")
    (tmp_path / "tiny").mkdir()
    os.mkfifo(tmp_path / "tiny" / "wnids.txt")
    np.save(tmp_path / "x.npy", np.zeros((9, 2)))
    for name in ("set.npz", "set.npy", "idx", "tiny"):
        with fails("unknown-layout"):
            load(tmp_path / name)
    with fails("too-few-pictures"):
        load(tmp_path / "pictures")
    (tmp_path / "pictures" / "a" / "1.png").write_bytes(encode_png(np.zeros((8, 8, 3), "u1")))
    with fails("damaged-data", "0.png is no regular file"):
        load(tmp_path / "pictures")
    with fails("unfit-arrays", "set.npy"):
        load(tmp_path / "x.npy", reading=Reading(labels=str(tmp_path / "set.npy")))


def test_a_label_of_a_billion_takes_no_memory(tmp_path: Path, fails: Fails) -> None:
    y = np.array([0, 1] * 19 + [1, 10**9])
    path = write_archive(tmp_path / "set.npz", X=small()["X"], y=npy(y))
    with at_most(16 * MIB):
        assert load(path).num_classes <= 3
    path = write_archive(tmp_path / "set.npz", **small(), Xt=small()["X"], yt=npy(y))
    with at_most(16 * MIB), fails("unknown-class", "1000000000"):
        load(path)
    names = npy(np.array(["a", "b"]))
    path = write_archive(tmp_path / "set.npz", X=small()["X"], y=npy(y), class_names=names)
    with at_most(16 * MIB):
        load(path)


def test_texts_that_are_not_utf8_are_named(tmp_path: Path, fails: Fails) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "wnids.txt").write_bytes(b"n01\xff\n")
    with fails("damaged-data", "wnids.txt is not UTF-8", "0xff"):
        load(tmp_path)


def test_folder_names_of_any_bytes_become_class_names(tmp_path: Path) -> None:
    for name, value in ((b"caf\xe9", 0), (b"b", 200)):
        folder = os.path.join(os.fsencode(tmp_path), name)
        os.mkdir(folder)
        for number in range(2):
            with open(os.path.join(folder, b"\xff%d.png" % number), "wb") as file:
                file.write(encode_png(np.full((8, 8, 3), value + number, "u1")))
    assert load(tmp_path).class_names == ("b", "caf\N{REPLACEMENT CHARACTER}")


@pytest.mark.parametrize("names", [[1, 2], 7, [b"\xff"] * 100, None, [[b"a"]] * 100])
def test_class_names_of_cifar100_are_texts_or_refused(
    tmp_path: Path, fails: Fails, names: object
) -> None:
    y = [label % 100 for label in range(200)]
    x = np.random.default_rng(0).integers(0, 256, (200, 3072), dtype=np.uint8)
    for part in ("train", "test"):
        content = pickle.dumps({b"data": x, b"fine_labels": y}, protocol=2)
        (tmp_path / part).write_bytes(content)
    (tmp_path / "meta").write_bytes(pickle.dumps({b"fine_label_names": names}, protocol=2))
    if names in (7, None):
        assert load(tmp_path).class_names == ()
    else:
        with fails("damaged-data", "meta has class names"):
            load(tmp_path)


def test_a_pickle_that_makes_much_of_little_is_stopped(
    tmp_path: Path, fails: Fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpickle._Counted, "left", 1000)
    text = pickle.BINUNICODE + struct.pack("<I", MIB) + b"a" * MIB + pickle.BINPUT + b"\0"
    latin1 = pickle.SHORT_BINUNICODE + b"\6latin1" + pickle.BINPUT + b"\1"
    again = b"c_codecs\nencode\n" + b"h\0h\1" + pickle.TUPLE2 + pickle.REDUCE
    for bomb in (text + latin1 + pickle.MARK + again * 100 + pickle.LIST, b"(" + b"]" * 1001):
        (tmp_path / "data_batch_1").write_bytes(pickle.PROTO + b"\2" + bomb + b".")
        with fails("forbidden-pickle", "nothing in it was run"):
            load(tmp_path)


def test_a_compressed_matlab_array_is_not_inflated_beyond_the_limit(
    tmp_path: Path, fails: Fails
) -> None:
    x = np.zeros((32, 32, 3, 3_000), "u1")
    scipy.io.savemat(tmp_path / "train_32x32.mat", {"X": x, "y": x}, do_compression=True)
    with at_most(8 * MIB), fails("data-limit", "train_32x32.mat"):
        load(tmp_path)


@pytest.mark.parametrize("text", ["0", "-1", "nan", "many", "1e300", "9" * 5000])
def test_limits_that_are_none_are_refused(
    monkeypatch: pytest.MonkeyPatch, fails: Fails, text: str
) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with fails("out-of-range", "--data-limit"):
        data_limit()
