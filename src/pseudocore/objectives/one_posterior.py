"""What methods share that stand for one posterior: what they refuse, and the unit of their steps."""

from torch import Tensor

from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng

NUM_PROBES = 1000
"""Training inputs behind the unit."""


def refuse_augmentation(problem: Problem, name: str) -> None:
    """With augmentation there is no one posterior; `name` is the method's."""
    if problem.augment is not None:
        raise ConfigError(
            f"{name} takes no augmentation; leave --augment out", code="no-augmentation"
        )


def check_networks(problem: Problem, also: str | None, name: str) -> None:
    """The networks that a coreset is to serve too must be there."""
    if also is not None and not problem.also:
        raise ConfigError(
            f"{name} is to serve {also!r} too, but the problem holds no such networks; "
            "`reduce` adds them, or set Problem.also",
            code="needs-networks",
        )


def input_unit(problem: Problem, rng: Rng) -> Tensor:
    """Standard deviation of network inputs ()."""
    return problem.batch(rng.permutation(problem.num_train)[:NUM_PROBES])[0].std()
