"""What both suites have: the choice of checks, checks of options and of the documentation, and
captured steps on a CPU.
"""

import inspect
import random
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar
from unittest.mock import patch

import numpy as np
import torch

from pseudocore.core import config
from pseudocore.core.budget import Budget
from pseudocore.core.problem import Problem
from pseudocore.core.registry import Registry
from pseudocore.core.rng import Rng
from pseudocore.core.tree import clone, flatten
from pseudocore.core.types import ModelSpec
from pseudocore.runtime.draws import record
from pseudocore.runtime.steps import StepRunner
from pseudocore.store.files import decode_toml, encode_toml
from pseudocore.testing.options import OF_BUDGETS, Effect, other_value
from pseudocore.testing.problems import small_problem

SMALL = {
    "per_class": 2, "num_steps": 6, "batch_size": 16, "pool_size": 3, "max_age": 3, "max_start": 2,
    "horizon": 1, "num_experts": 2, "num_inner_steps": 3, "num_members": 2, "num_draws": 3,
    "num_burn": 2, "num_leapfrog": 2, "num_inner": 2,
    "num_warmup": 2, "num_positive": 3,
}  # fmt: skip
"""Values that make a run small, for fields of these names; six steps renew a pool of networks."""

Check = TypeVar("Check", bound=Callable[..., None])


def needs(capability: type) -> Callable[[Check], Check]:
    """Mark a check for instances of a runtime-checkable protocol."""

    def mark(check: Check) -> Check:
        check.needs = capability  # type: ignore[attr-defined]
        return check

    return mark


class Suite(ABC):
    """Checks, as methods `test_*`, of a registered class; those marked with a capability that it
    lacks are removed.
    """

    options: ClassVar[Mapping[str, Any]] = {}
    """Values of its fields, beside those of `SMALL`."""
    model: ClassVar[ModelSpec | None] = None
    """The network to run it under. Defaults to a small convolutional one."""
    deterministic: ClassVar[bool] = False
    """Whether another seed gives the same result."""
    effects: ClassVar[Mapping[str, Effect | str]] = {}
    """What the change of a field needs to show, or in a sentence why it never shows."""

    registry: ClassVar[Registry]
    """Where it is registered; the registry's noun is the attribute that holds the class."""
    kinds: ClassVar[tuple[str, ...]] = ()
    """Kinds to register under. Defaults to any."""
    beside: ClassVar[tuple[Callable[..., Any], ...]]
    """Callables that take its fields beside arguments of their own."""

    def __init_subclass__(cls) -> None:
        if "registry" in vars(cls):
            return
        instance = cls.make()
        for name in (one for one in dir(cls) if one.startswith("test_")):
            if not isinstance(instance, getattr(getattr(cls, name), "needs", object)):
                setattr(cls, name, None)  # which pytest does not collect

    @classmethod
    def made(cls) -> type[Any]:
        """The class under test."""
        made: type[Any] = getattr(cls, cls.registry.noun)
        return made

    @classmethod
    def names(cls) -> set[str]:
        """Its fields."""
        return {option.name for option in config.options(cls.made())}

    @classmethod
    def make(cls, **changes: Any) -> Any:
        """A small instance of it."""
        small = {name: value for name, value in SMALL.items() if name in cls.names()}
        given = {**small, **cls.options, **changes}
        if not {"points", "fraction"}.isdisjoint(changes):  # another budget
            del given["per_class"]
        return config.build(cls.made(), given)

    def problem(self, **changes: Any) -> Problem:
        return small_problem(**{"model": self.model, **changes})

    def test_it_is_documented(self) -> None:
        """A kind, a summary, and the paper's first author and year in the module's docstring."""
        entry = self.registry[self.registry.name_of(self.make())]
        assert entry.kind in (self.kinds or {entry.kind} - {""}), f"unknown kind {entry.kind!r}"
        assert entry.summary, "the class has no docstring"
        page = sys.modules[entry.make.__module__].__doc__ or ""
        assert len(page) > 50, f"the docstring of {entry.make.__module__} is too short"
        if years := re.findall(r"\b(?:19|20)\d\d\b", entry.paper):
            author, identifier = re.findall(r"\w+", entry.paper)[0], entry.paper.split()[-1]
            assert author in page, f"the module's docstring does not name {author}"
            assert years[0] in page or identifier in page, f"it does not cite {entry.paper}"

    def test_every_option_has_a_name_and_a_help_of_its_own(self) -> None:
        missing = [option.name for option in config.options(self.made()) if not option.help]
        assert not missing, f"no docstring under {', '.join(missing)}"
        taken = {name for one in self.beside for name in inspect.signature(one).parameters}
        hidden = taken & self.names()
        assert not hidden, f"{', '.join(hidden)} is already an argument"

    def test_every_option_has_an_effect(self) -> None:
        results: dict[str, Any] = {}
        effects = {**(OF_BUDGETS if issubclass(self.made(), Budget) else {}), **self.effects}
        for option in config.options(self.made()):
            effect = effects.get(option.name, Effect())
            if isinstance(effect, str):
                continue
            one = config.to_dict(self.make(**effect.options))
            other = effect.other
            if other is None:
                other = other_value(option, one.get(option.name))
            before, after = (
                results.get(key) or results.setdefault(key, self.result(options, effect.problem))
                for options in (one, {**one, option.name: other})
                for key in [f"{options} {effect.problem}"]
            )
            assert before != after, f"{option.name} = {other!r} changed nothing"

    @abstractmethod
    def result(self, options: Mapping[str, Any], problem: Mapping[str, Any]) -> Any:
        """What an instance of these fields makes of a small problem of these arguments."""

    def test_its_configuration_survives_toml(self) -> None:
        table = decode_toml(encode_toml(config.to_dict(self.make())))
        assert config.build(self.made(), table) == self.make()


@contextmanager
def scrambled_globals(seed: int) -> Iterator[None]:
    """Put every global random generator into some state, and check that the block leaves it so."""

    def state() -> list[Any]:
        legacy: Any = np.random.get_state()  # noqa: NPY002
        return [torch.get_rng_state().tolist(), legacy[1].tolist(), legacy[2:], random.getstate()]

    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002  the legacy generator is the global one
    random.seed(seed)
    before = state()
    yield
    assert state() == before, "a global random generator was used"


@contextmanager
def emulate_capture() -> Iterator[dict[StepRunner, Any]]:
    """Take every step as a captured CUDA graph does, without a GPU: with the draws that a first
    step has made, from a state that is copied. Yields what each runner recorded.
    """
    recorded: dict[StepRunner, Any] = {}

    def replay(runner: StepRunner, state: Any, rng: Rng) -> tuple[Any, Any]:
        if runner not in recorded:
            recorded[runner] = record(runner.step, runner.problem, state, rng)
        after, info = recorded[runner].step(clone(state), recorded[runner].draws(rng))
        assert flatten(after).keys() == flatten(state).keys(), "a state lost or gained a part"
        return after, info

    with patch.object(StepRunner, "__call__", replay):
        yield recorded
