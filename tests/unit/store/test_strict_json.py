"""The JSON we write is JSON to every reader, and comes back as it went in."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pseudocore.core.errors import ArtifactError
from pseudocore.store.files import decode_json, encode_json, read_json, write_json


def refuse(token: str) -> Any:
    raise AssertionError(f"{token} is not JSON")


def test_numbers_that_json_lacks_survive_and_stay_valid() -> None:
    value = {"nan": math.nan, "list": [math.inf, {"low": -math.inf}], "fine": 0.1}
    text = encode_json(value)
    json.loads(text, parse_constant=refuse)
    back = decode_json(text)
    assert math.isnan(back["nan"])
    assert back["list"] == [math.inf, {"low": -math.inf}]
    assert back["fine"] == 0.1


def test_what_computations_hand_over_becomes_plain() -> None:
    value = {
        1: np.float32(0.5),
        "t": torch.tensor(3),
        "p": Path("a/b"),
        "s": torch.Size([1, 2]),
        "n": np.float64("nan"),
        "b": np.bool_(True),
    }
    assert json.loads(encode_json(value)) == {
        "1": 0.5,
        "t": 3,
        "p": "a/b",
        "s": [1, 2],
        "n": "NaN",
        "b": True,
    }


def test_what_has_no_plain_form_is_an_error() -> None:
    with pytest.raises(TypeError):
        encode_json({"a": object()})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "not JSON"),
        (b"\xff\xfe\xfa", "not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[1]", "it holds list"),
        (b"", "not JSON"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "x.json").write_bytes(data)
    with pytest.raises(ArtifactError, match=message) as caught:
        read_json(tmp_path / "x.json")
    assert str(tmp_path / "x.json") in str(caught.value)


def test_file_round_trip(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"a": [1, None, "ü"]})
    assert read_json(tmp_path / "x.json") == {"a": [1, None, "ü"]}
    with pytest.raises(ArtifactError, match="no such file"):
        read_json(tmp_path / "y.json")
