"""RUN folders on the command line: what exists is kept, what stopped can be resumed, what
diverged says so.
"""

import errno
import json
import os
import shlex
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from pseudocore.store.run_folder import Run

Refused = Callable[..., str]
Done = Callable[[str], Any]
Npz = Callable[..., str]

SMALL = "--model convnet-wide --width 4 --num-steps 4 --batch-size 16 --ipc 1"
REDUCE = f"reduce vbpc digits {SMALL} --out run"
LONGER = REDUCE.replace("--num-steps 4", "--num-steps 24")


def _contents(folder: str) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def _manifest() -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads(Path("run/manifest.json").read_text())
    return manifest


def _same_coreset(one: str, other: str) -> bool:
    a, b = (load_file(f"{run}/coreset.safetensors") for run in (one, other))
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture
def interrupted(cli: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> str:
    """A run of 24 steps stopped by Ctrl-C while it logs step 20, which is taken again, and what it
    said.
    """

    def log(run: Run, step: int, values: dict[str, float]) -> None:
        whole(run, step, values)
        if step == 20:
            raise KeyboardInterrupt

    whole = Run.log
    with monkeypatch.context() as patch:
        patch.setattr(Run, "log", log)
        said = cli(LONGER)
    assert said.code == 130
    assert said.out == ""
    return str(said.err)


def test_a_run_without_a_coreset_says_how_to_resume(
    interrupted: str, refused: Refused, done: Done
) -> None:
    command = interrupted.rstrip("\n").partition("; resume with: ")[2]
    for verb in ("evaluate run --num-steps 2", "export run out.npz"):
        why = "run has no coreset yet (interrupted after step 19 of 24)"
        assert refused(verb) == f"{why}; resume with: {command}"
    refused("compare run", "has been evaluated yet")
    manifest, unknown = _manifest(), "resume with: the command that made it and --resume"
    for changes, words in (
        ({"command": manifest["command"] + " --overwrite"}, f"resume with: {command}"),
        ({"status": "running", "reason": ""}, "(it is still running, or was killed); resume with"),
        ({"command": ""}, unknown),
        ({"command": "pseudocore 'reduce"}, unknown),
    ):
        Path("run/manifest.json").write_text(json.dumps(manifest | changes))
        refused("evaluate run --num-steps 2", words)
    done(command.removeprefix("pseudocore "))
    done("evaluate run --num-steps 2 --seeds 1")


def test_an_interrupted_run_tells_how_to_resume_and_ends_as_if_never_stopped(
    interrupted: str, done: Done
) -> None:
    words, command = interrupted.rstrip("\n").split("; resume with: ")
    assert words == "interrupted after step 19 of 24"
    assert command == f"pseudocore {LONGER} --resume"
    assert _manifest()["status"] == "interrupted"
    said = done(command.removeprefix("pseudocore "))
    assert "resuming at step 19" in said.err
    assert _manifest()["status"] == "finished"
    done(LONGER.replace("--out run", "--out whole"))
    assert _same_coreset("run", "whole")
    assert Path("run/metrics.jsonl").read_bytes() == Path("whole/metrics.jsonl").read_bytes()


@pytest.mark.parametrize("kept", [slice(0, 200), slice(0, 0), slice(0, -1)])
def test_a_damaged_checkpoint_is_refused_and_left_in_place(
    interrupted: str, refused: Refused, kept: slice
) -> None:
    file = Path("run/checkpoint.safetensors")
    file.write_bytes(damaged := file.read_bytes()[kept])
    refused(f"{LONGER} --resume", "checkpoint.safetensors", "delete the file")
    assert file.read_bytes() == damaged


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes a function stop as by Ctrl-C."""

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    return lambda name: monkeypatch.setattr(name, stop)


def test_a_run_is_resumed_with_the_data_it_was_begun_on(
    refused: Refused, cli: Callable[[str], Any], npz: Npz, stopped: Callable[[str], None]
) -> None:
    line = REDUCE.replace("digits", npz("mine"))
    stopped("pseudocore.workflows.reduction.run")
    assert cli(line).code == 130
    npz("mine", train_x=np.random.default_rng(2).integers(0, 256, (40, 8, 8), dtype=np.uint8))
    refused(f"{line} --resume", "begun on another 'mine'")


FINISHED: list[dict[str, Any]] = [
    {"seconds": "long"},
    {"points": [1]},
    {"cost": {"reduce": 3}},
    {"cost": 3},
    {"seconds": None},
    {"points": 10, "num_steps": None},
]
INTERRUPTED: list[dict[str, Any]] = [
    {"resumed": None},
    {"seconds": "long"},
    {"cost": {"reduce": {"seconds": 1}}},
    {"experts": {"num_experts": "2"}},
]


@pytest.mark.parametrize("entry", FINISHED)
def test_a_finished_run_with_an_edited_manifest_is_a_sentence(
    done: Done, cli: Done, entry: dict[str, Any]
) -> None:
    done(REDUCE)
    Path("run/manifest.json").write_text(json.dumps(_manifest() | entry))
    said = cli(f"{REDUCE} --resume")
    assert said.code == 2
    assert "run/manifest.json is damaged" in said.err.splitlines()[-1]


@pytest.mark.parametrize("entry", INTERRUPTED)
def test_an_interrupted_run_with_an_edited_manifest_is_a_sentence(
    interrupted: str, refused: Refused, entry: dict[str, Any]
) -> None:
    Path("run/manifest.json").write_text(json.dumps(_manifest() | entry))
    before = _contents("run")
    refused(f"{LONGER} --resume", "run/manifest.json is damaged")
    assert _contents("run") == before


def test_a_full_disk_is_a_sentence_and_keeps_what_was_saved(
    interrupted: str, refused: Refused, done: Done, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = Path("run/checkpoint.safetensors").read_bytes()
    line = f"{LONGER} --resume"

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("pseudocore.store.files.os.fsync", full)
        refused(line, "no space left on device; what was saved before is intact")
    assert Path("run/checkpoint.safetensors").read_bytes() == checkpoint
    assert not list(Path("run").glob("*.partial"))
    done(line)
    assert _manifest()["status"] == "finished"


def test_a_diverging_run_keeps_its_last_good_coreset(refused: Refused, done: Done) -> None:
    said = refused(f"{REDUCE} --image-lr 1e12", "NaN or infinite", "last good coreset is in run")
    assert said.startswith("vbpc diverged: ")
    manifest = _manifest()
    assert manifest["status"] == "diverged"
    assert "NaN" in manifest["reason"]
    coreset = load_file("run/coreset.safetensors")
    assert all(tensor.isfinite().all() for tensor in coreset.values())
    evaluated = done("evaluate run --num-steps 2 --seeds 1 --json")
    assert json.loads(evaluated.out)["accuracy"]["mean"] >= 0
    warning = (
        f"warning: run diverged; its coreset is that of step {manifest['num_steps']}, the last"
    )
    assert warning in evaluated.err
    assert warning in done("compare run").err


def test_the_next_command_names_a_network_from_outside(
    done: Done, own_world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which `evaluate` does not run on a file's word."""
    layers = "nn.Flatten(), nn.Linear(64, num_classes)"
    code = f"from torch import nn\ndef small(num_classes): return nn.Sequential({layers})\n"
    Path("nets_here.py").write_text(code)
    monkeypatch.syspath_prepend(str(own_world))
    said = done("reduce uniform digits --ipc 1 --model nets_here:small --out run")
    assert said.out.endswith("next: pseudocore evaluate run --model nets_here:small\n")
    following = said.out.split("next: pseudocore ")[1].strip()
    done(f"{following} --inference sgd --num-steps 2 --seeds 1")


def test_the_recorded_command_makes_the_same_coreset_again(done: Done) -> None:
    done(f"{REDUCE} --seed 3 --image-lr 0.02")
    command = shlex.split(_manifest()["command"])
    assert command[0] == "pseudocore"
    Path("run").rename("first")
    done(shlex.join(command[1:]))
    assert _same_coreset("run", "first")
    assert Path("run/config.toml").read_bytes() == Path("first/config.toml").read_bytes()


def test_a_share_of_the_data_means_that_share(done: Done, refused: Refused) -> None:
    said = done("reduce uniform digits --fraction 0.02 --out run")
    assert "29 points" in said.out  # 0.02 · 1437 = 28.7
    assert tomllib.loads(Path("run/config.toml").read_text())["options"]["fraction"] == 0.02
    assert "10 points" in done("reduce uniform digits --fraction 0.007 --out least").out
    refused(
        "reduce uniform digits --fraction 0.0001 --out less",
        "less than one point for each of the 10 classes of 'digits'; 10 would be",
    )
    assert not Path("less").exists()


def test_an_existing_run_is_kept_until_it_is_to_be_replaced(refused: Refused, done: Done) -> None:
    done(f"{REDUCE} --resume")  # where there is nothing to resume
    before = _contents("run")
    refused(REDUCE, "--resume", "--overwrite")
    assert "finished already" in done(f"{REDUCE} --resume").err
    assert json.loads(done(f"{REDUCE} --resume --json").out)["status"] == "finished"
    refused(
        f"{REDUCE} --resume --image-lr 0.5 --no-siamese",
        "options.image_lr: stored 0.01, given 0.5",
        "setup.siamese: stored True, given False",
    )
    with Run.create("other", {"method": "vbpc"}):
        for flag in ("", "--resume", "--overwrite"):
            refused(f"{REDUCE}/../other {flag}", "being written by another process")
    assert _contents("run") == before
    done(f"{REDUCE} --overwrite --seed 1")
    assert _contents("run")["run/coreset.safetensors"] != before["run/coreset.safetensors"]


def test_an_interrupted_overwrite_keeps_the_old_run(
    cli: Callable[[str], Any], done: Done, stopped: Callable[[str], None]
) -> None:
    done(REDUCE)
    done("evaluate run --num-steps 2 --seeds 1")
    before = _contents("run")
    stopped("pseudocore.workflows.reduction.run")
    message = "interrupted; run holds its earlier run again\n"
    assert cli(f"{REDUCE} --overwrite --seed 1") == (130, "", message)
    assert _contents("run") == before
    stopped("pseudocore.cli.reduce.run_reduction")  # where there was no run before
    message = f"interrupted; resume with: pseudocore {REDUCE}2 --resume\n"
    assert cli(f"{REDUCE}2 --overwrite") == (130, "", message)


def test_files_of_others_are_never_replaced(refused: Refused) -> None:
    Path("run").mkdir()
    Path("run/thesis.tex").write_text("years of work")
    for flag in ("", "--overwrite", "--resume"):
        refused(f"{REDUCE} {flag}", "choose another --out")
    refused(f"{REDUCE}/thesis.tex/x", "cannot write run/thesis.tex/x: not a directory")
    refused(f"{REDUCE}/thesis.tex", "thesis.tex is a file, not a folder")
    assert _contents("run") == {"run/thesis.tex": b"years of work"}


def test_a_killed_evaluation_is_typed_again(done: Any, cli: Any, monkeypatch: Any) -> None:
    from pseudocore.evaluation import evaluate as module

    done("reduce uniform digits --ipc 1 --model linear --out run")
    line, one, fitted = "evaluate run --inference sgd --num-steps 2 --seeds 3", module._one, []

    def killed(*given: Any) -> Any:
        fitted.append(given[3])
        if len(fitted) == 3:
            raise KeyboardInterrupt
        return one(*given)

    monkeypatch.setattr(module, "_one", killed)
    assert cli(line).code == 130
    (kept,) = Path("run/evaluations").iterdir()
    assert kept.name.startswith(".")
    done(line)
    assert fitted == [0, 1, 2, 2]
    assert [path.name for path in Path("run/evaluations").iterdir()] == ["sgd.num_steps-2.json"]
