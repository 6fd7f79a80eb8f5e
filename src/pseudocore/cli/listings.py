"""`pseudocore methods`, `data`, `compare`, `report`, `export`: show or copy what exists."""

import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from pseudocore.cli.console import comparison_table, err, hint, out, print_json
from pseudocore.cli.flags import AtLeastOne, Json, Switch
from pseudocore.cli.output import warn_of_divergence
from pseudocore.core.errors import ConfigError
from pseudocore.core.likelihood import Task
from pseudocore.core.registry import inferences
from pseudocore.core.registry import methods as registry
from pseudocore.core.types import Dataset
from pseudocore.data import Reading, available, columns, import_dataset, read
from pseudocore.data.reading import Missing
from pseudocore.evaluation.tables import Estimate, Row, comparison
from pseudocore.evaluation.tables import markdown as to_markdown
from pseudocore.store.coreset_file import load_coreset
from pseudocore.store.run_folder import Run, refuse_own_file

_KINDS = {
    "bayes": "learned for their posterior",
    "condense": "learned for plain training",
    "select": "selected from the data",
}


def methods(*, json: Json = False) -> int:
    if json:
        fields = ("name", "kind", "targets", "weights", "paper", "summary")
        print_json([{field: getattr(entry, field) for field in fields} for entry in registry])
        return 0
    for kind, title in _KINDS.items():
        out.print(f"{title}:")
        for entry in registry:
            if entry.kind == kind:
                weights = {"yes": "w", "option": "(w)"}.get(entry.weights, "")
                out.print(f"  {entry.name:<17}{entry.targets:<11}{weights:<4}{entry.summary}")
    out.print("w: finds weights of its own, (w): as an option; before it, what a method targets")
    out.print(f"inference: {', '.join(entry.name for entry in inferences)}")
    hint("next: pseudocore reduce METHOD --help; pseudocore presets; --json adds the papers")
    return 0


data = App(name="data")


@data.command(name="list")
def list_data(*, json: Json = False) -> int:
    """List the data sets that are built in or on the search path."""
    found = available()
    if json:
        print_json(
            [{"name": one.name, "where": str(one.where) if one.where else None} for one in found]
        )
        return 0
    for one in found:
        advice = f"not found (pseudocore data info {one.name} says what to put where)"
        out.print(f"{one.name:<16} {one.where or advice}")
    return 0


Target = Annotated[str | None, Parameter(help="Column of a table that holds the labels.")]
Drop = Annotated[str | None, Parameter(help="Columns of a table to leave out, with commas.")]
HowMissing = Annotated[
    Missing, Parameter(help="What to do about gaps in features: refuse or impute them.")
]
WhichTask = Annotated[
    Task | None,
    Parameter(help="What the targets are. Defaults to regression where they hold fractions."),
]
Resize = Annotated[int | None, AtLeastOne, Parameter(help="Height and width to bring images to.")]


@data.command
def info(
    name: str,
    /,
    *,
    target: Target = None,
    drop: Drop = None,
    missing: HowMissing = "refuse",
    resize: Resize = None,
    task: WhichTask = None,
    json: Json = False,
) -> int:
    """Read a data set and describe it.

    Args:
        name: Name or path.
    """
    left_out = columns(drop or ())
    how = Reading(target=target, drop=left_out, missing=missing, resize=resize, task=task)
    found = read(name, how)
    facts = {
        "name": found.name,
        "train": len(found.train.y),
        "test": len(found.test.y),
        "shape": list(found.shape),
        **_of_targets(found),
        "fingerprint": found.fingerprint,
        "notes": list(found.notes),
    }
    if json:
        print_json(facts)
        return 0
    for key, value in facts.items():
        between = "\n" + 17 * " " if key == "notes" else ", "
        text = between.join(map(str, value)) if isinstance(value, list) else value
        out.print(f"{key.replace('_', ' '):<16} {text}")
    return 0


def _of_targets(found: Dataset) -> dict[str, Any]:
    """What is listed of classes, or of numbers."""
    if found.task == "regression":
        y = found.train.y
        facts = {"target_mean": y.mean(), "target_sd": y.std(correction=0), "target_min": y.min()}
        facts["target_max"] = y.max()
        return {"task": found.task} | {name: float(value) for name, value in facts.items()}
    counts = found.class_counts.tolist()
    return {
        "classes": found.num_classes,
        "smallest_class": min(counts),
        "largest_class": max(counts),
        "class_names": list(found.class_names),
    }


@data.command(name="import")
def import_(
    source: Path,
    name: str,
    /,
    *,
    target: Target = None,
    drop: Drop = None,
    missing: HowMissing = "refuse",
    resize: Resize = None,
    task: WhichTask = None,
    stream: Annotated[bool, Switch] = False,
    half: Annotated[bool, Switch] = False,
) -> int:
    """Copy a data set into your data folder under a name.

    Args:
        source: npz, CSV or Parquet file, folder of class folders, idx or CIFAR folder.
        name: Its name from now on.
        stream: Copy piece by piece, where it is larger than memory: Parquet files of numbers, or a
            folder of .npz shards.
        half: With --stream: keep features in half precision.
    """
    left_out = columns(drop or ())
    how = Reading(target=target, drop=left_out, missing=missing, resize=resize, task=task)
    path = import_dataset(source, name, reading=how, stream=stream, half=half)
    out.print(f"{name} is in {path}; use it as: pseudocore reduce METHOD {name} --out RUN")
    return 0


def compare(
    *runs: Path,
    details: Annotated[bool, Switch] = False,
    markdown: Annotated[bool, Switch] = False,
    json: Json = False,
) -> int:
    """Tabulate evaluated runs.

    Args:
        runs: RUN folders.
        details: Also show adaptive and class-wise ECE and the seconds of every stage.
        markdown: Print a Markdown table with the best in bold.
    """
    if markdown and (details or json):
        raise ConfigError(
            "--markdown cannot be combined with --details or --json", code="two-formats"
        )
    opened = _open(runs)
    for run in opened:
        warn_of_divergence(run)
    rows = _rows(opened)
    if markdown:
        out.print(to_markdown(rows), end="")
    elif json:
        print_json([_plain(row) for row in rows])
    else:
        out.print(comparison_table(rows, details=details))
    return 0


def report(
    *runs: Path,
    out: Annotated[Path, Parameter(name="--out")] = Path("report.html"),
) -> int:
    """Write one HTML page about runs.

    Args:
        runs: RUN folders.
        out: HTML file to write.
    """
    from pseudocore.report.page import render

    refuse_own_file(out)
    if out.is_file() and out.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(
            f"{out} exists and is no HTML page, so it is left alone; name another file",
            code="not-ours",
            path=out,
        )
    path = render(_open(runs), out)
    hint(f"open {path} in a browser")
    return 0


def export(
    run: Path,
    target: Path,
    /,
    *,
    format: Literal["safetensors", "npz", "csv", "png"] | None = None,
) -> int:
    """Copy a coreset into a format other programs read.

    Args:
        run: RUN folder or coreset file.
        target: File or folder to write.
        format: npz, csv, safetensors: one file; png: a folder of pictures with labels.csv. Defaults
            to the suffix of TARGET.
    """
    refuse_own_file(target)
    if run.is_file() and target.resolve() == run.resolve():
        raise ConfigError(
            f"{target} is the coreset itself; name another file", code="same-file", path=target
        )
    coreset = load_coreset(run) if run.is_file() else Run.open(run).coreset()
    coreset.save(target, format)
    out.print(f"{len(coreset)} points in {target}")
    return 0


def _plain(row: Row) -> dict[str, object]:
    def table(estimates: dict[str, Estimate]) -> dict[str, object]:
        return {name: one._asdict() for name, one in estimates.items()}

    return row._asdict() | {"metrics": table(row.metrics), "cost": table(row.cost)}


def _open(runs: tuple[Path, ...]) -> list[Run]:
    if not runs:
        raise ConfigError(
            "name at least one RUN folder, the --out of pseudocore reduce", code="missing-run"
        )
    return [Run.open(path) for path in runs]


def _rows(runs: list[Run]) -> list[Row]:
    """One row per setting; runs without an evaluation are named on standard error."""
    evaluations = {run.path: run.results() for run in runs}
    records = [(run.config, one) for run in runs for one in evaluations[run.path].values()]
    missing = [str(path) for path, found in evaluations.items() if not found]
    if not records:
        command = shlex.join(["pseudocore", "evaluate", missing[0]])
        raise ConfigError(
            f"no run here has been evaluated yet; start with: {command}", code="not-evaluated"
        )
    if missing:
        err.print(f"not evaluated yet, so not in the table: {', '.join(missing)}")
    return comparison(records)
