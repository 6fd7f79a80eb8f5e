"""pseudocore bench: a table as it comes, one JSON document, refusals."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pseudocore.reproduce import records
from pseudocore.reproduce.bench import formatting, measure, plan, requests

SIZES = (
    "--ipc 1 --num-train 60 --width 2 --num-inner-steps 1 --num-draws 2 --batch-size 8 --device cpu"
)


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements in this process, and few of them for a curve."""

    @contextmanager
    def runner() -> Iterator[Callable[[requests.Request], requests.Measured]]:
        yield requests.fulfil

    monkeypatch.setattr(plan, "subprocess_runner", runner)
    monkeypatch.setattr(measure, "MIN_READING_SECONDS", 1e-3)
    monkeypatch.setattr(measure, "MIN_READINGS", 1)
    monkeypatch.setattr(plan, "READING_SECONDS", {"row": 0.0, "point": 0.0})
    monkeypatch.setattr(measure, "ceilings", lambda *_: measure.Ceilings(1e10, 1e9))
    monkeypatch.setitem(plan.GROWTH_SIZES, "small", {"per_class": (1, 2), "num_draws": (2, 3)})


def test_it_prints_rows_and_curves(done: Callable[[str], Any], own_world: Path) -> None:
    line = f"bench --method bpc-fkl --part augment --growth bpc-fkl {SIZES} --commit abc"
    said = done(f"{line} --out bench.json")
    best, header, *rows = said.out.rstrip("\n").splitlines()
    assert best.startswith("this machine at best: matrix products ")
    assert header == formatting.HEADER.rstrip()
    assert [row.split()[0] for row in rows] == ["bpc-fkl", "augment", "bpc-fkl", "bpc-fkl"]
    point = r"\S+ ms, \d+ MiB"
    curve = rf"bpc-fkl against num_draws  2: {point}  3: {point}  \(exponent \S+\)"
    assert re.match(curve, rows[-1])
    assert said.err == "numbers in bench.json\n"
    kept = json.loads((own_world / "bench.json").read_text())
    assert (kept["commit"], kept["workload"]["per_class"]) == ("abc", 1)


def test_json_is_one_document_and_a_jsonl_file_gets_a_line(
    done: Callable[[str], Any], own_world: Path
) -> None:
    said = done(f"bench --method bpc-cd {SIZES} --json --out all.jsonl")
    document = json.loads(said.out)
    assert [row["name"] for row in document["rows"]] == ["bpc-cd"]
    assert document["growth"] == []
    measured = {"ms", "low_ms", "high_ms", "num", "first_seconds", "peak_mib", "note"}
    assert set(document["rows"][0]["ours"]) == measured
    assert "bpc-cd" in said.err
    (kept,) = records.read(own_world / "all.jsonl").values()
    assert kept == {"name": document["date"], **document}


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
        ("--ipc 0 --width -1", r"bench: per_class.* must be at least 1; width = -1 must be"),
        ("--num-classes 2000", ".* num_train is 1437; it must be at least 20000"),
        ("--model nope", "unknown model 'nope'"),
        ("--seconds 0", r"(?i)invalid value .*0.* for --seconds"),
    ],
)
def test_bad_input_is_one_sentence(
    refused: Callable[[str], str], words: str, complaint: str
) -> None:
    assert re.match(complaint, refused(f"bench --device cpu {words}"))
