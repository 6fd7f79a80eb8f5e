"""Folders of experts filled, interrupted, resumed and extended; experts that a reduction uses or
trains for itself.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from pseudocore import api
from pseudocore.assembly import Reduction, Setup, build
from pseudocore.core.errors import ConfigError, RunError
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.store.expert_folder import ExpertFolder, MappedExperts
from pseudocore.store.run_folder import Run
from pseudocore.training import experts
from pseudocore.training.experts import Resident, Training, train
from pseudocore.workflows import experts as expert_training
from pseudocore.workflows.experts import with_experts

SMALL: dict[str, Any] = {"model": "mlp", "width": 4, "batch_size": 512, "num": 3, "epochs": 4}


def filled(out: Path, **options: Any) -> dict[str, bytes]:
    """The shards in a folder of experts on the digits, after training what was missing."""
    api.train_experts("digits", out=out, **{**SMALL, **options})
    return {file.name: file.read_bytes() for file in sorted(out.glob("*.safetensors"))}


def mapped(path: Path) -> MappedExperts:
    return ExpertFolder.open(path).mapped(build(Setup(model="mlp", width=4), device="cpu"))


class Stop:
    """Raises in the middle of a run, after so many epochs over all experts."""

    def __init__(self, after: int, error: type[BaseException]) -> None:
        self.after, self.error = after, error

    def __call__(self, done: int, _: dict[str, float]) -> None:
        if done == self.after:
            raise self.error


# --- filling


def test_what_is_reported_of_a_folder(tmp_path: Path) -> None:
    epochs: list[tuple[int, dict[str, float]]] = []
    options = {**SMALL, "num": 2, "epochs": 3, "lr": 0.5, "out": tmp_path / "b"}
    facts = api.train_experts(
        "digits",
        **options,
        on_epoch=lambda *epoch: epochs.append(epoch),
    )
    assert (facts["num_experts"], facts["num_epochs"], facts["trained_epochs"]) == (2, 3, 6)
    assert facts["images_per_second"] > 0
    assert facts["bytes"] == sum(one.stat().st_size for one in (tmp_path / "b").glob("*.safe*"))
    expected = [(1, 0), (2, 0), (3, 0), (4, 1), (5, 1), (6, 1)]
    assert [(done, numbers["expert"]) for done, numbers in epochs] == expected
    mean = (epochs[2][1]["loss"] + epochs[5][1]["loss"]) / 2
    assert facts["train_loss"]["mean"] == pytest.approx(mean)
    problem = build(Setup(model="mlp", width=4), device="cpu")
    theta = mapped(tmp_path / "b").at(torch.tensor([0, 1]), torch.tensor([3, 3]))
    labels = problem.model.logits(theta, problem.inputs(problem.data.test.x)).argmax(-1)
    accuracy = (labels == problem.data.test.y).double().mean().item()
    assert facts["accuracy"]["mean"] == pytest.approx(accuracy)
    again = api.train_experts("digits", **{**options, "num": 1, "epochs": 2})
    assert (again["num_experts"], again["num_epochs"], again["trained_epochs"]) == (2, 3, 0)
    assert again["images_per_second"] is None


@pytest.mark.parametrize("save_seconds", [0.0, 30.0])
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("after", [1, 4, 7])
def test_stopped_and_resumed_is_never_stopped(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    after: int,
    error: type[BaseException],
    save_seconds: float,
) -> None:
    """Ctrl-C keeps the epoch; a crash loses no more than was not saved yet."""
    monkeypatch.setattr(experts, "SAVE_SECONDS", save_seconds)
    with pytest.raises(error):
        filled(tmp_path / "stopped", on_epoch=Stop(after, error))
    kept = ExpertFolder.open(tmp_path / "stopped").epochs()
    whole, rest = divmod(after, 4)
    partial = error is KeyboardInterrupt or save_seconds == 0
    assert kept == {**dict.fromkeys(range(whole), 4), **({whole: rest} if partial and rest else {})}
    assert filled(tmp_path / "stopped") == filled(tmp_path / "straight")


@pytest.mark.parametrize(
    "options",
    [{}, {"momentum": 0.9}, {"storage": "bfloat16"}, {"storage": "bfloat16", "momentum": 0.5}],
)
def test_extended_it_is_what_all_at_once_would_have_been(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    filled(tmp_path / "grown", num=2, epochs=2, **options)
    filled(tmp_path / "grown", num=3, epochs=1, **options)
    assert ExpertFolder.open(tmp_path / "grown").epochs() == {0: 2, 1: 2, 2: 1}
    whole = filled(tmp_path / "grown", **options)
    assert whole == filled(tmp_path / "straight", **options)
    (tmp_path / "grown" / "expert-0001.safetensors").unlink()
    assert mapped(tmp_path / "grown").num_experts == 1
    assert filled(tmp_path / "grown", **options) == whole


def test_batched_groups_resume_each_other(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        filled(tmp_path / "grouped", num=5, group=2, on_epoch=Stop(6, KeyboardInterrupt))
    assert ExpertFolder.open(tmp_path / "grouped").epochs() == {0: 3, 1: 3}
    filled(tmp_path / "grouped", num=5, group=3)
    filled(tmp_path / "straight", num=5)
    one, other = (mapped(tmp_path / name).load(4) for name in ("grouped", "straight"))
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_bfloat16_is_half_the_size_and_the_rounded_numbers(tmp_path: Path) -> None:
    full = filled(tmp_path / "full", epochs=20)
    half = filled(tmp_path / "half", epochs=20, storage="bfloat16")
    assert sum(map(len, half.values())) < 0.65 * sum(map(len, full.values()))
    one, other = (mapped(tmp_path / name).load(20) for name in ("full", "half"))
    assert other.dtype == torch.bfloat16
    assert torch.equal(one.bfloat16(), other)


def test_an_expert_that_explodes_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        filled(tmp_path / "b", lr=1e30)
    assert caught.value.code == "expert-diverged"
    assert caught.value.fields == {"number": 0, "epoch": 1, "lr": 1e30}
    assert list((tmp_path / "b").glob("*.safetensors")) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num": 0}, "num = 0 must be at least 1"),
        ({"epochs": -1}, "epochs = -1 must be at least 1"),
        ({"group": 0}, "group = 0 must be at least 1"),
        ({"lr": 0.0}, "lr = 0.0 must be above 0"),
        ({"storage": "float16"}, "storage = 'float16' is not one of 'float32', 'bfloat16'"),
        ({"loss": "hinge"}, "loss = 'hinge' is not one of 'cross-entropy', 'focal'"),
        ({"widht": 3}, r"unknown option 'widht' \(did you mean 'width'\?\)"),
    ],
)
def test_settings_that_cannot_work(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        filled(tmp_path / "b", **options)
    assert not (tmp_path / "b").exists()


def test_other_settings_are_other_experts(tmp_path: Path) -> None:
    filled(tmp_path / "b")
    for name, value in {
        "lr": 0.02,
        "width": 5,
        "seed": 1,
        "loss": "focal",
        "storage": "bfloat16",
        "preprocess": "none",
    }.items():
        with pytest.raises(RunError, match=f"trained otherwise .*{name}.*--overwrite"):
            filled(tmp_path / "b", **{name: value})


KILLED = """
import sys, torch
from pseudocore.training import experts
from pseudocore import api
torch.set_num_threads(1)
experts.SAVE_SECONDS = 0.0
options = {"num": 4, "epochs": 10, "model": "mlp", "width": 64, "batch_size": 64}
api.train_experts("digits", out=sys.argv[1], **options)
"""


def test_killed_outright_it_is_resumed(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", KILLED, str(tmp_path / "b")]
    with subprocess.Popen(command, env=environment) as process:
        second, until = tmp_path / "b" / "expert-0001.safetensors", time.monotonic() + 60
        while not second.exists() and time.monotonic() < until:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    kept = ExpertFolder.open(tmp_path / "b").epochs()
    assert kept[0] == 10
    assert sum(kept.values()) < 40, "the run was over before it could be killed; make it longer"
    options = {"num": 4, "epochs": 10, "width": 64, "batch_size": 64}
    assert filled(tmp_path / "b", **options) == filled(tmp_path / "straight", **options)


# --- used by a method

MLP: dict[str, Any] = {"model": "mlp", "width": 16}


class State(NamedTuple):
    theta: Tensor


class Info(NamedTuple):
    norm: Tensor


@dataclass(frozen=True, kw_only=True)
class Follower:
    """Adds up snapshots of experts."""

    num_steps: int = 4
    """Steps."""
    max_start: int = 2
    """Start epochs below this."""
    num_experts: int = 2
    """Experts to train when none are given."""
    expert_loss: str = "cross-entropy"
    """Their training loss."""

    @property
    def expert_epochs(self) -> int:
        return self.max_start + 1

    def init(self, problem: Problem, rng: Rng) -> State:
        return State(torch.zeros(problem.model.num_parameters))

    def step(self, problem: Problem, state: State, rng: Rng) -> tuple[State, Info]:
        assert problem.experts is not None
        expert = rng("expert").integers(problem.experts.num_experts, 1)
        start = rng("start").integers(self.max_start, 1)
        theta = state.theta + problem.experts.at(expert, start + 1)[0]
        return State(theta), Info(theta.norm())

    def coreset(self, problem: Problem, state: State) -> Coreset:
        x = state.theta[: 10 * 64].view(10, 1, 8, 8)
        return Coreset(x, torch.arange(10), torch.ones(10))


@pytest.fixture(autouse=True)
def follower() -> Iterator[None]:
    methods.register("follower", kind="condense", paper="baseline")(Follower)
    yield
    del methods._entries["follower"], methods._classes["follower"]


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., str]:
    """The path of a folder with experts for `Follower`."""

    def make(**options: Any) -> str:
        path = tmp_path / "b"
        api.train_experts("digits", out=path, **{"num": 2, "epochs": 3, **MLP, **options})
        return str(path)

    return make


def reduced(**options: Any) -> Tensor:
    x: Tensor = api.reduce("follower", "digits", device="cpu", **MLP, **options).coreset.x
    return x


def test_named_experts_are_used(made: Callable[..., str]) -> None:
    own = reduced()  # on those it trains for itself, with the same seed and settings
    assert torch.equal(reduced(experts=made()), own)
    assert not torch.equal(reduced(experts=made(lr=0.1, overwrite=True)), own)


def test_a_run_trains_its_own_and_keeps_them(tmp_path: Path) -> None:
    own, path = reduced(out=tmp_path / "run"), tmp_path / "run" / "experts"
    assert ExpertFolder.open(path).epochs() == {0: 3, 1: 3}
    run = Run.open(tmp_path / "run")
    assert run.manifest["experts"]["num_experts"] == 2
    assert "experts" in run.manifest["cost"]
    assert torch.equal(own, reduced(experts=str(path)))
    assert ExpertFolder.open(path).command(9) == (
        f"pseudocore experts digits --num 2 --seed 0 --out {path} --model mlp --width 16 --epochs 9"
    )


def test_experts_of_an_overwritten_run_are_overwritten(tmp_path: Path) -> None:
    for width in (16, 17):
        table = {"method": "follower", "data": "digits", "setup": {"model": "mlp", "width": width}}
        reduction = Reduction.from_config(table)
        with Run.create(tmp_path / "run", reduction.to_config(), overwrite=True) as run:
            outcome = api.run_reduction(reduction, build(reduction.setup), run)
            assert outcome.status == "finished"
    assert ExpertFolder.open(tmp_path / "run" / "experts").identity["model"]["width"] == 17


def test_a_run_is_resumed_with_the_experts_it_began_with(
    tmp_path: Path, made: Callable[..., str]
) -> None:
    setup = {**MLP, "experts": made()}
    reduction = Reduction.from_config({"method": "follower", "data": "digits", "setup": setup})

    def interrupted(step: int, values: dict[str, float]) -> None:
        if step == 2:
            raise KeyboardInterrupt

    def resume(name: str, **options: Any) -> Any:
        with Run.create(tmp_path / name, reduction.to_config(), resume=True) as run:
            problem = build(reduction.setup)
            return api.run_reduction(reduction, problem, run, log_every=1, **options)

    straight = resume("straight").coreset
    assert resume("stopped", on_log=interrupted).status == "interrupted"
    made(num=5)
    assert torch.equal(resume("stopped").coreset.x, straight.x)
    assert not torch.equal(resume("fresh").coreset.x, straight.x)
    (tmp_path / "b" / "expert-0001.safetensors").unlink()
    Run.open(tmp_path / "stopped").update_manifest(status="interrupted")
    with pytest.raises(ConfigError, match=r"was begun with 2 experts, but .* now holds 1"):
        resume("stopped")


def test_experts_that_do_not_do_are_refused_before_a_run_begins(
    tmp_path: Path, made: Callable[..., str]
) -> None:
    path = made(epochs=1)
    with pytest.raises(ConfigError) as caught:
        reduced(experts=path, out=tmp_path / "run")
    assert caught.value.code == "too-few-epochs"
    assert f"run `{ExpertFolder.open(path).command(3)}`" in str(caught.value)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError) as caught:
        api.reduce("uniform", "digits", experts=path, **MLP)
    assert caught.value.code == "needs-no-experts"


def test_experts_of_a_problem_are_used_as_they_are() -> None:
    problem = build(Setup(**MLP), device="cpu")
    own = train(problem, Training(), num=1, num_epochs=3)
    found = with_experts(replace(problem, experts=own), Follower(), Setup(), seed=0)
    assert found.experts is own


def test_a_coreset_is_evaluated_without_its_experts(made: Callable[..., str]) -> None:
    path = made()
    result = api.reduce("follower", "digits", experts=path, **MLP)
    for file in Path(path).iterdir():
        file.unlink()
    assert api.build_problem(result.coreset).experts is None


@pytest.mark.gpu
def test_on_a_gpu_experts_are_held_when_they_fit(
    made: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = Setup(**MLP, experts=made(num=3, epochs=4))
    problem = build(setup, device="cuda")
    held = with_experts(problem, Follower(max_start=1), setup, seed=0).experts
    assert isinstance(held, Resident)
    assert held.num_epochs == 2
    place = torch.tensor([0, 2], device="cuda"), torch.tensor([2, 1], device="cuda")
    assert problem.experts is not None
    assert torch.equal(held.at(*place), problem.experts.at(*place))
    assert held.at(*place).is_cuda
    monkeypatch.setattr(expert_training, "MAX_MEMORY_SHARE", 0.0)
    read = with_experts(problem, Follower(max_start=1), setup, seed=0).experts
    assert isinstance(read, MappedExperts)
