"""`pseudocore size digits --within 0.05 --methods uniform,herding,vbpc,psvi --model linear`, timed, and
again by other seeds.

    PYTHONPATH=src python benchmarks/size_digits.py --seeds 0 10 --commit HASH --out size.jsonl

A record for each first seed: the answer, all rows, and the seconds from data to answer.
"""

import argparse
import shlex
import sys
from pathlib import Path

from cells import made_here, name_values

import pseudocore
from pseudocore.reproduce import records


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--within", type=float, default=0.05)
    add("--methods", nargs="+", default=["uniform", "herding", "vbpc", "psvi"])
    add("--budgets", type=int, nargs="+", default=[1, 2, 5, 10, 20, 50])
    add("--setup", action="append", default=[], metavar="NAME=VALUE", help="beside model=linear")
    add("--seeds", type=int, nargs="+", default=[0, 10], help="the first of each search")
    add("--device", default="cpu")
    add("--commit", default="unknown")
    add("--out", type=Path, required=True, help="file of records")
    arguments = parser.parse_args()
    setup = {"model": "linear", **name_values(arguments.setup)}
    for seed in arguments.seeds:
        found = pseudocore.size(
            "digits",
            within=arguments.within,
            methods=arguments.methods,
            budgets=arguments.budgets,
            seed=seed,
            device=arguments.device,
            on_row=lambda row, done, total: print(f"{done}/{total}", row, flush=True),
            **setup,
        )
        record = {
            "name": f"size/digits/{setup['model']}/within{arguments.within:g}/seed{seed}",
            **found.to_dict(),
            "sentence": found.sentence(),
            "command": shlex.join(["python", *sys.argv]),
            **made_here(arguments.commit),
        }
        records.put(arguments.out, record)
        print(found.table(), found.sentence(), f"{found.seconds:.0f} s", sep="\n", flush=True)


if __name__ == "__main__":
    main()
