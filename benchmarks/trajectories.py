"""Presets that learn from experts, end to end: experts once for all of them, the coreset (last
iterate), its evaluations.

    PYTHONPATH=src python benchmarks/trajectories.py kim2022/cifar10-ipc10-bpc-fkl
    kim2022/cifar10-ipc10-bpc-rkl --experts /tmp/experts --out results --commit HASH

A coreset for every preset in OUT, and a record in OUT/PAPER.jsonl: accuracy, NLL and calibration by
HMC with its defaults, by the published protocol (as in cold_posterior.py), and by the preset's own
inference where that is another; mean and sd over `--seeds` evaluations; seconds of every stage.
Experts are trained as the first preset's setup says, unless the folder holds them; presets of
another setup (augmented, for example) need a folder of their own. Interrupted (Ctrl-C, `timeout -s
INT`), the same command resumes.
"""

import argparse
import time
from pathlib import Path
from typing import Any

from cells import made_here, name_values
from cold_posterior import published_options

from pseudocore import api, assembly
from pseudocore.assembly import presets
from pseudocore.reproduce import records
from pseudocore.reproduce.recipes import FORMER
from pseudocore.store.coreset_file import save_coreset
from pseudocore.store.run_folder import Run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("presets", nargs="+")
    add("--experts", type=Path, required=True, help="folder of the experts, filled if not there")
    add("--num-experts", type=int, default=20)
    add("--epochs", type=int, default=22, help="of every expert")
    add("--setup", action="append", default=[], metavar="NAME=VALUE", help="as precision=bf16")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="options of the presets")
    add("--seeds", type=int, default=3)
    add("--commit", default="unknown")
    add("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    trained = train(arguments)
    for name in arguments.presets:
        paper, _, stem = name.rpartition("/")
        is_file = name.endswith(".toml")
        stem = Path(name).stem if is_file else f"{paper}-{stem}"
        path = arguments.out / f"{stem if is_file else paper}.jsonl"
        if stem not in records.read(path):
            run(name, stem, path, trained, arguments)


def train(arguments: argparse.Namespace) -> dict[str, Any]:
    """The experts' summary; empty when they were there."""
    if arguments.experts.exists():
        return {}
    table = presets.read(arguments.presets[0])
    found = api.train_experts(
        table["data"],
        out=arguments.experts,
        num=arguments.num_experts,
        epochs=arguments.epochs,
        **{**table["setup"], **name_values(arguments.setup)},
    )
    print(f"experts: {found['seconds']} s, {found['images_per_second']} images/s", flush=True)
    return dict(found)


def run(
    name: str, stem: str, path: Path, trained: dict[str, Any], arguments: argparse.Namespace
) -> None:
    changes = {"setup": name_values(arguments.setup), "options": name_values(arguments.set)}
    table = presets.read(name)
    table["setup"] |= {**changes["setup"], "experts": str(arguments.experts)}
    table["options"] |= changes["options"]
    reduction = api.Reduction.from_config(table)
    problem = assembly.build(reduction.setup)
    settled = api.resolved(reduction, problem)
    with Run.create(arguments.out / "runs" / stem, settled.to_config(), resume=True) as folder:
        if not folder.finished:
            outcome = api.run_reduction(settled, problem, folder)
            if outcome.status == "interrupted":
                raise KeyboardInterrupt
        coreset, made = folder.coreset(), folder.manifest
    save_coreset(arguments.out / f"{stem}.safetensors", coreset)
    print(stem, made["status"], made["seconds"], "s", made["note"], flush=True)
    times, evaluations = {"reduction": made["seconds"]}, {}
    published = published_options(len(coreset) / problem.num_classes)
    protocols: dict[str, dict[str, Any]] = {
        "mh-correct": {"inference": "hmc", **FORMER["hmc"]},
        "published": {"inference": "hmc", "published": True, **published},
    }
    if reduction.evaluate and reduction.evaluate["inference"] != "hmc":
        protocols["preset's own"] = dict(reduction.evaluate)
    for protocol, options in protocols.items():
        began = time.monotonic()
        evaluations[protocol] = dict(
            api.evaluate(coreset, problem.data, seeds=arguments.seeds, **options)
        )
        times[protocol] = round(time.monotonic() - began, 1)
    record = {
        "name": stem,
        "preset": name,
        "changes": changes,
        "config": reduction.to_config(),
        **{key: made[key] for key in ("status", "note", "num_steps")},
        "seconds": times,
        "experts": trained,
        "peak_memory_mib": made["peak_memory_mib"],
        "evaluations": evaluations,
        **made_here(arguments.commit),
    }
    records.put(path, record)
    for protocol, one in evaluations.items():
        scores = {name: round(one["metrics"][name]["mean"], 4) for name in ("accuracy", "nll")}
        print(stem, protocol, f"{times[protocol]} s", scores, flush=True)


if __name__ == "__main__":
    main()
