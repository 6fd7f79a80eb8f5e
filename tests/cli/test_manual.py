"""Every command in docs/cli.md is one the program understands."""

import re
import shlex
from pathlib import Path

import pytest

from pseudocore.cli.main import make_app

MANUAL = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
COMMANDS = list(dict.fromkeys(re.findall(r"^\$ pseudocore (.*)$", MANUAL, re.MULTILINE)))
MEANT_TO_FAIL = {"reduce vbcp digits --out runs/x"}


@pytest.mark.parametrize("line", [line for line in COMMANDS if line not in MEANT_TO_FAIL])
def test_the_manual_can_be_typed(line: str) -> None:
    words = shlex.split(line)
    command, bound, _ = make_app(words).parse_args(words, exit_on_error=False, print_error=False)
    assert callable(command)
    assert bound.args or bound.kwargs or words in (["methods"], ["data", "list"])


def test_the_manual_lists_and_shows_every_verb() -> None:
    listed = set(re.findall(r"^pseudocore (\w+) ", MANUAL, re.MULTILINE))
    assert listed == {verb for verb in make_app([]) if not verb.startswith("-")}
    assert listed - {"demo"} == {line.split()[0] for line in COMMANDS}
