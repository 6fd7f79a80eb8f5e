"""Every file operation of a command fails once, and the process dies before every one of them.

    python tests/hostile/faults.py --verbs reduce evaluate

A failure must end in a sentence (exit code 2) or not matter (0); after it, and after a death, the
same command typed again must end with the results of an undisturbed one. Temporary folders only.
"""

import argparse
import builtins
import errno
import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from chaos import COMMANDS, child, ended, results

OPERATIONS = ("open", "replace", "rename", "fsync", "mkdir", "unlink", "rmdir", "utime", "scandir")
DIED = 99
MODES = ("crash", errno.ENOSPC, errno.EIO)


class Faults:
    """Counts operations on files below a folder; the one of number `at` fails or kills."""

    def __init__(self, folder: Path, at: int | None, mode: str | int) -> None:
        self.folder, self.at, self.mode = str(folder), at, mode
        self.num = 0
        self._ours: set[int] = set()

    def before(self, place: Any) -> None:
        inside = place in self._ours if isinstance(place, int) else self._is_inside(place)
        if not inside:
            return
        self.num += 1
        if self.num - 1 == self.at:
            if self.mode == "crash":
                os._exit(DIED)
            assert isinstance(self.mode, int)
            raise OSError(self.mode, os.strerror(self.mode), str(place))

    def _is_inside(self, place: Any) -> bool:
        try:
            return os.path.abspath(os.fspath(place)).startswith(self.folder)
        except TypeError:
            return False

    @contextmanager
    def installed(self) -> Iterator[None]:
        kept = {name: getattr(os, name) for name in OPERATIONS}
        real = builtins.open

        def wrapped(name: str) -> Callable[..., Any]:
            def call(place: Any, *rest: Any, **more: Any) -> Any:
                self.before(place)
                found = kept[name](place, *rest, **more)
                if name == "open" and self._is_inside(place):
                    self._ours.add(found)
                return found

            return call

        def opened(place: Any, *rest: Any, **more: Any) -> Any:
            if not isinstance(place, int):
                self.before(place)
            return real(place, *rest, **more)

        for name in OPERATIONS:
            setattr(os, name, wrapped(name))
        builtins.open = io.open = opened  # type: ignore[assignment]
        try:
            yield
        finally:
            builtins.open = io.open = real
            for name, function in kept.items():
                setattr(os, name, function)


def attempt(line: str, folder: Path, log: Path, at: int | None, mode: str | int) -> tuple[int, int]:
    """The exit code of a command with one fault, and how many operations there were."""
    counted = folder.with_name(f"{folder.name}.count")
    faults = Faults(folder / "out", at, mode)

    @contextmanager
    def around() -> Iterator[None]:
        try:
            with faults.installed():
                yield
        finally:
            counted.write_text(str(faults.num))

    code = ended(child(line, folder, log, around))
    return code, int(counted.read_text()) if counted.exists() else 0


def trials(verb: str, share: tuple[int, int] = (0, 1)) -> Iterator[dict[str, Any]]:
    """Every operation of a verb with every fault; `share` is which part of them, of how many."""
    line = COMMANDS[verb].replace("--num-steps 120", "--num-steps 20")
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        os.environ["PSEUDOCORE_CACHE"] = str(base / "cache")
        (base / "start").mkdir()
        if verb == "evaluate":
            make = "reduce uniform digits --ipc 1 --model linear --out out"
            assert ended(child(make, base / "start", base / "log")) == 0
        shutil.copytree(base / "start", base / "straight")
        code, num = attempt(line, base / "straight", base / "log", None, "crash")
        whole = results(base / "straight" / "out")
        assert whole, (base / "log").read_text()
        for number in range(share[0], num, share[1]):
            for mode in MODES:
                place = base / "trial"
                shutil.copytree(base / "start", place)
                first, _ = attempt(line, place, base / "log", number, mode)
                again = ended(child(line, place, base / "log"))
                same = again == code and results(place / "out") == whole
                good = first == DIED if mode == "crash" else first in (0, 2, code)
                if not (good and same):
                    text = (base / "log").read_text()[-1500:]
                    yield {"verb": verb, "operation": number, "mode": mode, "first": first,
                           "again": again, "same": same, "log": text}  # fmt: skip
                shutil.rmtree(place)
        tried = len(range(share[0], num, share[1]))
        yield {"verb": verb, "operations": num, "faults": tried * len(MODES), "what": "faults"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--verbs", nargs="+", choices=list(COMMANDS), default=["reduce", "evaluate"]
    )
    parser.add_argument("--share", default="0/1", help="PART/PARTS: every PARTS-th operation.")
    parser.add_argument("--out", type=Path, help="Also write the lines there.")
    given = parser.parse_args()
    part, parts = map(int, given.share.split("/"))
    torch.set_num_threads(1)
    text, bad = "", False
    for verb in given.verbs:
        for record in trials(verb, (part, parts)):
            bad |= "faults" not in record
            text += json.dumps(record) + "\n"
            print(text.splitlines()[-1], flush=True)
            if given.out is not None:
                given.out.write_text(text)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
