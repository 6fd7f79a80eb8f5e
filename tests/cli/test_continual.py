"""pseudocore continual: a table, results kept in the run and drawn in its report, one JSON
document, and refusals.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pseudocore.store.run_folder import Run

Done = Callable[[str], Any]

QUICK = "continual runs/u --stages 2 --seeds 2 --num-steps 5"


@pytest.fixture(autouse=True)
def run(done: Done, own_world: Path) -> Path:
    done("reduce uniform digits --ipc 2 --model linear --out runs/u")
    return own_world / "runs/u"


def test_it_prints_a_table_and_the_report_shows_the_curve(
    done: Done, own_world: Path, run: Path
) -> None:
    lines = done(f"{QUICK} --out kept.json").out.splitlines()
    assert [line.split()[:3] for line in lines[1:3]] == [["1", "5", "10"], ["2", "10", "20"]]
    kept = json.loads((own_world / "kept.json").read_text())
    assert Run.open(run).continual() == {"sgd-2-stages.num_steps-5": kept}
    done("report runs/u --out page.html")
    page = (own_world / "page.html").read_text()
    assert "Classes arrive in stages" in page


def test_other_options_do_not_replace_what_is_kept(done: Done, run: Path) -> None:
    for steps in (2, 3):
        done(f"continual runs/u --stages 2 --seeds 1 --num-steps {steps}")
    assert len(Run.open(run).continual()) == 2


def test_numbers_that_cannot_be_kept_are_still_shown(cli: Done, own_world: Path, run: Path) -> None:
    (run / "continual").write_text("a file where a folder should be")
    said = cli(f"{QUICK} --out kept.json")
    assert said.code == 2
    assert said.err.splitlines()[-1].startswith("pseudocore: cannot write runs/u/continual")
    assert "accuracy" in said.out.splitlines()[0]
    assert len(json.loads((own_world / "kept.json").read_text())["stages"]) == 4


def test_json_is_one_document(done: Done) -> None:
    document = json.loads(done(f"{QUICK} --json").out)
    found = [(stage["seed"], stage["stage"], stage["memory"]) for stage in document["stages"]]
    assert found == [(0, 1, 10), (0, 2, 20), (1, 1, 10), (1, 2, 20)]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("runs/none", "there is no folder runs/none"),
        ("runs/u --stages 6", "10 classes make 1 to 5 stages of at least two classes, not 6"),
        ("runs/u --inference hcm", "did you mean 'hmc'"),
        ("runs/u --stages 0", "(?i)invalid value .*0.* for --stages"),
    ],
)
def test_bad_input_is_one_sentence(
    refused: Callable[[str], str], words: str, complaint: str
) -> None:
    assert re.search(complaint, refused(f"continual {words}"))


@pytest.mark.parametrize(
    "words", ["continual runs/u", "reduce uniform --preset runs/u/config.toml"]
)
@pytest.mark.parametrize("field", ['model = "os:abort"', 'model = "linear"\nfeatures = "os:abort"'])
def test_code_that_a_file_names_does_not_run(
    refused: Callable[[str], str], run: Path, words: str, field: str
) -> None:
    """`os:abort` would end this process."""
    file = run / "config.toml"
    text = file.read_text()
    file.write_text(text.replace('model = "linear"', field))
    assert file.read_text() != text
    out = " --out other" if words.startswith("reduce") else ""
    assert "not run just because a file names it" in refused(words + out)


def test_networks_served_that_a_file_names_do_not_run(refused: Callable[[str], str]) -> None:
    table = 'method = "bpc-pcd"\n[setup]\nmodel = "linear"\n[options]\nalso = "mlp, os:abort"\n'
    Path("own.toml").write_text(table)
    said = refused("reduce bpc-pcd digits --preset own.toml --out other")
    assert "not run just because a file names it" in said


def test_another_network_can_be_named(done: Done, run: Path) -> None:
    done(f"{QUICK} --model mlp --json")
