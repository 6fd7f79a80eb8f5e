"""pseudocore table: a plan, cells from presets, results that are whole and taken up again, ours
beside theirs, and refusals.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pseudocore.core.registry import methods
from pseudocore.reproduce.cells import Cell, cells, matching
from pseudocore.reproduce.results import Result
from pseudocore.reproduce.running import CellRunner

Done = Callable[[str], Any]
Refused = Callable[[str], str]

SMALL = (
    "--seeds 2 --set num_steps=2 --set setup.width=4 --set evaluate.num_steps=3 --set num_draws=2 --set num_inner_steps=2 "
    "--set pretrain_epochs=1 --set num_experts=2 --set batch_size=32"
)
"""Of `table digits`: says nothing about anything, takes every path."""
CHOSEN = "--seeds 2 --set setup.width=4 --set evaluate.num_steps=3"
"""The same, for methods that choose."""
LOOKED_THROUGH = f"{CHOSEN} --set pretrain_epochs=1"
"""The same, for methods that choose through a network."""


def numbers(folder: Path) -> dict[str, Any]:
    """Every number of every cell, without what a clock or a memory gauge has to say."""
    found = {
        path.stem: json.loads(path.read_text())["evaluations"]
        for path in sorted(folder.glob("*.json"))
    }
    return {
        name: {way: (one["metrics"], one["per_seed"]) for way, one in ways.items()}
        for name, ways in found.items()
    }


def test_the_whole_machinery_on_the_digits(done: Done, own_world: Path) -> None:
    """Every method there is, at one image per class."""
    said = done(f"table digits --cells ipc1-* --out results --work work {SMALL}")
    num = sum(1 for entry in methods if entry.name != "full")
    assert f"{num} cells: 0 done, {num} to run, 0 cannot be run here" in said.out
    files = {
        path.stem: json.loads(path.read_text())
        for path in (own_world / "results" / "digits").iterdir()
    }
    assert set(files) == {f"ipc1-{entry.name}" for entry in methods if entry.name != "full"}
    for name, kept in files.items():
        assert kept["status"] == "finished", (name, kept["reason"])
        assert set(kept["evaluations"]) == {"sgd", "last-layer-vi"}
        assert {"accuracy", "nll", "ece", "brier"} <= set(kept["evaluations"]["sgd"]["metrics"])
        assert len(kept["evaluations"]["sgd"]["per_seed"]) == kept["num"] == 2
        assert kept["num_coresets"] == (
            2 if methods[kept["settings"]["config"]["method"]].kind == "select" else 1
        )
        assert kept["cost"]["reduce"]["seconds"] >= 0
        assert kept["hardware"]
    assert (
        len(list((own_world / "work" / "experts").iterdir())) == 1
    )  # one buffer for all trajectory methods
    again = done(f"table digits --cells ipc1-* --out results --work work {SMALL}")
    assert f"{num} done, 0 to run" in again.out
    assert {
        path.stem: json.loads(path.read_text())
        for path in (own_world / "results" / "digits").iterdir()
    } == files
    page = done("table digits --render --out results").out
    assert f"{num} of " in page
    assert page.count("| ipc1-vbpc | ") == 2
    assert "after a look at test accuracies" in page


def test_twice_gives_the_same_numbers_bit_for_bit(
    done: Done, own_world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("one", "two"):
        monkeypatch.setenv("PSEUDOCORE_CACHE", str(own_world / place / "cache"))
        done(f"table digits --cells ipc1-[bcv]* --out {place} --work {place}/work {SMALL}")
    first, second = numbers(own_world / "one" / "digits"), numbers(own_world / "two" / "digits")
    assert {"ipc1-bpc-fkl", "ipc1-craig", "ipc1-vbpc"} <= set(first)
    assert first == second


def test_a_stopped_table_goes_on_where_it_stopped(
    done: Done, cli: Done, own_world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = f"table digits --cells ipc1-[hk]*[gr] --out results {LOOKED_THROUGH}"
    run, begun = CellRunner.run, []

    def stopping(self: CellRunner, cell: Any, recipe: Any, **options: Any) -> Result:
        begun.append(cell.name)
        if len(begun) == 2:
            raise KeyboardInterrupt
        return run(self, cell, recipe, **options)

    monkeypatch.setattr(CellRunner, "run", stopping)
    said = cli(line)
    assert said.code == 130
    assert (
        f"go on with: pseudocore {line.replace('ipc1-[hk]*[gr]', repr('ipc1-[hk]*[gr]'))}"
        in said.err
    )
    assert [path.stem for path in (own_world / "results" / "digits").iterdir()] == begun[:1]
    done(line)
    assert begun == ["ipc1-herding", "ipc1-k-center", "ipc1-k-center"]


def test_another_way_of_using_a_coreset_does_not_make_it_again(done: Done, own_world: Path) -> None:
    done(f"table digits --cells ipc1-uniform --out results --work work {CHOSEN}")
    runs = {path.name for path in (own_world / "work" / "runs").iterdir()}
    assert len(runs) == 2  # a choice for each seed
    done(
        f"table digits --cells ipc1-uniform --out results --work work {CHOSEN} --set evaluate.step_size=0.001"
    )
    assert {path.name for path in (own_world / "work" / "runs").iterdir()} == runs


def test_two_processes_fill_one_table(own_world: Path) -> None:
    """Each cell is run by one of them, experts and networks are made once, and neither gets into
    the other's way.
    """
    chosen = ["bpc-fkl", "bpc-rkl", "bpc-cd", "herding", "k-center", "forgetting"]
    line = [
        "table",
        "digits",
        *(word for name in chosen for word in ("--cells", f"ipc1-{name}")),
        "--out",
        "results",
        "--work",
        "work",
    ]
    environment = {**os.environ, "PSEUDOCORE_CACHE": str(own_world / "shelf")}
    command = [sys.executable, "-m", "pseudocore", *line, *SMALL.split()]
    both = [
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    said = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    run = [name for name in chosen for out, _ in said if f"ipc1-{name}  sgd" in out]
    assert sorted(run) == sorted(chosen), said
    for name in chosen:
        assert (
            json.loads((own_world / "results" / "digits" / f"ipc1-{name}.json").read_text())[
                "status"
            ]
            == "finished"
        )
    assert len(list((own_world / "work" / "experts").iterdir())) == 1
    assert (
        len(list((own_world / "shelf").glob("*.safetensors"))) == 2
    )  # a network for each of two seeds


def test_a_cell_that_another_process_is_at_is_left_to_it(done: Done, own_world: Path) -> None:
    (cell,) = matching(cells("digits", {}), "ipc1-uniform")
    with CellRunner(own_world / "work").claim(cell) as is_ours:
        assert is_ours
        said = done(f"table digits --cells ipc1-uniform --out results --work work {CHOSEN}")
    assert "ipc1-uniform: another process is at it" in said.err
    assert not (own_world / "results").exists()


def test_a_work_folder_that_cannot_be_written_is_not_taken_for_another_process(
    cli: Done, own_world: Path
) -> None:
    (own_world / "work").write_text("in the way")
    said = cli(f"table digits --cells ipc1-uniform --out results --work work {CHOSEN}")
    assert said.code == 2
    assert "cannot write work" in said.err
    assert "another process" not in said.err


def test_a_cell_that_was_run_meanwhile_is_not_run_again(
    done: Done, own_world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the plan and the cell's turn another process may have finished it."""
    line = f"table digits --cells ipc1-uniform --out results --work work {CHOSEN}"
    done(line)
    kept = own_world / "results" / "digits" / "ipc1-uniform.json"
    kept.rename("aside")
    claim = CellRunner.claim

    def late(shop: CellRunner, cell: Cell) -> Any:
        Path("aside").rename(kept)
        return claim(shop, cell)

    monkeypatch.setattr(CellRunner, "claim", late)
    monkeypatch.setattr(CellRunner, "run", lambda *_: pytest.fail("it was run again"))
    assert "1 to run" in done(line).out


def test_no_cell_is_begun_after_its_time(done: Done, own_world: Path) -> None:
    said = done(
        f"table digits --cells ipc1-[hk]*[gr] --out results --budget-minutes 0.0001 {LOOKED_THROUGH}"
    )
    assert "out of time before ipc1-k-center: 1 cells are left" in said.err
    assert [path.stem for path in (own_world / "results" / "digits").iterdir()] == ["ipc1-herding"]


def test_a_cell_that_fails_is_said_kept_and_tried_again(cli: Done, own_world: Path) -> None:
    line = f"table digits --cells ipc1-uniform --out results {CHOSEN} --set per_class=500"
    for _ in range(2):
        said = cli(line)
        assert said.code == 2
        assert "ipc1-uniform: 500 points per class were asked for" in said.err
    kept = json.loads((own_world / "results" / "digits" / "ipc1-uniform.json").read_text())
    assert (kept["status"], kept["evaluations"]) == ("failed", {})


def test_a_failure_never_takes_the_place_of_numbers(cli: Done, own_world: Path) -> None:
    line = f"table digits --cells ipc1-uniform --out results {CHOSEN}"
    assert cli(line).code == 0
    before = (own_world / "results" / "digits" / "ipc1-uniform.json").read_text()
    assert cli(f"{line} --set per_class=500").code == 2
    assert (own_world / "results" / "digits" / "ipc1-uniform.json").read_text() == before


def test_the_plan_says_what_there_is_and_what_is_missing(done: Done, own_world: Path) -> None:
    said = done("table kim2022-1 --cells *ipc1-*fkl* --plan")
    assert "cifar10-ipc1-bpc-fkl-hmc      " in said.out
    assert "kim2022/cifar10-ipc1-bpc-fkl-aug  no cifar10 here" in said.out
    assert said.out.count("put the files of cifar-10-binary.tar.gz into") == 1
    assert "3 cells: 0 done, 0 to run, 3 cannot be run here" in said.out
    assert list(own_world.iterdir()) == []
    brief = json.loads(done("table digits --cells full-* --plan --json").out)
    assert [(one["cell"], one["status"], one["to_run"]) for one in brief] == [
        ("full-full", "waiting", True)
    ]


def test_json_is_one_document(done: Done) -> None:
    said = done(f"table digits --cells ipc1-uniform --out results --json {CHOSEN}")
    document = json.loads(said.out)
    assert document["table"] == "digits"
    assert 0 <= document["cells"][0]["metrics"]["sgd"]["accuracy"]["mean"] <= 1
    assert "kim2022-1" in [one["name"] for one in json.loads(done("table --json").out)]


def test_pages(done: Done, own_world: Path) -> None:
    done("table kim2022-6 --render --page pages/kim.html --out results")
    page = (own_world / "pages" / "kim.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "<td>.300 ± .007</td>" in page  # herding, printed
    assert done("table kim2022-6 --render --out results").out.count("not run yet") == 24
    done("table --render --page all.md --out results")
    assert "Tables with nothing in them yet" in (own_world / "all.md").read_text()
    assert "kim2022-5" in done("table").out


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("table kim202-1", ["unknown table 'kim202-1'", "did you mean 'kim2022-1'"]),
        (
            "table digits --cells ipc1-vbcp",
            ["no cell of digits fits 'ipc1-vbcp'", "did you mean 'ipc1-vbpc'"],
        ),
        (
            "table kim2022-1 --cells cifar10-ipc1-bpc-w-hmc",
            ["no cifar10 here", "put the files of", "PSEUDOCORE_DATA"],
        ),
        ("table kim2022-1 --cells *full*", ["the whole training set is not a coreset"]),
        (
            "table digits --set num_step=3",
            ["no cell here has an option 'num_step'", "did you mean 'num_steps'"],
        ),
        ("table digits --set num_steps", ["write --set num_steps=VALUE"]),
        ("table digits --seeds 0", ["--seeds", ">= 1"]),
        ("table digits --severity 6", ["--severity", "<= 5"]),
        ("table digits --page x.md", ["--page x.md needs --render"]),
        ("table digits --render --page x.pdf", ["neither a .md nor a .html"]),
    ],
)
def test_what_cannot_be_done_is_refused(
    refused: Refused, own_world: Path, line: str, words: list[str]
) -> None:
    sentence = refused(line)
    for word in words:
        assert word in sentence
    assert list(own_world.iterdir()) == []


def test_a_result_of_another_schema_is_refused(
    done: Done, refused: Refused, own_world: Path
) -> None:
    done(f"table digits --cells ipc1-uniform --out results {CHOSEN}")
    path = own_world / "results" / "digits" / "ipc1-uniform.json"
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 9'))
    assert "ipc1-uniform.json is of schema 9, and this pseudocore reads 1" in refused(
        f"table digits --out results {CHOSEN}"
    )
    assert "is of schema 9" in refused("table digits --render --out results")


def test_a_rendered_table_is_no_json(refused: Callable[[str], str]) -> None:
    assert "--json without it gives the cells" in refused("table digits --render --json")
