"""pseudocore bench: a table as it comes, one JSON document, refusals."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pseudocore.reproduce.bench import formatting as lines
from pseudocore.reproduce.bench import measure, plan, requests

SIZES = (
    "--ipc 1 --num-train 60 --width 2 --num-inner-steps 1 --num-draws 2 --batch-size 8 --device cpu"
)


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements in this process, and few of them for a curve."""

    @contextmanager
    def near() -> Iterator[Callable[[requests.Request], requests.Measured]]:
        yield requests.fulfil

    monkeypatch.setattr(plan, "apart", near)
    monkeypatch.setattr(measure, "LEAST_SECONDS", 1e-3)
    monkeypatch.setattr(measure, "FEWEST", 1)
    monkeypatch.setattr(plan, "PATIENCE", {"row": 0.0, "point": 0.0})
    monkeypatch.setattr(measure, "ceilings", lambda *_: measure.Ceilings(1e10, 1e9))
    monkeypatch.setitem(plan.KNOBS, "small", {"per_class": (1, 2), "num_draws": (2, 3)})


def test_it_prints_rows_and_curves(done: Callable[[str], Any], own_world: Path) -> None:
    said = done(
        f"bench --method bpc-fkl --part augment --growth bpc-fkl {SIZES} --out bench.json --commit abc"
    )
    best, header, *rows = said.out.rstrip("\n").splitlines()
    assert best.startswith("this machine at best: matrix products ")
    assert header == lines.HEADER.rstrip()
    assert [row.split()[0] for row in rows] == ["bpc-fkl", "augment", "bpc-fkl", "bpc-fkl"]
    assert re.match(
        r"bpc-fkl against num_draws  2: \S+ ms, \d+ MiB  3: \S+ ms, \d+ MiB  \(exponent \S+\)",
        rows[-1],
    )
    assert said.err == "numbers in bench.json\n"
    kept = json.loads((own_world / "bench.json").read_text())
    assert (kept["commit"], kept["workload"]["per_class"]) == ("abc", 1)


def test_json_is_one_document(done: Callable[[str], Any], own_world: Path) -> None:
    said = done(f"bench --method bpc-cd {SIZES} --json")
    document = json.loads(said.out)
    assert [row["name"] for row in document["rows"]] == ["bpc-cd"]
    assert document["growth"] == []
    assert set(document["rows"][0]["ours"]) == {
        "ms",
        "low_ms",
        "high_ms",
        "num",
        "first_seconds",
        "peak_mib",
        "note",
    }
    assert "bpc-cd" in said.err
    assert list(own_world.iterdir()) == []


def test_what_there_was_no_time_for_is_said(done: Callable[[str], Any]) -> None:
    said = done(f"bench {SIZES} --seconds 1e-9")
    assert "no time was left for vbpc, frepo, bpc-fkl" in said.err
    assert "leapfrog, bpc-fkl at per_class 1" in said.err
    assert len(said.out.splitlines()) == 2


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--method bpc-flk", r"nothing to time is called 'bpc-flk'; did you mean 'bpc-fkl'\?"),
        ("--method herding", "'herding' selects at once"),
        (
            "--ipc 0 --width -1",
            r"bench: per_class.* = 0 must be at least 1; width = -1 must be at least 1",
        ),
        (
            "--num-classes 2000",
            "10 points for each of 2000 classes were asked for, but num_train is 1437; it must be at least 20000",
        ),
        ("--model nope", "unknown model 'nope'"),
        ("--seconds 0", r"(?i)invalid value .*0.* for --seconds"),
    ],
)
def test_bad_input_is_one_sentence(
    refused: Callable[[str], str], words: str, complaint: str
) -> None:
    assert re.match(complaint, refused(f"bench --device cpu {words}"))
