"""Buffers filled and found: stopped and taken up, extended, shared, and trained by a run for
itself.
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
from pseudocore import assembly as setups
from pseudocore.assembly import Reduction, Setup
from pseudocore.core.errors import ConfigError, RunError
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.store.expert_folder import ExpertFolder
from pseudocore.store.expert_shards import MappedExperts
from pseudocore.store.run_folder import Run
from pseudocore.training import experts
from pseudocore.training.experts import Resident, Training, train, with_experts

WORDS: dict[str, Any] = {"model": "mlp", "width": 4, "batch_size": 512}


def filled(out: Path, **options: Any) -> dict[str, bytes]:
    """The files of a buffer of the digits, after training what was missing of it."""
    api.train_experts("digits", out=out, **{"num": 3, "epochs": 4, **WORDS, **options})
    return shards(out)


def shards(out: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(out.glob("*.safetensors"))}


class Stop:
    """Raises in the middle of a run, after so many epochs over all experts."""

    def __init__(self, after: int, error: type[BaseException]) -> None:
        self.after, self.error = after, error

    def __call__(self, done: int, _: dict[str, float]) -> None:
        if done == self.after:
            raise self.error


# --- filling
# ----------------------------------------------------------------------------------------------------------


def test_what_is_said_of_a_buffer(tmp_path: Path) -> None:
    news: list[Any] = []
    facts = api.train_experts(
        "digits", out=tmp_path / "b", num=2, epochs=3, **WORDS, lr=0.5,
        on_start=lambda *start: news.append(start), on_epoch=lambda *epoch: news.append(epoch),
    )  # fmt: skip
    assert {name: facts[name] for name in ("num_experts", "num_epochs", "trained_epochs")} == {
        "num_experts": 2,
        "num_epochs": 3,
        "trained_epochs": 6,
    }
    assert facts["images_per_second"] > 0
    assert facts["bytes"] == sum(map(len, shards(tmp_path / "b").values()))
    assert news[0] == (0, 6)
    assert [(done, numbers["expert"]) for done, numbers in news[1:]] == [
        (1, 0),
        (2, 0),
        (3, 0),
        (4, 1),
        (5, 1),
        (6, 1),
    ]
    last = [numbers["loss"] for done, numbers in news[1:] if done in (3, 6)]
    assert facts["train_loss"]["mean"] == pytest.approx(sum(last) / 2)
    problem = setups.build(Setup(model="mlp", width=4))
    theta = (
        ExpertFolder.open(tmp_path / "b")
        .mapped(problem)
        .at(torch.tensor([0, 1]), torch.tensor([3, 3]))
    )
    right = (
        problem.model.logits(theta, problem.inputs(problem.data.test.x)).argmax(-1)
        == problem.data.test.y
    )
    assert facts["accuracy"]["mean"] == pytest.approx(right.double().mean().item())
    again = api.train_experts("digits", out=tmp_path / "b", num=1, epochs=2, **WORDS, lr=0.5)
    assert (again["num_experts"], again["num_epochs"], again["trained_epochs"]) == (2, 3, 0)
    assert again["images_per_second"] is None


@pytest.mark.parametrize("save_seconds", [0.0, 30.0])
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("after", [1, 4, 7])
def test_stopped_and_taken_up_it_is_never_stopped(
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
    assert filled(tmp_path / "grown", **options) == filled(tmp_path / "straight", **options)


def test_a_lost_expert_is_trained_anew(tmp_path: Path) -> None:
    before = filled(tmp_path / "b")
    (tmp_path / "b" / "expert-0001.safetensors").unlink()
    assert (
        ExpertFolder.open(tmp_path / "b")
        .mapped(setups.build(Setup(model="mlp", width=4)))
        .num_experts
        == 1
    )
    assert filled(tmp_path / "b") == before


def test_batched_groups_take_each_other_up(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        filled(tmp_path / "grouped", num=5, group=2, on_epoch=Stop(6, KeyboardInterrupt))
    assert ExpertFolder.open(tmp_path / "grouped").epochs() == {0: 3, 1: 3}
    filled(tmp_path / "grouped", num=5, group=3)
    filled(tmp_path / "straight", num=5)
    problem = setups.build(Setup(model="mlp", width=4))
    one, other = (
        ExpertFolder.open(tmp_path / name).mapped(problem).load(4)
        for name in ("grouped", "straight")
    )
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_bfloat16_is_half_the_size_and_the_rounded_numbers(tmp_path: Path) -> None:
    full, half = (
        filled(tmp_path / "full", epochs=20),
        filled(tmp_path / "half", epochs=20, storage="bfloat16"),
    )
    assert sum(map(len, half.values())) < 0.65 * sum(map(len, full.values()))
    problem = setups.build(Setup(model="mlp", width=4))
    one, other = (
        ExpertFolder.open(tmp_path / name).mapped(problem).load(20) for name in ("full", "half")
    )
    assert other.dtype == torch.bfloat16
    assert torch.equal(one.bfloat16(), other)


def test_an_expert_that_explodes_leaves_the_good_ones(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"expert 0 became NaN or infinite in epoch 1, trained with lr = 1e\+30"
    ):
        filled(tmp_path / "b", lr=1e30)
    assert shards(tmp_path / "b") == {}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num": 0}, "num = 0 must be at least 1"),
        ({"epochs": -1}, "epochs = -1 must be at least 1"),
        ({"group": 0}, "group = 0 must be at least 1"),
        ({"lr": 0.0}, "lr = 0.0 must be above 0"),
        ({"storage": "float16"}, "storage = 'float16' is not one of 'float32', 'bfloat16'"),
        (
            {"loss": "hinge"},
            "loss = 'hinge' is not one of 'cross-entropy', 'focal', 'multi-margin'",
        ),
        ({"widht": 3}, r"unknown option 'widht' \(did you mean 'width'\?\)"),
    ],
)
def test_settings_that_cannot_work(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        filled(tmp_path / "b", **options)
    assert not (tmp_path / "b").exists()


def test_another_setting_is_another_buffer(tmp_path: Path) -> None:
    filled(tmp_path / "b")
    for change in (
        {"lr": 0.02},
        {"width": 5},
        {"seed": 1},
        {"loss": "focal"},
        {"storage": "bfloat16"},
        {"preprocess": "none"},
    ):
        with pytest.raises(
            RunError, match=f"trained otherwise .*{next(iter(change))}.*--overwrite"
        ):
            filled(tmp_path / "b", **change)


KILLED = """
import sys, torch
from pseudocore.training import experts
from pseudocore import api
torch.set_num_threads(1)
experts.SAVE_SECONDS = 0.0
api.train_experts("digits", out=sys.argv[1], num=4, epochs=10, model="mlp", width=64, batch_size=64)
"""


def test_killed_outright_it_goes_on(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "b")], env=environment
    ) as process:
        until = time.monotonic() + 60
        while (
            not (tmp_path / "b" / "expert-0001.safetensors").exists() and time.monotonic() < until
        ):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    kept = ExpertFolder.open(tmp_path / "b").epochs()
    assert kept[0] == 10
    assert sum(kept.values()) < 40, "the run was over before it could be killed; make it longer"
    options = {"num": 4, "epochs": 10, "width": 64, "batch_size": 64}
    assert filled(tmp_path / "b", **options) == filled(tmp_path / "straight", **options)


# --- found by a method
# ------------------------------------------------------------------------------------------------


class State(NamedTuple):
    theta: Tensor


class Info(NamedTuple):
    norm: Tensor


@dataclass(frozen=True, kw_only=True)
class Follower:
    """Adds up what experts it is shown."""

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
        experts = problem.experts
        assert experts is not None
        expert, start = (
            rng("expert").integers(experts.num_experts, 1),
            rng("start").integers(self.max_start, 1),
        )
        theta = state.theta + experts.at(expert, start + 1)[0]
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
def reduced() -> Callable[..., Tensor]:
    def reduce(**options: Any) -> Tensor:
        return api.reduce(
            "follower", "digits", device="cpu", **{"model": "mlp", "width": 16, **options}
        ).coreset.x

    return reduce


def test_named_experts_are_used(tmp_path: Path, reduced: Callable[..., Tensor]) -> None:
    api.train_experts("digits", out=tmp_path / "b", num=2, epochs=3, model="mlp", width=16)
    named = reduced(experts=str(tmp_path / "b"))
    assert torch.equal(
        named, reduced()
    )  # those it would have trained for itself: same seed, same settings
    api.train_experts(
        "digits", out=tmp_path / "other", num=2, epochs=3, model="mlp", width=16, lr=0.1
    )
    assert not torch.equal(named, reduced(experts=str(tmp_path / "other")))


def test_a_run_trains_its_own_and_keeps_them(
    tmp_path: Path, reduced: Callable[..., Tensor]
) -> None:
    own = reduced(out=tmp_path / "run")
    assert ExpertFolder.open(tmp_path / "run" / "experts").epochs() == {0: 3, 1: 3}
    run = Run.open(tmp_path / "run")
    assert run.manifest["experts"]["num_experts"] == 2
    assert "experts" in run.manifest["cost"]
    assert torch.equal(own, reduced(experts=str(tmp_path / "run" / "experts")))
    command = ExpertFolder.open(tmp_path / "run" / "experts").command(9)
    assert command == (
        f"pseudocore experts digits --num 2 --seed 0 --out {tmp_path}/run/experts --model mlp --width 16 --epochs 9"
    )


def test_left_over_experts_of_a_run_that_was_replaced_are_too(tmp_path: Path) -> None:
    for width in (16, 17):
        table = {"method": "follower", "data": "digits", "setup": {"model": "mlp", "width": width}}
        reduction = Reduction.from_config(table)
        with Run.create(tmp_path / "run", reduction.to_config(), overwrite=True) as run:
            assert (
                api.run_reduction(reduction, setups.build(reduction.setup), run).status
                == "finished"
            )
    assert ExpertFolder.open(tmp_path / "run" / "experts").identity["model"]["width"] == 17


def test_a_run_goes_on_with_the_experts_it_began_with(tmp_path: Path) -> None:
    path = str(tmp_path / "b")
    api.train_experts("digits", out=path, num=2, epochs=3, model="mlp", width=16)
    reduction = Reduction.from_config(
        {
            "method": "follower",
            "data": "digits",
            "setup": {"model": "mlp", "width": 16, "experts": path},
        }
    )

    def interrupted(step: int, values: dict[str, float]) -> None:
        if step == 2:
            raise KeyboardInterrupt

    def go_on(name: str, **options: Any) -> Any:
        with Run.create(tmp_path / name, reduction.to_config(), resume=True) as run:
            return api.run_reduction(
                reduction, setups.build(reduction.setup), run, log_every=1, **options
            )

    straight = go_on("straight").coreset
    assert go_on("stopped", on_log=interrupted).status == "interrupted"
    api.train_experts("digits", out=path, num=5, epochs=3, model="mlp", width=16)
    assert torch.equal(go_on("stopped").coreset.x, straight.x)
    assert not torch.equal(go_on("fresh").coreset.x, straight.x)
    (tmp_path / "b" / "expert-0001.safetensors").unlink()
    Run.open(tmp_path / "stopped").update_manifest(status="interrupted")
    with pytest.raises(ConfigError, match=r"was begun with 2 experts, but .* now holds 1"):
        go_on("stopped")


def test_too_few_epochs_are_refused_before_a_run_begins(
    tmp_path: Path, reduced: Callable[..., Tensor]
) -> None:
    api.train_experts("digits", out=tmp_path / "b", num=1, epochs=1, model="mlp", width=16)
    command = rf"pseudocore experts digits --num 1 --seed 0 --storage float32 --out {tmp_path}/b --model mlp --width 16 --epochs 3"
    words = rf"trained for 1 epochs, but follower with these options needs 3: run `{command}`"
    with pytest.raises(ConfigError, match=words):
        reduced(experts=str(tmp_path / "b"), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_method_without_experts_refuses_them(tmp_path: Path) -> None:
    api.train_experts("digits", out=tmp_path / "b", num=1, epochs=1, model="mlp", width=16)
    with pytest.raises(ConfigError, match="method 'uniform' learns from no experts"):
        api.reduce("uniform", "digits", model="mlp", width=16, experts=str(tmp_path / "b"))


def test_experts_of_a_problem_are_used_as_they_are() -> None:
    problem = setups.build(Setup(model="mlp", width=16), device="cpu")
    own = train(problem, Training(), num=1, num_epochs=3)
    assert with_experts(replace(problem, experts=own), Follower(), seed=0).experts is own


def test_a_coreset_does_not_need_its_experts_to_be_evaluated(tmp_path: Path) -> None:
    api.train_experts("digits", out=tmp_path / "b", num=1, epochs=3, model="mlp", width=16)
    coreset = api.reduce("follower", "digits", model="mlp", width=16, experts=str(tmp_path / "b"))
    for file in (tmp_path / "b").iterdir():
        file.unlink()
    assert api.build_problem(coreset.coreset).experts is None


@pytest.mark.gpu
def test_on_a_gpu_experts_are_held_when_they_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.train_experts("digits", out=tmp_path / "b", num=3, epochs=4, **WORDS)
    problem = setups.build(Setup(model="mlp", width=4))
    mapped = ExpertFolder.open(tmp_path / "b").mapped(problem)
    problem, method = replace(problem, experts=mapped), Follower(max_start=1)
    held = with_experts(problem, method, seed=0).experts
    assert isinstance(held, Resident)
    assert held.num_epochs == 2
    place = torch.tensor([0, 2], device="cuda"), torch.tensor([2, 1], device="cuda")
    assert torch.equal(held.at(*place), mapped.at(*place))
    assert held.at(*place).is_cuda
    monkeypatch.setattr(experts, "MAX_MEMORY_SHARE", 0.0)
    assert isinstance(with_experts(problem, method, seed=0).experts, MappedExperts)
