"""Keeping freed memory changes page faults and nothing else."""

import json
import os
import subprocess
import sys

import pytest

from pseudocore.runtime import allocator

MAKE = """
import hashlib, json, resource
import torch
import pseudocore
from pseudocore.runtime.allocator import keep_freed_memory

torch.set_num_threads(1)
digests = {}
for method in ("vbpc", "dm", "bpc-fkl", "lcmat-s", "psvi"):
    options = {"num_steps": 3} if method != "lcmat-s" else {"pretrain_epochs": 1}
    model = {"model": "linear"} if method == "psvi" else {"model": "convnet3", "width": 8}
    more = {"num_experts": 1, "max_start": 2} if method == "bpc-fkl" else {}
    run = pseudocore.reduce(
        method, "digits", per_class=1, device="cpu", **options, **model, **more
    )
    digests[method] = hashlib.sha256(run.coreset.x.numpy().tobytes()).hexdigest()
torch.ones(12_000_000)  # 48 MB: beyond what glibc would come to keep by itself
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.ones(12_000_000)
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(json.dumps({"set": keep_freed_memory(), "digests": digests, "faults": faults}))
"""


def made(**environment: str) -> dict:
    cleared = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    result = subprocess.run(
        [sys.executable, "-c", MAKE], env={**cleared, **environment}, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.skipif(sys.platform != "linux", reason="the settings are those of glibc")
def test_the_same_bits_with_fewer_page_faults() -> None:
    kept, system = made(), made(PSEUDOCORE_MALLOC="system")
    assert (kept["set"], system["set"]) == (True, False)
    assert kept["digests"] == system["digests"]
    assert kept["faults"] * 5 < system["faults"]


@pytest.mark.parametrize(
    "name", ["PSEUDOCORE_MALLOC", "GLIBC_TUNABLES", "LD_PRELOAD", "MALLOC_MMAP_THRESHOLD_"]
)
def test_settings_of_the_user_are_left_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "system")
    assert allocator.keep_freed_memory.__wrapped__() is False


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert allocator.keep_freed_memory.__wrapped__() is False
