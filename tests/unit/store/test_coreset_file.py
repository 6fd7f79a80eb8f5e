"""Tensor files come back bit for bit; a damaged, foreign or lying one is refused in one sentence
and never costs what it claims; coresets are usable or refused.
"""

import hashlib
import json
import os
import resource
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from pseudocore.core.errors import ArtifactError
from pseudocore.core.types import Coreset
from pseudocore.store.coreset_file import load_coreset, read_tensors, save_coreset, write_tensors

Fails = Callable[..., Any]

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]


def raw(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@st.composite
def tensor_dicts(draw: st.DrawFn) -> dict[str, Tensor]:
    names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
    names = names.filter(lambda name: name != "__metadata__")
    made = {}
    for name in draw(st.lists(names, max_size=4, unique=True)):
        shape = draw(st.lists(st.integers(0, 3), max_size=3))
        generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
        noise = 3 * torch.randn(shape, dtype=torch.float64, generator=generator)
        made[name] = noise.to(draw(st.sampled_from(DTYPES)))
    return made


plain_texts = st.text(max_size=9).filter(lambda text: text not in ("NaN", "Infinity", "-Infinity"))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | plain_texts,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    tensors=tensor_dicts(),
    header=st.dictionaries(st.sampled_from(["step", "provenance", "Größe"]), json_values),
)
@settings(max_examples=60, deadline=None)
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, Tensor], header: dict[str, Any]
) -> None:
    path = tmp_path_factory.mktemp("artifact") / "x.safetensors"
    write_tensors(path, tensors, kind="test", header=header)
    back, read = read_tensors(path, kind="test")
    assert read == header
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (back[name].dtype, back[name].shape) == (tensor.dtype, tensor.shape)
        assert raw(back[name]) == raw(tensor)  # bytes, because NaN and -0.0 must survive too


def test_strided_shared_and_graph_tensors_are_written(tmp_path: Path) -> None:
    grid = torch.arange(12.0).reshape(3, 4).requires_grad_()
    tensors = {"t": grid.T, "again": grid, "row": grid[1]}
    write_tensors(tmp_path / "x", tensors, kind="test", header={})
    back, _ = read_tensors(tmp_path / "x", kind="test")
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)


def test_tensors_are_aligned_however_the_header_falls(tmp_path: Path) -> None:
    tensors = {"b": torch.zeros(3, dtype=torch.uint8), "a": torch.ones(5)}
    for length in range(8):
        write_tensors(tmp_path / "x", tensors, kind="k", header={"n": "n" * length})
        back, _ = read_tensors(tmp_path / "x", kind="k")
        assert all(tensor.data_ptr() % 16 == 0 for tensor in back.values())


def test_the_digest_is_the_documented_one(whole: Path) -> None:
    digest = hashlib.blake2b(digest_size=32)
    digest.update(json.dumps({"kind": "test", "schema": 1, "step": 3}).encode())
    digest.update(b'["a", "float32", [6]]' + struct.pack("<6f", *range(6)))
    digest.update(b'["b", "bool", [1]]' + b"\x01")
    with safetensors.safe_open(str(whole), framework="pt") as file:
        record = json.loads(file.metadata()["pseudocore"])
    assert record == {"kind": "test", "schema": 1, "step": 3, "digest": digest.hexdigest()}


def test_equal_contents_give_equal_files(tmp_path: Path) -> None:
    tensors = {"a": torch.ones(3), "b": torch.zeros(2)}
    for name in ("one", "two"):
        write_tensors(tmp_path / name, tensors, kind="k", header={"p": 1})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


# --- refusals


def test_every_truncation_is_refused(whole: Path) -> None:
    data = whole.read_bytes()
    for length in range(len(data)):
        whole.write_bytes(data[:length])
        with pytest.raises(ArtifactError):
            read_tensors(whole, kind="test")


def test_every_flipped_bit_is_refused(whole: Path, fails: Fails) -> None:
    """In the data and in the header, except in the blanks that pad it."""
    data = whole.read_bytes()
    sound, header = read_tensors(whole, kind="test")
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << (position % 8)
        whole.write_bytes(damaged)
        try:
            tensors, read = read_tensors(whole, kind="test")
        except ArtifactError:
            continue
        assert read == header
        assert all(raw(tensors[name]) == raw(sound[name]) for name in {*tensors, *sound})
    whole.write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
    with fails("damaged-file", "do not match the digest"):
        read_tensors(whole, kind="test")


@given(garbage=st.binary(max_size=300))
@settings(max_examples=100, deadline=None)
def test_garbage_is_refused(tmp_path_factory: pytest.TempPathFactory, garbage: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "garbage.safetensors"
    path.write_bytes(garbage)
    with pytest.raises(ArtifactError):
        read_tensors(path, kind="test")


def lying_file(path: Path, shape: list[int], end: int, length: int | None = None) -> None:
    meta = {"pseudocore": json.dumps({"schema": 1, "kind": "test", "digest": "0"})}
    entry = {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}
    header = json.dumps({"__metadata__": meta, "a": entry}).encode()
    size = struct.pack("<Q", len(header) if length is None else length)
    path.write_bytes(size + header + bytes(16))


@pytest.mark.parametrize(
    ("shape", "end", "length"),
    [
        ([4], 16, 10**12),
        ([4], 16, 2**64 - 1),
        ([250 * 10**9], 10**12, None),
        ([4], 10**12, None),
        ([250 * 10**9], 16, None),
        ([2**62, 4], 16, None),
        ([-4], 16, None),
    ],
)
def test_a_header_that_claims_a_terabyte_costs_nothing(
    tmp_path: Path, fails: Fails, shape: list[int], end: int, length: int | None
) -> None:
    lying_file(tmp_path / "liar", shape, end, length)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()
    try:
        with pytest.raises(ArtifactError):
            read_tensors(tmp_path / "liar", kind="test")
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes
    lying_file(tmp_path / "honest", [4], 16)  # without the lie it gets as far as the digest
    with fails("damaged-file", "digest"):
        read_tensors(tmp_path / "honest", kind="test")


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        (None, "foreign-file"),
        ("", "damaged-file"),
        ("__import__('os').system('true')", "damaged-file"),
        ("[" * 100_000, "damaged-file"),
        ('{"schema": ' + "9" * 5000 + "}", "damaged-file"),
        ("[1, 2]", "damaged-file"),
        ("null", "damaged-file"),
        ('{"kind": "test"}', "damaged-file"),
        ('{"schema": "1", "kind": "test"}', "damaged-file"),
        ('{"schema": true, "kind": "test"}', "damaged-file"),
        ('{"schema": 0, "kind": "test"}', "damaged-file"),
        ('{"schema": 2, "kind": "test"}', "later-schema"),
        ('{"schema": 1, "kind": "coreset"}', "another-kind"),
        ('{"schema": 1}', "another-kind"),
        ('{"schema": 1, "kind": "test"}', "damaged-file"),
        ('{"schema": 1, "kind": "test", "deep": ' + "[" * 900 + "]" * 900 + "}", "damaged-file"),
    ],
)
def test_foreign_metadata_is_refused(
    tmp_path: Path, fails: Fails, entry: str | None, code: str
) -> None:
    metadata = {"format": "pt"} if entry is None else {"pseudocore": entry}
    save_file({"a": torch.ones(2)}, tmp_path / "foreign", metadata=metadata)
    with fails(code, tmp_path / "foreign"):
        read_tensors(tmp_path / "foreign", kind="test")


def test_no_file_a_folder_and_a_pipe_are_refused(tmp_path: Path, fails: Fails) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("")
    for name, words in {
        "missing": "there is no file",
        ".": "is a folder",
        "pipe": "not a regular file",
        "file/below": "there is no file",
    }.items():
        with fails("no-file", words):
            read_tensors(tmp_path / name, kind="test")
    with fails("unreadable-file", "file name too long"):
        read_tensors(tmp_path / ("n" * 300), kind="test")


# --- coresets


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("selected", [False, True])
def test_coreset_round_trip(tmp_path: Path, soft: bool, selected: bool) -> None:
    x = torch.randn(4, 1, 2, 3, generator=torch.Generator().manual_seed(0))
    y = torch.eye(4)[:, :2] - 0.5 if soft else torch.tensor([0, 1, 0, 1])
    indices = torch.tensor([5, 2, 9, 0]) if selected else None
    provenance = {"config": {"lr": 0.1, "clip": float("inf")}, "seed": 3, "shape": [1, 2]}
    coreset = Coreset(x, y, torch.arange(1.0, 5), indices, provenance)
    save_coreset(tmp_path / "coreset.safetensors", coreset)
    for path in (tmp_path, tmp_path / "coreset.safetensors", str(tmp_path)):
        back = load_coreset(path)
        assert torch.equal(back.x, x)
        assert torch.equal(back.y, y)
        assert back.y.dtype == y.dtype
        assert torch.equal(back.weight, coreset.weight)
        assert (back.indices is None) == (indices is None)
        assert indices is None or torch.equal(back.indices, indices)  # type: ignore[arg-type]
        assert back.provenance == provenance
    plain = load_file(tmp_path / "coreset.safetensors")
    assert torch.equal(plain["x"], x)
    assert plain.keys() == {"x", "y", "weight"} | ({"indices"} if selected else set())


SOUND = {"x": torch.ones(2, 3), "y": torch.tensor([0, 1]), "weight": torch.ones(2)}
NONE = {name: tensor[:0] for name, tensor in SOUND.items()}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x": torch.full((2, 3), float("nan"))}, "x holds NaN"),
        ({"weight": torch.tensor([1.0, float("inf")])}, "weight holds NaN or infinite"),
        ({"weight": torch.tensor([1.0, -1.0])}, "non-negative"),
        ({"weight": torch.ones(3)}, "disagree about its size"),
        ({"y": torch.ones(2)}, "labels must be integers"),
        ({"x": torch.tensor(1.0)}, "x must be an array"),
        ({"y": torch.tensor(1)}, "y must be an array"),
        ({"weight": torch.ones(2, dtype=torch.complex64)}, "weight must be an array of real"),
        (NONE, "at least one point"),
        ({"y": None}, "it lacks y"),
    ],
)
def test_a_file_without_a_usable_coreset_is_refused(
    tmp_path: Path, fails: Fails, changes: dict[str, Tensor], words: str
) -> None:
    tensors = {name: value for name, value in {**SOUND, **changes}.items() if value is not None}
    write_tensors(tmp_path / "bad", tensors, kind="coreset", header={"provenance": {}})
    with fails("damaged-file", tmp_path / "bad", words):
        load_coreset(tmp_path / "bad")


def test_other_files_and_folders_are_no_coresets(tmp_path: Path, fails: Fails) -> None:
    write_tensors(tmp_path / "bad", SOUND, kind="coreset", header={"provenance": [1]})
    with fails("damaged-file", "provenance"):
        load_coreset(tmp_path / "bad")
    write_tensors(tmp_path / "bad", SOUND, kind="checkpoint", header={})
    with fails("another-kind", "holds 'checkpoint', not 'coreset'"):
        load_coreset(tmp_path / "bad")
    with fails("no-coreset", "holds no coreset.safetensors"):
        load_coreset(tmp_path)
