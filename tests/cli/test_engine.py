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

Cli = Callable[[str], Any]
Refused = Callable[..., str]

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
    assert "workflows.tasks:train_experts by local: 3 of 3 done, 0 running, 0 waiting" in said
    assert json.loads(done("engine status there --json").out)["done"] == 3
    # One that was lost is trained again, though its item is done.
    (Path("there") / "expert-0001.safetensors").unlink()
    done(f"{EXPERTS} --out there --engine local")
    assert digests("there", "*.safetensors") == expected


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
