"""`pseudocore fidelity`, and where its numbers are shown."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pseudocore
from pseudocore.workflows import references

Done = Callable[[str], Any]
Refused = Callable[..., str]

FIT = "--inference last-layer-vi --num-steps 3"


@pytest.fixture
def run(done: Done) -> None:
    done("reduce uniform digits --ipc 2 --out few --model linear")


def test_from_a_run_to_a_report(run: None, done: Done, refused: Refused) -> None:
    said = done(f"fidelity few {FIT} --save-reference full.safetensors --record")
    lines = said.out.splitlines()
    assert lines[0].startswith("few  last-layer-vi against last-layer-vi on all 1437")
    assert lines[1].startswith("KL to full ↓")
    assert "saved in few/fidelity" in said.err
    kept = json.loads(Path("few/fidelity/last-layer-vi.num_steps-3.json").read_text())
    recorded = pseudocore.load("few").provenance["fidelity"]
    mean = kept["metrics"]["fidelity_kl"]["mean"]
    assert recorded["fidelity_kl"] == pytest.approx(mean)
    assert recorded["reference"] == kept["reference"]
    flat = json.loads(done(f"fidelity few {FIT} --reference full.safetensors --json").out)
    assert flat["fidelity_kl"] == pytest.approx(mean)
    assert {"fidelity_tv", "fidelity_agreement", "fidelity_floor_kl"} <= flat.keys()
    # the same measurement as a column of the evaluation's row
    done(f"evaluate few {FIT} --seeds 2")
    table = done("compare few").out.splitlines()
    assert "KL to full ↓" in table[0]
    assert len(table) == 2
    assert f"{mean:.4f}".lstrip("0") in table[1]
    done("report few --out page.html")
    page = Path("page.html").read_text()
    assert page.index("Distance to full-data inference") < page.index("<h2>Comparison")
    assert "last-layer-vi on all 1437 training points" in page
    refused("fidelity few --on nowhere", "nowhere")
    refused("fidelity few --reference few/coreset.safetensors", "reference")


def test_evaluate_measures_it_too(run: None, done: Done) -> None:
    said = json.loads(done(f"evaluate few {FIT} --seeds 1 --fidelity --json").out)
    assert {"fidelity_kl", "fidelity_tv", "fidelity_agreement", "fidelity_floor_kl"} <= said.keys()
    assert said["fidelity_kl"]["mean"] > 0
    other = done(f"fidelity few/coreset.safetensors {FIT} --on held-out --seeds 1")
    assert "1000 inputs" in other.out
    assert "not saved" in other.err


def test_the_smallest_coreset_within_a_bound(
    done: Done, refused: Refused, cli: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(references.OPTIONS, "last-layer-vi", {"num_steps": 1})
    line = "size digits --model linear --inference last-layer-vi --methods uniform,herding"
    said = cli(f"{line} --within 1e-9 --budgets 2,1 --out sized")
    assert said.code == 3
    assert said.out.splitlines()[0].split()[:3] == ["method", "per", "class"]
    assert "no coreset tried is within 1e-09" in said.out
    document = json.loads(Path("sized/size.json").read_text())
    assert [row["per_class"] for row in document["rows"]] == [1, 1, 2, 2]
    assert Path("sized/curve.svg").read_text().startswith("<?xml")
    again = cli(f"{line} --within 1e-9 --budgets 2,1 --out sized --json")  # nothing is done again
    assert json.loads(again.out)["rows"] == document["rows"]
    assert "fidelity" in pseudocore.load("sized").provenance
    done(f"{line} --within 10 --budgets 1 --set uniform.balanced=false --out other")
    run = Path("other/runs/uniform-1-seed0/config.toml").read_text()
    assert "balanced = false" in run
    refused(f"{line} --within 1 --budgets 1,two --out bad", "--budgets 1,two is not a list")
    refused(f"{line} --within 1 --set uniform.colour=red --out bad", "has no colour")
    refused(f"{line} --within 1 --set uniform --out bad", "METHOD.FIELD=VALUE")
    refused(f"{line} --within 2 --budgets 2,1 --out sized", "holds another search")
