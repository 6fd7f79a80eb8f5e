"""The first of two rounds of a selection by the workers of an engine."""

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pseudocore import engine
from pseudocore.assembly import Reduction, build
from pseudocore.core.errors import ConfigError, RunError
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.engine import Engine, Item
from pseudocore.store.files import decode_json, encode_json
from pseudocore.workflows.on_engine import FOLDER
from pseudocore.workflows.two_rounds import First, OneNetwork, check, of_shard


def select_shard(options: Mapping[str, Any], seed: int, folder: Path) -> dict[str, Any]:
    """Select from one shard."""
    reduction, problem, network = _reduction(encode_json(options["reduction"]), options["device"])
    if problem.data.fingerprint != options["fingerprint"]:
        raise RunError(
            f"a worker reads another {problem.data.name!r} than the process that asked it to (their"
            " fingerprints differ)",
            code="other-data",
        )
    method = check(reduction.method, reduction.shard_size or 0)
    rng = Rng(seed)
    index, weight = of_shard(method, problem, network, rng, options["num"], options["number"])
    return {"number": options["number"], "index": index.tolist(), "weight": weight.tolist()}


@functools.lru_cache(1)
def _reduction(text: str, device: str) -> tuple[Reduction, Problem, OneNetwork]:
    """The latest is kept for a worker's next shard."""
    reduction = Reduction.from_config(decode_json(text))
    problem = build(reduction.setup, device=device)
    return reduction, problem, OneNetwork(problem, reduction.method, Rng(reduction.seed))


def first_round(chosen: Engine, reduction: Reduction, problem: Problem, folder: Path) -> First:
    """What carries out the first round on an engine; the same bits on all of them."""
    if ":" in str(problem.model.describe().get("name", ":")):
        raise ConfigError(
            "the workers of an engine know networks by name; give a name in place of an object",
            code="engine-needs-names",
            names=["model"],
        )

    def run(num: int) -> Iterator[tuple[int, Tensor, Tensor]]:
        shared = {
            "reduction": reduction.to_config(),
            "device": str(problem.device.type),
            "fingerprint": problem.data.fingerprint,
            "num": num,
        }
        items = [Item({**shared, "number": number}, reduction.seed) for number in range(num)]
        for one in engine.map(
            select_shard, items, folder=folder / FOLDER, engine=chosen.on(problem.device.type)
        ):
            index, weight = torch.tensor(one.result["index"]), torch.tensor(one.result["weight"])
            yield one.result["number"], index, weight.double()

    return run
