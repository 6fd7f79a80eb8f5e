"""The command line called in-process, as a user would type it, in a folder of its own with no data
but the built-in sets.
"""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from pseudocore.cli.main import main
from pseudocore.workflows import references


class Said(NamedTuple):
    code: int
    out: str
    err: str


Cli = Callable[[str], Said]


@pytest.fixture(autouse=True)
def own_world(own_world: Path) -> Path:
    return own_world


@pytest.fixture(autouse=True)
def _short_references(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `bpc-pcd` learns from takes minutes by default."""
    short = {"num_chains": 1, "num_burn": 1, "num_draws": 3, "num_leapfrog": 2}
    monkeypatch.setitem(references.OPTIONS, "hmc", short)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs one command line; what went before is not in its output."""

    def run(line: str) -> Said:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main(shlex.split(line))
        return Said(int(stop.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture
def done(cli: Cli) -> Cli:
    """Runs a command line that must succeed."""

    def run(line: str) -> Said:
        said = cli(line)
        assert said.code == 0, said.err
        return said

    return run


@pytest.fixture
def refused(cli: Cli) -> Callable[..., str]:
    """Runs a command line that must be refused: code 2, nothing on standard output, and on standard
    error one line that contains all `parts`.
    """

    def run(line: str, *parts: str) -> str:
        said = cli(line)
        assert (said.code, said.out) == (2, ""), said
        head, _, sentence = said.err.partition("pseudocore: ")
        assert (head, sentence.count("\n"), sentence[-1:]) == ("", 1, "\n"), said.err
        for part in parts:
            assert part in sentence
        return sentence.rstrip("\n")

    return run


@pytest.fixture
def npz(tmp_path: Path) -> Callable[..., str]:
    """Writes `name.npz` of 40 8×8 images in four classes, with arrays replaced as told, and gives
    its path.
    """

    def write(name: str, **changes: Any) -> str:
        rng = np.random.default_rng(0)
        y = np.arange(40) % 4
        x = (rng.integers(0, 64, (40, 8, 8)) + 48 * y[:, None, None]).astype(np.uint8)
        arrays = {"train_x": x, "train_y": y, "test_x": x[:20], "test_y": y[:20], **changes}
        given = {key: value for key, value in arrays.items() if value is not None}
        np.savez(tmp_path / f"{name}.npz", **given)
        return f"{name}.npz"

    return write
