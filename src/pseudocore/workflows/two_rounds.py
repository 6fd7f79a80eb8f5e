r"""Selection from data larger than memory, in two rounds: of each shard, then of what they gave.

Mirzasoleiman, Karbasi, Sarkar, Krause (2013), "Distributed submodular maximization" (GreeDi). The
training examples are dealt at random into $m$ shards of about `size`. In the first round a selector
takes $\min(k, \lceil 8k / m \rceil)$ points of each, where $k$ is the budget; in the second it takes
$k$ points of their union. There a point counts as many examples as it stands for in its shard, so
that facility location covers the data and not the union.

A network that the selector looks through is trained once, on all examples. Memory is that of one
shard, plus 8 bytes an example for its label. One shard is a selection in one round, exactly.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pseudocore.core import config
from pseudocore.core.errors import ConfigError, DataError
from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, Dataset, Examples, SelectsInRounds
from pseudocore.data.limits import VARIABLE, data_limit
from pseudocore.runtime.reporting import report
from pseudocore.selection.budgets import SelectorSettings
from pseudocore.training.pretrain import Network, Pretraining, pretrained

OVERSAMPLING = 8
"""Points of the first round, over all shards, for each that is asked for."""

BLOCK = 256
"""Consecutive examples that are dealt together, so that a shard is read in pieces and not in rows."""

First = Callable[[int], Iterable[tuple[int, Tensor, Tensor]]]
"""From the number of shards to each one's number, its points' training indices, and how many
examples each stands for.
"""


def check(method: Any, shard_size: int) -> SelectorSettings:
    """Refuse a method that cannot select in two rounds."""
    if shard_size < 1:
        raise ConfigError(f"shard_size = {shard_size} must be at least 1", code="invalid-options")
    name = methods.name_of(method)
    if not (isinstance(method, SelectsInRounds) and isinstance(method, SelectorSettings)):
        able = [one.name for one in methods if isinstance(one.make, SelectsInRounds)]
        raise ConfigError(
            f"{name} does not select in two rounds; there are {', '.join(able)}",
            code="one-round-only",
            method=name,
        )
    if method.weighting == "learned":
        raise ConfigError(
            "weighting = 'learned' needs the gradients of all examples at once, which a selection in"
            " two rounds never has; take another",
            code="conflicting-options",
            options=("shard_size", "weighting"),
        )
    return method


def num_bytes(method: Any, problem: Problem) -> int:
    """About what the features take that a selector holds: inputs of a class at a time, or the last
    layer of all examples and once more of a class. Others, as `uniform`, hold none.
    """
    if not isinstance(method, Pretraining):
        return 0
    largest = int(problem.data.class_counts.max())
    if config.to_dict(method).get("space") == "inputs":
        return 4 * largest * math.prod(problem.data.shape)
    return 4 * (problem.num_train + largest) * (problem.model.num_features + problem.num_classes)


def check_fits(method: Any, problem: Problem) -> None:
    """Refuse a selection in one round that takes more memory than data may."""
    needed = num_bytes(method, problem)
    if needed <= data_limit():
        return
    advice = f"--data-limit GIB (or {VARIABLE}) raises it"
    if isinstance(method, SelectsInRounds):
        size = max(1, round(problem.num_train * data_limit() / (4 * needed), -3))
        advice = f"--shard-size {size} selects in two rounds within it, or {advice}"
    raise DataError(
        f"selecting from {problem.num_train:,} examples at once would take about"
        f" {needed / 2**30:.3g} GiB of memory, and the limit is {data_limit() / 2**30:.3g}; {advice}",
        code="does-not-fit",
        num_bytes=needed,
    )


def select(
    method: Any, problem: Problem, rng: Rng, shard_size: int, first: First | None = None
) -> Coreset:
    """A selection in two rounds; `first` carries out the first one elsewhere."""
    checked, num = check(method, shard_size), num_shards(problem.num_train, shard_size)
    if num == 1:
        chosen: Coreset = method.select(problem, rng)
        return chosen
    checked.check(problem)
    network = OneNetwork(problem, method, rng)
    if first is None:
        found = [of_shard(checked, problem, network, rng, num, number) for number in range(num)]
    else:
        by_number = {number: found for number, *found in first(num)}
        found = [(by_number[number][0], by_number[number][1]) for number in range(num)]
    union, weight = (torch.cat(column) for column in zip(*found, strict=True))
    order = union.argsort()
    union, weight = union[order], weight[order]
    last: Any = checked
    if checked.fraction is not None:
        last = replace(checked, fraction=None, points=checked.total(problem))
    second = last.select(part(problem, union, network, weight), rng("second"))
    return problem.subset(
        union[second.indices], None if checked.weighting == "mass" else second.weight
    )


def of_shard(
    method: SelectorSettings,
    problem: Problem,
    network: "OneNetwork",
    rng: Rng,
    num: int,
    number: int,
) -> tuple[Tensor, Tensor]:
    """Training indices of the points of a shard, and how many examples each stands for."""
    index = shard(problem.num_train, num, number, rng("shards"))
    with warnings.catch_warnings():  # of a shard's few examples; what matters is said of the union
        warnings.simplefilter("ignore")
        first = _first(method, problem, num)
        found = first.select(part(problem, index, network), rng("first", number))
    report("selecting from shards", number + 1, num)
    return index[found.indices], found.weight.double()


def num_shards(num_train: int, size: int) -> int:
    return max(1, math.ceil(num_train / size))


def shard(num_train: int, num: int, number: int, rng: Rng) -> Tensor:
    """Training indices of a shard, ascending: blocks of consecutive examples, dealt at random."""
    block = max(1, min(BLOCK, num_train // (16 * num)))
    blocks = rng.permutation(math.ceil(num_train / block)).tensor_split(num)[number].sort().values
    index = (blocks[:, None] * block + torch.arange(block)).flatten()
    return index[index < num_train]


def part(
    problem: Problem, index: Tensor, network: "OneNetwork", weight: Tensor | None = None
) -> Problem:
    """The problem of some training examples, in memory, under the network of all of them."""
    data = problem.dataset
    x = data.train.x[index]
    x = x.float() if x.dtype == torch.float16 else x
    try:
        own = Dataset(
            data.name,
            Examples(x, data.train.y[index]),
            Examples(data.test.x[:1].to(x.dtype), data.test.y[:1]),
            data.num_classes,
            data.class_names,
            task=data.task,
        )
    except DataError as error:
        raise DataError(
            f"a shard of {len(index)} examples cannot be selected from ({error}); a larger"
            " shard_size has some of every class",
            code="shard-too-small",
            num=len(index),
        ) from error
    return replace(problem, data=own, cache=network.of(index), multiplicity=weight)


def _first(method: SelectorSettings, problem: Problem, num: int) -> Any:
    """The selector of a shard: its share of the budget, and what its points stand for."""

    def share(budget: int) -> int:
        return min(budget, math.ceil(OVERSAMPLING * budget / num))

    weighting: Any = method.in_rounds if isinstance(method, SelectsInRounds) else "mass"
    if method.points is None and method.fraction is None and method.balanced:
        least = share(max(method.counts(problem)))
        return replace(method, per_class=least, weighting=weighting)
    points = max(problem.num_classes, share(method.total(problem)))
    return replace(method, per_class=None, fraction=None, points=points, weighting=weighting)


class OneNetwork:
    """The network of a selector, trained on all examples when it is first asked for."""

    def __init__(self, problem: Problem, method: Any, rng: Rng) -> None:
        self._problem, self._method, self._rng = problem, method, rng
        if isinstance(method, Pretraining) and ":" in str(
            problem.model.describe().get("name", ":")
        ):
            raise ConfigError(
                "in two rounds the network must be one of pseudocore's, by name: one from outside is"
                " not known again, and would be trained for each shard",
                code="foreign-network",
            )

    @cached_property
    def network(self) -> Network:
        return pretrained(self._problem, self._method, self._rng("pretrain"))

    def of(self, index: Tensor) -> "_Known":
        """What a shard of these examples looks for in its cache."""
        return _Known(self, index)


@dataclass(frozen=True)
class _Known:
    """A `Cache` that knows a network, whatever the examples it is asked for."""

    whole: OneNetwork
    index: Tensor

    def load(self, what: Mapping[str, Any]) -> dict[str, Tensor] | None:
        if what.get("kind") != "network":
            return None
        theta, forgotten = self.whole.network
        return {"theta": theta, "forgotten": forgotten[self.index.to(forgotten.device)]}

    def save(self, what: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        pass

    def lock(self, what: Mapping[str, Any]) -> AbstractContextManager[None]:
        return nullcontext()
