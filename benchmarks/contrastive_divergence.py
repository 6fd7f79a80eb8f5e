"""bpc-cd in its three forms beside bpc-fkl and real images.

    PYTHONPATH=src python benchmarks/contrastive_divergence.py digits --ipc 1 5 10
    PSEUDOCORE_DATA=DIR PYTHONPATH=src python benchmarks/contrastive_divergence.py mnist --ipc 1

The forms differ in the Langevin noise alone: `posterior` (the default, that of N data points),
`published` (noise_scale 1) and `none` (noise_scale 0, the authors' loop). Experts are trained once
for all; each coreset is the last iterate, scored on fresh networks by every `--inference`. A cell
for each method, size and seed in OUT/contrastive.jsonl, written when it is done; after `--seconds`
the same command resumes. `--on train` scores on training images, to choose settings; a record
under `--tag` keeps such runs apart. `--pack DIR` writes the subset of the data that the settings
use into DIR and stops: all that another machine needs.
"""

import argparse
import itertools
import statistics
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from cells import SCORES, Cell, fill, made_here, name_values

from pseudocore import api
from pseudocore.core.types import Dataset, Examples
from pseudocore.data import load
from pseudocore.data.arrays import write_npz

NUM_SCORED = 10_000
"""Points that a network is scored on, at most."""

FORMS: dict[str, dict[str, float]] = {
    "posterior": {},
    "published": {"noise_scale": 1.0},
    "none": {"noise_scale": 0.0},
}


@dataclass(frozen=True)
class Settings:
    """Of one data set on one kind of machine."""

    setup: dict[str, Any]
    experts: dict[str, Any]
    both: dict[str, Any]
    """Options of bpc-cd and bpc-fkl, whose inner steps are of one size, `STEP`."""
    sgd: dict[str, Any]
    num_train: int | None = None
    """Training points, the first of the file; all of them by default."""
    num_test: int | None = None


SETUP = {"model": "convnet3", "width": 16, "depth": 2}
STEP = 0.05
"""Of bpc-fkl's inner steps, and of the drift of bpc-cd's."""
WALK = {"num_inner_steps": 20, "initial": "real"}
DIGITS = Settings(
    setup=SETUP,
    experts={"num": 5, "epochs": 10, "lr": 0.05, "batch_size": 64},
    both={"num_steps": 100, "image_lr": 10.0, "max_start": 10, **WALK},
    sgd={"num_steps": 150, "step_size": 0.02},
)
SMALL = Settings(
    setup=SETUP,
    experts={"num": 3, "epochs": 6, "lr": 0.05, "batch_size": 64},
    both={"num_steps": 200, "image_lr": 300.0, "max_start": 3, **WALK},
    sgd={"num_steps": 200, "step_size": 0.02},
    num_train=5_000,
    num_test=2_000,
)
"""MNIST and Fashion-MNIST on two cores. These and those of the digits were chosen on MNIST's and
the digits' training images.
"""

LARGE = Settings(
    setup={"model": "convnet3", "precision": "bf16"},
    experts={"num": 10, "epochs": 6, "lr": 0.03, "batch_size": 128},
    both={"num_steps": 1000, "image_lr": 300.0, "max_start": 5, **WALK},
    sgd={"num_steps": 600, "step_size": 0.01},
    num_train=8_000,
    num_test=2_000,
)
"""A GPU and the published network; otherwise chosen as the small ones, and by hand."""

PUBLIC = {
    1: {"image_lr": 1.0, "max_start": 2, "langevin_step": 0.01, "num_inner_steps": 10},
    10: {"image_lr": 1000.0, "max_start": 6, "langevin_step": 0.01, "num_inner_steps": 10},
}
"""The authors' settings of bpc-cd for CIFAR-10 (`max_start` is 8 at 10), for 3,000 steps of 5,000.
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("data", nargs="+")
    add("--ipc", type=int, nargs="+", default=[1])
    add("--seeds", type=int, default=3, help="coresets of every method")
    add("--networks", type=int, default=1, help="that score each of them")
    add("--methods", nargs="+", default=["uniform", "bpc-fkl", *FORMS], help="and forms of bpc-cd")
    add("--inference", nargs="+", default=["sgd"])
    add("--on", choices=["test", "train"], default="test")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="of bpc-cd and bpc-fkl")
    add("--tag", default="", help="added to the names of the records")
    add("--seconds", type=float, help="for each data set; the rest is done when run again")
    add("--device", default="auto")
    add("--all", action="store_true", help="all images, not the first of each half")
    add("--large", action="store_true", help="the settings for a GPU, which CIFAR-10 always has")
    add("--public", action="store_true", help="bpc-cd by its authors' settings for CIFAR-10")
    add("--experts", type=Path, help="folder of experts; defaults to OUT/experts")
    add("--pack", type=Path, metavar="DIR")
    add("--commit", default="unknown")
    add("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    for name in arguments.data:
        settings = settings_of(name, arguments)
        data = part(load(name), settings)
        if arguments.pack is None:
            table(bench(name, data, settings, arguments), arguments.inference)
        else:
            arguments.pack.mkdir(parents=True, exist_ok=True)
            write_npz(arguments.pack / f"{name}.npz", data)


def settings_of(name: str, arguments: argparse.Namespace) -> Settings:
    if name == "digits":
        return DIGITS
    settings = LARGE if arguments.large or "cifar" in name else SMALL
    return replace(settings, num_train=None, num_test=None) if arguments.all else settings


def part(data: Dataset, settings: Settings) -> Dataset:
    train, test = (
        Examples(half.x[:num], half.y[:num])
        for half, num in ((data.train, settings.num_train), (data.test, settings.num_test))
    )
    return replace(data, train=train, test=test)


def bench(
    name: str, data: Dataset, settings: Settings, arguments: argparse.Namespace
) -> dict[str, Any]:
    name, large = Path(name).stem, settings.setup == LARGE.setup
    experts = (arguments.experts or arguments.out / "experts") / f"{name}{'-large' * large}"
    tags = ("large" * large, "all" * arguments.all, "public" * arguments.public, arguments.tag)
    record = {
        "name": "-".join(filter(None, [name, *tags])),
        "num_train": len(data.train.y),
        "num_test": len(data.test.y),
        "evaluated_on": arguments.on,
        "setup": settings.setup,
        "experts": settings.experts,
        "sgd": settings.sgd,
        **made_here(arguments.commit),
    }

    def options_of(method: str, ipc: int) -> dict[str, Any]:
        if method == "uniform":
            return {}
        own = {"inner_lr": STEP, "num_draws": 3}
        if method in FORMS:
            own = {"langevin_step": 2 * STEP, **FORMS[method]}
            own |= {"num_steps": 3000, **PUBLIC[ipc]} if arguments.public else {}
        return {**settings.both, **own, **name_values(arguments.set)}

    def job(method: str, ipc: int, seed: int) -> Cell:
        setup = {**settings.setup, "device": arguments.device}
        if method != "uniform":
            api.train_experts(data, out=experts, **setup, **settings.experts)
            setup["experts"] = str(experts)
        options = options_of(method, ipc)
        name = "bpc-cd" if method in FORMS else method
        made = api.reduce(name, data, per_class=ipc, seed=seed, **options, **setup)
        return {
            "options": options,
            "reduction_seconds": round(made.seconds, 2),
            "last": made.history[-1] if made.history else {},
            **{inference: scored(made, inference, seed) for inference in arguments.inference},
        }

    def scored(made: api.ReduceResult, inference: str, seed: int) -> dict[str, float]:
        half = data.train if arguments.on == "train" else data.test
        judge = replace(data, test=Examples(half.x[:NUM_SCORED], half.y[:NUM_SCORED]))
        options = settings.sgd if inference == "sgd" else {}
        found = api.evaluate(
            made,
            judge,
            inference=inference,
            seeds=arguments.networks,
            first_seed=seed * arguments.networks,
            device=arguments.device,
            **options,
        )
        return {name: round(found["metrics"][name]["mean"], 5) for name in SCORES}

    keys = [
        {"method": method, "ipc": ipc, "seed": seed}
        for ipc, seed, method in itertools.product(
            arguments.ipc, range(arguments.seeds), arguments.methods
        )
    ]
    jobs = ((key, partial(job, **key)) for key in keys)
    return fill(arguments.out / "contrastive.jsonl", record, jobs, arguments.seconds)


def table(record: dict[str, Any], inferences: list[str]) -> None:
    """Mean and standard deviation over the seeds."""
    cells = [cell for cell in record["cells"] if "error" not in cell]
    for ipc, method in dict.fromkeys((cell["key"]["ipc"], cell["key"]["method"]) for cell in cells):
        mine = [
            cell for cell in cells if (cell["key"]["ipc"], cell["key"]["method"]) == (ipc, method)
        ]
        for inference, score in itertools.product(inferences, ("accuracy", "nll")):
            values = [cell[inference][score] for cell in mine if inference in cell]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            print(
                f"{record['name']} {ipc:3d} {method:10s} {inference} {score} "
                f"{statistics.mean(values):.3f} ± {spread:.3f} ({len(values)})"
            )


if __name__ == "__main__":
    main()
