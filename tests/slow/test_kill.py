"""A run killed outright, again and again, and taken up each time, ends bit for bit like one that
was left alone.
"""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pseudocore.store.run_folder import Run

SCRIPT = """
import sys, torch
from pseudocore import assembly as setup
from pseudocore import api
from pseudocore.store.run_folder import Run

torch.set_num_threads(1)
options = dict(per_class=1, batch_size=16, pool_size=3, max_age=4, averaging=0.5)
options["num_steps"] = int(sys.argv[2])
words = dict(data="digits", model="convnet-wide", width=4, augment="crop_scale")
reduction = api.Reduction.from_config(dict(method="vbpc", seed=3, setup=words, options=options))
problem = setup.build(reduction.setup, device="cpu")
folder = Run.create(sys.argv[1], api.resolved(reduction, problem).to_config(), resume=True)
if not folder.finished:
    outcome = api.run_reduction(reduction, problem, folder, checkpoint_every=5, log_every=2)
    assert outcome.status == "finished", outcome
"""


def start(folder: Path, num_steps: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder), str(num_steps)],
        env=environment,
        stderr=subprocess.PIPE,
    )


def finish(folder: Path, num_steps: int) -> None:
    process = start(folder, num_steps)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors.decode()


def kill_once(folder: Path, num_steps: int, chance: random.Random) -> bool:
    """Kill a run at a random moment: while it starts, or a little after a new checkpoint. False
    when it was faster and finished.
    """
    checkpoint, process = folder / "checkpoint.safetensors", start(folder, num_steps)
    before = written(checkpoint)
    if chance.random() < 0.2:
        time.sleep(chance.uniform(0.0, 2.0))
    else:
        while process.poll() is None and written(checkpoint) == before:
            time.sleep(0.001)
        time.sleep(chance.uniform(0.0, 0.1))
    process.kill()
    _, errors = process.communicate()
    assert process.returncode in (0, -9), errors.decode()
    return process.returncode == -9


def written(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def check(folder: Path, *, num_kills: int, num_steps: int, seed: int) -> None:
    chance = random.Random(seed)
    kills = sum(kill_once(folder / "killed", num_steps, chance) for _ in range(num_kills))
    assert kills >= 0.7 * num_kills, (
        "the runs were over before they could be killed; make them longer"
    )
    for name in ("killed", "straight"):
        finish(folder / name, num_steps)
    killed, straight = (
        load_file(folder / name / "coreset.safetensors") for name in ("killed", "straight")
    )
    assert killed.keys() == straight.keys() >= {"x", "y", "weight"}
    assert all(torch.equal(killed[name], straight[name]) for name in killed)
    assert (folder / "killed" / "metrics.jsonl").read_bytes() == (
        folder / "straight" / "metrics.jsonl"
    ).read_bytes()
    run, whole = Run.open(folder / "killed"), Run.open(folder / "straight")
    assert run.coreset().provenance == whole.coreset().provenance
    assert run.finished
    assert whole.finished
    assert [line["step"] for line in run.metrics()] == list(range(2, num_steps + 1, 2))
    leftovers = {file.name for file in (folder / "killed").iterdir()} - {
        file.name for file in (folder / "straight").iterdir()
    }
    assert leftovers == set()
    assert json.loads((folder / "killed" / "manifest.json").read_text())["resumed"]


def test_three_kills(tmp_path: Path) -> None:
    check(tmp_path, num_kills=3, num_steps=60, seed=1)


@pytest.mark.slow
def test_twenty_kills(tmp_path: Path) -> None:
    check(tmp_path, num_kills=20, num_steps=300, seed=0)
