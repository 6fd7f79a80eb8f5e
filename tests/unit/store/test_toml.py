"""What `dumps` writes, the standard library reads back equal; what cannot be read is refused with
file and line.
"""

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pseudocore.core.errors import ConfigError
from pseudocore.store.files import decode_toml, encode_toml, read_toml

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
scalars = texts | st.integers() | st.floats() | st.booleans()
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
tables = st.dictionaries(texts, values, max_size=5)


def identical(one: Any, other: Any) -> bool:
    """Equality that tells 1 from 1.0 from true and 0.0 from -0.0, and finds nan equal to nan."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(identical(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(identical, one, other))
    if isinstance(one, float):
        return (math.isnan(one) and math.isnan(other)) or (
            one == other and math.copysign(1, one) == math.copysign(1, other)
        )
    return bool(one == other)


@given(tables)
@example(
    {"a": math.inf, "b": -math.inf, "c": math.nan, "d": -0.0, "e": 1e16, "f": 5e-324, "g": 1e-05}
)
@example(
    {
        "": {"": ""},
        "a.b": {"c d": 1},
        '"': "\x00\x1f\x7f\x85\u2028\r\n\t\b\\\"'",
        "ключ": "значение",
    }
)
@example(
    {
        "t": {"u": {"v": {}}},
        "after": 1,
        "empty": {},
        "list": [[], [1, "x", [True]], [{"k": {"l": [1.0]}}]],
    }
)
@settings(max_examples=300, deadline=None)
def test_round_trip(table: dict[str, Any]) -> None:
    assert identical(tomllib.loads(encode_toml(table)), table)
    assert identical(decode_toml(encode_toml(table)), table)


def test_it_looks_like_a_person_wrote_it() -> None:
    config = {
        "method": {
            "name": "bpc-fkl",
            "per_class": 10,
            "image_lr": 0.01,
            "inner": {"steps": [1, 2]},
        },
        "seed": 0,
        "whiten": True,
    }
    expected = """\
seed = 0
whiten = true

[method]
name = "bpc-fkl"
per_class = 10
image_lr = 0.01

[method.inner]
steps = [1, 2]
"""
    assert encode_toml(config) == expected
    assert encode_toml({}) == ""


def test_tuples_become_arrays() -> None:
    assert tomllib.loads(encode_toml({"shape": (3, 32)})) == {"shape": [3, 32]}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"a": {"b": None}}, r"a\.b = None cannot be written as TOML; leave it out"),
        ({"a": [1, {2}]}, r"a = \{2\} cannot be written"),
        ({"a": "\ud800"}, "not valid Unicode"),
        ({1: 2}, "a TOML key must be a string, not 1"),
    ],
)
def test_what_toml_cannot_say_is_refused(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        encode_toml(table)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"seed = 0\nlr = = 1\n", "line 2: Invalid value"),
        (b"a = 1\n\nb = 2\na = 3\n", "line 4: Cannot overwrite a value"),
        (b"a = 1\nb = [1,", "line 2: Unclosed array|line 2: Invalid value"),
        (b"a = 1\nb = '\xff'\n", "line 2: byte 0xff is not UTF-8"),
        (b"a = " + b"[" * 100_000, "nested too deeply"),
        (b"a = 1\nb = " + b"9" * 5000 + b"\n", "digits"),
    ],
)
def test_a_broken_file_is_refused_with_its_line(tmp_path: Path, text: bytes, message: str) -> None:
    path = tmp_path / "preset.toml"
    path.write_bytes(text)
    with pytest.raises(ConfigError, match=message) as caught:
        read_toml(path)
    assert str(caught.value).startswith(str(path))


def test_no_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read_toml(tmp_path / "missing.toml")
    with pytest.raises(ConfigError, match="is a directory"):
        read_toml(tmp_path)


def test_read(tmp_path: Path) -> None:
    (tmp_path / "preset.toml").write_text(
        '# a comment\nname = "größe"\r\n[table]\nx = 1e-3\n', encoding="utf-8", newline=""
    )
    assert read_toml(tmp_path / "preset.toml") == {"name": "größe", "table": {"x": 0.001}}
