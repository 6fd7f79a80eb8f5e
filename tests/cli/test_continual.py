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

REDUCE = "reduce uniform digits --ipc 2 --model linear --out runs/u"
QUICK = "continual runs/u --stages 2 --seeds 2 --num-steps 5"


def test_it_prints_a_table_and_the_report_shows_the_curve(
    done: Callable[[str], Any], own_world: Path
) -> None:
    done(REDUCE)
    said = done(f"{QUICK} --out kept.json")
    assert [line.split()[:3] for line in said.out.splitlines()[1:3]] == [
        ["1", "5", "10"],
        ["2", "10", "20"],
    ]
    kept = Run.open(own_world / "runs/u").continual()
    assert list(kept) == ["sgd-2-stages.num_steps-5"]
    assert kept["sgd-2-stages.num_steps-5"] == json.loads((own_world / "kept.json").read_text())
    done("report runs/u --out page.html")
    page = (own_world / "page.html").read_text()
    assert "Classes arrive in stages" in page
    assert "None of these runs has been evaluated yet" in page


def test_another_way_does_not_replace_what_is_kept(
    done: Callable[[str], Any], own_world: Path
) -> None:
    done(REDUCE)
    for steps in (2, 3):
        done(f"continual runs/u --stages 2 --seeds 1 --num-steps {steps}")
    assert len(Run.open(own_world / "runs/u").continual()) == 2


def test_numbers_that_cannot_be_kept_are_still_shown(
    done: Callable[[str], Any], cli: Callable[[str], Any], own_world: Path
) -> None:
    done(REDUCE)
    (own_world / "runs/u/continual").write_text("a file where a folder should be")
    said = cli(f"{QUICK} --out kept.json")
    assert said.code == 2
    assert said.err.splitlines()[-1].startswith("pseudocore: cannot write runs/u/continual")
    assert "accuracy" in said.out.splitlines()[0]
    assert len(json.loads((own_world / "kept.json").read_text())["stages"]) == 4


def test_json_is_one_document(done: Callable[[str], Any]) -> None:
    done(REDUCE)
    document = json.loads(done(f"{QUICK} --json").out)
    assert [(stage["seed"], stage["stage"], stage["memory"]) for stage in document["stages"]] == [
        (0, 1, 10),
        (0, 2, 20),
        (1, 1, 10),
        (1, 2, 20),
    ]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("continual runs/none", "there is no folder runs/none"),
        (
            "continual runs/u --stages 6",
            "10 classes make 1 to 5 stages of at least two classes, not 6",
        ),
        ("continual runs/u --inference hcm", "did you mean 'hmc'"),
        ("continual runs/u --stages 0", "(?i)invalid value .*0.* for --stages"),
    ],
)
def test_bad_input_is_one_sentence(
    done: Callable[[str], Any], refused: Callable[[str], str], line: str, complaint: str
) -> None:
    done(REDUCE)
    assert re.search(complaint, refused(line))
