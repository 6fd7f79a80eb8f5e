"""Coresets × inferences: accuracy, NLL, calibration, mixing, and, when asked for, corruptions and
other architectures.

    PYTHONPATH=src python benchmarks/inference_table.py uniform.safetensors vbpc.safetensors --out
    results --seconds 240 PYTHONPATH=src python benchmarks/inference_table.py --uniform
    fashion-mnist --ipc 10 --severity 1 3 5 --out results PYTHONPATH=src python
    benchmarks/inference_table.py a.safetensors --inference sgd --model convnet3 resnet18 vgg11
    alexnet --out results

For every coreset one JSON, written after every cell; run again with more time, it goes on where it
stopped. Each inference runs with its defaults, unless `--set inference.option=value` says
otherwise, over `--seeds` fresh networks or sets of chains; a table closes the run.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from cells import Cell, add_arguments, coresets, fill, name_values

from pseudocore import api
from pseudocore.core.types import Coreset, Dataset, Examples
from pseudocore.evaluation.names import format_metric

INFERENCES = ("last-layer-vi", "laplace", "sgd", "ensemble", "sgld", "a-sghmc", "hmc")
AUGMENTED = "a-sghmc"
"""Kim et al.'s Algorithm 3 is stochastic through its augmentation alone."""

COLUMNS = ("accuracy", "nll", "ece", "brier", "corrupted_accuracy")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--inference", nargs="+", default=list(INFERENCES))
    parser.add_argument(
        "--model", nargs="+", default=[None], help="networks to fit; unless told, the coreset's own"
    )
    parser.add_argument(
        "--augment", help="augmentation of a-sghmc, as color_crop_cutout_flip_scale_rotate"
    )
    parser.add_argument(
        "--severity",
        type=int,
        nargs="*",
        default=[],
        help="also score all corruptions at these severities",
    )
    parser.add_argument("--num-robust", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="INFERENCE.OPTION=VALUE")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    records = []
    for name, coreset in coresets(arguments):
        about = {
            "coreset": name,
            "points": len(coreset),
            "provenance": dict(coreset.provenance),
            "commit": arguments.commit,
        }
        path = arguments.out / f"inference-{name}.json"
        data = api.build_problem(
            coreset, arguments.data, device=arguments.device, **name_values(arguments.setup)
        ).data
        data = replace(
            data,
            test=Examples(data.test.x[: arguments.num_test], data.test.y[: arguments.num_test]),
        )
        records.append(fill(path, about, jobs(coreset, data, arguments), arguments.seconds))
    show(records)


def jobs(
    coreset: Coreset, data: Dataset, arguments: argparse.Namespace
) -> Iterator[tuple[Cell, Callable[[], Cell]]]:
    for model in arguments.model:
        for inference in arguments.inference:
            own = {
                name.removeprefix(f"{inference}."): value
                for name, value in name_values(arguments.set).items()
                if name.startswith(f"{inference}.")
            }
            setup = name_values(arguments.setup) | ({"model": model} if model is not None else {})
            if inference == AUGMENTED and arguments.augment:
                setup["augment"] = arguments.augment
            key = {"model": model or "own", "inference": inference, "options": own}
            key |= {"severities": arguments.severity} if arguments.severity else {}
            yield key, job(coreset, data, inference, own, setup, arguments)


def job(
    coreset: Coreset,
    data: Dataset,
    inference: str,
    own: dict[str, Any],
    setup: dict[str, Any],
    arguments: argparse.Namespace,
) -> Callable[[], Cell]:
    def run() -> Cell:
        found = api.evaluate(
            coreset, data, inference=inference, seeds=arguments.seeds, first_seed=arguments.seed, device=arguments.device,
            setup=setup, severities=arguments.severity, num_robust=arguments.num_robust, **own,
        )  # fmt: skip
        mixing = [one["predictions"] for one in found.get("diagnostics", [])]
        worst = (
            {
                "rhat": max(one["rhat"] for one in mixing),
                "ess_bulk": min(one["ess_bulk"] for one in mixing),
            }
            if mixing
            else {}
        )
        return {**found, "setup": setup, **worst}

    return run


def show(records: list[dict[str, Any]]) -> None:
    print(
        f"{'coreset':<34} {'model':<12} {'inference':<14} "
        + " ".join(f"{name:>14}" for name in COLUMNS)
        + "   R-hat    ESS"
    )
    for record in records:
        for cell in record["cells"]:
            key, metrics = cell["key"], cell.get("metrics", {})
            numbers = [
                format_metric(*metrics[name].values()) if name in metrics else "–"
                for name in COLUMNS
            ]
            mixing = [
                f"{cell[name]:7.2f}" if name in cell else "      –" for name in ("rhat", "ess_bulk")
            ]
            words = (
                " ".join(f"{number:>14}" for number in numbers)
                if metrics
                else cell.get("error", "")
            )
            print(
                f"{record['coreset'][:34]:<34} {key['model']:<12} {key['inference']:<14} {words} {' '.join(mixing)}"
            )


if __name__ == "__main__":
    main()
