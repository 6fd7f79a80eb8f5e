"""Kills, concurrent writers and concurrent evaluations, on files of its own in a temporary folder.

    python tests/hostile/chaos.py kills --num 200
    python tests/hostile/chaos.py pairs --num 10000
    python tests/hostile/chaos.py evaluations --rounds 20 --at-once 8

Each prints a line of JSON, and ends with 1 where a result was corrupt, refused or not the same bit
for bit. It needs no rights, and as root works in a new temporary folder alone.
"""

import argparse
import contextlib
import json
import os
import random
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from pseudocore.core.errors import ArtifactError
from pseudocore.store.coreset_file import read_tensors, write_tensors

_SMALL = "--model linear"
COMMANDS = {
    "reduce": f"reduce dm digits --ipc 1 {_SMALL} --num-steps 120 --checkpoint-every 10 --out out --resume",
    "experts": f"experts digits {_SMALL} --num 6 --group 1 --epochs 4 --out out",
    "evaluate": "evaluate out --inference sgd --num-steps 100 --seeds 6",
    "table": "table digits --cells ipc1-uniform* --seeds 2 --out out --work out/work",
    "size": f"size digits --within 0.001 --methods uniform,herding --budgets 1,2 {_SMALL} --out out"
    " --inference last-layer-vi",
}
"""Commands that are killed and typed again until they end."""

_VOLATILE = {
    *(
        "seconds",
        "cost",
        "created",
        "command",
        "resumed",
        "num_seconds",
        "reduction_cost",
        "config",
    ),
    *(
        "peak_memory_mib",
        "peak_mib",
        "hardware",
        "written",
        "date",
        "time",
        "ended",
        "digest",
        "versions",
    ),
}
_BOOKKEEPING = {"checkpoint.safetensors", "manifest.json", "config.toml"}


def child(
    line: str,
    folder: Path,
    log: Path,
    around: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> int:
    """A process that runs one command line in a folder, within `around()`; its number."""
    if process := os.fork():
        return process
    code = 1
    try:
        os.setsid()
        os.chdir(folder)
        target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for stream in (1, 2):
            os.dup2(target, stream)
        from pseudocore.cli.main import main as command

        with around():
            command(shlex.split(line))
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def ended(process: int) -> int:
    """The exit code of a child, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def results(folder: Path) -> dict[str, Any]:
    """What a folder holds, without times and places."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if hidden or not path.is_file() or path.name in _BOOKKEEPING:
            continue
        if path.suffix == ".safetensors":
            found[name] = {key: value.tolist() for key, value in load_file(path).items()}
        elif path.suffix in (".json", ".jsonl"):
            found[name] = [_scrubbed(json.loads(line)) for line in _documents(path)]
        else:
            found[name] = path.read_bytes()
    return found


def _documents(path: Path) -> list[str]:
    text = path.read_text()
    return text.splitlines() if path.suffix == ".jsonl" else [text]


def _scrubbed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _scrubbed(one) for key, one in value.items() if key not in _VOLATILE}
    return [_scrubbed(one) for one in value] if isinstance(value, list) else value


def kills(num: int, seed: int, verbs: list[str]) -> Iterator[dict[str, Any]]:
    """Each verb killed at random moments; its result must be that of an undisturbed run."""
    chance = random.Random(seed)
    for verb in verbs:
        killed = rounds = same = 0
        refused: list[str] = []
        with tempfile.TemporaryDirectory() as name:
            base = Path(name)
            os.environ["PSEUDOCORE_CACHE"] = str(base / "cache-straight")
            (base / "straight").mkdir()
            if verb == "evaluate":
                line = f"reduce uniform digits --ipc 1 {_SMALL} --out out"
                assert ended(child(line, base / "straight", base / "log")) == 0
            shutil.copytree(base / "straight", base / "start")
            began = time.monotonic()
            code = ended(child(COMMANDS[verb], base / "straight", base / "log"))
            assert code in (0, 3), (base / "log").read_text()[-2000:]
            duration, whole = time.monotonic() - began, results(base / "straight" / "out")
            assert whole, f"{verb} left nothing to compare"
            while killed < num and not refused:
                rounds += 1
                place = base / f"round-{rounds}"
                shutil.copytree(base / "start", place)
                os.environ["PSEUDOCORE_CACHE"] = str(place / "cache")
                wait = True
                while wait:
                    process = child(COMMANDS[verb], place, base / "log")
                    if killed < num:
                        time.sleep(chance.uniform(0, min(duration, 3.0)))
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(process, signal.SIGKILL)
                    again = ended(process)
                    if wait := again == -signal.SIGKILL:
                        killed += 1
                    elif again != code:
                        refused.append((base / "log").read_text()[-1000:])
                same += results(place / "out") == whole
                shutil.rmtree(place)
        yield {
            "what": "kills", "verb": verb, "kills": killed, "rounds": rounds, "identical": same, "files": len(whole),
            "seconds_undisturbed": round(duration, 2), "refused": refused,
            "ok": same == rounds and not refused,
        }  # fmt: skip


def pairs(num: int) -> Iterator[dict[str, Any]]:
    """Two processes that write one file at once; it must be one of both, and nothing else left."""
    corrupt, left, counts = 0, 0, [0, 0]
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "state.safetensors"
        gates = [os.pipe() for _ in range(2)]
        done = os.pipe()
        children = []
        for number, (start, _) in enumerate(gates):
            children.append(os.fork())
            if not children[-1]:
                for _, gate in gates:
                    os.close(gate)  # so that it ends when the parent does
                values = {"x": torch.full((256,), float(number))}
                code = 0
                try:
                    while os.read(start, 1) == b"g":
                        write_tensors(path, values, kind="state", header={"by": number})
                        os.write(done[1], b"d")
                except BaseException as error:
                    print(f"writer {number}: {error}", file=sys.stderr)
                    code = 1
                    os.write(done[1], b"xx")
                os._exit(code)
        try:
            for _ in range(num):
                for _, gate in gates:
                    os.write(gate, b"g")
                got = 0
                while got < 2:
                    answer = os.read(done[0], 2 - got)
                    if b"x" in answer:
                        raise SystemExit("a writer was refused")
                    got += len(answer)
                try:
                    tensors, header = read_tensors(path, kind="state")
                    counts[header["by"]] += 1
                    corrupt += bool((tensors["x"] != header["by"]).any())
                except ArtifactError:
                    corrupt += 1
            for _, gate in gates:
                os.write(gate, b"e")
            codes = [ended(process) for process in children]
            children = []
        finally:
            for process in children:
                os.kill(process, signal.SIGKILL)
                ended(process)
        left = len(list(Path(name).iterdir())) - 1
    yield {
        "what": "pairs", "pairs": num, "corrupt": corrupt, "left_over": left, "last_by": counts,
        "ok": not corrupt and not left and codes == [0, 0],
    }  # fmt: skip


def evaluations(rounds: int, at_once: int) -> Iterator[dict[str, Any]]:
    """Several processes that evaluate one run, half of them alike, at once."""
    refused = corrupt = 0
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        os.environ["PSEUDOCORE_CACHE"] = str(base / "cache")
        make = f"reduce uniform digits --ipc 1 {_SMALL} --out out"
        assert ended(child(make, base, base / "log")) == 0
        lines = [
            f"evaluate out --inference sgd --num-steps {20 if number % 2 else 20 + number} --seeds 2"
            for number in range(at_once)
        ]
        expected = {}
        for line in dict.fromkeys(lines):
            assert ended(child(line, base, base / "log")) == 0
        expected = results(base / "out" / "evaluations")
        for _ in range(rounds):
            shutil.rmtree(base / "out" / "evaluations")
            processes = [child(line, base, base / "log") for line in lines]
            refused += sum(ended(process) != 0 for process in processes)
            corrupt += results(base / "out" / "evaluations") != expected
            left = [
                path for path in (base / "out" / "evaluations").iterdir() if path.name[0] == "."
            ]
            corrupt += bool(left)
    yield {
        "what": "evaluations", "rounds": rounds, "at_once": at_once, "refused": refused,
        "corrupt": corrupt, "ok": not refused and not corrupt,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    verbs = parser.add_subparsers(dest="what", required=True)
    one = verbs.add_parser("kills")
    one.add_argument("--num", type=int, default=10, help="Kills of each verb.")
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--verbs", nargs="+", choices=list(COMMANDS), default=list(COMMANDS))
    verbs.add_parser("pairs").add_argument("--num", type=int, default=1000)
    two = verbs.add_parser("evaluations")
    two.add_argument("--rounds", type=int, default=3)
    two.add_argument("--at-once", type=int, default=8)
    for sub in verbs.choices.values():
        sub.add_argument("--out", type=Path, help="Also write the lines there.")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.what == "kills":
        found = kills(given.num, given.seed, given.verbs)
    elif given.what == "pairs":
        found = pairs(given.num)
    else:
        found = evaluations(given.rounds, given.at_once)
    bad, text = False, ""
    for record in found:
        bad |= not record["ok"]
        text += json.dumps(record) + "\n"
        print(text.splitlines()[-1], flush=True)
        if given.out is not None:
            given.out.write_text(text)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
