"""The benchmark scripts run, at a size that says nothing about anything; their published settings
are the paper's.
"""

import importlib
import json
import math
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from pseudocore import api

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"

Script = Callable[..., ModuleType]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Import a script and run its `main` on a command line."""
    monkeypatch.syspath_prepend(str(FOLDER))

    def run(name: str, line: str = "") -> ModuleType:
        module = importlib.import_module(name)
        monkeypatch.setattr(sys, "argv", [name, *shlex.split(line)])
        if line:
            module.main()
        return module

    return run


def test_cold_posterior(script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = f"""--uniform digits --ipc 1 --setup model=linear --num-test 30 --draws 8 --burn 10
        --leapfrog 2 --chains 2 --fan-in 4 --isotropic 0.4 --out {tmp_path}"""
    script("cold_posterior", f"{line} --temperatures 1.0")
    path = tmp_path / "cold-uniform-digits-ipc1-seed0.json"
    first = json.loads(path.read_text())
    protocols = [cell["key"]["protocol"] for cell in first["cells"]]
    assert protocols == ["published", "mh-correct", "mh-correct"]
    published, ours, _ = first["cells"]
    assert "published_nll" in published or "rejected" in published["error"]
    metrics = {"accuracy", "nll", "ece", "brier", "adaptive_ece", "classwise_ece"}
    assert set(ours["held_out"]) == set(ours["test"]) == metrics
    assert 0 <= ours["accept"] <= 1
    assert {"rhat", "ess_bulk", "step_size", "seconds"} <= set(ours)
    script("cold_posterior", f"{line} --temperatures 1.0 0.1")  # resumes
    second = json.loads(path.read_text())
    assert second["cells"][:3] == first["cells"]
    assert [cell["key"]["temperature"] for cell in second["cells"][3:]] == [0.1, 0.1]
    assert path.with_suffix(".svg").read_bytes().startswith(b"<?xml")
    script("cold_posterior", f"{line} --temperatures 0.01 --seconds 0")
    assert "out of time" in capsys.readouterr().out


def test_the_published_settings_are_those_of_the_paper(script: Script) -> None:
    """The table in docs/inference.md, λ as 1/√(2λ)."""
    cold = script("cold_posterior")
    one, ten, twenty, fifty = (cold.published_options(per_class) for per_class in (1, 10, 20, 50))
    assert (one["num_leapfrog"], one["step_size"], one["momentum_scale"]) == (20, 0.05, 0.01)
    assert ten == twenty
    for options, penalty in ((one, 0.5), (ten, 1.5), (fifty, 0.1)):
        assert options["prior_scale"] == pytest.approx(1 / math.sqrt(2 * penalty))
        assert options["prior"] == "unsquared"
        assert options["flip_kinetic"] is options["mismatched_momentum"] is True
        assert options["num_draws"] + options["num_burn"] == (20 if penalty == 0.5 else 100)


def test_inference_table(
    script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api.reduce("uniform", "digits", per_class=1, model="linear", out=tmp_path / "run")
    small = "--set hmc.num_draws=8 --set hmc.num_burn=4 --set sgd.num_steps=3"
    line = f"{tmp_path}/run --inference sgd hmc --seeds 2 --num-test 30 {small} --out {tmp_path}"
    script("inference_table", line)
    record = json.loads((tmp_path / "inference-run.json").read_text())
    sgd, hmc = record["cells"]
    assert (sgd["inference"], hmc["inference"]) == ("sgd", "hmc")
    assert sgd["key"]["options"] == {"num_steps": 3}
    assert "rhat" not in sgd
    assert hmc["rhat"] == max(one["predictions"]["rhat"] for one in hmc["diagnostics"])
    table = capsys.readouterr().out.splitlines()[-2:]
    assert [line.split()[:3] for line in table] == [["run", "own", "sgd"], ["run", "own", "hmc"]]


def test_leapfrog(script: Script, tmp_path: Path) -> None:
    sizes = "--width 2 --points 10 --leapfrog 2 --proposals 1 --chains 1 2 --device cpu"
    script("leapfrog", f"{sizes} --out {tmp_path}/leapfrog.json")
    record = json.loads((tmp_path / "leapfrog.json").read_text())
    assert [row["name"] for row in record["rows"]] == ["plain eager loop", "ours", "ours"]
    assert record["same_draws"] < 1e-3  # the same maths: float32 rounding over two steps


def test_continual_memory(script: Script, tmp_path: Path) -> None:
    line = "digits --ipc 1 --stages 2 --seeds 2 --setup model=linear --set num_steps=3"
    script("continual_memory", f"{line} --out {tmp_path}")
    record = json.loads((tmp_path / "continual-digits-uniform-ipc1.json").read_text())
    assert [row["classes"] for row in record["per_stage"]] == [5, 10]
    assert len(record["stages"]) == 4
    last = [stage["metrics"]["accuracy"] for stage in record["stages"] if stage["stage"] == 2]
    assert record["per_stage"][1]["mean"] == pytest.approx(sum(last) / 2)


PRESET = """
method = "bpc-fkl"
data = "moons"

[setup]
model = "linear"

[options]
per_class = 2
num_steps = 2
image_lr = 0.1
max_start = 1
num_inner_steps = 2
num_draws = 2

[evaluate]
inference = "sgd"
num_steps = 3
"""


def test_trajectories(script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "small.toml").write_text(PRESET)
    kept = f"--experts {tmp_path}/experts --num-experts 1 --epochs 1"
    line = f"{tmp_path}/small.toml {kept} --seeds 1 --out {tmp_path}"
    script("trajectories", f"{line}/out")
    assert "images/s" in capsys.readouterr().out
    path = tmp_path / "out" / "small.json"
    record = json.loads(path.read_text())
    assert (record["status"], record["num_steps"]) == ("finished", 2)
    assert set(record["evaluations"]) == {"mh-correct", "published", "preset's own"}
    assert record["evaluations"]["published"]["options"]["flip_kinetic"] is True
    assert record["evaluations"]["preset's own"]["inference"] == "sgd"
    assert len(api.load(path.with_suffix(".safetensors"))) == 4
    written = path.stat().st_mtime_ns
    script("trajectories", f"{line}/out")  # all is there
    assert path.stat().st_mtime_ns == written
    path.unlink()
    script("trajectories", f"{line}/out")  # the coreset is there: evaluated only
    again = json.loads(path.read_text())["evaluations"]["published"]
    assert again["metrics"] == record["evaluations"]["published"]["metrics"]
    capsys.readouterr()
    script("trajectories", f"{line}/again")  # the experts are there
    assert "images/s" not in capsys.readouterr().out
    first, second = (tmp_path / name / "small.safetensors" for name in ("out", "again"))
    assert first.read_bytes() == second.read_bytes()
