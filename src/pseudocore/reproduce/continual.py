"""Class-incremental learning from memory alone (LCMat §4.3, Fig. 5; the protocol of Zhao and Bilen
2021).

The classes arrive in stages. At each stage the method reduces the new classes to `per_class` points
each; the memory is the union of all such points so far; a fresh network is fitted on the memory
alone and tested on every class seen so far. What is lost from one stage to the next is what the
memory failed to carry.

Deviation: labels are hardened when memories are joined, since targets learned among ten classes say
nothing about the other ninety.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from pseudocore import api
from pseudocore import assembly as setups
from pseudocore.core.errors import ConfigError, RunError
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, Dataset, Examples
from pseudocore.objectives.multiformation import decoded


class Stage(NamedTuple):
    """What one stage of one seed gave."""

    seed: int
    stage: int
    num_classes: int
    """Seen so far."""
    memory: int
    """Points in memory."""
    metrics: dict[str, float]


def continual(
    reduction: api.Reduction,
    data: Dataset,
    *,
    num_stages: int = 5,
    inference: str = "sgd",
    options: Mapping[str, Any] | None = None,
    seeds: int = 3,
    device: str = "auto",
    on_stage: Callable[[Stage], None] = lambda stage: None,
) -> list[Stage]:
    """Run the protocol; seed s shuffles the classes, seeds the reductions and the network of its
    whole sequence.
    """
    results = []
    for seed in range(seeds):
        memory: Coreset | None = None
        seen: list[int] = []
        for number, arriving in enumerate(
            split_classes(data.num_classes, num_stages, Rng(seed)("classes"))
        ):
            new = _reduce(replace(reduction, seed=seed), restrict(data, arriving), device)
            memory = join(memory, new, offset=len(seen))
            seen += arriving
            tested = restrict(data, seen)
            words = {
                name: value
                for name, value in _words(reduction).items()
                if name not in ("data", "augment")
            }
            scores = api.evaluate(
                memory,
                tested,
                inference=inference,
                seeds=1,
                first_seed=seed,
                device=device,
                setup=words,
                **dict(options or {}),
            )
            metrics = {name: score["mean"] for name, score in scores["metrics"].items()}
            results.append(Stage(seed, number + 1, len(seen), len(memory), metrics))
            on_stage(results[-1])
    return results


def split_classes(num_classes: int, num_stages: int, rng: Rng) -> list[list[int]]:
    """Classes in random order, cut into stages as equal as can be, each of two classes or more."""
    if not 1 <= num_stages <= num_classes // 2:
        raise ConfigError(
            f"{num_classes} classes make 1 to {num_classes // 2} stages of at least two classes, not {num_stages}"
        )
    order = rng.permutation(num_classes).tolist()
    bounds = [num_classes * stage // num_stages for stage in range(num_stages + 1)]
    return [order[start:stop] for start, stop in itertools.pairwise(bounds)]


def restrict(data: Dataset, classes: Sequence[int]) -> Dataset:
    """Only these classes, relabelled 0, 1, ... in the order given."""
    place = torch.full((data.num_classes,), -1)
    place[torch.tensor(classes)] = torch.arange(len(classes))

    def part(examples: Examples) -> Examples:
        keep = place[examples.y] >= 0
        return Examples(examples.x[keep], place[examples.y[keep]])

    names = tuple(data.class_names[label] for label in classes) if data.class_names else ()
    return Dataset(
        f"{data.name}[{len(classes)} classes]",
        part(data.train),
        part(data.test),
        len(classes),
        names,
    )


def join(memory: Coreset | None, new: Coreset, *, offset: int) -> Coreset:
    """The old memory with the new points, whose classes are numbered on from `offset`."""
    added = Coreset(new.x, new.labels + offset, new.weight)
    if memory is None:
        return added
    return Coreset(
        torch.cat([memory.x, added.x]),
        torch.cat([memory.y, added.y]),
        torch.cat([memory.weight, added.weight]),
    )


def _reduce(reduction: api.Reduction, data: Dataset, device: str) -> Coreset:
    own = replace(
        reduction, setup=replace(reduction.setup, experts=None)
    )  # experts of all classes know nothing of some
    problem = setups.build(own.setup, data, device=device)
    outcome = api.run_reduction(own, problem)
    if outcome.status != "finished":
        raise RunError(f"the reduction of {data.name} {outcome.status}: {outcome.reason}")
    return decoded(
        problem, outcome.coreset
    )  # memories of several stages are one, and have one provenance


def _words(reduction: api.Reduction) -> dict[str, Any]:
    words: dict[str, Any] = reduction.to_config()["setup"]
    return words
