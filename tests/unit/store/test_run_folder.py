"""A run folder: begun, read, resumed, overwritten and fought over."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from pseudocore.core import tree
from pseudocore.core.errors import RunError
from pseudocore.core.types import Coreset
from pseudocore.runtime import loop
from pseudocore.store.coreset_file import load_coreset, write_tensors
from pseudocore.store.files import read_toml
from pseudocore.store.run_folder import Run

Fails = Callable[..., Any]

METHOD = {"name": "bpc-fkl", "image_lr": 0.01, "clip": math.nan, "sizes": (1, 2)}
CONFIG: dict[str, Any] = {"seed": 0, "method": METHOD}
OTHER = {"seed": 1}
CORESET = Coreset(torch.ones(2, 3), torch.tensor([0, 1]), torch.ones(2), provenance={"seed": 0})
STATE = {"x": torch.arange(3)}
any_flag = pytest.mark.parametrize("flags", [{}, {"resume": True}, {"overwrite": True}], ids=str)


def contents(folder: Path) -> dict[str, bytes]:
    files = (file for file in sorted(folder.rglob("*")) if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def finished_run(path: Path) -> dict[str, bytes]:
    """A finished run with results, and what is in its folder."""
    run = Run.create(path, CONFIG)
    run.log(1, {"loss": 1})
    run.save_coreset(CORESET)
    run.save_evaluation("hmc", {"accuracy": 1})
    run.save_continual("sgd-5-stages", {"stages": []})
    run.finish("finished")
    return contents(path)


FINISHED = [
    ".pseudocore.lock",
    "config.toml",
    "coreset.safetensors",
    "manifest.json",
    "metrics.jsonl",
]


# --- a life


def test_a_whole_life(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "deep" / "run", CONFIG, command="pseudocore reduce")
    assert run.path == tmp_path / "deep" / "run"
    assert run.manifest["status"] == "running"
    assert run.manifest["command"] == "pseudocore reduce"
    assert run.manifest["versions"].keys() == {"pseudocore", "torch", "numpy", "python"}
    assert "CPU" in run.manifest["hardware"]
    assert os.uname().nodename not in json.dumps(run.manifest)
    assert not run.finished
    assert run.config["method"]["sizes"] == [1, 2]
    assert read_toml(run.path / "config.toml")["method"]["image_lr"] == 0.01
    run.log(10, {"loss": 0.5})
    run.log(20, {"loss": math.nan})
    run.checkpoints.save(20, STATE)
    run.save_coreset(CORESET)
    run.update_manifest(data="toy")
    run.finish("finished", "", num_steps=20, seconds=1.5)

    read = Run.open(run.path)
    assert read.finished
    assert (read.manifest["data"], read.manifest["num_steps"]) == ("toy", 20)
    assert read.config["seed"] == 0
    assert torch.equal(read.coreset().x, CORESET.x)
    assert [entry["step"] for entry in read.metrics()] == [10, 20]
    assert math.isnan(read.metrics()[1]["loss"])
    assert sorted(contents(run.path)) == FINISHED


def test_only_finishing_drops_the_checkpoint(tmp_path: Path) -> None:
    for status, is_kept in {"interrupted": True, "diverged": True, "finished": False}.items():
        run = Run.create(tmp_path / status, CONFIG)
        run.checkpoints.save(1, STATE)
        run.finish(status, "why")
        assert (run.path / "checkpoint.safetensors").exists() == is_kept
        assert Run.open(run.path).manifest["reason"] == "why"


def test_results_are_kept_by_name(tmp_path: Path, fails: Fails) -> None:
    run = Run.create(tmp_path, CONFIG)
    assert run.evaluations() == run.continual() == {}
    run.save_evaluation("hmc-1.5", {"accuracy": {"mean": 0.5, "sd": math.inf}})
    Run.open(tmp_path).save_evaluation("sgd", {"accuracy": {"mean": 1}})
    run.save_evaluation("sgd", {"accuracy": {"mean": 2}})
    run.save_continual("sgd-5-stages", {"stages": [1]})
    assert run.evaluations() == {
        "hmc-1.5": {"accuracy": {"mean": 0.5, "sd": math.inf}},
        "sgd": {"accuracy": {"mean": 2}},
    }
    assert Run.open(tmp_path).continual() == {"sgd-5-stages": {"stages": [1]}}
    for name in ("", "../escape", "a/b", ".hidden", "a b"):
        for save in (run.save_evaluation, run.save_continual):
            with fails("invalid-name"):
                save(name, {})
    (tmp_path / "evaluations" / "torn.json").write_text('{"a":')
    with fails("damaged-file", "torn.json"):
        run.evaluations()


# --- whose folder it is


def test_an_existing_run_is_neither_resumed_nor_overwritten_by_accident(
    tmp_path: Path, fails: Fails
) -> None:
    before = finished_run(tmp_path)
    with fails("existing-run", "pass --resume", "--overwrite"):
        Run.create(tmp_path, CONFIG)
    with fails("conflicting-options"):
        Run.create(tmp_path, CONFIG, resume=True, overwrite=True)
    assert contents(tmp_path) == before


@any_flag
@pytest.mark.parametrize(
    ("file", "text", "is_locked"),
    [
        ("thesis.tex", "mine", False),
        ("manifest.json", '{"name": "a web app", "status": "fine", "schema": 1}', False),
        ("config.toml", "mine", False),
        ("coreset.safetensors", "mine", False),
        ("manifest.json", '{"kind": "pseudocore experts", "schema": 1, "identity": {}}', True),
    ],
)
def test_a_folder_of_others_is_left_alone(
    tmp_path: Path, fails: Fails, flags: dict[str, Any], file: str, text: str, is_locked: bool
) -> None:
    (tmp_path / file).write_text(text)
    if is_locked:
        (tmp_path / ".pseudocore.lock").touch()
    before = contents(tmp_path)
    with fails("foreign-folder", "its files are left alone"):
        Run.create(tmp_path, CONFIG, **flags)
    assert contents(tmp_path) == before


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, fails: Fails) -> None:
    (tmp_path / "file").write_text("mine")
    with fails("not-a-folder", "file is a file"):
        Run.create(tmp_path / "file", CONFIG)
    with fails("unwritable-file", "not a directory"):
        Run.create(tmp_path / "file" / "run", CONFIG)
    with fails("unwritable-file", "file name too long"):
        Run.create(tmp_path / ("n" * 300), CONFIG)
    assert contents(tmp_path) == {"file": b"mine"}


def test_opening_what_is_no_run(tmp_path: Path, fails: Fails) -> None:
    (tmp_path / "file").write_text("")
    for name, code in {
        "missing": "not-a-folder",
        "file": "not-a-folder",
        ".": "no-manifest",
    }.items():
        with fails(code):
            Run.open(tmp_path / name)
    run = Run.create(tmp_path / "run", CONFIG)
    (run.path / "config.toml").write_text("seed = ")
    with fails("lost-config", "config.toml, line 1"):
        Run.open(run.path)
    (run.path / "config.toml").write_text("seed = 0")
    manifest = json.loads((run.path / "manifest.json").read_text())
    for changes, code in (
        ({"kind": "website"}, "foreign-folder"),
        ({"status": None}, "damaged-manifest"),
        ({"seconds": "long"}, "damaged-manifest"),
        ({"schema": 2}, "later-schema"),
    ):
        (run.path / "manifest.json").write_text(json.dumps(manifest | changes))
        with fails(code, run.path):
            Run.open(run.path)


def test_remains_without_a_manifest_are_not_taken_for_nothing(tmp_path: Path, fails: Fails) -> None:
    run = Run.create(tmp_path, CONFIG)
    run.save_coreset(CORESET)
    run.close()
    (tmp_path / "manifest.json").unlink()
    for resume in (False, True):
        with fails("run-without-manifest", "pass --overwrite"):
            Run.create(tmp_path, CONFIG, resume=resume)
    Run.create(tmp_path, CONFIG, overwrite=True)
    assert not (tmp_path / "coreset.safetensors").exists()


def test_a_full_disk_at_birth_can_be_tried_again(
    tmp_path: Path, fails: Fails, full_disk: AbstractContextManager[None]
) -> None:
    with full_disk, fails("unwritable-file", "no space left on device"):
        Run.create(tmp_path, CONFIG)
    assert Run.create(tmp_path, CONFIG, resume=True).manifest["status"] == "running"


# --- overwriting


def test_overwrite_removes_ours_and_keeps_the_rest(tmp_path: Path) -> None:
    finished_run(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "evaluations" / "plot.png").write_text("mine too")
    (tmp_path / ".coreset.safetensors.partial").write_text("left by a kill")
    new = Run.create(tmp_path, OTHER, overwrite=True)
    assert new.config == OTHER
    assert new.checkpoints.load() is None
    assert new.metrics() == []
    assert new.evaluations() == new.continual() == {}
    new.save_coreset(CORESET)
    new.finish("finished")
    left = {*FINISHED, "evaluations/plot.png", "notes.txt"} - {"metrics.jsonl"}
    assert contents(tmp_path).keys() == left


def test_an_overwriting_run_without_a_checkpoint_restores_the_old_one(
    tmp_path: Path, fails: Fails, full_disk: AbstractContextManager[None]
) -> None:
    before = finished_run(tmp_path)
    with Run.create(tmp_path, OTHER, overwrite=True) as run:
        run.log(1, {"loss": 2})
    assert run.was_restored
    assert contents(tmp_path) == before
    with full_disk, fails("unwritable-file", "what was saved before is intact"):
        Run.create(tmp_path, OTHER, overwrite=True)
    assert contents(tmp_path) == before


def test_an_overwriting_run_killed_at_any_rename_restores_the_old_one(
    tmp_path: Path, fails: Fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = finished_run(tmp_path)
    replace, num_files = os.replace, len(before) - 1  # the lock stays
    # beyond the old files: the new configuration, the new manifest, and then a first line
    for last in range(num_files + 3):
        calls = iter(range(last))

        def dying(source: Any, target: Any, calls: Any = calls) -> None:
            if next(calls, None) is None:
                raise SystemExit
            replace(source, target)

        with monkeypatch.context() as patch:  # a killed process puts nothing back
            patch.setattr("pseudocore.store.run_folder.settle", lambda path: False)
            patch.setattr(os, "replace", dying)
            try:
                Run.create(tmp_path, OTHER, overwrite=True).log(1, {"loss": 2})
            except SystemExit:
                assert last < num_files + 2
        with fails("existing-run"):
            Run.create(tmp_path, CONFIG)
        assert contents(tmp_path) == before


def test_an_overwriting_run_with_a_checkpoint_takes_the_place(tmp_path: Path) -> None:
    finished_run(tmp_path)
    for _ in range(2):  # a second attempt replaces the first, not what both are to overwrite
        new = Run.create(tmp_path, OTHER, overwrite=True)
        new.checkpoints.save(1, STATE)
        new.finish("interrupted")
        assert not new.was_restored
        stashed = {"coreset.safetensors", "manifest.json", "evaluations/hmc.json"}
        assert contents(tmp_path / ".replaced").keys() >= stashed
    again = Run.create(tmp_path, OTHER, resume=True)
    again.save_coreset(CORESET)
    again.finish("finished")
    assert sorted(contents(tmp_path)) == FINISHED[:-1]


# --- resuming


def test_resume_of_nothing_begins_anew(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", CONFIG, resume=True)
    assert run.manifest["status"] == "running"
    assert run.checkpoints.load() is None


def test_resume_of_an_interrupted_run(tmp_path: Path) -> None:
    first = Run.create(tmp_path, CONFIG, command="first")
    first.checkpoints.save(7, STATE)
    first.finish("interrupted", "by hand")
    again = Run.create(tmp_path, CONFIG, resume=True)
    named = [again.manifest[name] for name in ("status", "reason", "command")]
    assert named == ["running", "", "first"]
    assert len(again.manifest["resumed"]) == 1
    step, tensors = again.checkpoints.load() or (0, {})
    assert step == 7
    assert torch.equal(tensors["x"], STATE["x"])


def test_resume_of_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    before = finished_run(tmp_path)
    assert Run.create(tmp_path, CONFIG, resume=True).finished
    assert contents(tmp_path) == before


def test_resume_with_another_configuration_lists_every_difference(tmp_path: Path) -> None:
    method = {"clip": math.nan, "depth": 3}
    old = {"lr": 0.01, "steps": 5, "old": "a", "flag": True, "method": method}
    new = {"lr": 0.02, "steps": 5, "new": [1], "flag": 1, "method": {**method, "depth": 4}}
    Run.create(tmp_path, old).close()
    with pytest.raises(RunError) as caught:
        Run.create(tmp_path, new, resume=True)
    assert caught.value.code == "another-config"
    assert str(caught.value) == (
        f"cannot resume {tmp_path} with another configuration (lr: stored 0.01, given 0.02; "
        "old: stored 'a', given nothing; flag: stored True, given 1; "
        "method.depth: stored 3, given 4; new: stored nothing, given [1]); "
        "pass --overwrite to start again"
    )
    assert Run.create(tmp_path, CONFIG, overwrite=True).config["seed"] == 0  # the lock is free


def test_resume_of_a_later_version_is_refused(tmp_path: Path, fails: Fails) -> None:
    run = Run.create(tmp_path, CONFIG)
    run.update_manifest(schema=2)
    run.close()
    with fails("later-schema", "later pseudocore (schema 2, this one reads up to 1)"):
        Run.create(tmp_path, CONFIG, resume=True)


# --- checkpoints


def test_a_torn_checkpoint_is_left_in_place(tmp_path: Path, fails: Fails) -> None:
    run = Run.create(tmp_path, CONFIG)
    run.checkpoints.save(5, {"x": torch.ones(100)})
    file = tmp_path / "checkpoint.safetensors"
    torn = file.read_bytes()[:-7]
    file.write_bytes(torn)
    with fails(
        "damaged-file", "delete the file to restart from the beginning, or pass --overwrite"
    ):
        run.checkpoints.load()
    assert file.read_bytes() == torn
    for _ in range(2):
        run.checkpoints.clear()
        assert run.checkpoints.load() is None


def test_a_checkpoint_of_nothing_or_of_another_configuration_is_refused(
    tmp_path: Path, fails: Fails
) -> None:
    one, two = Run.create(tmp_path / "one", CONFIG), Run.create(tmp_path / "two", OTHER)
    header = {"config": one.checkpoints.config_digest}
    write_tensors(one.checkpoints.path, {}, kind="checkpoint", header=header)
    with fails("damaged-file", "does not say at which step"):
        one.checkpoints.load()
    one.checkpoints.save(5, STATE)
    one.checkpoints.path.rename(two.checkpoints.path)
    with fails("another-config"):
        two.checkpoints.load()


def test_a_full_disk_keeps_the_last_checkpoint(
    tmp_path: Path, fails: Fails, full_disk: AbstractContextManager[None]
) -> None:
    run = Run.create(tmp_path, CONFIG)
    run.checkpoints.save(5, STATE)
    with full_disk, fails("unwritable-file", "no space left on device; what was saved before"):
        run.checkpoints.save(6, {"x": torch.zeros(1)})
    assert (run.checkpoints.load() or (0,))[0] == 5


class Moments(NamedTuple):
    first: Tensor
    second: Tensor


class State(NamedTuple):
    x: Tensor
    moments: Moments


def test_checkpoints_serve_the_loop(tmp_path: Path) -> None:
    """What `tree.flatten` gives comes back to `unflatten`, shared tensors included."""
    shared = torch.tensor(0.1, dtype=torch.float64)
    state = State(torch.arange(6.0).reshape(2, 3).T, Moments(shared, shared))
    keep: loop.Checkpoints = Run.create(tmp_path, CONFIG).checkpoints
    keep.save(3, tree.flatten(state))
    step, tensors = keep.load() or (0, {})
    back = tree.unflatten(state, tensors)
    assert step == 3
    assert torch.equal(back.x, state.x)
    assert torch.equal(back.moments.first, shared)
    assert torch.equal(back.moments.second, shared)


# --- metrics


def test_a_resumed_runs_metrics_equal_an_uninterrupted_ones(tmp_path: Path) -> None:
    straight, broken = Run.create(tmp_path / "a", CONFIG), Run.create(tmp_path / "b", CONFIG)
    for step in (1, 2, 3, 4):
        straight.log(step, {"loss": 1 / step})
    for step in (1, 2, 3):
        broken.log(step, {"loss": 1 / step})
    with open(broken.path / "metrics.jsonl", "ab") as file:
        file.write(b'{"step": 4, "lo')  # killed in the middle of a line
    assert [entry["step"] for entry in broken.metrics()] == [1, 2, 3]
    broken.truncate_metrics(2)
    for step in (3, 4):
        broken.log(step, {"loss": 1 / step})
    assert broken.metrics() == [{"step": step, "loss": 1 / step} for step in (1, 2, 3, 4)]
    lines = [(run.path / "metrics.jsonl").read_bytes() for run in (straight, broken)]
    assert lines[0] == lines[1]


def test_lines_of_metrics(tmp_path: Path, fails: Fails) -> None:
    run, file = Run.create(tmp_path, CONFIG), tmp_path / "metrics.jsonl"
    run.truncate_metrics(5)
    assert not file.exists()
    run.log(1, {"loss": math.nan, "norm": math.inf})
    assert file.read_text() == '{"step": 1, "loss": "NaN", "norm": "Infinity"}\n'
    run.truncate_metrics(0)
    assert run.metrics() == []
    file.write_text('{"step": 1}\n{"step": 2}')  # lacks only its end: the next would be appended
    run.truncate_metrics(5)
    run.log(2, {})
    assert file.read_text() == '{"step": 1}\n{"step": 2}\n'
    file.write_text('{"step": 1}\nrubbish\n{"step": 3}\n')
    with fails("damaged-file", "line 2 is not a JSON object"):
        run.metrics()


# --- two at once

HOLDER = """
import sys, time
from pseudocore.store.run_folder import Run
run = Run.create(sys.argv[1], {"seed": 0}, resume=True)
print("holding", flush=True)
time.sleep(60)
"""


def test_one_writer_at_a_time_and_a_killed_one_lets_go(tmp_path: Path, fails: Fails) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, env=environment) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"holding\n"
            before = contents(tmp_path)
            for flags in ({}, {"resume": True}, {"overwrite": True}):
                with fails("locked", "is being written by another process"):
                    Run.create(tmp_path, {"seed": 0}, **flags)
            assert contents(tmp_path) == before
            assert Run.open(tmp_path).manifest["status"] == "running"  # reading needs no lock
        finally:
            holder.send_signal(signal.SIGKILL)
    with Run.create(tmp_path, {"seed": 0}, resume=True) as run:
        assert run.manifest["status"] == "running"
    Run.create(tmp_path, {"seed": 0}, resume=True)  # leaving the block let go


# --- what others have put into the folder, and what a killed run has left


def test_a_linked_folder_of_results_is_not_followed(tmp_path: Path, fails: Fails) -> None:
    """`--overwrite` once emptied the folder that such a link leads to."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "hmc.json").write_text("{}")
    finished_run(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "evaluations")
    (tmp_path / "run" / "evaluations").symlink_to(theirs)
    with fails("symbolic-link"):
        Run.open(tmp_path / "run").save_evaluation("hmc", {})
    run = Run.create(tmp_path / "run", OTHER, overwrite=True)
    run.save_coreset(CORESET)
    run.finish("finished")
    assert (theirs / "hmc.json").read_text() == "{}"
    (tmp_path / "run" / ".replaced").symlink_to(theirs)
    with fails("symbolic-link"):
        Run.create(tmp_path / "run", OTHER, overwrite=True)
    assert [file.name for file in theirs.iterdir()] == ["hmc.json"]


def test_metrics_do_not_go_through_a_link(tmp_path: Path, fails: Fails) -> None:
    (tmp_path / "theirs").write_text("")
    run = Run.create(tmp_path / "run", CONFIG)
    (tmp_path / "run" / "metrics.jsonl").symlink_to(tmp_path / "theirs")
    with fails("unwritable-file"):
        run.log(1, {"loss": 1})
    assert (tmp_path / "theirs").read_text() == ""


def test_a_reader_finds_the_stashed_run(tmp_path: Path) -> None:
    finished_run(tmp_path)
    new = Run.create(tmp_path, OTHER, overwrite=True)
    new.checkpoints.save(1, STATE)
    with pytest.warns(UserWarning, match="the earlier run is read"):
        stashed = Run.open(tmp_path)  # while the new one is working, and after it was killed
    assert stashed.config == CONFIG | {"method": stashed.config["method"]}
    assert torch.equal(stashed.coreset().x, CORESET.x)
    assert torch.equal(load_coreset(tmp_path).x, CORESET.x)
    stashed.save_evaluation("sgd", {"accuracy": 1})
    new.save_coreset(CORESET)
    new.finish("finished")
    assert Run.open(tmp_path).config == OTHER


def test_a_reader_completes_a_move_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = finished_run(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("pseudocore.store.run_folder.settle", lambda path: False)
        patch.setattr("pseudocore.store.run_folder.write_bytes", None)
        with pytest.raises(TypeError):  # after the old files have moved
            Run.create(tmp_path, OTHER, overwrite=True)
    assert not (tmp_path / "manifest.json").exists()
    assert Run.open(tmp_path).finished
    assert contents(tmp_path) == before


def test_lost_metrics_are_noticed_on_resume(tmp_path: Path) -> None:
    run = Run.create(tmp_path, CONFIG)
    for step in range(1, 6):
        run.log(step, {"loss": step})
    run.checkpoints.save(4, STATE)
    run.close()
    lines = (tmp_path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "metrics.jsonl").write_bytes(lines[0] + bytes(8) + b"\n" + b"".join(lines[2:]))
    again = Run.create(tmp_path, CONFIG, resume=True)
    again.checkpoints.load()
    with pytest.warns(UserWarning, match="has lost 1 of 4 lines up to step 4"):
        again.truncate_metrics(4)
    assert again.manifest["lost_metrics"] == 1
    again.checkpoints.save(5, STATE)  # counts what is there
    again.checkpoints.load()
    again.truncate_metrics(5)
