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

from pseudocore.reproduce.testbed import Curve

QUICK = "testbed --dim 2 --num-points 12 --num-steps 4 --num-draws 3 --size 3 --size 6"


def test_it_prints_a_table_and_keeps_numbers_and_figures(
    done: Callable[[str], Any], own_world: Path
) -> None:
    said = done(f"{QUICK} --out bed")
    assert "numbers and figures in bed/" in said.err
    for method in ("bpc-rkl", "bpc-w", "bpc-fkl", "bpc-cd", "psvi"):
        assert len(re.findall(rf"^{method} +[36] ", said.out, re.MULTILINE)) == 2
    assert len(re.findall(r"^floor at weight 1 +[36] ", said.out, re.MULTILINE)) == 2
    for name in ("steps.svg", "sizes.svg"):
        assert b"</svg>" in (own_world / "bed" / name).read_bytes()
    kept = json.loads((own_world / "bed" / "testbed.json").read_text())
    assert kept["settings"]["dim"] == 2
    assert len(kept["curves"]) == 10


def test_json_is_one_document_and_what_was_kept(
    done: Callable[[str], Any], own_world: Path
) -> None:
    said = done(f"{QUICK} --method psvi --method bpc-fkl --seed 3 --json")
    document = json.loads(said.out)
    assert document == json.loads((own_world / "testbed" / "testbed.json").read_text())
    assert [(curve["method"], curve["size"]) for curve in document["curves"]] == [
        ("psvi", 3), ("psvi", 6), ("bpc-fkl", 3), ("bpc-fkl", 6)]  # fmt: skip
    for curve in document["curves"]:
        assert curve["steps"] == [0, 4]
        assert (
            set(curve["values"]) == set(curve["fell"]) == {"reverse_kl", "forward_kl", "w2_squared"}
        )
        assert all(len(values) == 2 for values in curve["values"].values())
    assert set(document["floors"]) == {"3", "6"}


def test_without_matplotlib_the_numbers_are_kept(
    done: Callable[[str], Any], own_world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = done(f"{QUICK} --method psvi --out bed")
    assert 'pip install "pseudocore[report]"' in said.err
    assert [path.name for path in (own_world / "bed").iterdir()] == ["testbed.json"]


def test_numbers_that_cannot_be_kept_are_still_shown(
    cli: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pseudocore.store.files.os.fsync", full)
    said = cli(f"{QUICK} --method psvi --out bed")
    assert said.code == 2
    assert (
        said.err
        == "pseudocore: cannot write bed/testbed.json: no space left on device; what was saved before is intact\n"
    )
    assert len(re.findall(r"^psvi +[36] ", said.out, re.MULTILINE)) == 2


def test_a_file_in_the_place_of_the_folder_is_refused_before_the_work(
    refused: Callable[[str], str], own_world: Path
) -> None:
    (own_world / "bed").write_text("mine")
    assert (
        refused("testbed --out bed")
        == "bed is a file; --out takes a folder, for the numbers and the figures"
    )


def test_a_divergence_of_nothing_did_not_fall(
    done: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its share of what it was is 0 / 0."""

    def run(bed: Any, *, on_curve: Callable[[Any], None], **_: Any) -> None:
        on_curve(
            Curve(
                "psvi",
                3,
                [0, 1],
                {"reverse_kl": [0.0, 0.0], "forward_kl": [2.0, 1.0], "w2_squared": [0.0, 1.0]},
            )
        )

    monkeypatch.setattr("pseudocore.reproduce.testbed.run", run)
    assert json.loads(done("testbed --json").out)["curves"][0]["fell"] == {
        "reverse_kl": "NaN",
        "forward_kl": 0.5,
        "w2_squared": "NaN",
    }
    assert done("testbed").out.splitlines()[1].split()[-1] == "nan%"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--method bpc-flk", r"the test bed has no 'bpc-flk'; did you mean 'bpc-fkl'\?"),
        (
            "--num-steps 0 --noise -1",
            r"testbed: noise = -1\.0 must be above 0; num_steps = 0 must be at least 1",
        ),
        ("--size 0", r"(?i)invalid value .*0.* for --size"),
    ],
)
def test_bad_input_is_one_sentence(
    refused: Callable[[str], str], own_world: Path, words: str, complaint: str
) -> None:
    assert re.match(complaint, refused(f"testbed {words} --out bed"))
    assert not (own_world / "bed").exists()
