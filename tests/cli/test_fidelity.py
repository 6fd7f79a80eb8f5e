"""`pseudocore fidelity`, and where its numbers are shown."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pseudocore

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
