"""What every method owes its users."""

import functools
import tempfile
import warnings
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor

from pseudocore import api
from pseudocore.assembly import Setup
from pseudocore.core import config
from pseudocore.core.budget import Budget
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.tree import flatten, unflatten
from pseudocore.core.types import (
    Budgeted,
    Coreset,
    Iterative,
    LearnsTotalWeight,
    Selector,
)
from pseudocore.runtime.loop import Outcome, run
from pseudocore.store.coreset_file import load_coreset, save_coreset
from pseudocore.testing.problems import PER_CLASS, MemoryCheckpoints, few_digits
from pseudocore.testing.suite import Suite, emulate_capture, needs, scrambled_globals

Lines = dict[int, dict[str, float]]
"""Values logged, by step."""


class MethodConformance(Suite):
    """Checks of a registered method; subclass it in a test module and name the method.

    ```python
    class TestMine(MethodConformance):
        method = Mine
    ```
    """

    method: ClassVar[type[Any]]
    """The method's class."""

    registry = methods
    kinds = ("select", "condense", "bayes")
    beside = (api.reduce, Setup)

    def test_same_seed_same_bits(self) -> None:
        with scrambled_globals(1):
            first = self.reduce()
        with scrambled_globals(2):
            second = self.reduce()
        assert bits(first) == bits(second), "the same seed gave another coreset"
        assert first.provenance.get("posterior") == second.provenance.get("posterior")
        same = bits(self.reduce(seed=1)) == bits(first)
        assert same == self.deterministic, f"deterministic = {self.deterministic} is wrong"

    @needs(Iterative)
    def test_a_step_can_be_captured(self) -> None:
        """Its draws are the same ones in every step, and it returns what a graph can keep."""
        with emulate_capture() as captured:
            coreset = self.reduce()
        assert captured, "no step was taken"
        assert bits(coreset) == bits(self.reduced()), "captured steps gave another coreset"

    @needs(Iterative)
    def test_it_logs_and_resumes_bit_identically_at_every_step(self) -> None:
        checkpoints, lines = MemoryCheckpoints(), Lines()
        whole = self.run(lines, checkpoints=checkpoints, checkpoint_every=1)
        assert checkpoints.steps == sorted(lines) == list(range(1, self.make().num_steps + 1))
        for step, values in lines.items():
            finite = [type(one) is float and abs(one) < float("inf") for one in values.values()]
            assert all(finite or [False]), f"step {step} logged {values}"
        for step, tensors in checkpoints.saved:
            later = Lines()
            with scrambled_globals(step):
                resumed = self.run(later, checkpoints=MemoryCheckpoints((step, tensors)))
            assert bits(resumed.coreset) == bits(whole.coreset), f"it resumes otherwise at {step}"
            assert resumed.coreset.provenance == whole.coreset.provenance
            rest = {at: values for at, values in lines.items() if at > step}
            assert later == rest, f"resumed at {step} it logs other values"

    @needs(Iterative)
    def test_interrupted_it_keeps_the_work_done(self) -> None:
        """The interrupt comes at the worst moment: after the third step, before its line."""
        checkpoints, lines = MemoryCheckpoints(), Lines()

        def interrupt(step: int, values: dict[str, float]) -> None:
            if step == 3:
                raise KeyboardInterrupt
            lines[step] = values

        stopped = self.run(checkpoints=checkpoints, on_log=interrupt)
        assert stopped.status == "interrupted"
        assert stopped.num_steps in (2, 3)
        assert stopped.coreset.x.isfinite().all(), "interrupted it left points that are not finite"
        finished = self.run(lines, checkpoints=checkpoints).coreset
        assert bits(finished) == bits(self.run().coreset), "interrupted it ended elsewhere"
        assert bits(finished) != bits(stopped.coreset), "its last steps changed nothing"
        assert sorted(lines) == list(range(1, self.make().num_steps + 1)), "a logged line was lost"

    @needs(Iterative)
    def test_diverging_it_keeps_the_last_finite_step(self) -> None:
        method = self.make()

        def step(problem: Problem, state: Any, rng: Rng) -> tuple[Any, Any]:
            state, info = method.step(problem, state, rng)
            if rng != Rng(0)("step", 2):
                return state, info
            parts = flatten(state)
            floats = {name: part for name, part in parts.items() if part.is_floating_point()}
            nans = {name: torch.full_like(part, torch.nan) for name, part in floats.items()}
            return unflatten(state, {**parts, **nans}), info

        fields = {"init": method.init, "step": step, "coreset": method.coreset}
        outcome = self.run(method=SimpleNamespace(num_steps=method.num_steps, **fields))
        assert (outcome.status, outcome.num_steps) == ("diverged", 2), outcome.reason
        before = self.run(method=SimpleNamespace(num_steps=2, **fields))
        assert bits(outcome.coreset) == bits(before.coreset), "it kept another step"

    @needs(Budgeted)
    def test_budget_and_class_balance(self) -> None:
        data = few_digits()
        for per_class in (1, 3):
            coreset = self.reduce(per_class=per_class)
            counts = torch.bincount(coreset.labels, minlength=data.num_classes).tolist()
            assert counts == [per_class] * data.num_classes, f"per_class = {per_class}: {counts}"
            assert coreset.x.shape[1:] == data.shape, f"points have shape {coreset.x.shape[1:]}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # which says that classes are too small
            coreset = self.reduce(per_class=PER_CLASS + 1)
        counts = torch.bincount(coreset.labels, minlength=data.num_classes).tolist()
        method, there_is = self.make(per_class=PER_CLASS + 1), data.class_counts.tolist()
        wanted = method.counts(self.problem()) if isinstance(method, Budget) else there_is
        assert counts == wanted, f"it does not take what there is: {counts}"

    @needs(Budget)
    def test_totals_are_split_over_classes(self) -> None:
        """In proportion to their size or equally, on a problem of unequal classes."""
        problem = self.problem(imbalanced=True)
        for options in ({"points": 25}, {"points": 25, "allocate": "equal"}, {"fraction": 0.5}):
            method = self.make(**options)
            counts = torch.bincount(self.reduce(problem, **options).labels, minlength=10).tolist()
            assert counts == method.counts(problem), f"{options}: {counts}"
            wanted = options.get("points", round(0.5 * problem.num_train))
            assert sum(counts) == wanted, f"{options} gave {sum(counts)} points"

    def test_weights_stand_for_the_training_set(self) -> None:
        """They are non-negative and sum to the number of training examples, classes of equal size
        or not, unless the method learns what they sum to.
        """
        for imbalanced in (False, True):
            problem = self.problem(imbalanced=imbalanced)
            weight = self.reduce(problem).weight.double()
            assert (weight >= 0).all(), "a weight is negative"
            if isinstance(self.make(), LearnsTotalWeight):
                continue
            total, num = float(weight.sum()), problem.num_train
            assert abs(total - num) < 1e-4 * num, f"weights sum to {total:g}, not {num}"

    def test_the_problem_is_left_as_it_was(self) -> None:
        problem = self.problem()
        fitted = [value for value in vars(problem.preprocess).values() if isinstance(value, Tensor)]
        data = (*problem.data.train, *problem.data.test, problem.train_x, problem.train_y)
        held = [*data, *problem.class_indices, *fitted]
        before = [tensor.clone() for tensor in held]
        self.reduce(problem)
        assert all(map(torch.equal, before, held)), "the method wrote to the problem"

    def test_float64_and_norms(self) -> None:
        for changes in ({"dtype": torch.float64}, {"norm": "instance"}, {"norm": "batch"}):
            coreset, again = (self.reduce(self.problem(**changes)) for _ in range(2))
            assert bits(coreset) == bits(again), f"one seed gave two coresets with {changes}"
            for part in (coreset.x, coreset.y, coreset.weight):
                dtype = changes.get("dtype", torch.float32)
                assert part.dtype in (dtype, torch.int64), f"{changes} gave {part.dtype}"
                assert part.isfinite().all(), f"with {changes} the coreset is not finite"

    @needs(Selector)
    def test_indices_point_at_the_selected_examples(self) -> None:
        problem, coreset = self.problem(), self.reduced()
        assert coreset.indices is not None, "a selector's coreset must have indices"
        assert len(torch.unique(coreset.indices)) == len(coreset), "an example was selected twice"
        x, y = (part[coreset.indices] for part in problem.data.train)
        assert torch.equal(coreset.y, y), "labels are not those of the selected examples"
        assert torch.equal(coreset.x, x.float() / 255), "points are not the selected examples"
        assert torch.equal(problem.inputs(coreset.x), problem.batch(coreset.indices)[0])

    def test_saved_and_loaded_it_is_the_same_and_can_be_made_again(self) -> None:
        problem = self.problem()
        coreset = self.reduce(problem, seed=3)
        with tempfile.TemporaryDirectory() as folder:
            save_coreset(f"{folder}/coreset.safetensors", coreset)
            loaded = load_coreset(folder)
        assert bits(loaded) == bits(coreset), "saving and loading changed the coreset"
        assert loaded.provenance == coreset.provenance
        table = {name: loaded.provenance[name] for name in ("method", "seed", "setup", "options")}
        again = api.run_reduction(api.Reduction.from_config(table), problem).coreset
        assert bits(again) == bits(coreset), "the provenance made another coreset"
        assert loaded.provenance["data_fingerprint"] == problem.data.fingerprint

    def test_it_is_a_value(self) -> None:
        """Frozen, equal by its fields, usable as a key."""
        one, other = self.make(), self.make()
        assert (one, hash(one)) == (other, hash(other)), "equal fields make two values"
        assert self.method.__dataclass_params__.frozen, "the method's dataclass must be frozen"

    def test_no_field_is_named_like_one_of_a_setup(self) -> None:
        """Both are flags of `reduce` and options of `pseudocore.reduce`."""
        own, setup = (
            {option.name for option in config.options(each)} for each in (self.method, Setup)
        )
        assert not own & setup, f"a setup has fields of these names: {', '.join(own & setup)}"

    def problem(self, **changes: Any) -> Problem:
        return super().problem(**{"experts": True, "reference": True, **changes})

    def reduce(self, problem: Problem | None = None, *, seed: int = 0, **changes: Any) -> Coreset:
        """The method's coreset, as `pseudocore.reduce` makes it."""
        reduction = api.Reduction(self.make(**changes), Setup(data=few_digits().name), seed)
        outcome = api.run_reduction(reduction, problem or self.problem())
        assert outcome.status == "finished", f"the run {outcome.status}: {outcome.reason}"
        return outcome.coreset

    def result(self, options: Mapping[str, Any], problem: Mapping[str, Any]) -> Any:
        coreset = self.reduce(self.problem(**problem), **options)
        return bits(coreset), coreset.provenance.get("posterior")

    @classmethod
    @functools.cache
    def reduced(cls) -> Coreset:
        """The coreset of seed 0, made once."""
        return cls().reduce()

    def run(self, lines: Lines | None = None, *, method: Any = None, **options: Any) -> Outcome:
        """The loop alone, every step of which adds its values to `lines`."""
        options = {"on_log": ({} if lines is None else lines).__setitem__, **options}
        return run(method or self.make(), self.problem(), seed=0, log_every=1, **options)


def bits(coreset: Coreset) -> dict[str, Any]:
    """The tensors of a coreset, comparable bit for bit, types and shapes included."""
    parts = {name: getattr(coreset, name) for name in ("x", "y", "weight", "indices")}
    return {
        name: (part.dtype, part.shape, part.numpy().tobytes())
        for name, part in parts.items()
        if part is not None
    }
