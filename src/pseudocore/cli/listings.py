"""pseudocore methods, data, compare, export, report: verbs that show or copy what exists."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter
from rich.table import Table

from pseudocore.cli import presets
from pseudocore.cli.console import comparison_table, err, out, print_json
from pseudocore.cli.flags import Json, Switch
from pseudocore.cli.output import warn_of_divergence
from pseudocore.core.errors import ConfigError
from pseudocore.core.registry import inferences
from pseudocore.core.registry import methods as registry
from pseudocore.data import available, import_dataset, load
from pseudocore.evaluation.tables import Estimate, Row, comparison, markdown
from pseudocore.store.coreset_file import load_coreset
from pseudocore.store.export import export_npz, export_pngs
from pseudocore.store.overwrite import refuse_own_file
from pseudocore.store.runs import Run


def methods(*, json: Json = False) -> int:
    """List every method: name, kind (select, condense, bayes), paper; and the presets and
    inferences there are.
    """
    if json:
        print_json(
            [
                {
                    "name": entry.name,
                    "kind": entry.kind,
                    "paper": entry.paper,
                    "summary": entry.summary,
                }
                for entry in registry
            ]
        )
        return 0
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("method", "kind", "what it is", "paper"):
        table.add_column(title)
    for entry in registry:
        table.add_row(entry.name, entry.kind, entry.summary, entry.paper)
    out.print(table)
    out.print(f"\ninference: {', '.join(entry.name for entry in inferences)}")
    out.print("presets:   --preset FOLDER/NAME")
    presets.print_names()
    return 0


data = App(name="data", help="Data sets: list, info NAME, import SRC NAME.")


@data.command(name="list")
def list_data(*, json: Json = False) -> int:
    """List the data sets that are built in or were found on the search path."""
    found = available()
    if json:
        print_json(
            [
                {"name": one.name, "where": None if one.where is None else str(one.where)}
                for one in found
            ]
        )
        return 0
    for one in found:
        out.print(
            f"{one.name:<16} {one.where or 'not found (pseudocore data info ' + one.name + ' says what to put where)'}"
        )
    return 0


@data.command
def info(name: Annotated[str, Parameter(help="Name or path.")], /, *, json: Json = False) -> int:
    """Read a data set and say what is in it."""
    found = load(name)
    counts = found.class_counts.tolist()
    facts = {
        "name": found.name,
        "train": len(found.train.y),
        "test": len(found.test.y),
        "shape": list(found.shape),
        "classes": found.num_classes,
        "smallest_class": min(counts),
        "largest_class": max(counts),
        "class_names": list(found.class_names),
        "fingerprint": found.fingerprint,
    }
    if json:
        print_json(facts)
    else:
        for key, value in facts.items():
            out.print(
                f"{key.replace('_', ' '):<16} {', '.join(map(str, value)) if isinstance(value, list) else value}"
            )
    return 0


@data.command(name="import")
def import_(
    source: Annotated[Path, Parameter(help="npz, folder of class folders, idx or CIFAR folder.")],
    name: Annotated[str, Parameter(help="What to call it.")],
    /,
) -> int:
    """Copy a data set into your own data folder, under a name."""
    path = import_dataset(source, name)
    out.print(f"{name} is in {path}; use it as: pseudocore reduce METHOD {name} --out RUN")
    return 0


def compare(
    *runs: Annotated[Path, Parameter(help="RUN folders.")],
    details: Annotated[
        bool,
        Switch,
        Parameter(help="Also adaptive and class-wise ECE, and the seconds of every stage."),
    ] = False,
    as_markdown: Annotated[
        bool,
        Switch,
        Parameter(name="--markdown", help="As a Markdown table, to paste; the best in bold."),
    ] = False,
    json: Json = False,
) -> int:
    """One table of evaluated runs; runs that differ in their seed alone are one row."""
    if as_markdown and (details or json):
        raise ConfigError("--markdown has a form of its own; leave --details and --json out")
    opened = [Run.open(path) for path in _named(runs)]
    for run in opened:
        warn_of_divergence(run)
    rows = _rows(opened)
    if as_markdown:
        out.print(markdown(rows), end="")
    elif json:
        print_json(
            [
                row._asdict() | {"metrics": _plain(row.metrics), "cost": _plain(row.cost)}
                for row in rows
            ]
        )
    else:
        out.print(comparison_table(rows, details=details))
    return 0


def report(
    *runs: Annotated[Path, Parameter(help="RUN folders.")],
    out: Annotated[Path, Parameter(name="--out", help="HTML file to write.")] = Path("report.html"),
) -> int:
    """Write one self-contained HTML page: pictures, labels, curves, calibration, comparison,
    commands.
    """
    from pseudocore.report.page import render

    refuse_own_file(out)
    if out.is_file() and out.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(
            f"{out} is there already and is no HTML page, so it is left alone; name another file"
        )
    path = render([Run.open(run) for run in _named(runs)], out)
    err.print(f"open {path} in a browser")
    return 0


def export(
    run: Annotated[Path, Parameter(help="RUN folder, or a coreset file.")],
    target: Annotated[Path, Parameter(help="File or folder to write.")],
    /,
    *,
    format: Annotated[
        Literal["npz", "png"],
        Parameter(help="npz: one file; png: a folder of pictures with labels.csv."),
    ] = "npz",
) -> int:
    """Copy the coreset of a run, or of a file, into a form other programs read."""
    refuse_own_file(target)
    if run.is_file() and target.resolve() == run.resolve():
        raise ConfigError(f"{target} is the coreset itself; name another file")
    if format == "npz" and target.suffix.lower() == ".png":
        raise ConfigError(
            f"{target} would hold an npz archive; --format png writes a folder of pictures"
        )
    coreset = load_coreset(run) if run.is_file() else Run.open(run).coreset()
    (export_npz if format == "npz" else export_pngs)(coreset, target)
    out.print(f"{len(coreset)} points in {target}")
    return 0


def _plain(estimates: Mapping[str, Estimate]) -> dict[str, dict[str, float | None]]:
    return {name: one._asdict() for name, one in estimates.items()}


def _named(runs: tuple[Path, ...]) -> tuple[Path, ...]:
    if not runs:
        raise ConfigError(
            "name at least one RUN folder, as pseudocore reduce has written it to --out"
        )
    return runs


def _rows(runs: list[Run]) -> list[Row]:
    evaluations = {run.path: run.evaluations() for run in runs}
    records = [
        (run.config, evaluation) for run in runs for evaluation in evaluations[run.path].values()
    ]
    without = [str(path) for path, found in evaluations.items() if not found]
    if not records:
        raise ConfigError(
            f"no run here has been evaluated yet; start with: {shlex.join(['pseudocore', 'evaluate', without[0]])}"
        )
    if without:
        err.print(f"not evaluated yet, so not in the table: {', '.join(without)}")
    return comparison(records)
