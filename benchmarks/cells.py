"""What the scripts share: coresets to work on, a clock, records that are whole after every cell,
scores of a prediction.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

from torch import Tensor

from pseudocore import api
from pseudocore.core.errors import PseudocoreError
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, Examples
from pseudocore.evaluation.metrics import in_batches, measure
from pseudocore.inference.choose import held_out
from pseudocore.inference.diagnostics import diagnose
from pseudocore.inference.posterior import Posterior
from pseudocore.reproduce import records
from pseudocore.store.folders import hardware, versions

Cell = dict[str, Any]
SCORES = ("accuracy", "nll", "ece", "brier", "adaptive_ece", "classwise_ece")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("coresets", nargs="*", type=Path, help="coreset files or run folders")
    add("--uniform", metavar="DATA", help="also make uniform coresets of this data set")
    add("--ipc", type=int, nargs="+", default=[10], help="points per class of the uniform ones")
    add("--seed", type=int, default=0, help="of the uniform ones and of the inference")
    add("--data", help="data set, when it is not the coreset's own")
    add("--setup", action="append", default=[], metavar="NAME=VALUE", help="as model=convnet3")
    add("--num-test", type=int, default=10_000, help="test points scored")
    add("--seconds", type=float, help="for each coreset; the rest is done when run again")
    add("--device", default="auto")
    add("--commit", default="unknown")
    add("--out", type=Path, required=True, help="folder of records")


def coresets(arguments: argparse.Namespace) -> Iterator[tuple[str, Coreset]]:
    """Names and coresets: those given, then those to be made."""
    for path in arguments.coresets:
        yield path.name.removesuffix(".safetensors"), api.load(path)
    common = {"seed": arguments.seed, "device": arguments.device, **name_values(arguments.setup)}
    for ipc in arguments.ipc if arguments.uniform else ():
        made = api.reduce("uniform", arguments.uniform, per_class=ipc, **common).coreset
        yield f"uniform-{made.provenance['setup']['data']}-ipc{ipc}-seed{arguments.seed}", made


def name_values(pairs: Iterable[str]) -> dict[str, Any]:
    """`name=value` pairs; a value that is no JSON is a text."""
    found = {}
    for name, _, value in (pair.partition("=") for pair in pairs):
        try:
            found[name] = json.loads(value)
        except json.JSONDecodeError:
            found[name] = value
    return found


def made_here(commit: str) -> dict[str, Any]:
    """What every record says of where it was made."""
    return {
        "date": str(date.today()),
        "commit": commit,
        "hardware": hardware(),
        "versions": versions(),
    }


def fill(
    path: Path,
    record: dict[str, Any],
    jobs: Iterable[tuple[Cell, Callable[[], Cell]]],
    seconds: float | None,
) -> dict[str, Any]:
    """Run the jobs whose cells the record of this name in `path` does not hold yet, while there is
    time, and write the record after each.
    """
    name = record["name"]
    record = {**record, **records.read(path).get(name, {"cells": []})}
    record |= {"date": str(date.today()), "hardware": hardware(), "versions": versions()}
    known = [json.dumps(cell["key"], sort_keys=True) for cell in record["cells"]]
    began, longest = time.monotonic(), 0.0
    for key, job in jobs:
        if json.dumps(key, sort_keys=True) in known:
            continue
        if seconds is not None and time.monotonic() - began + longest > seconds:
            print(f"{name}: out of time before {key}", flush=True)
            break
        start = time.monotonic()
        try:
            result = job()
        except PseudocoreError as error:
            result = {"error": str(error)}
        spent = time.monotonic() - start
        longest = max(longest, spent)
        record["cells"].append({"key": key, **result, "seconds": round(spent, 2)})
        records.put(path, record)
        print(name, *key.values(), in_short(result), f"{spent:.1f} s", flush=True)
    return record


def scores(
    predict: Callable[[Tensor], Tensor], examples: Examples, num_classes: int
) -> dict[str, float]:
    found = measure(predict, in_batches(examples), num_classes)
    return {name: round(getattr(found, name), 5) for name in SCORES}


def diagnostics(predict: Any) -> dict[str, Any]:
    """Of chains: R-hat and ESS on predictions, acceptance; empty for other inferences."""
    if not isinstance(predict, Posterior) or predict.chains is None:
        return {}
    found = diagnose(predict)
    mixing = {name: getattr(found.predictions, name) for name in ("rhat", "ess_bulk", "ess_tail")}
    names = ("accept", "divergent", "num_draws", "num_chains")
    chains = {name: getattr(found, name) for name in names}
    if found.accept is not None:
        chains["step_size"] = float(predict.chains.trace("step_size").mean())
    return {**mixing, **chains}


def test_points(problem: Problem, num: int) -> Examples:
    return Examples(problem.data.test.x[:num], problem.data.test.y[:num])


def training_points(problem: Problem, coreset: Coreset) -> Examples:
    """Up to 1000 training points that are not in the coreset: what settings are chosen on."""
    index = held_out(problem, coreset, Rng(0)("held-out"))
    return Examples(problem.data.train.x[index], problem.data.train.y[index])


def in_short(result: Cell) -> str:
    parts = {name: result[name] for name in ("held_out", "test") if name in result}
    if "metrics" in result:
        parts["test"] = {name: one["mean"] for name, one in result["metrics"].items()}
    texts = [
        f"{name}: accuracy {one['accuracy']:.3f} NLL {one['nll']:.3f}"
        for name, one in parts.items()
    ]
    for name in ("accept", "rhat", "ess_bulk"):
        if result.get(name) is not None:
            texts.append(f"{name} {result[name]:.2f}")
    return " ".join(texts) or str(result.get("error", ""))
