"""Artifacts come back bit for bit, and a write that fails leaves what was there."""

import errno
import hashlib
import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pseudocore.core.errors import RunError
from pseudocore.store.coreset_file import read_tensors, write_tensors

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


def record_of(path: Path) -> dict[str, Any]:
    with safetensors.safe_open(str(path), framework="pt") as file:
        return dict(json.loads(file.metadata()["pseudocore"]))


@st.composite
def tensor_dicts(draw: st.DrawFn) -> dict[str, Tensor]:
    names = draw(
        st.lists(st.text(min_size=1, max_size=8).filter(_encodable), max_size=4, unique=True)
    )
    made = {}
    for name in names:
        shape = draw(st.lists(st.integers(0, 3), max_size=3))
        noise = (
            torch.randn(
                shape,
                dtype=torch.float64,
                generator=torch.Generator().manual_seed(draw(st.integers(0, 99))),
            )
            * 3
        )
        made[name] = noise.to(draw(st.sampled_from(DTYPES)))
    return made


def _encodable(name: str) -> bool:
    return name != "__metadata__" and not any("\ud800" <= char <= "\udfff" for char in name)


def _same_after_json(text: str) -> bool:
    return text not in ("NaN", "Infinity", "-Infinity")


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=9).filter(_same_after_json),
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
    write_tensors(
        tmp_path / "x", {"t": grid.T, "again": grid, "row": grid[1]}, kind="test", header={}
    )
    back, _ = read_tensors(tmp_path / "x", kind="test")
    assert torch.equal(back["t"], grid.detach().T)
    assert torch.equal(back["again"], grid.detach())
    assert torch.equal(back["row"], grid.detach()[1])


def test_tensors_are_aligned_however_the_header_falls(tmp_path: Path) -> None:
    for length in range(8):
        write_tensors(
            tmp_path / "x",
            {"b": torch.zeros(3, dtype=torch.uint8), "a": torch.ones(5)},
            kind="k",
            header={"n": "n" * length},
        )
        tensors, _ = read_tensors(tmp_path / "x", kind="k")
        assert all(tensor.data_ptr() % 16 == 0 for tensor in tensors.values())


def test_digest_is_the_documented_one(whole: Path) -> None:
    record = record_of(whole)
    digest = hashlib.blake2b(digest_size=32)
    digest.update(json.dumps({"kind": "test", "schema": 1, "step": 3}).encode())
    digest.update(b'["a", "float32", [6]]' + struct.pack("<6f", *range(6)))
    digest.update(b'["b", "bool", [1]]' + b"\x01")
    assert record == {"kind": "test", "schema": 1, "step": 3, "digest": digest.hexdigest()}


def test_equal_contents_give_equal_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_tensors(
            tmp_path / name, {"a": torch.ones(3), "b": torch.zeros(2)}, kind="k", header={"p": 1}
        )
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


# --- writing against resistance
# -------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_a_full_disk_leaves_the_old_file_and_no_partial(
    whole: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    before = whole.read_bytes()

    def refuse(handle: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(
        RunError,
        match=re.escape(
            f"cannot write {whole}: {os.strerror(code)[0].lower()}{os.strerror(code)[1:]};"
        ),
    ):
        write_tensors(whole, {"a": torch.zeros(9)}, kind="test", header={})
    assert whole.read_bytes() == before
    assert [file.name for file in whole.parent.iterdir()] == [whole.name]


def test_a_write_cut_short_by_the_system_leaves_the_old_file(whole: Path) -> None:
    """A real refusal in the middle of the data: the process may write no more than 4 KiB to any
    file.
    """
    before = whole.read_bytes()
    script = f"""
import resource, torch
from pseudocore.core.errors import RunError
from pseudocore.store.coreset_file import write_tensors
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    write_tensors({str(whole)!r}, {{"a": torch.zeros(100_000)}}, kind="test", header={{}})
except RunError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env=_environment(),
        check=True,
    )
    assert "file too large; what was saved before is intact" in done.stdout
    assert whole.read_bytes() == before
    assert [file.name for file in whole.parent.iterdir()] == [whole.name]


def test_an_interrupted_write_leaves_the_old_file(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = whole.read_bytes()

    def interrupt(source: object, target: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_tensors(whole, {"a": torch.zeros(9)}, kind="test", header={})
    assert whole.read_bytes() == before
    assert [file.name for file in whole.parent.iterdir()] == [whole.name]


def test_places_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    for name, message in {
        "missing/x": "no such file",
        "file/x": "not a directory",
        "folder": "is a directory",
    }.items():
        with pytest.raises(RunError, match=message):
            write_tensors(tmp_path / name, {}, kind="test", header={})
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file", "folder"]
    assert (tmp_path / "file").read_text() == "mine"


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
