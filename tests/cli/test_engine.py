"""--engine and pseudocore engine status."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pseudocore import train_experts
from pseudocore.core.errors import ConfigError
from pseudocore.data import digits
from pseudocore.engine import items, mapping
from pseudocore.reproduce import records

Cli = Callable[[str], Any]
Refused = Callable[..., str]


@pytest.fixture
def workers_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """What workers do, in this process: starting them is what takes time."""

    def run_all(calls: Any, *_: Any) -> Any:
        for item, call in calls:
            yield items.result_of(items.run(items.Call.from_json(call.to_json())), item)

    monkeypatch.setitem(mapping._BACKENDS, "local", run_all)


EXPERTS = "experts digits --model mlp --width 8 --num 3 --epochs 2"


def digests(folder: str, pattern: str) -> dict[str, str]:
    files = sorted(Path(folder).rglob(pattern))
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def test_experts_of_workers_have_the_same_bits(done: Cli) -> None:
    done(f"{EXPERTS} --out here")
    done(f"{EXPERTS} --out there --engine local --workers 2")
    expected = digests("here", "*.safetensors")
    assert digests("there", "*.safetensors") == expected
    said = done("engine status there").out
    assert (
        "workflows.expert_tasks:train_experts by local: 3 of 3 done, 0 running, 0 waiting" in said
    )
    assert json.loads(done("engine status there --json").out)["done"] == 3
    # One that was lost is trained again, though its item is done.
    (Path("there") / "expert-0001.safetensors").unlink()
    done(f"{EXPERTS} --out there --engine local")
    assert digests("there", "*.safetensors") == expected


@pytest.mark.usefixtures("workers_here")
def test_seeds_of_workers_have_the_same_bits(done: Cli) -> None:
    done("reduce uniform digits --ipc 1 --model linear --out run")
    command = "evaluate run --inference hmc --num-draws 4 --num-burn 2 --num-chains 2 --seeds 2 --fidelity"
    done(command)
    (file,) = Path("run/evaluations").glob("*.json")
    here = json.loads(file.read_text())
    done("cache clear")  # what workers find there, they have made
    done(f"{command} --engine local --workers 2")
    there = json.loads(file.read_text())
    for changing in ("seconds", "cost", "command"):
        assert here.pop(changing) != there.pop(changing)
    assert here == there
    assert "2 of 2 done" in done("engine status run").out


@pytest.mark.usefixtures("workers_here")
def test_cells_of_workers_have_the_same_numbers(done: Cli, refused: Refused) -> None:
    small = "--seeds 1 --set setup.width=4 --set evaluate.num_steps=3"
    line = f"table digits --cells ipc1-uniform --cells ipc1-kernel-herding {small}"
    done(f"{line} --out here --work work")
    done(f"{line} --out there --work other --engine local --workers 1")
    here, there = (records.read(Path(name) / "digits.jsonl") for name in ("here", "there"))
    assert {*here} == {*there} == {"ipc1-uniform", "ipc1-kernel-herding"}
    for name, one in here.items():
        other = there[name]
        assert one["settings"] == other["settings"]
        for protocol, found in one["evaluations"].items():
            assert found["per_seed"] == other["evaluations"][protocol]["per_seed"]
    refused(f"{line} --engine local --budget-minutes 1 --out new", "leave it out with --engine")


def test_engines_are_listed(done: Cli) -> None:
    said = json.loads(done("engine status --json").out)
    assert said["engines"]["local"] is True
    assert said["cores"] >= 1


def test_what_is_refused(refused: Refused) -> None:
    refused(f"{EXPERTS} --out a --workers 2", "--workers need --engine local, ray or submitit")
    refused(f"{EXPERTS} --out a --engine slurm", "slurm")
    refused(f"{EXPERTS} --out a --engine local --engine-address b:1", "has no address")
    refused("engine status .", "holds no work of an engine")


def test_workers_read_no_objects(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="read data themselves: give a name or a path"):
        train_experts(digits(), out=tmp_path / "a", engine="local")
