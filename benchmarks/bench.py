"""`pseudocore bench` for a machine with torch and this source tree alone.

PYTHONPATH=src python benchmarks/bench.py --names vbpc bpc-fkl --set precision=bf16 --out bench.json
"""

import argparse
from pathlib import Path

from cells import name_values

from pseudocore.core import config
from pseudocore.reproduce.bench import formatting, plan, tasks
from pseudocore.reproduce.bench.workload import SIZES, Workload, device_of
from pseudocore.store.files import write_json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", nargs="*", default=[*plan.default_methods(), *tasks.PARTS])
    parser.add_argument("--growth", nargs="*", default=plan.GROWTH_METHODS)
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--compile", choices=["auto", "on", "off"], default="auto")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--commit", default="")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    device = device_of(given.device)
    size = config.to_dict(SIZES["full" if device == "cuda" else "small"])
    document = plan.run(
        config.build(Workload, {**size, **name_values(given.set)}, what="workload"),
        names=given.names,
        growing=given.growth,
        device=device,
        compile=given.compile,
        seconds=given.seconds,
        commit=given.commit,
        on_ceilings=lambda found: print(formatting.ceilings_line(found), formatting.HEADER),
        on_row=lambda row: print(formatting.row_line(row), flush=True),
        on_curve=lambda curve: print(formatting.curve_line(curve), flush=True),
    )
    print(*formatting.closing_lines(document), sep="\n")
    write_json(given.out, document)


if __name__ == "__main__":
    main()
