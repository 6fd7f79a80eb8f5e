"""The benchmark scripts run in small; their published settings are the paper's."""

import importlib
import math
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from pseudocore import api
from pseudocore.core import config
from pseudocore.core.registry import methods
from pseudocore.data import load
from pseudocore.reproduce import records
from pseudocore.workflows import references

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"

Script = Callable[..., ModuleType]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Import a script and run its `main` on words, as python would."""
    monkeypatch.syspath_prepend(str(FOLDER))

    def run(name: str, *words: object) -> ModuleType:
        module = importlib.import_module(name)
        line = [part for word in words for part in str(word).split()]
        monkeypatch.setattr(sys, "argv", [name, *line])
        if words:
            module.main()
        return module

    return run


def test_cold_posterior(script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = "--draws 8 --burn 10 --leapfrog 2 --chains 2 --fan-in 4 --isotropic 0.4"
    line = f"--uniform digits --ipc 1 --setup model=linear --num-test 30 {sizes} --out {tmp_path}"
    name = "uniform-digits-ipc1-seed0"
    script("cold_posterior", line, "--temperatures 1.0")
    first = records.read(tmp_path / "cold.jsonl")[name]
    protocols = [cell["key"]["protocol"] for cell in first["cells"]]
    assert protocols == ["published", "mh-correct", "mh-correct"]
    published, ours, _ = first["cells"]
    assert "published_nll" in published or "rejected" in published["error"]
    for part in ("held_out", "test"):
        assert set(ours[part]) == set(script("cells").SCORES)
    assert 0 <= ours["accept"] <= 1
    assert {"rhat", "ess_bulk", "step_size", "seconds"} <= set(ours)
    script("cold_posterior", line, "--temperatures 1.0 0.1")  # resumes
    second = records.read(tmp_path / "cold.jsonl")[name]
    assert second["cells"][:3] == first["cells"]
    assert [cell["key"]["temperature"] for cell in second["cells"][3:]] == [0.1, 0.1]
    assert (tmp_path / f"cold-{name}.svg").read_bytes().startswith(b"<?xml")
    script("cold_posterior", line, "--temperatures 0.01 --seconds 0")
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
        assert options["flip_kinetic"]
        assert options["mismatched_momentum"]
        assert options["num_draws"] + options["num_burn"] == (20 if penalty == 0.5 else 100)


def test_inference_table(
    script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api.reduce("uniform", "digits", per_class=1, model="linear", out=tmp_path / "run")
    small = "--set hmc.num_draws=8 --set hmc.num_burn=4 --set sgd.num_steps=3 --num-test 30"
    line = f"{tmp_path / 'run'} --inference sgd hmc --seeds 2 {small} --out {tmp_path}"
    script("inference_table", line)
    sgd, hmc = records.read(tmp_path / "inference.jsonl")["run"]["cells"]
    assert (sgd["inference"], hmc["inference"]) == ("sgd", "hmc")
    assert sgd["key"]["options"] == {"num_steps": 3}
    assert "rhat" not in sgd
    assert hmc["rhat"] == max(one["predictions"]["rhat"] for one in hmc["diagnostics"])
    table = capsys.readouterr().out.splitlines()[-2:]
    assert [row.split()[:3] for row in table] == [["run", "own", "sgd"], ["run", "own", "hmc"]]


def test_leapfrog(script: Script, tmp_path: Path) -> None:
    sizes = "--width 2 --points 10 --leapfrog 2 --proposals 1 --chains 1 2 --device cpu"
    script("leapfrog", f"{sizes} --out {tmp_path}")
    (record,) = records.read(tmp_path / "leapfrog.jsonl").values()
    assert [row["name"] for row in record["rows"]] == ["plain eager loop", "ours", "ours"]
    assert record["same_draws"] < 1e-3  # the same maths: float32 rounding over two steps


def test_continual_memory(script: Script, tmp_path: Path) -> None:
    sizes = "--ipc 1 --stages 2 --seeds 2 --setup model=linear --set num_steps=3"
    script("continual_memory", f"digits {sizes} --out {tmp_path}")
    record = records.read(tmp_path / "continual.jsonl")["digits-uniform-ipc1"]
    assert [row["classes"] for row in record["per_stage"]] == [5, 10]
    assert len(record["stages"]) == 4
    last = [stage["metrics"]["accuracy"] for stage in record["stages"] if stage["stage"] == 2]
    assert record["per_stage"][1]["mean"] == pytest.approx(sum(last) / 2)


def test_contrastive_divergence(
    script: Script,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    module = script("contrastive_divergence")
    small = replace(
        module.DIGITS,
        setup={"model": "linear"},
        experts={"num": 1, "epochs": 1},
        sgd={"num_steps": 3},
        num_train=300,
        num_test=50,
    )
    monkeypatch.setattr(module, "DIGITS", small)
    line = f"digits --seeds 1 --set num_steps=2 --set max_start=1 --out {tmp_path}"
    script("contrastive_divergence", line)
    (record,) = records.read(tmp_path / "contrastive.jsonl").values()
    assert (record["num_train"], record["num_test"]) == (300, 50)
    methods = ["uniform", "bpc-fkl", "posterior", "published", "none"]
    assert [cell["key"]["method"] for cell in record["cells"]] == methods
    options = [cell["options"] for cell in record["cells"]]
    assert [one.get("noise_scale") for one in options] == [None, None, None, 1.0, 0.0]
    assert all(0 < cell["sgd"]["accuracy"] < 1 for cell in record["cells"])
    assert "digits   1 posterior  sgd accuracy" in capsys.readouterr().out
    script("contrastive_divergence", f"digits --pack {tmp_path / 'pack'}")
    assert len(load(tmp_path / "pack" / "digits.npz").train.y) == 300


def test_selection_table(script: Script, tmp_path: Path) -> None:
    preset = 'method = "lcmat-s"\ndata = "moons"\n[setup]\nmodel = "linear"\n[options]\n'
    preset += 'per_class = 2\n[evaluate]\ninference = "sgd"\nnum_steps = 3\n'
    (tmp_path / "small.toml").write_text(preset)
    line = f"--preset {tmp_path / 'small.toml'} --ipc 1 --methods uniform herding --seeds 1"
    line += f" --set pretrain_epochs=1 --commit abc --name small --out {tmp_path}"
    for _ in range(2):  # the second time all is there
        script("selection_table", line)
    record = records.read(tmp_path / "selection.jsonl")["small"]
    assert [(cell["method"], cell["ipc"]) for cell in record["cells"]] == [
        ("uniform", 1),
        ("herding", 1),
    ]
    assert record["cells"][1]["options"]["pretrain_epochs"] == 1


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
    line = f"{tmp_path / 'small.toml'} --experts {tmp_path / 'experts'}"
    line += " --num-experts 1 --epochs 1 --seeds 1"
    out = tmp_path / "out"
    script("trajectories", f"{line} --out {out}")
    assert "images/s" in capsys.readouterr().out
    path, points = out / "small.jsonl", out / "small.safetensors"
    record: Any = records.read(path)["small"]
    assert (record["status"], record["num_steps"]) == ("finished", 2)
    evaluations = record["evaluations"]
    assert set(evaluations) == {"mh-correct", "published", "preset's own"}
    assert evaluations["published"]["options"]["flip_kinetic"] is True
    assert "published_nll" in evaluations["published"]["metrics"]
    assert evaluations["preset's own"]["inference"] == "sgd"
    assert len(api.load(points)) == 4
    written = path.stat().st_mtime_ns
    script("trajectories", f"{line} --out {out}")  # all is there
    assert path.stat().st_mtime_ns == written
    path.unlink()
    script("trajectories", f"{line} --out {out}")  # the coreset is there: evaluated only
    again: Any = records.read(path)["small"]["evaluations"]
    assert again["published"]["metrics"] == evaluations["published"]["metrics"]
    capsys.readouterr()
    script("trajectories", f"{line} --out {tmp_path / 'again'}")  # the experts are there
    assert "images/s" not in capsys.readouterr().out
    assert (tmp_path / "again" / "small.safetensors").read_bytes() == points.read_bytes()


def test_presets(script: Script, tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(PRESET)
    line = f"{tmp_path / 'small.toml'} --seeds 1 --set num_steps=3 --commit abc --out {tmp_path}"
    script("presets", line)
    (path,) = tmp_path.glob("*.jsonl")
    (record,) = records.read(path).values()
    assert (record["status"], record["num_steps"], record["evaluated_on"]) == (
        "finished",
        3,
        "test",
    )
    assert record["evaluation"]["inference"] == "sgd"


def test_bench(script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = "--set per_class=1 --set num_inner_steps=1 --set augment=false --set num_train=100"
    out = tmp_path / "bench.json"
    script("bench", f"--names augment --growth --device cpu --seconds 5 {sizes} --out {out}")
    assert capsys.readouterr().out.startswith("this machine at best")
    assert out.exists()


def test_fidelity_table(script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = "--hmc num_draws=8 --hmc num_burn=4 --hmc num_chains=2 --hmc num_leapfrog=2"
    line = f"--only digits/linear --methods uniform vbpc --per-class 1 --seeds 1 {short}"
    line += f" --set vbpc.num_steps=2 --commit abc --out {tmp_path}"
    for seconds in (0, 100, 100):  # nothing is begun; all is there the last time
        script("fidelity_table", f"{line} --seconds {seconds}")
    rows = records.read(tmp_path / "fidelity.jsonl")
    start = "digits/linear"
    assert list(rows) == [
        f"{start}/{method}/ipc1/seed0/{inference}"
        for method in ("uniform", "vbpc")
        for inference in ("hmc", "last-layer-vi")
    ]
    for row in rows.values():
        assert row["fidelity_kl"] > row["fidelity_floor_kl"]
        assert row["points"] == 10
    assert rows[f"{start}/vbpc/ipc1/seed0/hmc"]["options"]["num_steps"] == 2
    table = capsys.readouterr().out.splitlines()[-2:]
    assert [line.split()[1] for line in table] == ["uniform", "vbpc"]


def test_fidelity_table_plans_what_can_be_made(script: Script) -> None:
    """Every row's method can be built, and what it needs comes before it."""
    module = script("fidelity_table")
    jobs = list(module.plan(2))
    assert len({job.name for job in jobs}) == len(jobs)
    for method, options in module.LABELS.values():
        config.build(methods[method].make, options, what=method)
    tasks = module.tasks_of(jobs, ["digits/convnet"])
    seen = set[Any]()
    for task in tasks:
        assert seen >= set(task.needs)
        seen.add(task.key)
    assert {task.device for task in tasks if "convnet" in str(task.key)} == {"cuda"}
    shards = [module.tasks_of(jobs[place::3], []) for place in range(3)]
    rows = [task.key for shard in shards for task in shard if task.key[0] == "row"]
    assert sorted(rows) == sorted(("row", job) for job in jobs)


def test_size_digits(script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = {"num_burn": 4, "num_draws": 4, "num_chains": 2, "num_leapfrog": 2}
    monkeypatch.setitem(references.OPTIONS, "hmc", short)
    line = f"--methods uniform --budgets 1 --seeds 0 3 --out {tmp_path / 'size.jsonl'}"
    script("size_digits", line)
    found = records.read(tmp_path / "size.jsonl")
    start = "size/digits/linear/within0.05"
    assert list(found) == [f"{start}/seed0", f"{start}/seed3"]
    one, other = found.values()
    assert one["answer"]["method"] == "uniform"
    assert one["answer"]["kl"] != other["answer"]["kl"]


def test_a_task_pool_leaves_out_what_a_failure_needs(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    """In processes: a task that fails, one that needs it, one that needs the time after the end."""
    pool = script("task_pool")
    tasks = [
        pool.Task(("b",), "cpu", (("a",),)),
        pool.Task(("a",), "cpu"),
        pool.Task((3,), "cpu"),
        pool.Task(("c",), "cuda"),
    ]
    options: Any = {"begin": id, "arguments": (0,), "seconds": 60.0}
    found = dict(pool.run(tasks, abs, processes={"cpu": 1, "cuda": 0}, **options))
    assert {task.key: value for task, value in found.items()} == {(3,): 3}
    assert "('a',): TypeError" in capsys.readouterr().err


def test_the_regression_page_has_the_stored_results() -> None:
    """Every mean of its three tables."""
    root = Path(__file__).parents[2]
    stored = records.read(root / "benchmarks/results/regression.jsonl")
    page = (root / "docs/regression.md").read_text()
    tables = re.findall(r"^\| data \| points \|.*\n\|-.*\n((?:\|.*\n)+)", page, re.M)
    methods = ("uniform", "herding", "giga", "psvi", "vbpc", "bpc-pcd")
    num = 0
    for metric, rows in zip(("fidelity_kl", "rmse", "nll"), tables, strict=True):
        for row in rows.splitlines():
            data, points, *cells = (cell.strip() for cell in row.strip("|").split("|"))
            for method, cell in zip(methods, cells, strict=False):
                known = stored.get(f"{data}/linear/{method}/{points}")
                assert (known is None) == (cell == "–"), (data, method, points)
                if known is not None:
                    mean, shown = known["metrics"][metric]["mean"], cell.split(" ± ")[0]
                    is_small = shown.startswith("<")
                    assert mean < 1e-6 if is_small else abs(float(shown) / mean - 1) < 0.12
                    num += 1
    assert num > 150


def test_fashion_budget(script: Script, tmp_path: Path) -> None:
    """On tiny pictures; each method gets the steps that its time allows."""
    x = np.random.default_rng(0).integers(0, 255, (200, 8, 8), dtype=np.uint8)
    y = np.arange(200) % 10
    np.savez(tmp_path / "set.npz", train_x=x, train_y=y, test_x=x[:40], test_y=y[:40])
    module = script("fashion_budget")
    module.EVALUATE, module.SETUP = {"sgd": {"num_steps": 2}}, {"model": "linear", "device": "cpu"}
    line = f"{tmp_path / 'set.npz'} --seconds 0.1 --methods uniform dm --out {tmp_path}"
    script("fashion_budget", line)
    rows = records.read(tmp_path / "fashion.jsonl")
    assert set(rows) == {"uniform", "dm"}
    assert rows["dm"]["options"]["num_steps"] >= 1
    assert "num_steps" not in rows["uniform"]["options"]
    assert 0 <= rows["dm"]["evaluations"]["sgd"]["accuracy"]["mean"] <= 1
