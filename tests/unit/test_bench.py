"""Bench: clocks and counters against what is known, plain steps against the methods' own, and a
whole benchmark in small.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad

from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.reproduce.bench import (
    baseline,
    formatting,
    measure,
    plan,
    requests,
    subprocess_runner,
    tasks,
    workload,
)
from pseudocore.reproduce.bench.measure import Ceilings, CountingModel, Timing, Work
from pseudocore.reproduce.bench.requests import Measured, NotMeasuredError, Request
from pseudocore.reproduce.bench.workload import SIZES, Workload
from pseudocore.training.experts import Trainer, Training

SMALL = SIZES["small"]
TINY = replace(
    SMALL, per_class=1, num_train=40, num_inner_steps=2, num_draws=2, batch_size=8, width=2
)
STEPPING = [entry.name for entry in methods if entry.kind != "select"]


@pytest.fixture(autouse=True)
def short_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "MIN_READING_SECONDS", 1e-3)
    monkeypatch.setattr(measure, "MIN_READINGS", 1)
    monkeypatch.setattr(plan, "READING_SECONDS", {"row": 0.0, "point": 0.0})


def asked(name: str, variant: Any = "ours", size: Workload = TINY, **more: Any) -> Request:
    return Request(name, variant, size, "cpu", "auto", 0.0, **more)


@pytest.mark.parametrize("shape", workload.SHAPES)
@pytest.mark.parametrize("name", STEPPING)
def test_every_method_has_a_step_at_every_shape(name: str, shape: Any) -> None:
    size = replace(TINY, shape=shape)
    tasks.make(name, tasks.problem_of(name, size, "cpu"), size, "off").take(0)


# --- counters


def counted(act: Callable[[], object]) -> Work:
    def take(_: int) -> None:
        act()

    return measure.counted(take, lambda: 0)


def test_operations_and_bytes_of_a_product_and_its_gradient() -> None:
    a, b = torch.ones(3, 5), torch.ones(5, 7)
    assert counted(lambda: a @ b)[:2] == (2 * 3 * 5 * 7, 4 * (3 * 5 + 5 * 7 + 3 * 7))
    both = grad(lambda x, weight: (x @ weight).sum(), argnums=(0, 1))
    assert counted(lambda: both(a, b)).flop == 3 * 2 * 3 * 5 * 7


def test_a_view_moves_nothing_and_a_table_only_what_is_looked_up() -> None:
    table, index = torch.ones(1000, 4), torch.tensor([3, 5])

    assert counted(lambda: table[2:9].view(-1).unsqueeze(0)).bytes == 0
    for look_up in (lambda: table[index], lambda: table.index_select(0, index)):
        assert counted(look_up).bytes == 2 * (2 * 4 * 4) + 2 * 8
    assert counted(lambda: table[:, :1].expand(1000, 50) + 0.0).bytes == 4 * (1000 * 4 + 1000 * 50)
    assert counted(lambda: table.mul_(1.0)).bytes == 2 * 4 * 4000


@pytest.mark.parametrize(
    ("name", "images"),
    [
        ("bpc-fkl", 10 * (2 + 2 * 2)),  # M (L_u + 2 S)
        ("bpc-cd", 10 * (2 + 2)),
        ("bpc-w", 10 * 2 * 2),  # there, and back again
        ("bpc-rkl", 10 * 2 + 2 * (10 + 8) + 2 * 10),
        ("vbpc", 8 + 2 * 10),
        ("inner-step", 10),
        ("inner-step-and-back", 20),
        ("image-gradient", 10),
        ("leapfrog", 10),
        ("real-batch", 8),
        ("experts", 40),
    ],
)
def test_images_are_counted_as_the_method_says(name: str, images: int) -> None:
    problem = tasks.problem_of(name, TINY, "cpu")
    num = tasks.make(name, problem, TINY, "off").num_inside
    assert requests.count_work(asked(name), problem).over(num).images == images


def test_operations_grow_in_proportion_to_inner_steps_and_draws() -> None:
    def flop(num_inner_steps: int, num_draws: int) -> int:
        size = replace(TINY, num_inner_steps=num_inner_steps, num_draws=num_draws, augment=False)
        problem = tasks.problem_of("bpc-fkl", size, "cpu")
        return requests.count_work(asked("bpc-fkl", size=size), problem).flop

    inner, draw = flop(2, 1) - flop(1, 1), flop(1, 2) - flop(1, 1)
    assert flop(4, 3) == 4 * inner + 3 * draw
    assert inner > 0 < draw


def test_several_thetas_are_as_many_passes() -> None:
    problem = tasks.problem_of("inner-step", TINY, "cpu")
    model = CountingModel(problem.model)
    model.logits(problem.model.init(Rng(0), num=3), problem.batch(torch.arange(4))[0])
    assert model.images == 12
    assert model.num_parameters == problem.model.num_parameters


# --- clocks


class Clock:
    """Advances only when told to."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(measure, "MIN_READING_SECONDS", 0.1)
    monkeypatch.setattr(measure, "MIN_READINGS", 3)
    monkeypatch.setattr(measure.time, "perf_counter", clock)
    return clock


def test_the_median_after_warming_up(clock: Clock) -> None:
    seconds = iter([9.0, 1.0, 2.0, 4.0, 3.0])

    def take(_: int) -> None:
        clock.time += next(seconds)

    found = measure.timed(take, torch.device("cpu"), seconds=1.0)
    assert found == Timing(3000.0, 2000.0, 4000.0, 3, 9.0)
    assert next(seconds, None) is None


def test_short_steps_are_timed_together_and_never_one_number_twice(clock: Clock) -> None:
    numbers = []

    def take(number: int) -> None:
        numbers.append(number)
        clock.time += 0.01

    found = measure.timed(take, torch.device("cpu"), seconds=0.55)
    assert found.ms == pytest.approx(10)
    assert found.num == 60
    assert numbers == list(range(62))


def test_ceilings_are_finite_and_above_what_any_step_does() -> None:
    found = measure.ceilings(torch.device("cpu"), "float32")
    assert 1e8 < found.matmul < 1e15
    assert 1e8 < found.copy < 1e14


# --- plain steps


@pytest.mark.parametrize("augment", [False, True])
@pytest.mark.parametrize("name", baseline.GRADIENTS)
def test_a_plain_step_makes_the_images_of_the_method(name: str, augment: bool) -> None:
    size = replace(TINY, augment=augment, num_inner_steps=3, num_draws=3)
    method = replace(workload.method_of(name, size), image_lr=1.0)
    problem = replace(tasks.problem_of(name, size, "cpu"), dtype=torch.float64)
    problem = workload.with_experts(problem, method)
    state = method.init(problem, Rng(0)("init"))
    before = getattr(state, "images", state)
    velocity = Rng(1).normal(*before.x.shape, dtype=torch.float64)
    begin = before._replace(velocity=velocity)
    begin = state._replace(images=begin) if hasattr(state, "images") else begin
    after, _ = method.step(problem, begin, Rng(0)("step", 3))
    ours = getattr(after, "images", after)
    network = baseline.PlainNetwork(problem)
    now = baseline.Now(problem, network, before.x, before.y, Rng(0)("step", 3))
    x, moved = baseline.step(name, method, now, velocity)
    assert (ours.x - before.x).abs().max() > 1e-5
    torch.testing.assert_close(moved, ours.velocity, rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(x, ours.x, rtol=1e-8, atol=1e-12)


def test_plain_training_ends_where_an_expert_does(monkeypatch: pytest.MonkeyPatch) -> None:
    size = replace(TINY, num_train=300)
    problem = replace(tasks.problem_of("experts", size, "cpu"), dtype=torch.float64)
    trainer = Trainer(problem, Training(), 0, compile="off")
    begin = trainer.start([0])
    networks: list[baseline.PlainNetwork] = []

    class Started(baseline.PlainNetwork):
        def __init__(self, problem: Problem) -> None:
            super().__init__(problem)
            self.load(begin.theta[0])
            networks.append(self)

    monkeypatch.setattr(baseline, "PlainNetwork", Started)
    task = baseline.make("experts", problem, TINY)
    assert task.num_inside == 2
    task.take(0)
    after, _ = trainer.epoch([0], begin, 1)
    theirs: Tensor = networks[0].theta()
    assert (theirs - begin.theta[0]).abs().max() > 1e-5
    torch.testing.assert_close(theirs, after.theta[0], rtol=1e-8, atol=1e-12)


def test_there_is_no_plain_step_for_another_network() -> None:
    assert baseline.exists("bpc-fkl", TINY)
    assert not baseline.exists("vbpc", TINY)
    assert not baseline.exists("bpc-fkl", replace(TINY, model="mlp"))
    assert not baseline.exists("bpc-fkl", replace(TINY, norm="batch"))


# --- measurements


@pytest.mark.parametrize("name", [*STEPPING, *tasks.PARTS])
def test_everything_with_steps_can_be_timed(name: str) -> None:
    found = requests.fulfil(asked(name, counting=True))
    assert found.timing.low_ms <= found.timing.ms <= found.timing.high_ms
    assert found.work is not None
    assert found.work.bytes > 0
    # augment has products only where it shifts or stretches
    assert found.work.flop > 0 or name == "augment"


def test_requests_and_measurements_travel_as_json() -> None:
    request = asked("bpc-fkl", "plain", counting=True)
    assert Request.from_json(json.loads(json.dumps(request.to_json()))) == request
    for counted in (None, Work(1, 2, 3)):
        found = Measured(Timing(1.0, 0.5, 2.0, 7, 0.1), 5, "note", counted)
        assert Measured.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_a_process_of_its_own_measures_memory_and_reports_errors() -> None:
    with subprocess_runner.subprocess_runner() as ask:
        small, large = (
            ask(asked("real-batch", size=replace(SMALL, batch_size=size))).peak_mib
            for size in (8, 8000)
        )
        with pytest.raises(ConfigError, match="psvi"):
            ask(asked("psvi", size=replace(TINY, model="convnet3")))
        with pytest.raises(NotMeasuredError, match="Error"):
            ask(asked("vbpc", "plain"))
        assert ask(asked("augment")).timing.ms > 0
    assert 0 <= small < 16 < large  # 8,000 images of 8×8 in 16 channels are 31 MiB


def test_a_measuring_process_that_ends_fails_each_measurement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with subprocess_runner.subprocess_runner() as ask:
        for _ in range(2):
            with pytest.raises(NotMeasuredError, match="the process that measures has ended"):
                ask(asked("augment"))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_that_is_killed_or_whose_caller_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        subprocess_runner, "_answer", lambda _: os.kill(os.getpid(), signal.SIGKILL)
    )
    ended = {"failed": "its process was ended by signal 9, for want of memory perhaps"}
    assert json.loads(subprocess_runner._answer_of_child({})) == ended
    monkeypatch.setattr(subprocess_runner, "_answer", lambda _: time.sleep(60))
    reader, writer = os.pipe()
    os.close(writer)  # as when the caller is killed
    began = time.monotonic()
    with os.fdopen(reader) as caller:
        assert json.loads(subprocess_runner._answer_of_child({}, caller)) == ended
    assert time.monotonic() - began < 30


# --- everything


Ask = Callable[[Request], Measured]


def measure_with(monkeypatch: pytest.MonkeyPatch, ask: Ask) -> None:
    @contextmanager
    def runner() -> Iterator[Ask]:
        yield ask

    monkeypatch.setattr(plan, "subprocess_runner", runner)
    monkeypatch.setattr(measure, "ceilings", lambda *_: Ceilings(1e10, 1e9))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements in this process, which is quicker."""
    measure_with(monkeypatch, requests.fulfil)


@pytest.mark.usefixtures("here")
def test_a_whole_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {
        "per_class": (1, 3),
        "num_draws": (2, 3),
        "num_train": (40, 80),
        "num_classes": (2, 60),
    }
    monkeypatch.setitem(plan.GROWTH_SIZES, "small", sizes)
    seen: list[Any] = []
    hooks: Any = dict.fromkeys(("on_ceilings", "on_row", "on_curve"), seen.append)
    names = ["bpc-cd", "last-layer"]
    document = plan.run(TINY, names=names, growing=["vbpc"], commit="abc", **hooks)
    kinds = ["Ceilings", "Row", "Row", "Curve", "Curve", "Curve"]
    assert [type(one).__name__ for one in seen] == kinds
    method, part = document["rows"]
    assert (method["name"], method["kind"]) == ("bpc-cd", "method")
    assert (part["name"], part["kind"], part["plain"]) == ("last-layer", "part", None)
    assert method["eager"] == method["ours"]  # on a CPU ours is the eager step
    assert method["faster"] == pytest.approx(method["plain"]["ms"] / method["ours"]["ms"])
    per_second, ceilings = 1000 / method["ours"]["ms"], document["ceilings"]
    for share, amount, ceiling in (
        ("matmul_share", "flop", ceilings["matmul_flop_per_second"]),
        ("copy_share", "bytes", ceilings["copy_bytes_per_second"]),
        ("images_per_second", "images", 1),
    ):
        assert method[share] == pytest.approx(per_second * method[amount] / ceiling)
    assert method["images"] == 40
    del sizes["num_draws"]  # vbpc has none
    assert {one["knob"]: tuple(one["values"]) for one in document["growth"]} == sizes
    assert (document["failed"], document["not_reached"], document["commit"]) == ({}, [], "abc")
    assert {"hardware", "versions", "date", "peak_mib_is", "workload"} <= set(document)


@pytest.mark.usefixtures("here")
def test_out_of_time_is_said() -> None:
    document = plan.run(TINY, names=["vbpc"], growing=["vbpc"], seconds=-1.0)
    assert document["rows"] == document["growth"] == []
    assert document["not_reached"][:2] == ["vbpc", "vbpc at per_class 1"]
    (line,) = formatting.closing_lines(document)
    assert line.startswith("no time was left for vbpc, vbpc at per_class 1, ")


def test_out_of_memory_is_one_measurement_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(request: Request) -> Measured:
        if request.name == "vbpc":
            raise NotMeasuredError("out of memory")
        return requests.fulfil(request)

    measure_with(monkeypatch, ask)
    document = plan.run(TINY, names=["vbpc", "augment"], growing=[])
    assert document["failed"] == {"vbpc": "out of memory"}
    assert [row["name"] for row in document["rows"]] == ["augment"]
    assert formatting.closing_lines(document) == ["failed: vbpc: out of memory"]


@pytest.mark.parametrize(
    ("values", "ms", "exponent"),
    [([1, 10, 40], [5.0, 5.0, 20.0], 1.0), ([1, 10], [1.0, 1000.0], 3.0), ([1], [1.0], None)],
)
def test_the_exponent_is_that_of_the_large_end(
    values: list[int], ms: list[float], exponent: float | None
) -> None:
    curve = plan.Curve("vbpc", "per_class", values, ms, [1] * len(values))
    assert curve.exponent == pytest.approx(exponent)


def test_a_row_as_a_line() -> None:
    ours = Measured(Timing(2.0, 1.0, 3.0, 9, 0.1), 12, "running eagerly", Work(10**9, 10**7, 100))
    other = ours._replace(timing=ours.timing._replace(ms=8.0))
    line = formatting.row_line(plan.Row("bpc-fkl", ours, None, other, Ceilings(1e12, 1e10)))
    numbers = "2 8 4.00× 50000 500 50.0% 50.0% 12"
    assert line.split() == f"bpc-fkl {numbers} (running eagerly)".split()
    assert len(formatting.HEADER) == len(line.partition("  (")[0])


@pytest.mark.parametrize(
    ("names", "growing", "complaint"),
    [
        (["bpc-flk"], [], r"nothing to time is called 'bpc-flk'; did you mean 'bpc-fkl'\?"),
        (["leapfrogs"], [], r"did you mean 'leapfrog'\?"),
        (["herding"], [], "'herding' selects at once"),
        ([], ["augment"], "growth is measured for methods, and 'augment' is a part"),
    ],
)
def test_names_that_cannot_be_timed(names: list[str], growing: list[str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        plan.run(TINY, names=names, growing=growing)


def test_a_workload_holds_its_points() -> None:
    with pytest.raises(ConfigError) as caught:
        replace(TINY, per_class=5)
    assert (caught.value.code, caught.value.fields["least"]) == ("too-few-images", 50)
    assert plan.resized(TINY, {"per_class": 50}).num_train == 500
    assert plan.resized(TINY, {"num_train": 70}).num_train == 70


def test_every_method_with_steps_is_timed_by_default() -> None:
    named = plan.default_methods()
    assert tuple(named[: len(plan.TIMED_FIRST)]) == plan.TIMED_FIRST
    assert {"kip", "psvi", "mtt"} <= set(named)
    assert not {"uniform", "herding", "full"} & set(named)
