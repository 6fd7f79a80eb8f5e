"""What came out of a cell: one JSON file, `<out>/<table>/<cell>.json`, whole or not there.

Files that `benchmarks/presets.py` and `benchmarks/trajectories.py` have written into a table's
folder are read too: they have no schema.
"""

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pseudocore.core.errors import ArtifactError
from pseudocore.reproduce.cells import Cell
from pseudocore.reproduce.recipes import PUBLISHED, TRUE, Recipe
from pseudocore.reproduce.validate import wrong_entry
from pseudocore.store.files import decode_json, encode_json, read_json, write_json, writing
from pseudocore.store.folders import hardware, now, versions

SCHEMA = 1
"""Version of the file's layout; a reader refuses any other."""

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
    """Wall time of the cell in all."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Where it was told to differ from the preset."""
    note: str = ""
    commit: str | None = None
    hardware: str = field(default_factory=hardware)
    versions: Mapping[str, str] = field(default_factory=versions)
    date: str = field(default_factory=now)


def settings(recipe: Recipe, seeds: int, severities: Iterable[int]) -> dict[str, Any]:
    """All that decides the numbers of a cell, as a file would give it back."""
    ways = {name: way._asdict() for name, way in recipe.ways.items()}
    found = {
        "config": recipe.table,
        "ways": ways,
        "experts": recipe.experts,
        "seeds": seeds,
        "severities": list(severities),
    }
    decoded: dict[str, Any] = decode_json(encode_json(found))
    return decoded


def difference(result: Result, recipe: Recipe, seeds: int, severities: Sequence[int]) -> str:
    """Why a result is not the one that is asked for, in a few words; empty if it is, or has more
    seeds or corruptions than that.
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
            return f"{name} was {'not given' if had is None else had}" + (
                "" if wanted is None else f", is {wanted}"
            )
    return ""


def _leaves(found: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Every setting by its path, but for the words that say nothing: `setup.precision`,
    `true.num_steps`.
    """
    leaves: dict[str, Any] = {}
    for name, value in found.items():
        path = prefix if name in ("config", "ways", "options") else f"{prefix}{name}."
        leaves |= _leaves(value, path) if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return leaves


def keep(out: Path, result: Result) -> Path:
    """Write a result in place of an earlier one, atomically."""
    path = out / result.table / f"{result.cell}.json"
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"kind": _KIND, "schema": SCHEMA, **asdict(result)})
    return path


def stored(out: Path, cells: Sequence[Cell], recipes: Mapping[str, Recipe]) -> dict[str, Result]:
    """The results there are for some cells of one table, by the cell's name; a file of another
    schema is refused.

    Runs of whole presets (`benchmarks/presets.py`, `trajectories.py`) count in every table of their
    paper that prints them.
    """
    places = {cell.name: out / cell.table / f"{cell.name}.json" for cell in cells}
    found = {name: _read(path) for name, path in places.items() if path.is_file()}
    folders = {
        folder for cell in cells[:1] for folder in (out / cell.table, *out.glob(f"{cell.paper}-*/"))
    }
    missing = [
        (cell, recipe)
        for cell in cells
        if cell.name not in found and (recipe := recipes.get(cell.name)) is not None
    ]
    for path in sorted(
        {path for folder in folders for path in folder.glob("*.json")}.difference(places.values())
    ):
        document = read_json(path)
        for cell, recipe in missing:
            of_preset = document.get("kind") != _KIND and recipe.preset == document.get("preset")
            if of_preset and (result := _of_file(path, document, cell, recipe)) is not None:
                found.setdefault(cell.name, result)
    return found


def commit() -> str | None:
    """Of the checkout this code runs from, `+changes` when it has some; nothing where there is no
    git or no checkout.
    """
    here = ["git", "-C", str(Path(__file__).resolve().parents[1])]  # the whole package
    try:
        head = subprocess.run(
            [*here, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        dirty = subprocess.run(
            [*here, "status", "--porcelain", "--", "."], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{head}+changes" if dirty else head


def _read(path: Path) -> Result:
    document = read_json(path)
    if document.pop("kind", None) != _KIND:
        raise ArtifactError(
            f"{path} is not a result of pseudocore table; move it away, or choose another --out"
        )
    if (schema := document.pop("schema", None)) != SCHEMA:
        raise ArtifactError(
            f"{path} is of schema {schema}, and this pseudocore reads {SCHEMA}; move it away, or choose another --out"
        )
    try:
        return _intact(Result(**document), path)
    except TypeError as error:
        raise ArtifactError(
            f"{path} is damaged: its entries are not those of schema {SCHEMA} ({error})"
        ) from error


def _intact(result: Result, path: Path) -> Result:
    if (name := wrong_entry(result, finished=result.status == FINISHED)) is not None:
        raise ArtifactError(
            f"{path} is damaged: its entry {name} is not what belongs there; move it away, or choose another --out"
        )
    return result


def _of_file(path: Path, document: Mapping[str, Any], cell: Cell, recipe: Recipe) -> Result | None:
    try:
        result = _of_preset(document, cell, recipe)
    except (KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(
            f"{path} is damaged: it is no whole result of a preset ({error!r}); move it away"
        ) from error
    return None if result is None else _intact(result, path)


def _of_preset(document: Mapping[str, Any], cell: Cell, recipe: Recipe) -> Result | None:
    """The result of a cell from a run of its preset; nothing if that was evaluated in another way
    or is of another kind.
    """
    if document.get("evaluated_on") == "test":
        return _of_preset_run(document, cell)
    if "evaluations" not in document:
        return None
    ways = document["evaluations"]
    evaluations = {TRUE: ways.get("preset's own", ways["mh-correct"]), PUBLISHED: ways["published"]}
    model = recipe.table["setup"].get("model")
    alike = all(
        evaluations[name]["inference"] == way.inference and way.setup.get("model", model) == model
        for name, way in recipe.ways.items()
    )
    return (
        _of_trajectories(document, cell, {name: evaluations[name] for name in recipe.ways})
        if alike
        else None
    )


def _of_preset_run(document: Mapping[str, Any], cell: Cell) -> Result:
    evaluation = document["evaluation"]
    cost = {
        "reduce": {
            "seconds": document["distillation_seconds"],
            "peak_mib": document["peak_memory_mib"],
        }
    }
    return Result(
        cell.table, cell.name, document["preset"], {"config": document["config"]}, FINISHED, "", {TRUE: evaluation}, 1, evaluation["seeds"],
        cost, document["distillation_seconds"] + evaluation["seconds"], note=str(document.get("caveat", "")), commit=document["commit"],
        hardware=document["hardware"], versions=document["versions"], date=document["date"],
    )  # fmt: skip


def _of_trajectories(
    document: Mapping[str, Any], cell: Cell, evaluations: Mapping[str, Any]
) -> Result:
    changes = {
        f"setup.{name}": value for name, value in document["changes"]["setup"].items()
    } | document["changes"]["options"]
    seconds = document["seconds"]
    cost = {"reduce": {"seconds": seconds["reduction"], "peak_mib": document["peak_memory_mib"]}}
    return Result(
        cell.table, cell.name, document["preset"], {"config": document["config"]}, document["status"], "", evaluations, 1,
        evaluations[TRUE]["seeds"], cost, sum(seconds.values()), changes, str(document.get("caveat", "")), document["commit"],
        document["hardware"], document["versions"], document["date"],
    )  # fmt: skip
