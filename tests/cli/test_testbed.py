"""pseudocore testbed: numbers, figures, one JSON document, and refusals."""

import errno
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pseudocore.cli import testbed
from pseudocore.reproduce.testbed import Curve

Done = Callable[[str], Any]

QUICK = "testbed --dim 2 --num-points 12 --num-steps 4 --num-draws 3 --size 3 --size 6"


def test_it_prints_a_table_and_keeps_numbers_and_figures(done: Done, own_world: Path) -> None:
    said = done(f"{QUICK} --out bed")
    assert "numbers and figures in bed/" in said.err
    for method in ("bpc-rkl", "bpc-w", "bpc-fkl", "bpc-cd", "psvi", "floor at weight 1"):
        assert len(re.findall(rf"^{method} +[36] ", said.out, re.MULTILINE)) == 2
    for name in ("steps.svg", "sizes.svg"):
        assert b"</svg>" in (own_world / "bed" / name).read_bytes()
    kept = json.loads((own_world / "bed" / "testbed.json").read_text())
    assert kept["settings"]["dim"] == 2
    assert len(kept["curves"]) == 10


def test_json_is_one_document_and_what_was_kept(done: Done, own_world: Path) -> None:
    document = json.loads(done(f"{QUICK} --method psvi --method bpc-fkl --seed 3 --json").out)
    assert document == json.loads((own_world / "testbed" / "testbed.json").read_text())
    order = [(curve["method"], curve["size"]) for curve in document["curves"]]
    assert order == [("psvi", 3), ("psvi", 6), ("bpc-fkl", 3), ("bpc-fkl", 6)]
    names = {"reverse_kl", "forward_kl", "w2_squared"}
    for curve in document["curves"]:
        assert curve["steps"] == [0, 4]
        assert set(curve["values"]) == set(curve["fell"]) == names
        assert all(len(values) == 2 for values in curve["values"].values())
    assert set(document["floors"]) == {"3", "6"}


def test_without_matplotlib_the_numbers_are_kept(
    done: Done, own_world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert 'pip install "pseudocore[report]"' in done(f"{QUICK} --method psvi --out bed").err
    assert [path.name for path in (own_world / "bed").iterdir()] == ["testbed.json"]


def test_numbers_that_cannot_be_kept_are_still_shown(
    cli: Done, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pseudocore.store.files.os.fsync", full)
    said = cli(f"{QUICK} --method psvi --out bed")
    assert said.code == 2
    assert "cannot write bed/testbed.json: no space left on device" in said.err
    assert len(re.findall(r"^psvi +[36] ", said.out, re.MULTILINE)) == 2


def test_a_divergence_of_zero_did_not_fall(done: Done, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its share is 0 / 0."""
    values = {"reverse_kl": [0.0, 0.0], "forward_kl": [2.0, 1.0], "w2_squared": [0.0, 1.0]}

    def run(bed: Any, *, on_curve: Callable[[Any], None], **_: Any) -> None:
        on_curve(Curve("psvi", 3, [0, 1], values))

    monkeypatch.setattr(testbed, "run", run)
    (curve,) = json.loads(done("testbed --size 3 --json").out)["curves"]
    assert curve["fell"] == {"reverse_kl": "NaN", "forward_kl": 0.5, "w2_squared": "NaN"}
    assert done("testbed --size 3").out.splitlines()[1].split()[-1] == "nan%"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--method bpc-flk", r"the test bed has no 'bpc-flk'; did you mean 'bpc-fkl'\?"),
        ("--num-steps 0 --noise -1", r"testbed: noise = -1\.0 must be .*; num_steps = 0 must be"),
        ("--size 0", r"(?i)invalid value .*0.* for --size"),
    ],
)
def test_bad_input_is_one_sentence(
    refused: Callable[[str], str], own_world: Path, words: str, complaint: str
) -> None:
    assert re.match(complaint, refused(f"testbed {words} --out bed"))
    assert not (own_world / "bed").exists()
    (own_world / "bed").write_text("mine")
    assert "bed is a file; --out takes a folder" in refused("testbed --out bed")
