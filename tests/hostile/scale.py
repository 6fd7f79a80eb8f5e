"""Selectors on 1,000,000 × 100 numbers under a limit of virtual memory (4 GiB, as `ulimit -v` sets).

    python tests/hostile/scale.py --methods herding el2n --out scale.jsonl

A selector finishes, is stopped for want of time, or refuses with one sentence; anything else is a failure.
"""

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from pseudocore.core.registry import methods

GIB = 2**30


def write_data(folder: Path, n: int, d: int) -> None:
    """Two classes, as .npy files, which are mapped and not read whole."""
    rng = np.random.default_rng(0)
    for half, size in (("train", n), ("test", 1000)):
        y = rng.integers(0, 2, size)
        x = np.lib.format.open_memmap(folder / f"{half}_x.npy", "w+", np.float32, (size, d))
        for start in range(0, size, 50_000):
            part = slice(start, min(start + 50_000, size))
            x[part] = rng.normal(size=x[part].shape) + y[part, None] * 0.3
        x.flush()
        np.save(folder / f"{half}_y.npy", y)


def one(method: str, data: Path, limit: int, seconds: float) -> dict[str, Any]:
    """One selector in a process of its own."""
    words = ["reduce", method, str(data), "--points", "20", "--model", "linear", "--quiet"]
    options = {"pretrain_epochs": ["--pretrain-epochs", "1"], "num_steps": ["--num-steps", "50"]}
    fields = getattr(methods[method].make, "__dataclass_fields__", {})
    for field, given in options.items():
        words += given if field in fields else []
    words += ["--out", str(data.parent / "run"), "--overwrite", "--device", "cpu"]

    def limited() -> None:
        if limit:
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "pseudocore", *words], stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL, preexec_fn=limited, text=True, start_new_session=True,
    )  # fmt: skip
    signal.signal(signal.SIGALRM, lambda *_: process.kill())
    signal.setitimer(signal.ITIMER_REAL, seconds)
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    code = os.waitstatus_to_exitcode(status)
    last = said.strip().splitlines()[-1:] or [""]
    outcome = {0: "finished", 2: "refused", -signal.SIGKILL: "too slow"}.get(code, "failed")
    return {
        "what": "scale", "method": method, "outcome": outcome, "code": code,
        "seconds": round(time.monotonic() - began, 1), "peak_mib": usage.ru_maxrss // 1024,
        "said": last[0][:300] if outcome != "finished" else "",
    }  # fmt: skip


def main() -> int:
    selectors = [entry.name for entry in methods if entry.kind == "select"]
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--methods", nargs="+", choices=methods.names(), default=selectors)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument(
        "--gib", type=float, default=4.0,
        help="Limit of virtual memory; 0 for none, as torch for CUDA maps more than that.",
    )  # fmt: skip
    parser.add_argument("--share", default="0/1", help="PART/PARTS: every PARTS-th method.")
    parser.add_argument("--seconds", type=float, default=600, help="A selector may take this long.")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    text, bad = "", False
    with tempfile.TemporaryDirectory() as name:
        data = Path(name) / "data"
        data.mkdir()
        write_data(data, given.rows, given.columns)
        part, parts = map(int, given.share.split("/"))
        for method in given.methods[part::parts]:
            record = one(method, data, int(given.gib * GIB), given.seconds)
            bad |= record["outcome"] == "failed"
            text += json.dumps(record) + "\n"
            print(text.splitlines()[-1], flush=True)
            if given.out is not None:
                given.out.write_text(text)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
