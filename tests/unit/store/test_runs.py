"""A run folder: begun, read, replaced and fought over."""

import json
import math
import os
import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch

from pseudocore.core.errors import ArtifactError, ConfigError, RunError
from pseudocore.core.types import Coreset
from pseudocore.store.files import read_toml
from pseudocore.store.run_folder import Run

CONFIG: dict[str, Any] = {
    "seed": 0,
    "method": {"name": "bpc-fkl", "image_lr": 0.01, "clip": math.nan, "sizes": (1, 2)},
}


def coreset() -> Coreset:
    return Coreset(torch.ones(2, 3), torch.tensor([0, 1]), torch.ones(2), provenance={"seed": 0})


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


# --- a life
# ---------------------------------------------------------------------------------------------------------


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
    run.checkpoints.save(20, {"x": torch.ones(2)})
    run.save_coreset(coreset())
    run.update_manifest(data="toy")
    run.finish("finished", "", num_steps=20, seconds=1.5)

    read = Run.open(run.path)
    assert read.finished
    assert read.manifest["data"] == "toy"
    assert read.manifest["num_steps"] == 20
    assert read.config["seed"] == 0
    assert torch.equal(read.coreset().x, coreset().x)
    assert [entry["step"] for entry in read.metrics()] == [10, 20]
    assert math.isnan(read.metrics()[1]["loss"])
    assert sorted(contents(run.path)) == [
        ".pseudocore.lock",
        "config.toml",
        "coreset.safetensors",
        "manifest.json",
        "metrics.jsonl",
    ]


def test_only_finishing_drops_the_checkpoint(tmp_path: Path) -> None:
    for status, kept in {"interrupted": True, "diverged": True, "finished": False}.items():
        run = Run.create(tmp_path / status, CONFIG)
        run.checkpoints.save(1, {"x": torch.ones(2)})
        run.finish(status, "why")
        assert (run.path / "checkpoint.safetensors").exists() == kept
        assert Run.open(run.path).manifest["reason"] == "why"


def test_evaluations(tmp_path: Path) -> None:
    run = Run.create(tmp_path, CONFIG)
    assert run.evaluations() == {}
    run.save_evaluation("hmc-1.5", {"accuracy": {"mean": 0.5, "sd": math.inf}})
    Run.open(tmp_path).save_evaluation("sgd", {"accuracy": {"mean": 1}})
    run.save_evaluation("sgd", {"accuracy": {"mean": 2}})
    assert run.evaluations() == {
        "hmc-1.5": {"accuracy": {"mean": 0.5, "sd": math.inf}},
        "sgd": {"accuracy": {"mean": 2}},
    }
    for name in ("", "../escape", "a/b", ".hidden", "a b"):
        with pytest.raises(ConfigError, match="cannot name an evaluation"):
            run.save_evaluation(name, {})
    (tmp_path / "evaluations" / "torn.json").write_text('{"a":')
    with pytest.raises(ArtifactError, match=r"torn\.json is damaged"):
        run.evaluations()


def test_continual_results_are_kept_beside_evaluations(tmp_path: Path) -> None:
    run = Run.create(tmp_path, CONFIG)
    assert run.continual() == {}
    run.save_continual("sgd-5-stages", {"stages": [1]})
    assert Run.open(tmp_path).continual() == {"sgd-5-stages": {"stages": [1]}}
    assert run.evaluations() == {}
    with pytest.raises(ConfigError, match="cannot name"):
        run.save_continual("a/b", {})


# --- who may create
# -------------------------------------------------------------------------------------------------


def test_an_existing_run_is_neither_continued_nor_replaced_by_accident(tmp_path: Path) -> None:
    Run.create(tmp_path, CONFIG).finish("finished")
    before = contents(tmp_path)
    with pytest.raises(RunError, match=r"already holds a run; pass --resume .* or --overwrite"):
        Run.create(tmp_path, CONFIG)
    with pytest.raises(ConfigError, match="exclude each other"):
        Run.create(tmp_path, CONFIG, resume=True, overwrite=True)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("flags", [{}, {"resume": True}, {"overwrite": True}])
@pytest.mark.parametrize(
    "file", ["thesis.tex", "manifest.json", "config.toml", "coreset.safetensors"]
)
def test_a_strangers_folder_is_left_alone(tmp_path: Path, flags: dict[str, Any], file: str) -> None:
    (tmp_path / file).write_text('{"name": "somebody\'s web app", "status": "fine", "schema": 1}')
    before = contents(tmp_path)
    with pytest.raises(RunError, match="not empty and holds no run"):
        Run.create(tmp_path, CONFIG, **flags)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("flags", [{}, {"resume": True}, {"overwrite": True}])
def test_a_folder_of_experts_is_left_alone(tmp_path: Path, flags: dict[str, Any]) -> None:
    """It has a lock and a manifest too."""
    (tmp_path / ".pseudocore.lock").touch()
    manifest = json.dumps({"kind": "pseudocore experts", "schema": 1, "identity": {}})
    (tmp_path / "manifest.json").write_text(manifest)
    with pytest.raises(
        RunError, match="not empty and holds no run of pseudocore; its files are left alone"
    ):
        Run.create(tmp_path, {"method": "uniform"}, **flags)
    assert (tmp_path / "manifest.json").read_text() == manifest


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunError, match="file is a file, not a folder"):
        Run.create(tmp_path / "file", CONFIG)
    with pytest.raises(RunError, match="not a directory"):
        Run.create(tmp_path / "file" / "run", CONFIG)
    with pytest.raises(RunError, match="file name too long"):
        Run.create(tmp_path / ("n" * 300), CONFIG)
    assert contents(tmp_path) == {"file": b"mine"}


def test_a_full_disk_at_birth_can_be_tried_again(
    tmp_path: Path, full_disk: AbstractContextManager[None]
) -> None:
    with full_disk, pytest.raises(RunError, match="no space left on device"):
        Run.create(tmp_path, CONFIG)
    assert Run.create(tmp_path, CONFIG, resume=True).manifest["status"] == "running"


def test_overwrite_removes_ours_and_keeps_the_rest(tmp_path: Path) -> None:
    run = Run.create(tmp_path, CONFIG)
    run.log(1, {"loss": 1})
    run.checkpoints.save(1, {"x": torch.ones(2)})
    run.save_coreset(coreset())
    run.save_evaluation("hmc", {"accuracy": 1})
    run.save_continual("sgd-5-stages", {"stages": []})
    run.finish("interrupted", "why")
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "evaluations" / "plot.png").write_text("mine too")
    (tmp_path / ".coreset.safetensors.partial").write_text("left by a kill")
    new = Run.create(tmp_path, {"seed": 1}, overwrite=True)
    assert new.config == {"seed": 1}
    assert new.checkpoints.load() is None
    assert new.metrics() == []
    assert new.evaluations() == new.continual() == {}
    new.save_coreset(coreset())
    new.finish("finished")
    left = [
        ".pseudocore.lock",
        "config.toml",
        "coreset.safetensors",
        "evaluations/plot.png",
        "manifest.json",
        "notes.txt",
    ]
    assert sorted(contents(tmp_path)) == left


def replaced_run(path: Path) -> dict[str, bytes]:
    """A finished run with an evaluation, and what is in its folder."""
    run = Run.create(path, CONFIG)
    run.log(1, {"loss": 1})
    run.save_coreset(coreset())
    run.save_evaluation("hmc", {"accuracy": 1})
    run.finish("finished")
    return contents(path)


def test_a_replacement_that_fails_before_its_first_checkpoint_gives_way(
    tmp_path: Path, full_disk: AbstractContextManager[None]
) -> None:
    before = replaced_run(tmp_path)
    with Run.create(tmp_path, {"seed": 1}, overwrite=True) as run:
        run.log(1, {"loss": 2})
    assert run.was_restored
    assert contents(tmp_path) == before
    with full_disk, pytest.raises(RunError, match="what was saved before is intact"):
        Run.create(tmp_path, {"seed": 1}, overwrite=True)
    assert contents(tmp_path) == before


def test_a_replacement_killed_at_any_rename_gives_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = replaced_run(tmp_path)
    replace, num_files = os.replace, len(before) - 1  # the lock stays
    for last in range(
        num_files + 3
    ):  # beyond the old files: the new configuration, the new manifest, and then a first line
        calls = iter(range(last))

        def dying(source: Any, target: Any, calls: Any = calls) -> None:
            if next(calls, None) is None:
                raise SystemExit
            replace(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(
                "pseudocore.store.run_folder.settle", lambda path: False
            )  # a killed process puts nothing back
            patch.setattr(os, "replace", dying)
            try:
                Run.create(tmp_path, {"seed": 1}, overwrite=True).log(1, {"loss": 2})
            except SystemExit:
                assert last < num_files + 2
        with pytest.raises(RunError, match="already holds a run"):
            Run.create(tmp_path, CONFIG)
        assert contents(tmp_path) == before


def test_a_replacement_with_a_checkpoint_goes_on_and_then_takes_the_place(tmp_path: Path) -> None:
    replaced_run(tmp_path)
    for _ in range(2):  # a second attempt replaces the first, not what both are to replace
        new = Run.create(tmp_path, {"seed": 1}, overwrite=True)
        new.checkpoints.save(1, {"x": torch.ones(2)})
        new.finish("interrupted")
        assert not new.was_restored
        assert contents(tmp_path / ".replaced").keys() >= {
            "coreset.safetensors",
            "manifest.json",
            "evaluations/hmc.json",
        }
    again = Run.create(tmp_path, {"seed": 1}, resume=True)
    again.save_coreset(coreset())
    again.finish("finished")
    assert sorted(contents(tmp_path)) == [
        ".pseudocore.lock",
        "config.toml",
        "coreset.safetensors",
        "manifest.json",
    ]


def test_remains_without_a_manifest_are_not_taken_for_nothing(tmp_path: Path) -> None:
    run = Run.create(tmp_path, CONFIG)
    run.save_coreset(coreset())
    run.close()
    (tmp_path / "manifest.json").unlink()
    choices: list[dict[str, Any]] = [{}, {"resume": True}]
    for flags in choices:
        with pytest.raises(RunError, match=r"without its manifest\.json; pass --overwrite"):
            Run.create(tmp_path, CONFIG, **flags)
    Run.create(tmp_path, CONFIG, overwrite=True)
    assert not (tmp_path / "coreset.safetensors").exists()


# --- two at once
# ----------------------------------------------------------------------------------------------------

HOLDER = """
import sys, time
from pseudocore.store.run_folder import Run
run = Run.create(sys.argv[1], {"seed": 0}, resume=True)
print("holding", flush=True)
time.sleep(60)
"""


def test_one_writer_at_a_time_and_a_killed_one_lets_go(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, env=environment
    ) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"holding\n"
            before = contents(tmp_path)
            choices: list[dict[str, Any]] = [{}, {"resume": True}, {"overwrite": True}]
            for flags in choices:
                with pytest.raises(RunError, match="is being written by another process"):
                    Run.create(tmp_path, {"seed": 0}, **flags)
            assert contents(tmp_path) == before
            assert Run.open(tmp_path).manifest["status"] == "running"  # reading needs no lock
        finally:
            holder.send_signal(signal.SIGKILL)
    with Run.create(tmp_path, {"seed": 0}, resume=True) as run:
        assert run.manifest["status"] == "running"
    Run.create(tmp_path, {"seed": 0}, resume=True)  # leaving the block let go
