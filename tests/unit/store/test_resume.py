"""A run taken up again: its configuration, its checkpoint, its metrics."""

import math
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from pseudocore.core import tree
from pseudocore.core.errors import ArtifactError, RunError
from pseudocore.runtime import loop
from pseudocore.store.coreset_file import write_tensors
from pseudocore.store.run_folder import Run

CONFIG: dict[str, Any] = {
    "seed": 0,
    "method": {"name": "bpc-fkl", "image_lr": 0.01, "clip": math.nan, "sizes": (1, 2)},
}


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


# --- resuming
# -------------------------------------------------------------------------------------------------------


def test_resume_of_nothing_starts_anew(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", CONFIG, resume=True)
    assert run.manifest["status"] == "running"
    assert run.checkpoints.load() is None


def test_resume_takes_up_where_it_was(tmp_path: Path) -> None:
    first = Run.create(tmp_path, CONFIG, command="first")
    first.checkpoints.save(7, {"x": torch.arange(3)})
    first.finish("interrupted", "by hand")
    again = Run.create(tmp_path, CONFIG, resume=True)
    assert again.manifest["status"] == "running"
    assert again.manifest["reason"] == ""
    assert again.manifest["command"] == "first"
    assert len(again.manifest["resumed"]) == 1
    step, tensors = again.checkpoints.load() or (0, {})
    assert step == 7
    assert torch.equal(tensors["x"], torch.arange(3))


def test_resume_of_a_finished_run_says_so_and_changes_nothing(tmp_path: Path) -> None:
    Run.create(tmp_path, CONFIG).finish("finished")
    before = contents(tmp_path)
    assert Run.create(tmp_path, CONFIG, resume=True).finished
    assert contents(tmp_path) == before


def test_resume_with_another_configuration_lists_every_difference(tmp_path: Path) -> None:
    Run.create(
        tmp_path,
        {
            "image_lr": 0.01,
            "steps": 5,
            "old": "a",
            "flag": True,
            "method": {"clip": math.nan, "depth": 3},
        },
    ).close()
    with pytest.raises(RunError) as caught:
        Run.create(
            tmp_path,
            {
                "image_lr": 0.02,
                "steps": 5,
                "new": [1],
                "flag": 1,
                "method": {"clip": math.nan, "depth": 4},
            },
            resume=True,
        )
    message = str(caught.value)
    for part in (
        "image_lr: stored 0.01, given 0.02",
        "old: stored 'a', given nothing",
        "new: stored nothing, given [1]",
        "flag: stored True, given 1",
        "method.depth: stored 3, given 4",
        "--overwrite",
    ):
        assert part in message
    assert "steps" not in message
    assert "clip" not in message
    assert (
        Run.create(tmp_path, CONFIG, overwrite=True).config["seed"] == 0
    )  # the refusal let go of the lock


def test_a_run_of_a_later_version_is_named(tmp_path: Path) -> None:
    run = Run.create(tmp_path, CONFIG)
    run.update_manifest(schema=2)
    run.close()
    later = r"later pseudocore \(schema 2, this one reads up to 1\)"
    with pytest.raises(RunError, match=later):
        Run.open(tmp_path)
    with pytest.raises(RunError, match=later):
        Run.create(tmp_path, CONFIG, resume=True)


def test_open_refuses_what_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name, message in {
        "missing": "there is no folder",
        "file": "is a file",
        ".": r"has no manifest\.json",
    }.items():
        with pytest.raises(RunError, match=message):
            Run.open(tmp_path / name)
    run = Run.create(tmp_path / "run", CONFIG)
    (run.path / "config.toml").write_text("seed = ")
    with pytest.raises(RunError, match=r"lost its configuration: .*config\.toml, line 1"):
        Run.open(run.path)
    (run.path / "config.toml").write_text("seed = 0")
    (run.path / "manifest.json").write_text('{"kind": "website"}')
    with pytest.raises(RunError, match="holds no run: the kind of its manifest"):
        Run.open(run.path)


# --- checkpoints
# ----------------------------------------------------------------------------------------------------


def test_a_torn_checkpoint_is_kept_and_the_way_out_named(tmp_path: Path) -> None:
    run = Run.create(tmp_path, CONFIG)
    run.checkpoints.save(5, {"x": torch.ones(100)})
    file = tmp_path / "checkpoint.safetensors"
    torn = file.read_bytes()[:-7]
    file.write_bytes(torn)
    with pytest.raises(
        ArtifactError, match="delete the file to restart from the beginning, or pass --overwrite"
    ):
        run.checkpoints.load()
    assert file.read_bytes() == torn
    run.checkpoints.clear()
    assert run.checkpoints.load() is None
    run.checkpoints.clear()


def test_a_checkpoint_without_a_step_is_refused(tmp_path: Path) -> None:
    run = Run.create(tmp_path, CONFIG)
    write_tensors(
        run.checkpoints.path,
        {},
        kind="checkpoint",
        header={"config": run.checkpoints.config_digest},
    )
    with pytest.raises(ArtifactError, match="does not say at which step"):
        run.checkpoints.load()


def test_a_checkpoint_of_another_configuration_is_refused(tmp_path: Path) -> None:
    one = Run.create(tmp_path / "one", CONFIG)
    two = Run.create(tmp_path / "two", {**CONFIG, "seed": 1})
    one.checkpoints.save(5, {"x": torch.ones(1)})
    (tmp_path / "one" / "checkpoint.safetensors").rename(
        tmp_path / "two" / "checkpoint.safetensors"
    )
    with pytest.raises(RunError, match="belongs to another configuration"):
        two.checkpoints.load()


def test_a_full_disk_keeps_the_last_checkpoint(
    tmp_path: Path, full_disk: AbstractContextManager[None]
) -> None:
    run = Run.create(tmp_path, CONFIG)
    run.checkpoints.save(5, {"x": torch.ones(1)})

    with (
        full_disk,
        pytest.raises(RunError, match="no space left on device; what was saved before is intact"),
    ):
        run.checkpoints.save(6, {"x": torch.zeros(1)})
    assert (run.checkpoints.load() or (0,))[0] == 5


class Moments(NamedTuple):
    first: Tensor
    second: Tensor


class State(NamedTuple):
    x: Tensor
    moments: Moments


def test_checkpoints_serve_the_loop(tmp_path: Path) -> None:
    """The protocol of `core.loop`: what `tree.flatten` gives comes back to `unflatten`, tensors
    shared between parts included.
    """
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
# --------------------------------------------------------------------------------------------------------


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
    assert (broken.path / "metrics.jsonl").read_bytes() == (
        straight.path / "metrics.jsonl"
    ).read_bytes()
    assert broken.metrics() == [{"step": step, "loss": 1 / step} for step in (1, 2, 3, 4)]


def test_a_line_that_lacks_only_its_end_is_torn_too(tmp_path: Path) -> None:
    """Kept as it is, the next line would be written onto its end."""
    run = Run.create(tmp_path, CONFIG)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}')
    run.truncate_metrics(5)
    run.log(2, {})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1}\n{"step": 2}\n'


def test_truncating_to_the_beginning_and_truncating_nothing(tmp_path: Path) -> None:
    run = Run.create(tmp_path, CONFIG)
    run.truncate_metrics(5)
    assert not (tmp_path / "metrics.jsonl").exists()
    run.log(1, {"loss": 1})
    run.truncate_metrics(0)
    assert run.metrics() == []


def test_lines_are_json_to_any_reader_and_there_at_once(tmp_path: Path) -> None:
    run = Run.create(tmp_path, CONFIG)
    run.log(1, {"loss": math.nan, "norm": math.inf})
    assert (
        tmp_path / "metrics.jsonl"
    ).read_text() == '{"step": 1, "loss": "NaN", "norm": "Infinity"}\n'


def test_damage_in_the_middle_of_the_metrics_is_named(tmp_path: Path) -> None:
    run = Run.create(tmp_path, CONFIG)
    run.log(1, {"loss": 1})
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\nrubbish\n{"step": 3}\n')
    with pytest.raises(ArtifactError, match="line 2 is not a JSON object"):
        run.metrics()
