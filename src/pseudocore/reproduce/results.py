"""The result of a cell: one line of `<out>/<table>.jsonl`."""

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pseudocore.assembly.presets import TRUE
from pseudocore.core.config import FORMER_NAMES
from pseudocore.core.errors import ArtifactError
from pseudocore.reproduce import records
from pseudocore.reproduce.cells import DIGITS, Cell
from pseudocore.reproduce.recipes import FORMER, FORMER_WEIGHTING, Recipe
from pseudocore.store.files import decode_json, encode_json
from pseudocore.store.folders import hardware, now, versions

SCHEMA = 2
"""Version of a line's layout; a reader refuses any other but the former."""
FORMER_SCHEMA = 1
"""Of results measured before options had their present names and defaults."""

FINISHED, FAILED = "finished", "failed"
_KIND = "pseudocore table cell"


@dataclass(frozen=True)
class Result:
    table: str
    cell: str
    preset: str
    settings: Mapping[str, Any]
    """All that decides the numbers; a cell is run again when it changes."""
    status: str
    reason: str = ""
    """Why it failed."""
    evaluations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By protocol, or by inference in a table of our own: inference, options, model, metrics {mean,
    sd}, per_seed, cost.
    """
    num_coresets: int = 0
    num: int = 0
    """Measurements behind every mean."""
    cost: Mapping[str, Any] = field(default_factory=dict)
    """Of making the coresets: seconds and peak memory by stage."""
    seconds: float = 0.0
    """Wall time of the whole cell."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Settings that differ from the preset's."""
    note: str = ""
    commit: str | None = None
    hardware: str = field(default_factory=hardware)
    versions: Mapping[str, str] = field(default_factory=versions)
    date: str = field(default_factory=now)


def settings(recipe: Recipe, seeds: int, severities: Iterable[int]) -> dict[str, Any]:
    """All that decides the numbers of a cell, as a file would give it back."""
    found = {
        "config": recipe.tables,
        "ways": {name: one._asdict() for name, one in recipe.protocols.items()},
        "experts": recipe.experts,
        "seeds": seeds,
        "severities": list(severities),
    }
    decoded: dict[str, Any] = decode_json(encode_json(found))
    return decoded


def difference(result: Result, recipe: Recipe, seeds: int, severities: Sequence[int]) -> str:
    """How a result differs from the one asked for; empty if it has the same settings over as many
    seeds and corruptions or more.
    """
    if result.status != FINISHED:
        return "it failed"
    asked, kept = _leaves(settings(recipe, seeds, severities)), _leaves(result.settings)
    for name in sorted(asked.keys() | kept.keys()):
        had, wanted = kept.get(name), asked.get(name)
        more = (name == "seeds" and isinstance(had, int) and had >= seeds) or (
            name == "severities"
            and isinstance(had, list)
            and all(severity in had for severity in severities)
        )
        if had != wanted and not more:
            was = "not given" if had is None else had
            return f"{name} was {was}" + ("" if wanted is None else f", is {wanted}")
    return ""


def _leaves(found: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Every setting by its path, as `setup.precision` or `true.num_steps`."""
    leaves: dict[str, Any] = {}
    for name, value in found.items():
        path = prefix if name in ("config", "ways", "options") else f"{prefix}{name}."
        leaves |= _leaves(value, path) if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return leaves


def keep(out: Path, result: Result) -> None:
    """Write a result in place of an earlier one, atomically."""
    record = {"kind": _KIND, "schema": SCHEMA, **asdict(result)}
    records.put(out / f"{result.table}.jsonl", record)


def stored(out: Path, cells: Sequence[Cell]) -> dict[str, Result]:
    """The results of some cells of one table, by the cell's name."""
    table = cells[0].table
    _refuse_earlier_layout(out, table)
    path = out / f"{table}.jsonl"
    kept = records.read(path)
    return {cell.name: _read(path, kept[cell.name]) for cell in cells if cell.name in kept}


def commit() -> str | None:
    """The commit this code runs from, with `+changes` if it has been edited; None without git."""
    here = ["git", "-C", str(Path(__file__).resolve().parents[1])]  # the whole package
    try:
        head, status = (
            subprocess.run([*here, *words], capture_output=True, text=True, check=True).stdout
            for words in (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "--", "."])
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.strip() + ("+changes" if status.strip() else "")


def _refuse_earlier_layout(out: Path, table: str) -> None:
    folder = out / table
    if any(folder.glob("*.json")) and not folder.with_name(f"{table}.jsonl").exists():
        raise ArtifactError(
            f"{folder} has one file per cell, as an earlier version wrote them; join them: "
            f"jq -c . {folder}/*.json > {folder}.jsonl",
            code="earlier-layout",
            path=str(folder),
        )


def _written_out(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a result of the former schema, under present names, with its defaults."""
    found = dict(settings)
    if "ways" in settings:
        found["ways"] = {
            name: {**way, "options": former_options(way["inference"], way["options"])}
            for name, way in settings["ways"].items()
        }
    config = dict(settings.get("config", {}))
    if evaluate := config.get("evaluate"):
        config["evaluate"] = former_options(evaluate["inference"], evaluate)
    weighting = FORMER_WEIGHTING.get(str(config.get("method")), "ones")
    if weighting is not None and "options" in config:
        options = {FORMER_NAMES.get(name, name): of for name, of in config["options"].items()}
        config["options"] = {"weighting": weighting, **options}
    if config.get("method") == "psvi":
        config["setup"] = {"prior": "isotropic", "prior_scale": 1.0, **config["setup"]}
    return {**found, "config": config} if config else found


def former_options(inference: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of an inference with its former defaults."""
    former = FORMER.get(inference, {})
    if "select" in former and "temperature" in options:
        former = {"select": "none"}
    return {**former, **options}


def _read(path: Path, record: Mapping[str, Any]) -> Result:
    entries = {name: value for name, value in record.items() if name not in ("kind", "schema")}
    where = f"{path}: {records.name_of(record)}"
    if record.get("kind") != _KIND:
        raise _artifact(f"{where} is not a result of pseudocore table", "foreign-result", path)
    if (schema := record.get("schema")) not in (FORMER_SCHEMA, SCHEMA):
        sentence = f"{where} is of schema {schema}, and this pseudocore reads {SCHEMA}"
        raise _artifact(sentence, "unknown-schema", path)
    try:
        result = Result(**entries)
    except TypeError as error:
        sentence = f"{where} is damaged: its entries are not those of schema {SCHEMA} ({error})"
        raise _artifact(sentence, "damaged", path) from error
    if (name := _wrong_entry(result)) is not None:  # people edit files, and disks damage them
        sentence = f"{where} is damaged: its entry {name} has another form"
        raise _artifact(sentence, "damaged", path, entry=name)
    if schema == SCHEMA:
        return result
    return replace(result, settings=_written_out(result.settings))


_ENTRIES = {
    str: ("table", "cell", "preset", "status", "reason", "note", "hardware", "date"),
    Mapping: ("settings", "evaluations", "cost", "changes", "versions"),
    int: ("num", "num_coresets"),
    int | float: ("seconds",),
    str | None: ("commit",),
}


def _wrong_entry(result: Result) -> str | None:
    entries = vars(result)
    for kind, names in _ENTRIES.items():
        for name in names:
            if not _is(entries[name], kind):
                return name
    made = result.settings.get("config", {})
    if not _is(made, Mapping) or not _is(made.get("options", {}), Mapping):
        return "settings.config"
    for name, part in result.cost.items():
        sound = _is(part, Mapping) and _is(part.get("seconds"), int | float)
        if not sound or not _is(part.get("peak_mib"), int | float | None):
            return f"cost.{name}"
    for name, one in result.evaluations.items():
        if not _is_evaluation(one):
            return f"evaluations.{name}"
    if result.status == FINISHED and result.num < 1:
        return "num"
    needs_true = result.status == FINISHED and result.table != DIGITS
    return f"evaluations.{TRUE}" if needs_true and TRUE not in result.evaluations else None


def _is_evaluation(one: Any) -> bool:
    return (
        _is(one, Mapping)
        and _is(one.get("inference"), str)
        and _is(one.get("metrics"), Mapping)
        and all(
            _is(score, Mapping)
            and set(score) == {"mean", "sd"}
            and _is(score["mean"], int | float)
            and _is(score["sd"], int | float | None)
            for score in one["metrics"].values()
        )
    )


def _is(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _artifact(sentence: str, code: str, path: Path, **more: Any) -> ArtifactError:
    advice = "move it away, or choose another --out"
    return ArtifactError(f"{sentence}; {advice}", code=code, path=str(path), **more)
