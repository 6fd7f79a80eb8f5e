"""Presets that learn from experts, end to end: experts once for all of them, the coreset (last
iterate), its evaluations.

    PYTHONPATH=src python benchmarks/trajectories.py kim2022/cifar10-ipc10-bpc-fkl
    kim2022/cifar10-ipc10-bpc-rkl \\
        --experts /tmp/experts --out results --commit $(git rev-parse --short HEAD)

One JSON and one coreset a preset: accuracy, NLL and calibration by HMC with its defaults, by the
published protocol (our quirk options, as in cold_posterior.py), and by the preset's own inference
where that is another; mean and sd over `--seeds` evaluations; seconds of every stage. Experts are
trained as the first preset's setup says, unless the folder holds them already; presets of another
setup (augmented, for example) need a folder of their own. Interrupted (Ctrl-C, `timeout -s INT`),
the same command goes on where it stopped.
"""

import argparse
import time
from datetime import date
from pathlib import Path
from typing import Any

from cells import name_values
from cold_posterior import published_options

from pseudocore import api, presets
from pseudocore import assembly as setups
from pseudocore.data import load
from pseudocore.store.coreset_file import save_coreset
from pseudocore.store.files import write_json
from pseudocore.store.folders import hardware, versions
from pseudocore.store.run_folder import Run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("presets", nargs="+")
    parser.add_argument(
        "--experts",
        type=Path,
        required=True,
        help="folder of the experts, filled when it is not there",
    )
    parser.add_argument("--num-experts", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=22, help="of every expert")
    parser.add_argument(
        "--setup",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="change the presets' setup, as precision=bf16",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="change the presets' options",
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    trained = fill(arguments)
    for name in arguments.presets:
        stem = Path(name).stem if name.endswith(".toml") else name.replace("/", "-")
        if not (arguments.out / f"{stem}.json").exists():
            run(name, stem, trained, arguments)


def fill(arguments: argparse.Namespace) -> dict[str, Any]:
    """The experts' summary; empty when they were there."""
    if arguments.experts.exists():
        return {}
    table = presets.read(arguments.presets[0])
    setup = {**table["setup"], **name_values(arguments.setup)}
    found = api.train_experts(
        table["data"],
        out=arguments.experts,
        num=arguments.num_experts,
        epochs=arguments.epochs,
        **setup,
    )
    print(f"experts: {found['seconds']} s, {found['images_per_second']} images/s", flush=True)
    return found


def run(name: str, stem: str, trained: dict[str, Any], arguments: argparse.Namespace) -> None:
    table = presets.read(name)
    table["setup"] = {
        **table["setup"],
        **name_values(arguments.setup),
        "experts": str(arguments.experts),
    }
    table["options"] = {**table["options"], **name_values(arguments.set)}
    reduction = api.Reduction.from_config(table)
    data = load(reduction.setup.data)
    problem = setups.build(reduction.setup, data)
    settled = api.resolved(reduction, problem)
    with Run.create(arguments.out / "runs" / stem, settled.to_config(), resume=True) as folder:
        if (
            not folder.finished
            and api.run_reduction(settled, problem, folder).status == "interrupted"
        ):
            raise KeyboardInterrupt
        coreset, made = folder.coreset(), folder.manifest
    save_coreset(arguments.out / f"{stem}.safetensors", coreset)
    print(stem, made["status"], made["seconds"], "s", made["note"], flush=True)
    times, evaluations = {"reduction": made["seconds"]}, {}
    per_class = len(coreset) / data.num_classes
    ways: dict[str, dict[str, Any]] = {
        "mh-correct": {"inference": "hmc"},
        "published": {"inference": "hmc", **published_options(per_class)},
    }
    if reduction.evaluate and reduction.evaluate["inference"] != "hmc":
        ways["preset's own"] = dict(reduction.evaluate)
    for protocol, way in ways.items():
        began = time.monotonic()
        found = api.evaluate(
            coreset,
            data,
            seeds=arguments.seeds,
            published=protocol == "published",
            setup={"experts": None},
            **way,
        )
        evaluations[protocol], times[protocol] = found, round(time.monotonic() - began, 1)
    record = {
        "preset": name, "changes": {"setup": name_values(arguments.setup), "options": name_values(arguments.set)}, "config": reduction.to_config(),
        "status": made["status"], "note": made["note"], "num_steps": made["num_steps"], "seconds": times, "experts": trained,
        "peak_memory_mib": made["peak_memory_mib"], "evaluations": evaluations,
        "date": str(date.today()), "commit": arguments.commit, "hardware": hardware(), "versions": versions(),
    }  # fmt: skip
    write_json(arguments.out / f"{stem}.json", record)
    scores = {
        protocol: {
            metric: f"{one['metrics'][metric]['mean']:.4f} ± {one['metrics'][metric]['sd'] or 0:.4f}"
            for metric in ("accuracy", "nll")
        }
        for protocol, one in evaluations.items()
    }
    print(stem, times, scores, flush=True)


if __name__ == "__main__":
    main()
