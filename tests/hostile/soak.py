"""One process that reduces, evaluates, compares and reads, round after round: memory and open files
must stay flat.

    python tests/hostile/soak.py --minutes 5
"""

import argparse
import contextlib
import gc
import io
import json
import os
import shlex
import sys
import tempfile
import time
from pathlib import Path

import torch

from pseudocore.cli.main import main

ROUND = (
    "reduce dm digits --ipc 1 --model linear --num-steps 20 --out run --overwrite",
    "evaluate run --inference sgd --num-steps 10 --seeds 2",
    "evaluate run --inference hmc --num-draws 4 --num-burn 4 --num-chains 1 --seeds 1",
    "reduce herding digits --ipc 1 --out other --overwrite",
    "compare run",
    "data info digits",
)
WARM = 5
PER_ROUND = 0.5
"""MiB that memory may grow a round, fitted over the second half."""


def _code(line: str) -> object:
    try:
        main(shlex.split(line))
    except SystemExit as stop:
        return stop.code
    return 0


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def slope(values: list[float]) -> float:
    """Least squares: growth a round."""
    y = torch.tensor(values, dtype=torch.float64)
    x = torch.arange(len(y), dtype=torch.float64)
    x = x - x.mean()
    return float((x @ (y - y.mean())) / (x @ x).clamp(min=1))


def rounds(seconds: float) -> dict[str, object]:
    memory, files = [], []
    began = time.monotonic()
    while len(memory) < 2 * WARM or time.monotonic() - began < seconds:
        for line in ROUND:
            said = io.StringIO()
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                code = _code(line)
            assert not code, said.getvalue()
        gc.collect()
        memory.append(resident_mib())
        files.append(len(os.listdir("/proc/self/fd")))
    late = memory[len(memory) // 2 :]
    growth = slope(late)
    return {
        "what": "soak", "rounds": len(memory), "mib_first": round(memory[WARM], 1),
        "mib_last": round(memory[-1], 1), "mib_a_round": round(growth, 3),
        "files_first": files[WARM], "files_last": files[-1],
        "ok": growth < PER_ROUND and files[-1] <= files[WARM],
    }  # fmt: skip


def run() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["PSEUDOCORE_CACHE"] = str(Path(folder) / "cache")
        found = rounds(60 * given.minutes)
        os.chdir("/")
    text = json.dumps(found) + "\n"
    if given.out is not None:
        given.out.write_text(text)
    print(text, end="")
    return 0 if found["ok"] else 1


if __name__ == "__main__":
    sys.exit(run())
