"""What every registered method owes its users. A new method gets all of this by being registered."""

import dataclasses
import hashlib
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pseudocore import api
from pseudocore.assembly import Setup
from pseudocore.core import config
from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Problem
from pseudocore.core.registry import Entry, methods
from pseudocore.core.types import Coreset, Dataset
from pseudocore.models.dense import Linear
from pseudocore.runtime.loop import run
from pseudocore.store import toml
from pseudocore.store.coreset_file import load_coreset, save_coreset
from pseudocore.testing import MemoryCheckpoints

MakeProblem = Callable[..., Problem]

TINY = {"per_class": 2, "num_steps": 6, "batch_size": 16, "pool_size": 3, "max_age": 3,
        "max_start": 2, "horizon": 1, "num_experts": 2, "num_inner_steps": 3, "num_draws": 2}  # fmt: skip
"""For whichever of these a method has; with three networks of three steps each, six steps see the
pool renewed.
"""

DETERMINISTIC = {"full", "herding", "k-center"}
"""Methods that leave nothing to chance, as they are by default."""

LOGISTIC = {"psvi"}
"""Methods for logistic regression alone."""


@pytest.fixture
def make_problem(
    make_problem: MakeProblem, data: Dataset, request: pytest.FixtureRequest
) -> MakeProblem:
    """The problem of all, under logistic regression for the methods that know nothing else."""
    if request.node.callspec.params["entry"].name not in LOGISTIC:
        return make_problem
    linear = Linear().build(data.shape, data.num_classes)
    return lambda *words, **more: dataclasses.replace(make_problem(*words, **more), model=linear)


def _every(wanted: Callable[[Entry], bool] = lambda entry: True) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "entry", [pytest.param(entry, id=entry.name) for entry in methods if wanted(entry)]
    )


every_method = _every()
every_iterative_method = _every(lambda entry: hasattr(entry.make, "step"))
every_selector = _every(lambda entry: hasattr(entry.make, "select"))
every_budgeted_method = _every(lambda entry: "per_class" in entry.make.__dataclass_fields__)


def tiny(entry: Entry, **changes: Any) -> Any:
    fields = {option.name for option in config.options(entry.make)}
    return config.build(
        entry.make, {name: value for name, value in {**TINY, **changes}.items() if name in fields}
    )


def reduce(entry: Entry, problem: Problem, seed: int = 0, **changes: Any) -> Coreset:
    outcome = api.run_reduction(
        api.Reduction(tiny(entry, **changes), Setup(data=problem.data.name), seed), problem
    )
    assert (outcome.status, outcome.reason) == ("finished", "")
    return outcome.coreset


def parts(coreset: Coreset) -> dict[str, Tensor]:
    tensors = {"x": coreset.x, "y": coreset.y, "weight": coreset.weight}
    return tensors if coreset.indices is None else {**tensors, "indices": coreset.indices}


def same(one: Coreset, other: Coreset) -> bool:
    """Bit for bit, types included."""
    ours, theirs = parts(one), parts(other)
    return ours.keys() == theirs.keys() and all(
        ours[name].dtype == theirs[name].dtype and torch.equal(ours[name], theirs[name])
        for name in ours
    )


# --- chance
# -----------------------------------------------------------------------------------------------------------


@every_method
def test_one_seed_one_coreset(
    entry: Entry,
    problem: Problem,
    scramble: Callable[[int], None],
    global_state: Callable[[], list[Any]],
) -> None:
    scramble(1)
    before = global_state()
    first = reduce(entry, problem)
    assert global_state() == before
    scramble(2)
    second = reduce(entry, problem)
    assert same(first, second)
    assert first.provenance.get("posterior") == second.provenance.get("posterior")


@every_method
def test_another_seed_another_coreset(entry: Entry, problem: Problem) -> None:
    assert same(reduce(entry, problem, seed=0), reduce(entry, problem, seed=1)) == (
        entry.name in DETERMINISTIC
    )


@every_iterative_method
def test_a_step_can_be_captured(
    entry: Entry, problem: Problem, replayed: Callable[[], int]
) -> None:
    """It draws from its streams alone, the same in every step, and returns what a graph can keep."""
    plain = reduce(entry, problem)
    replayed()
    assert same(reduce(entry, problem), plain)
    assert replayed() >= TINY["num_steps"]


@pytest.mark.gpu
@every_iterative_method
def test_on_a_gpu_its_steps_are_captured(entry: Entry, make_problem: MakeProblem) -> None:
    problem, method = (
        make_problem(dtype=torch.float64, device="cuda"),
        tiny(entry),
    )  # no ReLU for rounding to flip
    captured, eager = (run(method, problem, seed=0, compile=how) for how in ("auto", "off"))
    assert (captured.status, captured.note) == ("finished", "")
    for name, found in parts(captured.coreset).items():
        assert not found.is_cuda  # what is kept can be read anywhere
        torch.testing.assert_close(found, parts(eager.coreset)[name], rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
@every_iterative_method
def test_on_a_gpu_one_seed_one_coreset(entry: Entry, make_problem: MakeProblem) -> None:
    problem = make_problem(device="cuda")
    assert same(reduce(entry, problem), reduce(entry, problem))


@pytest.mark.gpu
@every_selector
def test_on_a_gpu_it_selects(entry: Entry, make_problem: MakeProblem) -> None:
    problem = make_problem(device="cuda")
    coreset = reduce(entry, problem)
    assert coreset.indices is not None
    assert not any(part.is_cuda for part in parts(coreset).values())
    assert torch.equal(coreset.y, problem.data.train.y[coreset.indices])
    assert same(reduce(entry, problem), coreset)


# --- resuming
# ---------------------------------------------------------------------------------------------------------


class Log:
    """Every number reported, by step."""

    def __init__(self) -> None:
        self.lines: dict[int, dict[str, float]] = {}

    def __call__(self, step: int, values: dict[str, float]) -> None:
        self.lines[step] = values


@every_iterative_method
def test_resumed_at_any_step_is_never_interrupted(
    entry: Entry, problem: Problem, scramble: Callable[[int], None]
) -> None:
    method, memory, log = tiny(entry), MemoryCheckpoints(), Log()
    whole = run(
        method, problem, seed=0, checkpoints=memory, checkpoint_every=1, log_every=1, on_log=log
    )
    assert [step for step, _ in memory.saved] == list(range(1, method.num_steps + 1))
    for step, tensors in memory.saved:
        scramble(step)
        again = Log()
        resumed = run(
            method,
            problem,
            seed=0,
            checkpoints=MemoryCheckpoints((step, tensors)),
            log_every=1,
            on_log=again,
        )
        assert same(resumed.coreset, whole.coreset)
        assert resumed.coreset.provenance == whole.coreset.provenance
        assert again.lines == {later: values for later, values in log.lines.items() if later > step}


@every_iterative_method
def test_interrupted_it_gives_the_work_done_and_loses_no_line(
    entry: Entry, problem: Problem
) -> None:
    """The interrupt comes at the worst moment: after the third step, before its line is written."""
    method, memory, log = tiny(entry), MemoryCheckpoints(), Log()

    def interrupted(step: int, values: dict[str, float]) -> None:
        if step == 3:
            raise KeyboardInterrupt
        log(step, values)

    outcome = run(method, problem, seed=0, checkpoints=memory, log_every=1, on_log=interrupted)
    assert outcome.status == "interrupted"
    assert outcome.num_steps in (2, 3)
    assert outcome.coreset.x.isfinite().all()
    finished = run(method, problem, seed=0, checkpoints=memory, log_every=1, on_log=log)
    assert same(finished.coreset, run(method, problem, seed=0).coreset)
    assert not same(finished.coreset, outcome.coreset)
    assert sorted(log.lines) == list(range(1, method.num_steps + 1))


@every_iterative_method
def test_every_step_says_something(entry: Entry, problem: Problem) -> None:
    log = Log()
    run(tiny(entry), problem, seed=0, log_every=1, on_log=log)
    assert all(values and all(map(_is_number, values.values())) for values in log.lines.values())


# --- the coreset
# ------------------------------------------------------------------------------------------------------


@every_budgeted_method
@pytest.mark.parametrize("per_class", [1, 3])
def test_budget_and_class_balance(entry: Entry, problem: Problem, per_class: int) -> None:
    coreset = reduce(entry, problem, per_class=per_class)
    assert len(coreset) == per_class * problem.num_classes
    assert coreset.x.shape[1:] == problem.data.shape
    assert (
        torch.bincount(coreset.labels, minlength=problem.num_classes).tolist()
        == [per_class] * problem.num_classes
    )


@every_budgeted_method
def test_more_points_than_a_class_has_are_refused(entry: Entry, problem: Problem) -> None:
    with pytest.raises(
        ConfigError,
        match=r"13 points per class were asked for, but class 0 of 'few-digits' has only 12",
    ):
        reduce(entry, problem, per_class=13)


@every_method
def test_the_problem_is_left_as_it_was(entry: Entry, problem: Problem) -> None:
    before = fingerprint(problem)
    reduce(entry, problem)
    assert fingerprint(problem) == before


@every_method
def test_float64(entry: Entry, make_problem: MakeProblem) -> None:
    coreset = reduce(entry, make_problem(dtype=torch.float64))
    floats = {name: tensor for name, tensor in parts(coreset).items() if tensor.is_floating_point()}
    assert {tensor.dtype for tensor in floats.values()} == {torch.float64}
    assert all(tensor.isfinite().all() for tensor in floats.values())


@every_method
@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_networks_with_norms(entry: Entry, make_problem: MakeProblem, norm: str) -> None:
    coreset = reduce(entry, make_problem(norm=norm))
    assert coreset.x.isfinite().all()
    assert same(coreset, reduce(entry, make_problem(norm=norm)))


@every_selector
def test_a_selectors_indices_point_at_its_points(entry: Entry, problem: Problem) -> None:
    coreset = reduce(entry, problem)
    assert coreset.indices is not None
    assert len(torch.unique(coreset.indices)) == len(coreset)
    assert torch.equal(coreset.y, problem.data.train.y[coreset.indices])
    assert torch.equal(coreset.x, problem.data.train.x[coreset.indices].float() / 255)
    assert torch.equal(problem.inputs(coreset.x), problem.batch(coreset.indices)[0])


# --- on paper and on disk
# ---------------------------------------------------------------------------------------------


@every_method
def test_saved_and_loaded_it_is_the_same(entry: Entry, problem: Problem, tmp_path: Path) -> None:
    coreset = reduce(entry, problem)
    save_coreset(tmp_path / "coreset.safetensors", coreset)
    loaded = load_coreset(tmp_path)
    assert same(loaded, coreset)
    assert loaded.provenance == coreset.provenance


@every_method
def test_its_configuration_survives_toml(entry: Entry, problem: Problem) -> None:
    reduction = api.Reduction(
        tiny(entry),
        Setup(data="digits", model="mlp", width=8),
        7,
        {"inference": "sgd", "num_steps": 3},
    )
    table = toml.loads(toml.dumps(reduction.to_config()))
    assert api.Reduction.from_config(table) == reduction
    assert api.Reduction.from_config(table).to_config() == reduction.to_config()


@every_method
def test_provenance_is_enough_to_make_it_again(entry: Entry, problem: Problem) -> None:
    coreset = reduce(entry, problem, seed=3)
    words = {name: coreset.provenance[name] for name in ("method", "seed", "setup", "options")}
    assert same(api.run_reduction(api.Reduction.from_config(words), problem).coreset, coreset)
    assert coreset.provenance["data_fingerprint"] == problem.data.fingerprint


@every_method
def test_every_option_has_a_help(entry: Entry) -> None:
    assert [option.name for option in config.options(entry.make) if not option.help] == []


@every_method
def test_no_option_is_taken_for_another(entry: Entry) -> None:
    """`reduce` and the command line take a method's options and the setup's side by side."""
    taken = {option.name for option in config.options(Setup)} | set(
        inspect.signature(api.reduce).parameters
    )
    assert {option.name for option in config.options(entry.make)} & taken == set()


@every_method
def test_it_says_what_it_is_and_where_it_comes_from(entry: Entry) -> None:
    assert entry.kind in ("select", "condense", "bayes")
    assert entry.summary
    page = sys.modules[entry.make.__module__].__doc__ or ""
    assert len(page) > 50
    if entry.paper != "baseline":
        author, year = (
            re.findall(r"\w+", entry.paper)[0],
            re.findall(r"\b(?:19|20)\d\d\b", entry.paper)[0],
        )
        assert author in page
        assert year in page


@every_method
def test_it_is_a_value(entry: Entry) -> None:
    """Frozen, equal by its fields, usable as a key."""
    one, other = tiny(entry), tiny(entry)
    assert one == other
    assert hash(one) == hash(other)
    for option in config.options(entry.make):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(one, option.name, option.default)


def fingerprint(problem: Problem) -> str:
    """Everything a method could write to: the data, as stored and on the device, and the
    preprocessing.
    """
    digest = hashlib.sha256()
    data: Dataset = problem.data
    held = (*data.train, *data.test, problem.train_x, problem.train_y, *problem.class_indices)
    fitted = [value for value in vars(problem.preprocess).values() if isinstance(value, Tensor)]
    for tensor in (*held, *fitted):
        digest.update(f"{tensor.shape} {tensor.dtype}".encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _is_number(value: float) -> bool:
    return type(value) is float and value == value and abs(value) != float("inf")
