"""Fuzz every reader: mutated files must be read or refused with one sentence.

    python tests/hostile/fuzz.py --inputs 50000 --seed 0 --out fuzz.jsonl

Inputs run in child processes, so that a signal, a hang over 5 s or memory beyond twice the limit is
seen and counted. Input number n of a seed is always the same; `--first N --inputs 1` repeats one.
What breaks a reader is kept in `tests/hostile/corpus`, which `make test` replays.
"""

import argparse
import contextlib
import hashlib
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
import warnings
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from mutate import mutated
from readers import READERS, Reader

CORPUS = Path(__file__).with_name("corpus")
LIMIT_MIB = 64
HANG = 5.0
BATCH = 100


class Seeds:
    """A valid file or folder of every reader, and the mutants made of them."""

    def __init__(self, folder: Path, readers: dict[str, Reader] | None = None) -> None:
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        self.readers, self.folder, self.places = dict(readers or READERS), folder, {}
        for name, reader in list(self.readers.items()):
            (folder / "whole" / name).mkdir(parents=True)
            try:
                place = reader.write(folder / "whole" / name)
            except ImportError as error:  # of a package that only tests need
                print(f"{name} is left out: {error}", file=sys.stderr)
                del self.readers[name]
                shutil.rmtree(folder / "whole" / name)
                continue
            reader.read(place)  # a seed that its reader refuses would test nothing
            self.places[name] = place.relative_to(folder / "whole")
        self.files = [path for path in sorted((folder / "whole").rglob("*")) if path.is_file()]

    def mutant(self, seed: int, number: int) -> tuple[str, Path, bytes]:
        """Reader, path of the file below its folder and changed content of input `number`."""
        chance = random.Random(f"{seed}-{number}")
        names = sorted(self.readers)
        name = names[number % len(names)]
        own = [path for path in self.files if path.is_relative_to(self.folder / "whole" / name)]
        path = chance.choice([one for one in own if one.stat().st_size])
        other = chance.choice(self.files).read_bytes()
        content = mutated(path.read_bytes(), chance, other)
        return name, path.relative_to(self.folder / "whole" / name), content

    def outcome(self, name: str, file: Path, content: bytes) -> tuple[str, str]:
        """What the reader makes of its folder with one file changed, and why."""
        from pseudocore.core.errors import PseudocoreError

        here = self.folder / f"try-{os.getpid()}"
        shutil.rmtree(here, ignore_errors=True)
        shutil.copytree(self.folder / "whole" / name, here / name)
        (here / name / file).write_bytes(content)
        try:
            self.readers[name].read(here / self.places[name])
        except PseudocoreError as error:
            return "refused", str(error)
        except BaseException as error:
            lines = traceback.format_exception(error)
            return "traceback", "".join(lines)[-3000:]
        finally:
            shutil.rmtree(here, ignore_errors=True)
        return "read", ""


def batch(seeds: Seeds, seed: int, numbers: range, place: int) -> None:
    """Read these inputs in this process; `place` is a pipe that each outcome goes to."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in numbers:
        before = peak_mib(reset=True)
        name, file, content = seeds.mutant(seed, number)
        kind, why = seeds.outcome(name, file, content)
        grown = peak_mib() - before
        if kind in ("read", "refused") and grown > 2 * LIMIT_MIB:
            kind, why = "memory", f"{grown} MiB; {why}"
        if kind == "refused" and ("\n" in why.strip() or len(why) > 6000):
            kind, why = "not-one-sentence", why[:500]
        elif kind == "refused":
            why = ""
        record = {"number": number, "reader": name, "file": str(file), "kind": kind, "why": why}
        os.write(place, (json.dumps(record) + "\n").encode())
        if kind == "memory":  # the next one is measured in a new process
            return


def peak_mib(*, reset: bool = False) -> int:
    """The most memory this process has held since the last reset, where the system can reset it."""
    with contextlib.suppress(OSError):
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def run(seeds: Seeds, seed: int, numbers: range) -> list[dict[str, Any]]:
    """The outcome of every input, each batch in a process of its own."""
    found: list[dict[str, Any]] = []
    ahead = numbers.start
    while ahead < numbers.stop:
        part = range(ahead, min(ahead + BATCH, numbers.stop))
        out, place = os.pipe()
        if not (child := os.fork()):
            os.close(out)
            code = 0
            try:
                batch(seeds, seed, part, place)
            except BaseException:
                traceback.print_exc()
                code = 1
            os._exit(code)
        os.close(place)
        records, died = _watched(child, out)
        found += records
        ahead = part.start + len(records)
        if died and ahead < part.stop:
            name, file, _ = seeds.mutant(seed, ahead)
            found.append(
                {"number": ahead, "reader": name, "file": str(file), "kind": died, "why": ""}
            )
            ahead += 1
    return found


def _watched(child: int, out: int) -> tuple[list[dict[str, Any]], str]:
    """A child's records, and how it died if not by itself."""
    import select

    text, died, last = b"", "", time.monotonic()
    while True:
        if select.select([out], [], [], 0.5)[0]:
            if not (chunk := os.read(out, 1 << 20)):
                break
            text, last = text + chunk, time.monotonic()
        elif time.monotonic() - last > HANG:
            died = "hang"
            os.kill(child, signal.SIGKILL)
    os.close(out)
    _, status = os.waitpid(child, 0)
    if not died and os.WIFSIGNALED(status):
        died = f"signal-{os.WTERMSIG(status)}"
    elif not died and os.WEXITSTATUS(status):
        died = "harness"
    return [json.loads(line) for line in text.split(b"\n") if line.endswith(b"}")], died


def keep(seeds: Seeds, seed: int, record: dict[str, Any]) -> Path:
    """Put an input that broke a reader into the corpus."""
    name, file, content = seeds.mutant(seed, record["number"])
    return keep_content(name, file, content)


def keep_content(name: str, file: Path, content: bytes) -> Path:
    CORPUS.mkdir(exist_ok=True)
    digest = hashlib.sha256(content).hexdigest()[:10]
    path = CORPUS / f"{name}--{str(file).replace(os.sep, '~')}--{digest}.z"
    path.write_bytes(zlib.compress(content, 9))
    return path


def corpus() -> list[Path]:
    return sorted(CORPUS.glob("*.z")) if CORPUS.exists() else []


def replayed(path: Path) -> tuple[str, Path, bytes]:
    """Reader, file and content of an entry of the corpus."""
    name, file, _ = path.name.split("--")
    return name, Path(file.replace("~", os.sep)), zlib.decompress(path.read_bytes())


BAD = ("traceback", "signal", "hang", "memory", "not-one-sentence", "harness")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--inputs", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="JSON Lines: bad outcomes, then a summary.")
    parser.add_argument("--keep", action="store_true", help="Put what breaks into the corpus.")
    given = parser.parse_args()
    os.environ["PSEUDOCORE_DATA_LIMIT"] = str(LIMIT_MIB / 1024)
    os.environ["PSEUDOCORE_NO_LOCK"] = "1"
    torch.set_num_threads(1)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PSEUDOCORE_CACHE"] = str(Path(folder) / "cache")
        seeds = Seeds(Path(folder))
        found = run(seeds, given.seed, range(given.first, given.first + given.inputs))
        bad = [one for one in found if one["kind"].startswith(BAD)]
        for record in bad:
            if given.keep:
                record["kept"] = keep(seeds, given.seed, record).name
    kinds = Counter(one["kind"] for one in found)
    readers = {
        name: dict(Counter(one["kind"] for one in found if one["reader"] == name))
        for name in sorted(seeds.readers)
    }
    summary = {
        "inputs": len(found), "seed": given.seed, "first": given.first, **kinds,
        "readers": readers, "seconds": round(time.monotonic() - began, 1),
    }  # fmt: skip
    text = "".join(json.dumps(one) + "\n" for one in (*bad, summary))
    if given.out is not None:
        given.out.write_text(text)
    sys.stdout.write(text)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
