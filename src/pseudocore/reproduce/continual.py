"""Class-incremental learning from memory alone (LCMat §4.3, Fig. 5; the protocol of Zhao and Bilen
2021).

The classes arrive in stages. At each stage the method reduces the new classes to `per_class` points
each. The memory is the union of all such points so far. A fresh network is fitted on the memory
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

from pseudocore import api, assembly
from pseudocore.core.errors import ConfigError, RunError
from pseudocore.core.likelihood import check_task
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
    """Run the protocol; seed s orders the classes and seeds the reductions and networks."""
    check_task(continual, "continual", data.task)
    setup = reduction.to_config()["setup"]
    setup = {name: setup[name] for name in setup if name not in ("data", "augment", "experts")}
    results = []
    for seed in range(seeds):
        memory: Coreset | None = None
        seen: list[int] = []
        stages = split_classes(data.num_classes, num_stages, Rng(seed)("classes"))
        for number, arriving in enumerate(stages):
            new = _reduce(replace(reduction, seed=seed), restrict(data, arriving), device)
            memory = join(memory, new, offset=len(seen))
            seen += arriving
            scores = api.evaluate(
                memory,
                restrict(data, seen),
                inference=inference,
                seeds=1,
                first_seed=seed,
                device=device,
                setup=setup,
                **dict(options or {}),
            )
            metrics = {name: score["mean"] for name, score in scores["metrics"].items()}
            results.append(Stage(seed, number + 1, len(seen), len(memory), metrics))
            on_stage(results[-1])
    return results


def split_classes(num_classes: int, num_stages: int, rng: Rng) -> list[list[int]]:
    """Classes in random order, cut into stages of nearly equal size, two classes or more each."""
    most = num_classes // 2
    if not 1 <= num_stages <= most:
        raise ConfigError(
            f"{num_classes} classes make 1 to {most} stages of at least two classes, "
            f"not {num_stages}",
            code="too-many-stages",
            stages=num_stages,
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

    title, num = f"{data.name}[{len(classes)} classes]", len(classes)
    names = tuple(data.class_names[label] for label in classes) if data.class_names else ()
    return Dataset(title, part(data.train), part(data.test), num, names)


def join(memory: Coreset | None, new: Coreset, *, offset: int) -> Coreset:
    """The memory with new points, whose classes are numbered from `offset`."""
    added = Coreset(new.x, new.labels + offset, new.weight)
    if memory is None:
        return added
    return Coreset(
        torch.cat([memory.x, added.x]),
        torch.cat([memory.y, added.y]),
        torch.cat([memory.weight, added.weight]),
    )


def _reduce(reduction: api.Reduction, data: Dataset, device: str) -> Coreset:
    # experts of all classes are of no use to some of them
    own = replace(reduction, setup=replace(reduction.setup, experts=None))
    problem = assembly.build(own.setup, data, device=device)
    outcome = api.run_reduction(own, problem)
    if outcome.status != "finished":
        sentence = f"the reduction of {data.name} {outcome.status}: {outcome.reason}"
        raise RunError(sentence, code=outcome.status)
    # decoded, as memories of several stages are one and have one provenance
    return decoded(problem, outcome.coreset)
