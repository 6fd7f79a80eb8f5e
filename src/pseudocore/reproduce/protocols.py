"""What the header of a preset says beyond its tables: how its coreset is evaluated, and what it
cost.

The launch line ends with a `pseudocore evaluate`; `Published protocol` and `A-SGHMC` lines, where
there are some, are others. They are read as the command line would, so what a person would type and
what a table runs is one text.
"""

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

from pseudocore.assembly import Setup
from pseudocore.core.errors import ConfigError
from pseudocore.core.registry import inferences
from pseudocore.reproduce.fields import fields

LAUNCH, PUBLISHED, A_SGHMC = "Launch", "Published protocol", "A-SGHMC"


class Way(NamedTuple):
    """One way of using a coreset."""

    inference: str
    options: dict[str, Any]
    setup: dict[str, Any] = {}  # noqa: RUF012  never written to
    """Changed words of the setup."""
    published: bool = False
    """Whether NLL, ECE and best accuracy are also taken as published evaluators do."""


class Header(NamedTuple):
    ways: dict[str, Way]
    cost: str
    """`275 s of distillation, 2.7 GiB, one H200 (2026-11-15)`; empty when it was not run yet."""


def read_header(text: str, evaluate: Mapping[str, Any], *, preset: str) -> Header:
    """The header of a preset's file; `evaluate` is its table of that name, which a line without
    --inference means.
    """
    lines = _entries(text)
    ways = {}
    for title in (LAUNCH, PUBLISHED, A_SGHMC):
        command = lines.get(title, "").partition("pseudocore evaluate ")[2]
        if command:
            ways[title] = _way(
                shlex.split(command)[1:], evaluate, f"the {title} line of preset {preset}"
            )
    result = lines.get("Result and cost", "")
    return Header(ways, result.partition("; ")[2].rstrip("."))


def _entries(text: str) -> dict[str, str]:
    """`# Title: words` and the deeper lines after each, joined."""
    found: dict[str, str] = {}
    title = ""
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        if more := re.fullmatch(r"# {4,}(\S.*)", line):
            found[title] = f"{found.get(title, '')} {more[1]}"
        elif begun := re.fullmatch(r"# ([^:]+): (.*)", line):
            title = begun[1]
            found[title] = begun[2]
    return found


def _way(words: list[str], evaluate: Mapping[str, Any], what: str) -> Way:
    flags = _flags(words, what)
    flags.pop("seeds", None)
    published = bool(flags.pop("published", False))
    meant = dict(evaluate)
    own = str(meant.pop("inference", "last-layer-vi"))
    inference = str(flags.pop("inference", own))
    options = {
        name: value for name, value in flags.items() if name in fields(inferences[inference].make)
    }
    setup = {name: value for name, value in flags.items() if name in fields(Setup) - options.keys()}
    if unknown := flags.keys() - options.keys() - setup.keys():
        raise ConfigError(
            f"{what} has --{min(unknown).replace('_', '-')}, which evaluate by {inference} does not know"
        )
    return Way(inference, {**(meant if inference == own else {}), **options}, setup, published)


def _flags(words: list[str], what: str) -> dict[str, Any]:
    """`--name value`, `--name` and `--no-name` pairs, under the names of fields."""
    flags: dict[str, Any] = {}
    place = 0
    while place < len(words):
        name = words[place].removeprefix("--").replace("-", "_")
        if not words[place].startswith("--"):
            raise ConfigError(f"{what} has the word {words[place]!r} where a flag should be")
        if place + 1 < len(words) and not words[place + 1].startswith("--"):
            flags[name] = _value(words[place + 1])
            place += 2
            continue
        flags |= {name.removeprefix("no_"): False} if name.startswith("no_") else {name: True}
        place += 1
    return flags


def _value(word: str) -> Any:
    try:
        return json.loads(word)
    except json.JSONDecodeError:
        return word
