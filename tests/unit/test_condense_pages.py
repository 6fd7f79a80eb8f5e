"""The pages of the matching methods name every setting, with its default."""

from pathlib import Path

import pytest

import pseudocore.methods  # noqa: F401  registers them
from pseudocore.core import config
from pseudocore.core.registry import methods

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize(
    ("name", "page"),
    [("dc", "dc"), ("dsa", "dc"), ("dm", "dm"), ("lcmat-c", "lcmat-c"), ("cafe", "cafe")],
)
def test_the_page_has_every_setting_and_its_default(name: str, page: str) -> None:
    rows = [
        row.split("|")
        for row in (DOCS / f"{page}.md").read_text().splitlines()
        if row.startswith("| `")
    ]
    told: dict[str, str] = {}
    for _, fields, defaults, *_ in (row for row in reversed(rows) if len(row) == 5):
        fields, _, of = fields.partition("(")  # a flag, or the one method whose row it is
        if (of := of.strip("`) ")) in methods and of != name:
            continue
        names = [word.strip("`, ") for word in fields.split(",")]
        values = (
            [value.strip() for value in defaults.split(", ")]
            if len(names) > 1
            else [defaults.strip()]
        )
        told |= dict(zip(names, values, strict=False))
    for option in config.options(methods[name].make):
        value = (
            option.default
            if isinstance(option.default, str)
            else f"{option.default:,}".removeprefix("0").removesuffix(".0") or "0"
        )
        assert told.get(option.name) == value, option.name
