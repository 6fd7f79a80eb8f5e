"""Run presets end to end and keep what came out: `python benchmarks/presets.py
vbpc2025/cifar10-ipc10 --commit HASH --out DIR`.

For each preset: reduce (last iterate), evaluate on fresh networks, one JSON with configuration,
figures, cost, hardware and versions. `--set name=value` changes an option of every preset named,
for comparisons; `--on train` evaluates on training images, for choosing them.
"""

import argparse
import json
import time
from dataclasses import replace
from datetime import date
from pathlib import Path

import torch

from pseudocore import api, presets
from pseudocore import assembly as setups
from pseudocore.core.problem import Problem
from pseudocore.core.types import Examples
from pseudocore.data import load
from pseudocore.store.coreset_file import save_coreset
from pseudocore.store.folders import hardware, versions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("presets", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--on", choices=["test", "train"], default="test")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--tag", default="")
    parser.add_argument(
        "--seconds",
        type=float,
        help="cut num_steps so that a reduction takes about this long, by the time of its first steps",
    )
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    changes = {
        name: json.loads(value)
        for name, _, value in (pair.partition("=") for pair in arguments.set)
    }
    rows = [run(name, changes, arguments) for name in arguments.presets]
    for row in rows:
        print(*row)


def run(name: str, changes: dict[str, object], arguments: argparse.Namespace) -> tuple[object, ...]:
    table = presets.read(name)
    table["options"] = {**table["options"], **changes}
    reduction = api.Reduction.from_config(table)
    data = load(reduction.setup.data)
    problem = setups.build(reduction.setup, data)
    if (
        arguments.seconds is not None
        and (num_steps := affordable(reduction, problem, arguments.seconds))
        < reduction.method.num_steps
    ):
        changes = {**changes, "num_steps": num_steps}
        reduction = replace(reduction, method=replace(reduction.method, num_steps=num_steps))
    began = time.monotonic()
    first: list[float] = []  # when the tenth step was done, compiled and captured
    outcome = api.run_reduction(
        reduction,
        problem,
        on_log=lambda step, values: first.append(time.monotonic()) if not first else None,
    )
    if problem.device.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.monotonic() - began
    tested = (
        data
        if arguments.on == "test"
        else replace(data, test=Examples(data.train.x[:10_000], data.train.y[:10_000]))
    )
    result = api.evaluate(outcome.coreset, tested, seeds=arguments.seeds)
    stem = name.replace("/", "-") + (f"-{arguments.tag}" if arguments.tag else "")
    record = {
        "preset": name,
        "changes": changes,
        "config": reduction.to_config(),
        "evaluated_on": arguments.on,
        "status": outcome.status,
        "note": outcome.note,
        "num_steps": outcome.num_steps,
        "distillation_seconds": round(seconds, 1),
        "start_up_seconds": round(first[0] - began, 1) if first else None,
        "ms_per_step": round(
            1000 * (seconds - (first[0] - began if first else 0)) / max(1, outcome.num_steps), 3
        ),
        "peak_memory_mib": torch.cuda.max_memory_allocated() // 2**20
        if torch.cuda.is_available()
        else None,
        "evaluation": result.to_dict(),
        "learned": outcome.coreset.provenance.get("posterior"),
        "date": str(date.today()),
        "commit": arguments.commit,
        "hardware": hardware(),
        "versions": versions(),
        "command": f"python benchmarks/presets.py {name} "
        + " ".join(f"--set {pair}" for pair in arguments.set),
    }
    (arguments.out / f"{stem}.json").write_text(json.dumps(record, indent=1))
    if arguments.on == "test":
        save_coreset(arguments.out / f"{stem}.safetensors", outcome.coreset)
    scores = {
        metric: f"{score['mean']:.4f}±{score['sd'] or 0:.4f}"
        for metric, score in result["metrics"].items()
    }
    print(
        stem,
        outcome.status,
        outcome.note,
        f"{seconds:.1f}s",
        record["start_up_seconds"],
        record["ms_per_step"],
        scores,
        flush=True,
    )
    return stem, outcome.status, f"{seconds:.1f} s", scores


def affordable(reduction: api.Reduction, problem: Problem, seconds: float, trial: int = 300) -> int:
    """Steps that fit into `seconds`, in whole hundreds; start-up and capture of the trial are
    counted out.
    """
    _, *times = (
        api.run_reduction(
            replace(reduction, method=replace(reduction.method, num_steps=num_steps)), problem
        ).seconds
        for num_steps in (
            trial // 3,
            trial // 3,
            trial,
        )  # what the first compiles is there for the others
    )
    per_step = (times[1] - times[0]) / (trial - trial // 3)
    if per_step <= 0:
        raise SystemExit(
            f"{trial} steps took no longer than {trial // 3} ({times[1]:.1f} s and {times[0]:.1f}): too noisy to cut by"
        )
    return max(100, int(seconds / per_step) // 100 * 100)


if __name__ == "__main__":
    main()
