"""Presets: the settings of published cells, from one sheet per paper, or a TOML file of your own.

A sheet, `reproduce/sheets/<paper>.toml`, has `[[shared]]` tables, each `for` the cells whose names
match one of its patterns, and one `[cells.<name>]` per cell. The name starts with data set and
points per class, `cifar10-ipc10`. A cell's settings are those of every shared table that matches,
in the order of the file, then its own: tables are merged, notes joined, other values replaced. A
`[[shared]]` table with a `variant` comes last, and only where the preset is asked for by that name
too, `<paper>/<cell>@<variant>`: what the authors' code does otherwise than their paper.
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.resources import files
from typing import Any, NamedTuple

from pseudocore.assembly import check_tables
from pseudocore.core.errors import ConfigError
from pseudocore.core.registry import did_you_mean
from pseudocore.store.files import decode_toml, read_toml

TRUE, PUBLISHED = "true", "published"
"""Protocols: honest inference and metrics, and what produced the printed numbers."""

_TABLES = ("method", "data", "setup", "options", "evaluate")


class EvaluationProtocol(NamedTuple):
    """How a coreset is evaluated."""

    inference: str
    options: dict[str, Any]
    """Options of the inference."""
    setup: dict[str, Any] = {}  # noqa: RUF012  never written to
    """Setup fields that differ from the coreset's."""
    published: bool = False
    """Whether NLL, ECE and best accuracy are also taken as published evaluators do."""


@dataclass(frozen=True)
class Preset:
    """One cell of a sheet, with everything it shares written out."""

    name: str
    tables: Mapping[str, Any]
    """What `Reduction.from_config` takes."""
    protocols: Mapping[str, EvaluationProtocol]
    seeds: int
    """Evaluations behind the printed number."""
    cell: str
    """The printed cell, and its numbers."""
    result: str = ""
    """What came out here; empty before the first run."""
    cost: str = ""
    experts: str = ""
    notes: tuple[str, ...] = ()


@functools.cache
def sheet(paper: str) -> Mapping[str, Any]:
    """A sheet as it stands in its file."""
    name = f"reproduce/sheets/{paper}.toml"
    return decode_toml(files("pseudocore").joinpath(name).read_text("utf-8"), source=name)


@functools.cache
def available() -> tuple[str, ...]:
    """Names of the presets that come with the package, `<paper>/<cell>`."""
    sheets = sorted(
        path.name.removesuffix(".toml")
        for path in files("pseudocore").joinpath("reproduce/sheets").iterdir()
        if path.name.endswith(".toml")
    )
    return tuple(
        f"{paper}/{cell}" for paper in sheets for cell in sorted(sheet(paper).get("cells", ()))
    )


def variants(name: str) -> tuple[str, ...]:
    """The variants of a preset that comes with the package, by their names."""
    paper, _, cell = name.partition("/")
    named = (shared["variant"] for shared in _shared(paper, cell) if "variant" in shared)
    return tuple(dict.fromkeys(named))


def is_preset(name: str) -> bool:
    """Whether a preset, or a variant of one, of that name comes with the package."""
    base, at, variant = name.partition("@")
    return base in available() and (not at or variant in variants(base))


def read(name: str) -> dict[str, Any]:
    """The tables of a preset: method, data, setup, options and evaluate.

    Args:
        name: A preset that comes with the package, or the path of a TOML file, such as the
            `config.toml` of a run.
    """
    if is_preset(name):
        return dict(find(name).tables)
    if not name.endswith(".toml"):
        raise ConfigError(
            f"unknown preset {name!r}{did_you_mean(name, available(), num=3)} (pseudocore presets "
            f"lists all {len(available())}; a path to a .toml file works as well)",
            code="unknown-preset",
            name=name,
        )
    tables = read_toml(name)
    check_tables(tables, what=f"preset {name}")
    return tables


def find(name: str) -> Preset:
    """A preset that comes with the package, or one of its variants."""
    paper, _, rest = name.partition("/")
    cell, _, variant = rest.partition("@")
    settings, found = _from_name(cell), _shared(paper, cell)
    for shared in found:
        if "variant" not in shared:
            settings = _merged(settings, shared)
    settings = _merged(settings, sheet(paper)["cells"][cell])
    for shared in found:
        if variant and shared.get("variant") == variant:
            settings = _merged(settings, shared)
    evaluate = dict(settings["evaluate"])
    inference = evaluate.pop("inference")
    protocols = {
        title: _protocol(table, inference, evaluate)
        for title, table in {TRUE: {}, **settings.get("protocols", {})}.items()
    }
    tables = {title: settings[title] for title in _TABLES}
    about = {key: settings[key] for key in ("result", "cost", "experts") if key in settings}
    notes = tuple(settings.get("notes", ()))
    return Preset(
        name, tables, protocols, settings["seeds"], settings["cell"], notes=notes, **about
    )


def _shared(paper: str, cell: str) -> list[Mapping[str, Any]]:
    """The shared tables that match a cell, in the order of the file."""
    return [
        shared
        for shared in sheet(paper)["shared"]
        if any(fnmatchcase(cell, pattern) for pattern in shared["for"].split())
    ]


def _from_name(cell: str) -> dict[str, Any]:
    data, _, rest = cell.rpartition("-ipc")
    return {"data": data, "options": {"per_class": int(re.match(r"\d+", rest)[0])}}  # type: ignore[index]


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(old)
    for key, value in new.items():
        if isinstance(value, Mapping):
            merged[key] = _merged(old.get(key, {}), value)
        elif key == "notes":
            merged[key] = [*old.get(key, ()), *value]
        else:
            merged[key] = value
    return merged


def _protocol(
    table: Mapping[str, Any], inference: str, options: Mapping[str, Any]
) -> EvaluationProtocol:
    """A protocol by the inference of `evaluate` starts from its options."""
    name = table.get("inference", inference)
    inherited = options if name == inference else {}
    return EvaluationProtocol(
        name,
        {**inherited, **table.get("options", {})},
        table.get("setup", {}),
        table.get("published", False),
    )
