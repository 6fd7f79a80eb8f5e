"""`pseudocore bench` without the command line's dependencies, for a machine that has torch and this
source tree alone.

PYTHONPATH=src python benchmarks/bench.py --out bench.json --seconds 120 --methods vbpc bpc-fkl
--commit $(git rev-parse --short HEAD)
"""

import argparse
from pathlib import Path

from pseudocore.core import config
from pseudocore.reproduce.bench import formatting as lines
from pseudocore.reproduce.bench import plan, tasks
from pseudocore.reproduce.bench.workload import SIZES, device_of
from pseudocore.store.files import decode_json, write_json


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--commit", default="", help="kept beside the numbers")
    parser.add_argument(
        "--seconds", type=float, default=90.0, help="after which nothing new is begun"
    )
    parser.add_argument("--methods", nargs="*", default=plan.usual_methods())
    parser.add_argument("--parts", nargs="*", default=tuple(tasks.PARTS))
    parser.add_argument(
        "--growth",
        nargs="*",
        default=plan.GROWING,
        help="methods whose cost is measured against sizes",
    )
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--compile", choices=["auto", "on", "off"], default="auto")
    parser.add_argument(
        "--size", choices=sorted(SIZES), help="full on a GPU, small on a CPU unless told"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a field of the workload, as precision=bf16",
    )
    arguments = parser.parse_args()
    device = device_of(arguments.device)
    size = arguments.size or ("full" if device == "cuda" else "small")
    changes = {name: decode_json(value) if value[:1].isdigit() or value in ("true", "false") else value
               for name, _, value in (pair.partition("=") for pair in arguments.set)}  # fmt: skip
    workload = config.build(
        type(SIZES[size]), {**config.to_dict(SIZES[size]), **changes}, what="workload"
    )
    document = plan.run(
        workload,
        names=[*arguments.methods, *arguments.parts],
        growing=arguments.growth,
        device=device,
        compile=arguments.compile,
        seconds=arguments.seconds,
        commit=arguments.commit,
        on_ceilings=lambda ceilings: print(
            lines.of_ceilings(ceilings), lines.HEADER, sep="\n", flush=True
        ),
        on_row=lambda row: print(lines.of_row(row), flush=True),
        on_curve=lambda curve: print(lines.of_curve(curve), flush=True),
    )
    print(*lines.closing(document), sep="\n")
    if arguments.out is not None:
        write_json(arguments.out, document)


if __name__ == "__main__":
    main()
