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
from pseudocore.reproduce import records
from pseudocore.reproduce.cells import Cell, cells, matching
from pseudocore.reproduce.results import Result
from pseudocore.reproduce.running import CellRunner
from pseudocore.workflows import references

Done = Callable[[str], Any]
Refused = Callable[[str], str]

SELECTORS = "--seeds 2 --set setup.width=4 --set evaluate.num_steps=3"
"""Settings for methods that select: as small as they can be."""
WITH_NETWORKS = f"{SELECTORS} --set pretrain_epochs=1"
"""The same for methods that select through a network."""
SMALL = (
    f"{WITH_NETWORKS} --set num_steps=2 --set num_draws=2 --set num_inner_steps=2 "
    "--set num_experts=2 --set batch_size=32"
)
"""The same for all methods."""

SHORT_CHAINS = {"num_chains": 2, "num_burn": 2, "num_draws": 4, "num_leapfrog": 2}
"""Of the references that some methods learn from."""

UNIFORM = f"table digits --cells ipc1-uniform --out results --work work {SELECTORS}"
HERDING_AND_K_CENTER = f"table digits --cells ipc1-[hk]?[rc][de]* --out results {WITH_NETWORKS}"


def stored(folder: Path) -> dict[str, Any]:
    """The records of the digits table."""
    return records.read(folder / "digits.jsonl")


def numbers(folder: Path) -> dict[str, Any]:
    """Every number of every cell, without times and memory."""
    return {
        name: {
            protocol: (one["metrics"], one["per_seed"])
            for protocol, one in record["evaluations"].items()
        }
        for name, record in stored(folder).items()
    }


def test_the_whole_machinery_on_the_digits(
    done: Done, own_world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every method there is, at one image per class."""
    monkeypatch.setitem(references.OPTIONS, "hmc", SHORT_CHAINS)
    few = "--set num_refinements=2 --set num_inner=1"
    line = f"table digits --cells ipc1-* --out results --work work {SMALL} {few}"
    names = {f"ipc1-{entry.name}": entry.make for entry in methods if entry.name != "full"}
    num = len(names)
    assert f"{num} cells: 0 done, {num} to run, 0 cannot be run here" in done(line).out
    found = stored(own_world / "results")
    assert list(found) == sorted(names)
    for name, record in found.items():
        assert record["status"] == "finished", (name, record["reason"])
        assert set(record["evaluations"]) == {"sgd", "last-layer-vi"}
        assert {"accuracy", "nll", "ece", "brier"} <= set(record["evaluations"]["sgd"]["metrics"])
        assert len(record["evaluations"]["sgd"]["per_seed"]) == record["num"] == 2
        assert record["num_coresets"] == (2 if hasattr(names[name], "select") else 1)
        assert record["cost"]["reduce"]["seconds"] >= 0
        assert record["hardware"]
    # one folder of experts for all trajectory methods
    assert len(list((own_world / "work" / "experts").iterdir())) == 1
    assert f"{num} done, 0 to run" in done(line).out
    assert stored(own_world / "results") == found
    page = done("table digits --render --out results").out
    assert f"{num} of " in page
    assert page.count("| ipc1-vbpc | ") == 2
    assert "after a look at test accuracies" in page


def test_twice_gives_the_same_numbers_bit_for_bit(
    done: Done, own_world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(references.OPTIONS, "hmc", SHORT_CHAINS)
    for place in ("one", "two"):
        monkeypatch.setenv("PSEUDOCORE_CACHE", str(own_world / place / "cache"))
        done(f"table digits --cells ipc1-[bcv]* --out {place} --work {place}/work {SMALL}")
    first, second = numbers(own_world / "one"), numbers(own_world / "two")
    assert {"ipc1-bpc-fkl", "ipc1-craig", "ipc1-vbpc"} <= set(first)
    assert first == second


def test_a_stopped_table_resumes(
    done: Done, cli: Done, own_world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, begun = CellRunner.run, []

    def stopping(self: CellRunner, cell: Any, recipe: Any, **options: Any) -> Result:
        begun.append(cell.name)
        if len(begun) == 2:
            raise KeyboardInterrupt
        return run(self, cell, recipe, **options)

    monkeypatch.setattr(CellRunner, "run", stopping)
    said = cli(HERDING_AND_K_CENTER)
    assert said.code == 130
    command = HERDING_AND_K_CENTER.replace("ipc1-[hk]?[rc][de]*", "'ipc1-[hk]?[rc][de]*'")
    assert f"resume with: pseudocore {command}" in said.err
    assert list(stored(own_world / "results")) == begun[:1]
    done(HERDING_AND_K_CENTER)
    assert begun == ["ipc1-herding", "ipc1-k-center", "ipc1-k-center"]


def test_another_protocol_does_not_make_the_coreset_again(done: Done, own_world: Path) -> None:
    done(UNIFORM)
    runs = {path.name for path in (own_world / "work" / "runs").iterdir()}
    assert len(runs) == 2  # a selection for each seed
    done(f"{UNIFORM} --set evaluate.step_size=0.001")
    assert {path.name for path in (own_world / "work" / "runs").iterdir()} == runs


def test_two_processes_fill_one_table(own_world: Path) -> None:
    """Each cell is run by one, experts and networks are made once, and no result is lost."""
    chosen = ["bpc-fkl", "bpc-rkl", "bpc-cd", "herding", "k-center", "forgetting"]
    patterns = [word for name in chosen for word in ("--cells", f"ipc1-{name}")]
    line = ["table", "digits", *patterns, "--out", "results", "--work", "work", *SMALL.split()]
    both = [
        subprocess.Popen(
            [sys.executable, "-m", "pseudocore", *line],
            env={**os.environ, "PSEUDOCORE_CACHE": str(own_world / "cache")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    said = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    run = [name for name in chosen for out, _ in said if f"ipc1-{name}  sgd" in out]
    assert sorted(run) == sorted(chosen), said
    found = stored(own_world / "results")
    assert {name: one["status"] for name, one in found.items()} == {
        f"ipc1-{name}": "finished" for name in chosen
    }
    assert len(list((own_world / "work" / "experts").iterdir())) == 1
    # a network for each of two seeds
    assert len(list((own_world / "cache").glob("*.safetensors"))) == 2


def test_two_processes_add_to_one_file(own_world: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom pseudocore.reproduce import records\n"
        "for n in range(20): records.put(Path('r.jsonl'), {'name': f'{sys.argv[1]}-{n}'})"
    )
    both = [subprocess.Popen([sys.executable, "-c", code, name]) for name in ("one", "two")]
    assert [process.wait(timeout=120) for process in both] == [0, 0]
    assert len(records.read(own_world / "r.jsonl")) == 40


def test_a_cell_that_another_process_runs_is_left_to_it(done: Done, own_world: Path) -> None:
    (cell,) = matching(cells("digits"), "ipc1-uniform")
    with CellRunner(own_world / "work").claim(cell) as is_ours:
        assert is_ours
        assert "ipc1-uniform: another process is running it" in done(UNIFORM).err
    assert not (own_world / "results").exists()


def test_a_work_folder_that_cannot_be_written_is_not_taken_for_another_process(
    cli: Done, own_world: Path
) -> None:
    (own_world / "work").write_text("in the way")
    said = cli(UNIFORM)
    assert said.code == 2
    assert "cannot write work" in said.err
    assert "another process" not in said.err


def test_a_cell_that_was_run_meanwhile_is_not_run_again(
    done: Done, own_world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the plan and the cell's start another process may have finished it."""
    done(UNIFORM)
    kept = own_world / "results" / "digits.jsonl"
    kept.rename("aside")
    claim = CellRunner.claim

    def late(runner: CellRunner, cell: Cell) -> Any:
        Path("aside").rename(kept)
        return claim(runner, cell)

    monkeypatch.setattr(CellRunner, "claim", late)
    monkeypatch.setattr(CellRunner, "run", lambda *_: pytest.fail("it was run again"))
    assert "1 to run" in done(UNIFORM).out


def test_no_cell_is_started_after_its_time(done: Done, own_world: Path) -> None:
    said = done(f"{HERDING_AND_K_CENTER} --budget-minutes 0.0001")
    assert "out of time before ipc1-k-center: 1 cells are left" in said.err
    assert list(stored(own_world / "results")) == ["ipc1-herding"]


def test_a_failure_is_kept_and_tried_again_but_never_replaces_numbers(
    cli: Done, own_world: Path
) -> None:
    failing = f"{UNIFORM} --set points=5"
    for _ in range(2):
        said = cli(failing)
        assert said.code == 2
        assert "ipc1-uniform: a budget of 5 is less than one point for each" in said.err
    kept = stored(own_world / "results")["ipc1-uniform"]
    assert (kept["status"], kept["evaluations"]) == ("failed", {})
    assert cli(UNIFORM).code == 0
    before = stored(own_world / "results")
    assert before["ipc1-uniform"]["status"] == "finished"
    assert cli(failing).code == 2
    assert stored(own_world / "results") == before


def test_the_plan_says_what_there_is_and_what_is_missing(done: Done, own_world: Path) -> None:
    said = done("table kim2022-1 --cells *ipc1-*fkl* --plan")
    assert "cifar10-ipc1-bpc-fkl-hmc      " in said.out
    assert "kim2022/cifar10-ipc1-bpc-fkl-aug  no cifar10 here" in said.out
    assert said.out.count("put the files of cifar-10-binary.tar.gz into") == 1
    assert "3 cells: 0 done, 0 to run, 3 cannot be run here" in said.out
    assert list(own_world.iterdir()) == []
    (brief,) = json.loads(done("table digits --cells full-* --plan --json").out)
    assert (brief["cell"], brief["status"], brief["to_run"]) == ("full-full", "waiting", True)


def test_json_is_one_document(done: Done) -> None:
    document = json.loads(done(f"{UNIFORM} --json").out)
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
    assert "Tables without results" in (own_world / "all.md").read_text()
    assert "kim2022-5" in done("table").out


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("table kim202-1", ["unknown table 'kim202-1'", "did you mean 'kim2022-1'"]),
        ("table digits --cells ipc1-vbcp", ["no cell of digits", "did you mean 'ipc1-vbpc'"]),
        (
            "table kim2022-1 --cells cifar10-ipc1-bpc-w-hmc",
            ["no cifar10 here", "put the files of", "PSEUDOCORE_DATA"],
        ),
        ("table kim2022-1 --cells *full*", ["the whole training set is not a coreset"]),
        ("table digits --set num_step=3", ["option 'num_step'", "did you mean 'num_steps'"]),
        ("table digits --set num_steps", ["write --set num_steps=VALUE"]),
        ("table digits --seeds 0", ["--seeds", ">= 1"]),
        ("table digits --severity 6", ["--severity", "<= 5"]),
        ("table digits --page x.md", ["--page x.md needs --render"]),
        ("table digits --render --page x.pdf", ["neither a .md nor a .html"]),
        ("table digits --render --json", ["--json without it gives the cells"]),
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
    done(UNIFORM)
    path = own_world / "results" / "digits.jsonl"
    path.write_text(path.read_text().replace('"schema": 2', '"schema": 9'))
    for line in (f"table digits --out results {SELECTORS}", "table digits --render --out results"):
        assert "is of schema 9, and this pseudocore reads 2" in refused(line)
