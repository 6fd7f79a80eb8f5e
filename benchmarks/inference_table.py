"""Coresets × inferences: accuracy, NLL, calibration and mixing; corruptions and networks if asked.

    PYTHONPATH=src python benchmarks/inference_table.py a.safetensors --out results --seconds 240
    PYTHONPATH=src python benchmarks/inference_table.py --uniform fashion-mnist --severity 1 3 5
    PYTHONPATH=src python benchmarks/inference_table.py a.safetensors --model convnet3 resnet18

A record for every coreset in OUT/inference.jsonl, written after every cell; run again with more
time, it resumes. Each inference runs with its defaults, changed by `--set inference.option=value`,
over `--seeds` fresh networks or sets of chains; a table closes the run.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from cells import Cell, add_arguments, coresets, fill, name_values, test_points

from pseudocore import api
from pseudocore.core.types import Coreset, Dataset
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
    add = parser.add_argument
    add("--inference", nargs="+", default=list(INFERENCES))
    add("--model", nargs="+", default=[None], help="networks to fit; default the coreset's own")
    add("--augment", help="of a-sghmc, as color_crop_cutout_flip_scale_rotate")
    add("--severity", type=int, nargs="*", default=[], help="also score all corruptions at these")
    add("--num-robust", type=int, default=1000)
    add("--seeds", type=int, default=3)
    add("--set", action="append", default=[], metavar="INFERENCE.OPTION=VALUE")
    arguments = parser.parse_args()
    records = []
    for name, coreset in coresets(arguments):
        record = {
            "name": name,
            "coreset": name,
            "points": len(coreset),
            "provenance": dict(coreset.provenance),
            "commit": arguments.commit,
        }
        problem = api.build_problem(
            coreset, arguments.data, device=arguments.device, **name_values(arguments.setup)
        )
        data = replace(problem.data, test=test_points(problem, arguments.num_test))
        found = jobs(coreset, data, arguments)
        records.append(fill(arguments.out / "inference.jsonl", record, found, arguments.seconds))
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
            coreset,
            data,
            inference=inference,
            seeds=arguments.seeds,
            first_seed=arguments.seed,
            device=arguments.device,
            setup=setup,
            severities=arguments.severity,
            num_robust=arguments.num_robust,
            **own,
        )
        cell = {**found, "setup": setup}
        if mixing := [one["predictions"] for one in found.get("diagnostics", [])]:
            cell["rhat"] = max(one["rhat"] for one in mixing)
            cell["ess_bulk"] = min(one["ess_bulk"] for one in mixing)
        return cell

    return run


def show(records: list[dict[str, Any]]) -> None:
    titles = " ".join(f"{name:>14}" for name in COLUMNS)
    print(f"{'coreset':<34} {'model':<12} {'inference':<14} {titles}   R-hat    ESS")
    for record in records:
        for cell in record["cells"]:
            key, metrics = cell["key"], cell.get("metrics", {})
            numbers = [
                format_metric(*metrics[name].values()) if name in metrics else "–"
                for name in COLUMNS
            ]
            mixing = [
                f"{cell[name]:7.2f}" if name in cell else f"{'–':>7}"
                for name in ("rhat", "ess_bulk")
            ]
            text = " ".join(f"{number:>14}" for number in numbers) if metrics else cell["error"]
            about = f"{record['coreset'][:34]:<34} {key['model']:<12} {key['inference']:<14}"
            print(about, text, *mixing)


if __name__ == "__main__":
    main()
