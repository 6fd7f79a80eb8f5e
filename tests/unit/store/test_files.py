"""JSON and TOML come back as they went in; a write is whole or nothing; refusals name the file."""

import errno
import json
import math
import os
import secrets
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pseudocore.core.errors import RunError
from pseudocore.store.coreset_file import write_tensors
from pseudocore.store.files import (
    decode_json,
    decode_toml,
    encode_json,
    encode_toml,
    read_json,
    read_toml,
    write_bytes,
    write_json,
)

Fails = Callable[..., Any]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
scalars = texts | st.integers() | st.floats() | st.booleans()
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
tables = st.dictionaries(texts, values, max_size=5)


def test_json_is_strict_and_its_floats_come_back() -> None:
    value = {"nan": math.nan, "list": [math.inf, {"low": -math.inf}], "fine": 0.1}
    text = encode_json(value)
    json.loads(text, parse_constant=lambda token: pytest.fail(f"{token} is not JSON"))
    assert repr(decode_json(text)) == repr(value)


@pytest.mark.parametrize("n", [0.25, math.nan], ids=["finite", "nan"])
def test_values_of_computations_become_plain_json(n: float) -> None:
    value = {
        1: np.float32(0.5),
        "t": torch.tensor(3),
        "p": Path("a/b"),
        "s": torch.Size([1, 2]),
        "n": np.float64(n),
        "b": np.bool_(True),
    }
    plain = {"1": 0.5, "t": 3, "p": "a/b", "s": [1, 2], "n": n, "b": True}
    assert repr(decode_json(encode_json(value))) == repr(plain)
    with pytest.raises(TypeError):
        encode_json({"a": object(), "n": n})


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"{", "not JSON"),
        (b"\xff\xfe\xfa", "not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[1]", "it holds list"),
        (b"", "not JSON"),
    ],
)
def test_a_damaged_json_file_is_refused(
    tmp_path: Path, fails: Fails, data: bytes, words: str
) -> None:
    (tmp_path / "x.json").write_bytes(data)
    with fails("damaged-file", tmp_path / "x.json", words):
        read_json(tmp_path / "x.json")


def test_json_files_round_trip(tmp_path: Path, fails: Fails) -> None:
    write_json(tmp_path / "x.json", {"a": [1, None, "ü"]})
    assert read_json(tmp_path / "x.json") == {"a": [1, None, "ü"]}
    with fails("unreadable-file", "no such file"):
        read_json(tmp_path / "y.json")


def identical(one: Any, other: Any) -> bool:
    """Equality that tells 1 from 1.0 from true and 0.0 from -0.0; nan equals nan."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(identical(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(identical, one, other))
    return repr(one) == repr(other)


@given(tables)
@example({"a": math.inf, "b": -math.inf, "c": math.nan, "d": -0.0, "e": 1e16, "f": 5e-324})
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
def test_toml_round_trip(table: dict[str, Any]) -> None:
    assert identical(tomllib.loads(encode_toml(table)), table)
    assert identical(decode_toml(encode_toml(table)), table)


def test_toml_looks_hand_written() -> None:
    method = {"name": "bpc-fkl", "image_lr": 0.01, "inner": {"steps": (1, 2)}}
    expected = """\
seed = 0
whiten = true

[method]
name = "bpc-fkl"
image_lr = 0.01

[method.inner]
steps = [1, 2]
"""
    assert encode_toml({"method": method, "seed": 0, "whiten": True}) == expected
    assert encode_toml({}) == ""


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"a": {"b": None}}, "a.b = None cannot be written as TOML; leave it out"),
        ({"a": [1, {2}]}, "a = {2} cannot be written"),
        ({"a": "\ud800"}, "not valid Unicode"),
        ({1: 2}, "a TOML key must be a string, not 1"),
    ],
)
def test_values_without_toml_form_are_refused(
    fails: Fails, table: dict[str, Any], words: str
) -> None:
    with fails("not-toml", words):
        encode_toml(table)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"seed = 0\nlr = = 1\n", "line 2: Invalid value"),
        (b"a = 1\n\nb = 2\na = 3\n", "line 4: Cannot overwrite a value"),
        (b"a = 1\nb = [1,", "line 2: "),
        (b"a = 1\nb = '\xff'\n", "line 2: byte 0xff is not UTF-8"),
        (b"a = " + b"[" * 100_000, "nested too deeply"),
        (b"a = 1\nb = " + b"9" * 5000 + b"\n", "digits"),
    ],
)
def test_a_broken_toml_file_is_refused_with_its_line(
    tmp_path: Path, fails: Fails, text: bytes, words: str
) -> None:
    (tmp_path / "preset.toml").write_bytes(text)
    with fails("invalid-toml", tmp_path / "preset.toml", words):
        read_toml(tmp_path / "preset.toml")


def test_toml_files(tmp_path: Path, fails: Fails) -> None:
    text = '# a comment\nname = "größe"\r\n[table]\nx = 1e-3\n'
    (tmp_path / "preset.toml").write_text(text, encoding="utf-8", newline="")
    assert read_toml(tmp_path / "preset.toml") == {"name": "größe", "table": {"x": 0.001}}
    with fails("unreadable-file", "no such file"):
        read_toml(tmp_path / "missing.toml")
    with fails("unreadable-file", "is a directory"):
        read_toml(tmp_path)


# --- atomic writing


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_a_full_disk_leaves_the_old_file_and_no_partial(
    whole: Path, fails: Fails, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    before, reason = whole.read_bytes(), os.strerror(code)

    def refuse(handle: int) -> None:
        raise OSError(code, reason)

    monkeypatch.setattr(os, "fsync", refuse)
    with fails("unwritable-file", f"cannot write {whole}: {reason[0].lower()}{reason[1:]};"):
        write_tensors(whole, {"a": torch.zeros(9)}, kind="test", header={})
    assert whole.read_bytes() == before
    assert list(whole.parent.iterdir()) == [whole]


def test_a_write_cut_short_by_the_system_leaves_the_old_file(whole: Path) -> None:
    """A real refusal in the middle of the data: no more than 4 KiB may be written to a file."""
    before = whole.read_bytes()
    script = f"""
import resource
from pseudocore.core.errors import RunError
from pseudocore.store.files import write_bytes
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    write_bytes({str(whole)!r}, bytes(400_000))
except RunError as error:
    print(error)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True
    )
    assert "file too large; what was saved before is intact" in done.stdout
    assert whole.read_bytes() == before
    assert list(whole.parent.iterdir()) == [whole]


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
    assert list(whole.parent.iterdir()) == [whole]


def test_writers_at_the_same_time_do_not_disturb_each_other(whole: Path) -> None:
    """Every reader sees the bytes of one of them, whole."""
    script = f"""
import sys
from pathlib import Path
from pseudocore.store.files import write_bytes
for number in range(300):
    write_bytes({str(whole)!r}, sys.argv[1].encode() * 20_000)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    letters = "ab"
    writers = [
        subprocess.Popen([sys.executable, "-c", script, letter], env=environment)
        for letter in letters
    ]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        content = whole.read_bytes()
        if content[:1] in (b"a", b"b"):
            assert content == content[:1] * 20_000
            seen.add(content[:1])
    assert [writer.returncode for writer in writers] == [0, 0]
    assert seen
    assert list(whole.parent.iterdir()) == [whole]


def test_a_link_in_the_way_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "theirs").write_text("theirs")
    monkeypatch.setattr(secrets, "token_hex", lambda num: "0")
    (tmp_path / ".mine.0.partial").symlink_to(tmp_path / "theirs")
    with pytest.raises(RunError):
        write_bytes(tmp_path / "mine", b"mine")
    assert (tmp_path / "theirs").read_text() == "theirs"
    assert (tmp_path / ".mine.0.partial").is_symlink()


def test_a_pipe_is_not_replaced(tmp_path: Path, fails: Fails) -> None:
    os.mkfifo(tmp_path / "pipe")
    with fails("not-a-file", "is no regular file"):
        write_bytes(tmp_path / "pipe", b"mine")
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("name", [".", "/", ""])
def test_a_path_without_a_name_is_no_file(name: str, fails: Fails) -> None:
    with fails("not-a-file", "name a file in it"):
        write_bytes(name, b"x")


def test_unwritable_places_are_named(tmp_path: Path, fails: Fails) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    for name, words in {
        "missing/x": "no such file",
        "file/x": "not a directory",
        "folder": "is a directory",
    }.items():
        with fails("unwritable-file", words):
            write_json(tmp_path / name, {})
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file", "folder"]
    assert (tmp_path / "file").read_text() == "mine"
