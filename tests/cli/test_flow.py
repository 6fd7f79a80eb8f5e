"""From data to a report, the way the manual tells it: every verb, its two forms of output, and
where each word goes.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from pseudocore.cli import demo as demo_verb
from pseudocore.core.registry import inferences, methods
from pseudocore.workflows import progress

Done = Callable[[str], Any]
Refused = Callable[..., str]

TINY = "--model convnet-wide --width 4 --num-steps 4 --batch-size 16"
METRICS = {"accuracy", "nll", "ece", "brier"}


@pytest.fixture
def runs(done: Done) -> None:
    done(f"reduce vbpc digits --ipc 1 --out learned {TINY}")
    done("reduce uniform digits --ipc 1 --out chosen --model convnet-wide --width 4")


def test_the_whole_way_from_data_to_report(runs: None, done: Done, refused: Refused) -> None:
    for run in ("learned", "chosen"):
        said = done(f"evaluate {run} --seeds 2 --num-steps 3")
        assert said.out.startswith(f"{run}  last-layer-vi  accuracy ")
        assert "2 networks" in said.out
        assert f"saved in {run}/evaluations" in said.err
    pasted = done("compare learned chosen --markdown").out.splitlines()
    assert pasted[0].startswith("| method ")
    assert set(pasted[1]) <= set("|-: ")
    assert len(pasted) == 4
    refused("compare learned chosen --markdown --json", "cannot be combined")
    table = done("compare learned chosen").out.splitlines()
    heads = "data ipc method inference accuracy ↑ NLL ↓ ECE ↓ Brier ↓ n"
    assert table[0].split() == heads.split()
    assert [line.split()[:4] for line in table[1:]] == [
        ["digits", "1", name, "last-layer-vi"] for name in ("vbpc", "uniform")
    ]
    said = done("report learned chosen --out page.html")
    assert said.out == ""
    assert "page.html" in said.err
    assert Path("page.html").read_text().startswith("<!doctype html>")
    assert "10 points in points.npz" in done("export learned points.npz").out
    stored = load_file("learned/coreset.safetensors")["x"].numpy()
    with np.load("points.npz", allow_pickle=False) as arrays:
        assert arrays["x"].tobytes() == stored.tobytes()
    done("export learned pictures --format png")
    assert len(list(Path("pictures").glob("*.png"))) == 10
    assert len(Path("pictures/labels.csv").read_text().splitlines()) == 11


def test_a_report_needs_no_evaluation_but_a_comparison_does(
    runs: None, done: Done, refused: Refused
) -> None:
    done("report learned --out page.html")
    assert "<html" in Path("page.html").read_text()
    refused("compare learned chosen", "start with: pseudocore evaluate learned")
    done("evaluate chosen --seeds 1 --num-steps 2")
    assert "not evaluated yet, so not in the table: learned" in done("compare learned chosen").err


def _document(said: Any) -> Any:
    """What `--json` printed: one document, and not a word beside it."""
    document, end = json.JSONDecoder().raw_decode(said.out)
    assert said.out[end:] == "\n"
    assert said.err == ""
    return document


def test_json_is_one_document_and_nothing_else(done: Done) -> None:
    made = _document(done(f"reduce vbpc digits --ipc 1 --out run {TINY} --json"))
    assert made.keys() == {"run", "status", "points", "num_steps", "seconds"}
    del made["seconds"]
    assert made == {"run": "run", "status": "finished", "points": 10, "num_steps": 4}
    metrics = _document(done("evaluate run --seeds 2 --num-steps 3 --json"))
    assert metrics.keys() >= METRICS
    assert all(value.keys() == {"mean", "sd"} for value in metrics.values())
    assert 0 <= metrics["accuracy"]["mean"] <= 1
    (row,) = _document(done("compare run --json"))
    assert (row["method"], row["per_class"], row["num"]) == ("vbpc", 1, 2)
    assert row["metrics"]["accuracy"]["mean"] == pytest.approx(metrics["accuracy"]["mean"])


def test_one_network_has_no_deviation(runs: None, done: Done) -> None:
    metrics = _document(done("evaluate chosen --seeds 1 --num-steps 2 --json"))
    assert metrics["nll"]["sd"] is None
    said = done("evaluate chosen --seeds 1 --num-steps 2")
    assert "±" not in said.out
    assert "(1 network, " in said.out


def test_methods_are_listed_from_the_registry(done: Done) -> None:
    listed = _document(done("methods --json"))
    assert [one["name"] for one in listed] == sorted(entry.name for entry in methods)
    assert all(one["kind"] in ("select", "condense", "bayes") and one["paper"] for one in listed)
    text = done("methods").out
    for entry in (*methods, *inferences):
        assert entry.name in text
    assert len(text.splitlines()) <= 60  # a screen
    assert max(map(len, text.splitlines())) <= 120
    text = done("presets").out
    assert re.search(r"^vbpc2025/ +cifar10-ipc1, cifar10-ipc10, ", text, re.MULTILINE)
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize("inference", ["last-layer-vi", "sgd", "ensemble"])
def test_inferences_evaluate(runs: None, done: Done, inference: str) -> None:
    said = done(f"evaluate learned --inference {inference} --num-steps 2 --seeds 1 --json")
    assert _document(said).keys() >= METRICS


def test_another_network_can_be_evaluated(runs: None, done: Done) -> None:
    done("evaluate learned --seeds 1 --num-steps 2")
    done("evaluate learned --seeds 1 --num-steps 2 --model mlp --width 8")
    done("evaluate learned --seeds 1 --num-steps 2 --model mlp --width 8 --inference=sgd")
    files = Path("learned/evaluations").iterdir()
    kept = {path.name: json.loads(path.read_text()) for path in files}
    assert {name: (one["inference"], one["model"]["name"]) for name, one in kept.items()} == {
        "last-layer-vi.num_steps-2.json": ("last-layer-vi", "convnet-wide"),
        "last-layer-vi.model-mlp.num_steps-2.width-8.json": ("last-layer-vi", "mlp"),
        "sgd.model-mlp.num_steps-2.width-8.json": ("sgd", "mlp"),
    }
    command = kept["sgd.model-mlp.num_steps-2.width-8.json"]["command"]
    assert command.startswith("pseudocore evaluate learned --seeds 1")
    assert len(done("compare learned").out.splitlines()) == 4


def test_later_seeds_are_kept_beside_earlier_ones_and_pooled(runs: None, done: Done) -> None:
    done("evaluate chosen --seeds 2 --num-steps 2")
    done("evaluate chosen --seeds 3 --first-seed 2 --num-steps 2")
    assert len(list(Path("chosen/evaluations").iterdir())) == 2
    (row,) = _document(done("compare chosen --json"))
    assert row["num"] == 5


def test_evaluations_of_long_or_odd_settings_have_names_of_their_own(
    runs: None, done: Done
) -> None:
    line = (
        "evaluate chosen --seeds 1 --num-steps 2 --step-size 0.000123456789 --batch-size 300 "
        "--logit-scale 1.2345678 --prior-variance 0.012345 --ridge 0.0123 --norm instance "
        "--model convnet-wide --init torch --preprocess none"
    )
    for width in (4, 5):
        done(f"{line} --width {width}")
    names = [path.name for path in Path("chosen/evaluations").iterdir()]
    assert len(names) == 2
    assert all(len(name) < 130 for name in names)


def test_progress_goes_to_standard_error(done: Done, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.0)
    said = done(
        f"reduce vbpc digits --ipc 1 --out 'run [x]' {TINY.replace('4 --b', '20 --b')} --json"
    )
    assert json.loads(said.out)["num_steps"] == 20
    first, second = said.err.splitlines()
    assert first.startswith("vbpc on digits: 10/20  loss ")
    assert second.startswith("vbpc on digits: 20/20  loss ")


@pytest.fixture
def small_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_verb, "SETUP", {**demo_verb.SETUP, "width": 4})
    monkeypatch.setattr(demo_verb, "LEARNED", {"num_steps": 2, "batch_size": 16})
    monkeypatch.setattr(demo_verb, "EVALUATE", {"inference": "last-layer-vi", "num_steps": 2})
    monkeypatch.setattr(demo_verb, "SEEDS", 1)


def test_the_demo_ends_with_a_table_and_a_page(small_demo: None, done: Done) -> None:
    table = done("demo --out 'my demo'").out.splitlines()
    assert table[0].startswith("data")
    assert {line.split()[2] for line in table[1:]} >= {"uniform", "frepo", "vbpc"}
    assert Path("my demo/report.html").is_file()
    folder = next(path for path in Path("my demo").glob("vbpc*"))
    command = json.loads((folder / "manifest.json").read_text())["command"]
    before = load_file(folder / "coreset.safetensors")
    done(command.removeprefix("pseudocore ") + " --overwrite")
    assert torch.equal(load_file(folder / "coreset.safetensors")["x"], before["x"])


@pytest.mark.parametrize(
    ("line", "method"),
    [
        ("demo --out demo", "pseudocore.methods.bayes.vbpc.FRePo.step"),
        ("evaluate chosen", "pseudocore.inference.last_layer_vi.LastLayerVI.fit"),
    ],
)
def test_ctrl_c_is_quiet(
    runs: None,
    small_demo: None,
    cli: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    method: str,
) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(method, stop)
    assert cli(line) == (130, "", "interrupted\n")
    assert not Path("chosen/evaluations").exists()
