"""Time, memory and accuracy on a table of 200,000 rows and 50 columns.

    python benchmarks/large_table.py --commit HASH --out DIR [--methods uniform lcmat-s] [--rows N]

Two classes: labels drawn by a logistic model of the first ten of fifty Gaussian columns, the best
possible accuracy being that of the model itself (`best`). A tenth more rows are the test half. Every
method runs in a process of its own, for its peak memory, at 10 points per class, default options and
seed, with the default inference; `full` is all the data. `psvi` needs `--model linear`, the default
here; `--model mlp` is the default of tables.
"""

import argparse
import json
import resource
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from cells import made_here

from pseudocore import api
from pseudocore.core.rng import Rng
from pseudocore.core.types import Dataset, Examples
from pseudocore.reproduce import records

METHODS = ("uniform", "herding", "psvi", "vbpc", "lcmat-s", "full")
COLUMNS, RELEVANT, SCALE = 50, 10, 2.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--methods", nargs="+", default=METHODS)
    add("--model", default="linear")
    add("--rows", type=int, default=200_000)
    add("--seeds", type=int, default=3, help="networks evaluated")
    add("--num-steps", type=int, help="of methods that learn; defaults to theirs")
    add("--commit", default="unknown")
    add("--out", type=Path, default=Path(), help="folder of records")
    add("--one", help="method to run in this process")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(one(arguments.one, arguments)))
        return
    for method in arguments.methods:
        words = ["--one", method, "--rows", arguments.rows, "--seeds", arguments.seeds]
        words += ["--model", arguments.model]
        words += ["--num-steps", arguments.num_steps] if arguments.num_steps else []
        command = [sys.executable, __file__, *map(str, words)]
        said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        record = {
            "name": f"{arguments.rows}x{COLUMNS} {arguments.model} {method}",
            **json.loads(said.splitlines()[-1]),
            "best": round(best(arguments.rows), 4),
            "torch_threads": torch.get_num_threads(),
            **made_here(arguments.commit),
            "command": shlex.join(["python", *sys.argv]),
        }
        records.put(arguments.out / "large_table.jsonl", record)
        print({name: record[name] for name in ("name", "reduce_s", "peak_mib", "accuracy", "nll", "evaluate_s")}, flush=True)  # fmt: skip


def one(method: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds, peak memory and scores of one method."""
    data, _ = table(arguments.rows)
    given = {} if method == "full" else {"per_class": 10}
    if arguments.num_steps and method in ("psvi", "vbpc"):
        given["num_steps"] = arguments.num_steps
    result = api.reduce(method, data, model=arguments.model, **given)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    scores = api.evaluate(result, data, seeds=arguments.seeds)
    return {
        "method": method,
        "points": len(result.coreset),
        "reduce_s": round(result.seconds, 2),
        "peak_mib": peak,
        "evaluate_s": scores.seconds,
        "evaluate_peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "inference": scores.inference,
        **{name: scores.metrics[name] for name in ("accuracy", "nll")},
    }


def table(rows: int) -> tuple[Dataset, torch.Tensor]:
    """The data, and the true log-odds of the test half."""
    num, rng = rows + rows // 10, Rng(0)("large table")
    x = rng("x").normal(num, COLUMNS)
    slope = rng("slope").normal(RELEVANT)
    odds = SCALE * (x[:, :RELEVANT] @ (slope / slope.norm()))
    y = (rng("y").uniform(num) < odds.sigmoid()).long()
    train, test = Examples(x[:rows], y[:rows]), Examples(x[rows:], y[rows:])
    return Dataset(f"table-{rows}", train, test, 2), odds[rows:]


def best(rows: int) -> float:
    data, odds = table(rows)
    return float(((odds > 0).long() == data.test.y).double().mean())


if __name__ == "__main__":
    main()
