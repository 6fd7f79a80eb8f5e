"""Run presets end to end: `python benchmarks/presets.py vbpc2025/cifar10-ipc10 --commit HASH --out
DIR`.

For each preset: reduce (last iterate), evaluate on fresh networks, a record with configuration,
figures, cost, hardware and versions in DIR/PAPER.jsonl. `--set name=value` changes an option of
every preset named; `--on train` evaluates on training images, for choosing settings.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path

import torch
from cells import made_here, name_values

from pseudocore import api, assembly
from pseudocore.assembly import presets
from pseudocore.core.problem import Problem
from pseudocore.core.types import Examples
from pseudocore.reproduce import records
from pseudocore.store.coreset_file import save_coreset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("presets", nargs="+")
    add("--out", type=Path, required=True)
    add("--commit", required=True)
    add("--seeds", type=int, default=5)
    add("--on", choices=["test", "train"], default="test")
    add("--set", action="append", default=[], metavar="NAME=VALUE")
    add("--tag", default="", help="added to the names of the records")
    add("--seconds", type=float, help="cut num_steps so that a reduction takes about this long")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.presets:
        run(name, arguments)


def run(name: str, arguments: argparse.Namespace) -> None:
    table, changes = presets.read(name), name_values(arguments.set)
    table["options"] = {**table["options"], **changes}
    reduction = api.Reduction.from_config(table)
    problem = assembly.build(reduction.setup)
    if arguments.seconds is not None:
        num_steps = affordable(reduction, problem, arguments.seconds)
        if num_steps < reduction.method.num_steps:
            changes = {**changes, "num_steps": num_steps}
            reduction = with_steps(reduction, num_steps)
    began = time.monotonic()
    first: list[float] = []  # when the tenth step was done, compiled and captured

    def on_log(step: int, values: dict[str, float]) -> None:
        if not first:
            first.append(time.monotonic() - began)

    outcome = api.run_reduction(reduction, problem, on_log=on_log)
    is_gpu = problem.device.type == "cuda"
    if is_gpu:
        torch.cuda.synchronize()
    seconds = time.monotonic() - began
    data = problem.data
    if arguments.on == "train":
        data = replace(data, test=Examples(data.train.x[:10_000], data.train.y[:10_000]))
    result = api.evaluate(outcome.coreset, data, seeds=arguments.seeds)
    paper, _, cell = (
        name.rpartition("/") if not name.endswith(".toml") else ("", "", Path(name).stem)
    )
    stem = "-".join(filter(None, [paper, cell, arguments.tag]))
    start_up = first[0] if first else 0.0
    record = {
        "name": stem,
        "preset": name,
        "changes": changes,
        "config": reduction.to_config(),
        "evaluated_on": arguments.on,
        "status": outcome.status,
        "note": outcome.note,
        "num_steps": outcome.num_steps,
        "distillation_seconds": round(seconds, 1),
        "start_up_seconds": round(start_up, 1) if first else None,
        "ms_per_step": round(1000 * (seconds - start_up) / max(1, outcome.num_steps), 3),
        "peak_memory_mib": torch.cuda.max_memory_allocated() // 2**20 if is_gpu else None,
        "evaluation": dict(result),
        "learned": outcome.coreset.provenance.get("posterior"),
        **made_here(arguments.commit),
    }
    records.put(arguments.out / f"{paper or cell}.jsonl", record)
    if arguments.on == "test":
        save_coreset(arguments.out / f"{stem}.safetensors", outcome.coreset)
    scores = {metric: round(score["mean"], 4) for metric, score in result["metrics"].items()}
    print(stem, outcome.status, outcome.note, f"{seconds:.1f} s", scores, flush=True)


def affordable(reduction: api.Reduction, problem: Problem, seconds: float, trial: int = 300) -> int:
    """Steps that fit into `seconds`, in whole hundreds; start-up and capture of the trial are
    subtracted.
    """
    _, short, long = (  # what the first compiles is there for the others
        api.run_reduction(with_steps(reduction, num_steps), problem).seconds
        for num_steps in (trial // 3, trial // 3, trial)
    )
    per_step = (long - short) / (trial - trial // 3)
    if per_step <= 0:
        raise SystemExit(f"{trial} steps took {long:.1f} s and {trial // 3} {short:.1f}: too noisy")
    return max(100, int(seconds / per_step) // 100 * 100)


def with_steps(reduction: api.Reduction, num_steps: int) -> api.Reduction:
    return replace(reduction, method=replace(reduction.method, num_steps=num_steps))


if __name__ == "__main__":
    main()
