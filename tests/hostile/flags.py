"""Odd command lines in one process: each must run, or be refused with one sentence.

    python tests/hostile/flags.py --inputs 10000 --seed 0 --out flags.jsonl

A line that runs is stopped after a second. Line number n of a seed is always the same.
"""

import argparse
import contextlib
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import fuzz
import torch

from pseudocore.cli.main import VERBS, load, main
from pseudocore.core.registry import inferences, methods

LONGEST = 1.0
MEMORY = 6 << 30

ODD = (
    *("0", "1", "-1", "2", "3.5", "nan", "inf", "-inf", "1e999", "9" * 5000, "0x10", "1_000", "٣"),
    *(
        "",
        " ",
        "none",
        "None",
        "true",
        "no",
        "auto",
        "all",
        "x" * 4000,
        "\x1b[2J",
        "a\nb",
        "é",
        "👾",
    ),
    *(
        "../..",
        "/dev/null",
        "/dev/zero",
        "/",
        ".",
        "~",
        "run",
        "set.npz",
        "digits",
        "moons",
        "nothing",
    ),
    *("1,2,,3", "a=b", "=", "--", "-", "[]", "{}", "os:abort", "linear", "mlp", "sgd", "hmc", "%s"),
    *(str(2**31), str(2**63), str(2**64), "-0", "1e-300", ".5", "100000"),
)


class Enough(BaseException):
    """The line has run for long enough."""


class Lines:
    """Command lines, with the interface of `fuzz.Seeds`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.readers = folder, dict.fromkeys(VERBS)
        self.environment = dict(os.environ)
        self.flags: dict[tuple[str, ...], list[str]] = {}
        (folder / "whole").mkdir()
        os.chdir(folder / "whole")
        import numpy as np

        x, y = np.random.default_rng(0).normal(size=(40, 4)), np.arange(40) % 2
        np.savez("set.npz", train_x=x, train_y=y, test_x=x[:9], test_y=y[:9])
        for line in (
            "reduce uniform set.npz --ipc 1 --out run",
            "evaluate run --inference sgd --num-steps 2 --seeds 1",
        ):
            said = io.StringIO()
            hush = contextlib.redirect_stdout(said), contextlib.redirect_stderr(said)
            with contextlib.suppress(SystemExit), hush[0], hush[1]:
                main(line.split())
        assert Path("run/coreset.safetensors").exists()

    def mutant(self, seed: int, number: int) -> tuple[str, Path, bytes]:
        chance = random.Random(f"{seed}-{number}")
        verb = sorted(VERBS)[number % len(VERBS)]
        head = [verb]
        if verb == "reduce":
            head.append(chance.choice([entry.name for entry in methods]))
        if verb in ("evaluate", "fidelity"):
            head += ["run", "--inference", chance.choice([entry.name for entry in inferences])]
        head += {
            "reduce": ["set.npz", "--out", "new"],
            "experts": ["set.npz", "--out", "new", "--num", "1"],
            "size": ["set.npz", "--out", "new", "--within", "1"],
            **{verb: ["run"] for verb in ("compare", "continual", "rank", "report")},
            "export": ["run", "x.npz"], "adopt": ["set.npz", "digits", "--out", "x.safetensors"],
            "data": [chance.choice(("list", "info", "import")), "set.npz"],
            "cache": [chance.choice(("info", "clear"))], "table": ["digits", "--cells", "ipc1-*"],
            "completion": ["show", "bash"], "presets": ["kim2022/cifar10-ipc1-dm"],
        }.get(verb, [])  # fmt: skip
        if verb == "report":
            head += ["--out", "page.html"]
        words, flags = list(head), self._flags(tuple(head))
        for _ in range(chance.choice((1, 1, 2, 3))):
            kind = chance.randrange(10)
            if kind < 7 and flags:
                flag = chance.choice(flags)
                value = [] if chance.random() < 0.2 else [chance.choice(ODD)]
                joined = (
                    [f"{flag}={value[0]}"] if value and chance.random() < 0.5 else [flag, *value]
                )
                words += joined
            elif kind == 7:
                words.insert(chance.randrange(len(words) + 1), chance.choice(ODD))
            elif kind == 8 and len(words) > 1:
                del words[chance.randrange(1, len(words))]
            else:
                words[chance.randrange(len(words))] = chance.choice(ODD)
        return verb, Path("line"), json.dumps(words).encode()

    def _flags(self, head: tuple[str, ...]) -> list[str]:
        """Every flag of a verb, given the words before."""
        if head not in self.flags:
            found: list[str] = ["--quiet", "--no-lock", "--data-limit", "--help"]
            app: Any = load(head[0], list(head[1:]))
            if len(head) > 1 and head[1] in app:
                app = app[head[1]]
            with contextlib.suppress(ValueError):  # a verb of verbs
                for argument in app.assemble_argument_collection():
                    found += [name for name in argument.names if name.startswith("--")]
            self.flags[head] = sorted(set(found))
        return self.flags[head]

    def outcome(self, name: str, file: Path, content: bytes) -> tuple[str, str]:
        """Whether the line ran or was told off, or what went wrong."""
        words = json.loads(content)
        here = self.folder / f"try-{os.getpid()}"
        shutil.rmtree(here, ignore_errors=True)
        shutil.copytree(self.folder / "whole", here)
        os.chdir(here)
        os.environ.clear()
        os.environ.update(self.environment, HOME=str(here), PSEUDOCORE_CACHE=str(here / "cache"))
        out, err = io.StringIO(), io.StringIO()
        code: Any = None

        def enough(*_: Any) -> None:
            raise Enough

        signal.signal(signal.SIGALRM, enough)
        signal.setitimer(signal.ITIMER_REAL, LONGEST)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                main(words)
        except Enough:
            return "ran", ""
        except SystemExit as stop:
            code = stop.code or 0
        except BaseException as error:
            return "traceback", f"{words}\n" + "".join(traceback.format_exception(error))[-2500:]
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            os.chdir(self.folder)
            shutil.rmtree(here, ignore_errors=True)
        text = err.getvalue()
        if code in (0, 3, 130):
            return "ran", ""
        if code != 2 or "Traceback" in text:
            return ("ran", "") if "Enough" in text else ("traceback", f"{words}\n{text[-2500:]}")
        last = [line for line in text.splitlines() if line.startswith("pseudocore: ")]
        if len(last) != 1 or not text.endswith(f"{last[0]}\n") or "\x1b" in text:
            return "not-one-sentence", f"{words}\n{text[-1500:]!r}"
        return "told", ""


def run() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    fuzz.HANG = 30.0  # a step or a look at the data may take longer than the alarm is heard
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        lines: Any = Lines(Path(folder))
        found = fuzz.run(lines, given.seed, range(given.first, given.first + given.inputs))
        os.chdir("/")
    bad = [one for one in found if one["kind"].startswith(fuzz.BAD)]
    kinds = Counter(one["kind"] for one in found)
    summary = {"what": "flags", "inputs": len(found), "seed": given.seed, **kinds}
    summary["seconds"] = round(time.monotonic() - began, 1)
    text = "".join(json.dumps(one) + "\n" for one in (*bad, summary))
    if given.out is not None:
        given.out.write_text(text)
    print(text, end="")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(run())
