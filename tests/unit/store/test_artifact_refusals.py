"""A file that is damaged, foreign or lying is refused in one sentence, and never costs what it
claims.
"""

import json
import os
import resource
import struct
import tracemalloc
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from pseudocore.core.errors import ArtifactError
from pseudocore.store.coreset_file import read_tensors


def raw(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def test_every_truncation_is_refused(whole: Path) -> None:
    data = whole.read_bytes()
    for length in range(len(data)):
        whole.write_bytes(data[:length])
        with pytest.raises(ArtifactError):
            read_tensors(whole, kind="test")


def test_every_flipped_bit_is_refused(whole: Path) -> None:
    """Of the data and of the header alike: a changed step is as wrong as a changed number."""
    data = whole.read_bytes()
    sound = read_tensors(whole, kind="test")
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << (position % 8)
        whole.write_bytes(bytes(damaged))
        try:
            tensors, header = read_tensors(whole, kind="test")
        except ArtifactError:
            continue
        # Padding blanks of the header carry nothing, so a change among them may pass; the contents
        # may not differ.
        assert header == sound[1]
        assert {name: raw(tensor) for name, tensor in tensors.items()} == {
            name: raw(tensor) for name, tensor in sound[0].items()
        }


def test_a_flipped_bit_of_the_data_names_the_digest(whole: Path) -> None:
    data = bytearray(whole.read_bytes())
    data[-3] ^= 1
    whole.write_bytes(bytes(data))
    with pytest.raises(ArtifactError, match="do not match the digest"):
        read_tensors(whole, kind="test")


@given(garbage=st.binary(max_size=300))
@settings(max_examples=100, deadline=None)
def test_garbage_is_refused(tmp_path_factory: pytest.TempPathFactory, garbage: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "garbage.safetensors"
    path.write_bytes(garbage)
    with pytest.raises(ArtifactError):
        read_tensors(path, kind="test")


def lying_file(path: Path, shape: list[int], end: int, *, length: int | None = None) -> None:
    meta = {"pseudocore": json.dumps({"schema": 1, "kind": "test", "digest": "0"})}
    header = json.dumps(
        {"__metadata__": meta, "a": {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}}
    ).encode()
    path.write_bytes(
        struct.pack("<Q", len(header) if length is None else length) + header + bytes(16)
    )


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
    tmp_path: Path, shape: list[int], end: int, length: int | None
) -> None:
    path = tmp_path / "liar.safetensors"
    lying_file(path, shape, end, length=length)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()
    try:
        with pytest.raises(ArtifactError):
            read_tensors(path, kind="test")
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes


def test_the_lying_file_is_refused_for_its_lie(tmp_path: Path) -> None:
    """The same file without the lie gets as far as the digest: the refusals above are about the
    claim.
    """
    lying_file(tmp_path / "honest", [4], 16)
    with pytest.raises(ArtifactError, match="digest"):
        read_tensors(tmp_path / "honest", kind="test")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (None, "not written by pseudocore"),
        ({"format": "pt"}, "not written by pseudocore"),
        ({"pseudocore": ""}, "is not JSON"),
        ({"pseudocore": "__import__('os').system('true')"}, "is not JSON"),
        ({"pseudocore": "[" * 100_000}, "is not JSON"),
        ({"pseudocore": '{"schema": ' + "9" * 5000 + "}"}, "is not JSON"),
        ({"pseudocore": "[1, 2]"}, "no schema version"),
        ({"pseudocore": "null"}, "no schema version"),
        ({"pseudocore": '{"kind": "test"}'}, "no schema version"),
        ({"pseudocore": '{"schema": "1", "kind": "test"}'}, "no schema version"),
        ({"pseudocore": '{"schema": true, "kind": "test"}'}, "no schema version"),
        ({"pseudocore": '{"schema": 0, "kind": "test"}'}, "no schema version"),
        (
            {"pseudocore": '{"schema": 2, "kind": "test"}'},
            "later pseudocore .schema 2, this one reads up to 1",
        ),
        ({"pseudocore": '{"schema": 1, "kind": "coreset"}'}, "holds 'coreset', not 'test'"),
        ({"pseudocore": '{"schema": 1}'}, "holds None, not 'test'"),
        ({"pseudocore": '{"schema": 1, "kind": "test"}'}, "digest"),
        (
            {
                "pseudocore": '{"schema": 1, "kind": "test", "digest": ["x"], "deep": '
                + "[" * 900
                + "]" * 900
                + "}"
            },
            "damaged|JSON",
        ),
    ],
)
def test_foreign_metadata_is_refused(
    tmp_path: Path, metadata: dict[str, str] | None, message: str
) -> None:
    path = tmp_path / "foreign.safetensors"
    save_file({"a": torch.ones(2)}, path, metadata=metadata)
    with pytest.raises(ArtifactError, match=message) as caught:
        read_tensors(path, kind="test")
    assert str(path) in str(caught.value)


def test_no_file_a_folder_and_a_pipe_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("")
    for name, message in {
        "missing": "there is no file",
        ".": "is a folder",
        "pipe": "not a regular file",
        "file/below": "there is no file",
        "n" * 300: "file name too long",
    }.items():
        with pytest.raises(ArtifactError, match=message):
            read_tensors(tmp_path / name, kind="test")
