"""One self-contained HTML file about runs: nothing fetched, all text escaped, and one script. It
sorts and filters tables and is the only one that the page lets a browser run.

A run folder may come from a stranger: nothing is assumed about the values in its configuration,
manifest and evaluations beyond what the store has checked.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from pseudocore.core.errors import ConfigError
from pseudocore.evaluation import tables
from pseudocore.evaluation.names import format_metric, metric_title, num_digits
from pseudocore.report import comparison_figures, evaluation_figures, svg
from pseudocore.report.conclusion import Budget, Scale, Scales, budget, conclusions
from pseudocore.report.curves import run_curves
from pseudocore.report.gallery import Gallery, show
from pseudocore.report.gap_figure import gap
from pseudocore.report.glossary import MEANINGS, meaning
from pseudocore.report.values import finite_values, is_finite
from pseudocore.store.coreset_file import CORESET_FILE
from pseudocore.store.files import StrPath, write_bytes
from pseudocore.store.run_folder import Run

Pairs = list[tuple[str, str]]
"""Facts: names and texts."""
_MAX_CLASSES, _MAX_LINES = 10, 12
"""Of pictures side by side."""
Context = dict[str, Any]
"""What the template takes by name."""
Evaluations = Mapping[str, Mapping[str, Any]]


def render(runs: Sequence[Run], out: StrPath) -> Path:
    """Write the page, replacing an existing file, and return its path; equal runs give equal
    bytes.
    """
    try:
        import jinja2
    except ImportError as error:
        raise svg.missing_extra("jinja2") from error
    folder = files("pseudocore.report")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(folder.joinpath("page.html.j2").read_text(encoding="utf-8"))
    css = folder.joinpath("page.css").read_text(encoding="utf-8")
    script = folder.joinpath("page.js").read_text(encoding="utf-8")
    page = template.render(
        content=_content(runs),
        css=css,
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        meaning=meaning,
    )
    write_bytes(out, page.lstrip().encode("utf-8", "replace"))  # a lone surrogate becomes a ?
    return Path(out)


def _content(runs: Sequence[Run]) -> Context:
    runs = list({run.path.resolve(): run for run in runs}.values())
    if not runs:
        raise ConfigError(
            "a report needs at least one run; give the folders of one or more", code="missing-run"
        )
    reads = [(run, run.results()) for run in runs]
    records = [(run.config, one) for run, evaluations in reads for one in evaluations.values()]
    staged = [(run.config, table) for run in runs for table in run.continual().values()]
    rows = tables.comparison(records)
    colour_of = svg.colours(tables.look(run.config)[0] for run in runs)
    scales = _scales(runs)
    data = list(dict.fromkeys(tables.look(run.config)[1] for run in runs))
    commands = [run.manifest.get("command") for run in runs]
    commands += [evaluation.get("command") for _, evaluation in records]
    counts = {"run": len(runs), "method": len(colour_of), "evaluation": len(records)}
    num = {noun: f"{count} {noun}{'s' * (count != 1)}" for noun, count in counts.items()}
    groups = _groups(reads, colour_of)
    lost = gap(rows, "accuracy", scales, colour_of)
    return {
        "title": f"Coresets of {data[0]}" if len(data) == 1 else "Coresets compared",
        "about": f"{num['run']} of {num['method']}, {num['evaluation']}",
        "conclusions": conclusions(rows, scales),
        "glossary": MEANINGS,
        "heads": [metric_title(name) for name in _own_metrics(rows)],
        "lines": _lines(rows, colour_of),
        "fidelity": _fidelity(rows, records, scales, colour_of),
        "charts": ([lost] if lost else [])
        + comparison_figures.of_comparison(
            rows, records, staged, colour_of, bars_of=("nll",) if lost else ("accuracy", "nll")
        ),
        "groups": groups,
        "side_by_side": _side_by_side(groups),
        "commands": list(dict.fromkeys(str(command) for command in commands if command)),
        "versions": list(dict.fromkeys(text for run in runs if (text := _versions(run.manifest)))),
    }


def _scales(runs: Sequence[Run]) -> dict[tuple[str, str, Budget], Scale]:
    """Points and training examples, where all runs of one method, data set and budget have as many."""
    found: dict[tuple[str, str, Budget], set[Scale]] = {}
    for run in runs:
        if (run.path / CORESET_FILE).exists():
            coreset = run.coreset()
            num_train = None if coreset.contract is None else coreset.contract.data.num_train
            method, data, per_class = tables.look(run.config)
            key = method, data, budget(per_class, _settings(run))
            found.setdefault(key, set()).add(Scale(len(coreset), num_train))
    return {key: scales.pop() for key, scales in found.items() if len(scales) == 1}


def _side_by_side(groups: Sequence[Context]) -> list[Context]:
    """The first picture of every class, a line for each method: at the smallest budget of each data
    set at which there are several.
    """
    alike: dict[tuple[str, int], list[Context]] = {}
    for group in groups:
        _, data, per_class = group["look"]
        gallery: Gallery | None = group["members"][0]["gallery"]
        if gallery and gallery.pictures and type(per_class) is int:
            firsts = {name: own[0] for name, own in list(gallery.pictures.items())[:_MAX_CLASSES]}
            line = {"method": group["method"], "variant": group["variant"], "pictures": firsts}
            alike.setdefault((data, per_class), []).append(line | {"colour": group["colour"]})
    shown: dict[str, Context] = {}
    for (data, per_class), lines in sorted(alike.items()):
        if len(lines) > 1 and data not in shown:
            shown[data] = {"data": data, "per_class": per_class, "lines": lines[:_MAX_LINES]}
    return list(shown.values())


def _lines(rows: Sequence[tables.Row], colour_of: Mapping[str, str]) -> list[Context]:
    """Rows of the comparison; a cell is its text and whether it is the best."""
    marked, lines = tables.best(rows), list[Context]()
    for number, row in enumerate(rows):
        cells = [
            (
                format_metric(*row.metrics.get(name, (None, None)), digits=num_digits(name)),
                (number, name) in marked,
            )
            for name in _own_metrics(rows)
        ]
        lines.append({"row": row, "colour": colour_of[row.method], "cells": cells})
    return lines


def _own_metrics(rows: Sequence[tables.Row]) -> list[str]:
    """Of the comparison; those of fidelity have a table of their own."""
    return [name for name in tables.metric_names(rows) if not name.startswith("fidelity_")]


def _fidelity(
    rows: Sequence[tables.Row],
    records: Sequence[tables.Record],
    scales: Scales,
    colour_of: Mapping[str, str],
) -> Context | None:
    """The distances to full-data inference, which open the page; None where none was measured."""
    rows = [row for row in rows if "fidelity_kl" in row.metrics]
    if not rows:
        return None
    known = ("fidelity_kl", "fidelity_floor_kl", "fidelity_tv", "fidelity_agreement",
             "fidelity_nll_gap")  # fmt: skip
    names = [name for name in known if any(name in row.metrics for row in rows)]
    lines = []
    for row in rows:
        cells = [
            format_metric(*row.metrics.get(name, (None, None)), digits=num_digits(name))
            for name in names
        ]
        lines.append({"row": row, "colour": colour_of[row.method], "cells": cells})
    return {
        "heads": [metric_title(name) for name in names],
        "lines": lines,
        "references": sorted({str(one["reference"]) for _, one in records if one.get("reference")}),
        "charts": [
            gap(rows, "fidelity_kl", scales, colour_of)
            or comparison_figures.bars(rows, "fidelity_kl", colour_of)
        ],
    }


def _groups(
    reads: Sequence[tuple[Run, Evaluations]], colour_of: Mapping[str, str]
) -> list[Context]:
    """Runs that differ only in their seed, together."""
    alike: dict[str, list[tuple[Run, Evaluations]]] = {}
    for run, evaluations in reads:
        alike.setdefault(repr(sorted(_settings(run).items())), []).append((run, evaluations))
    members = list(alike.values())
    configs = [_settings(own[0][0]) for own in members]
    looks = [tables.look(own[0][0].config) for own in members]
    groups: list[Context] = []
    for own, config, variant in zip(members, configs, tables.variants(looks, configs), strict=True):
        method, data, per_class = looks[len(groups)]
        budget = f"{per_class} per class" if type(per_class) is int else "all points"
        model = str(config.get("setup.model", ""))
        about = ("" if per_class is None else budget, data, model, variant)
        colour = colour_of[method]
        groups.append(
            {
                "anchor": f"run-{len(groups) + 1}",
                "method": method,
                "look": (method, data, per_class),
                "variant": variant,
                "about": " · ".join(part for part in about if part),
                "colour": colour,
                "members": [
                    _member(run, evaluations, colour, has_figures=place == 0)
                    for place, (run, evaluations) in enumerate(own)
                ],
                "curves": run_curves([run for run, _ in own], colour),
                "config": _pairs(config),
            }
        )
    return groups


def _settings(run: Run) -> dict[str, Any]:
    return tables.flat({name: value for name, value in run.config.items() if name != "seed"})


def _member(run: Run, evaluations: Evaluations, colour: str, *, has_figures: bool) -> Context:
    """One run of a group: one seed. Only the first has figures, or pages would grow too large."""
    coreset = run.coreset() if (run.path / CORESET_FILE).exists() else None
    names = run.manifest.get("class_names")
    class_names = [str(name) for name in names] if isinstance(names, list) else []
    gallery = None if coreset is None else show(coreset, class_names)
    posterior = None if coreset is None else coreset.provenance.get("posterior")
    shown = [
        _evaluation(name, run, one, colour if has_figures else None)
        for name, one in evaluations.items()
    ]
    if shown and has_figures:  # figures of the run as a whole go with the first
        shown[0]["diagrams"] += evaluation_figures.of_run(list(evaluations.values()), colour)
    return {
        "seed": _text(run.config.get("seed", "not recorded")),
        "folder": run.path.resolve().name,
        "status": str(run.manifest["status"]),
        "reason": str(run.manifest.get("reason") or ""),
        "facts": _facts(run.manifest, None if coreset is None else len(coreset))
        + ([] if coreset is None else _lag(coreset.provenance.get("lag"))),
        "posterior": _pairs(tables.flat(posterior)) if isinstance(posterior, Mapping) else [],
        "gallery": gallery if gallery is None or has_figures else gallery._replace(figures=[]),
        "evaluations": shown,
    }


def _facts(manifest: Mapping[str, Any], num_points: int | None) -> Pairs:
    steps = manifest.get("num_steps")
    facts = {
        "points": str(num_points) if num_points is not None else "",
        "time": _duration(manifest.get("seconds")),
        "steps": f"{steps:,}" if type(steps) is int and steps else "",
        "hardware": str(manifest.get("hardware") or ""),
        "data fingerprint": str(manifest.get("data_fingerprint") or "")[:12],
    }
    return [(name, text) for name, text in facts.items() if text] + _stages(manifest.get("cost"))


def _lag(lag: Any) -> Pairs:
    """How far the chains of a method that learns by some are from fresh ones."""
    found = {name: finite_values([lag], name) for name in ("energy", "distance", "floor")}
    if not all(found.values()):
        return []
    energy, distance, floor = (values[0] for values in found.values())
    text = f"energy {energy:+.2f} sd, predictions {distance:.3f} (floor {floor:.3f})"
    return [("lag of the chains", text)]


def _evaluation(name: str, run: Run, evaluation: Mapping[str, Any], colour: str | None) -> Context:
    """What one evaluation found; without a colour, without figures."""
    row = tables.comparison([(run.config, evaluation)])[0]
    facts = [
        (metric_title(metric), format_metric(*row.metrics[metric], digits=num_digits(metric)))
        for metric in tables.metric_names([row], details=True)
    ]
    facts.append(("seeds", str(row.num)))
    if duration := _duration(evaluation.get("seconds")):
        facts.append(("time", duration))
    facts += _mixing(evaluation.get("diagnostics")) + _stages(evaluation.get("cost"))
    return {
        "name": name,
        "inference": row.inference,
        "facts": facts,
        "diagrams": evaluation_figures.of_evaluation(evaluation, colour) if colour else [],
    }


def _stages(cost: Any) -> Pairs:
    """Time of every stage, and peak memory."""
    parts, peaks = [], []
    for name, entry in cost.items() if isinstance(cost, Mapping) else ():
        if isinstance(entry, Mapping) and (text := _duration(entry.get("seconds"))):
            parts.append(f"{name} {text}")
            peaks += finite_values([entry], "peak_mib")
    facts = [("stages", ", ".join(parts))] if parts else []
    return facts + ([("peak memory", f"{max(peaks):,.0f} MiB")] if peaks else [])


def _mixing(diagnostics: Any) -> Pairs:
    """How a sampler's chains mixed, in the worst seed."""
    found = diagnostics if isinstance(diagnostics, list) else []
    predictions = [one.get("predictions") for one in found if isinstance(one, Mapping)]
    facts = {
        "R-hat of predictions": max(finite_values(predictions, "rhat"), default=None),
        "ESS of predictions": min(finite_values(predictions, "ess_bulk"), default=None),
        "acceptance": min(finite_values(found, "accept"), default=None),
    }
    return [(name, f"{value:.3g}") for name, value in facts.items() if value is not None]


def _versions(manifest: Mapping[str, Any]) -> str:
    versions = manifest.get("versions")
    named = versions.items() if isinstance(versions, Mapping) else ()
    return ", ".join(f"{name} {version}" for name, version in named)


def _duration(seconds: Any) -> str:
    if not is_finite(seconds):
        return ""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _pairs(table: Mapping[str, Any]) -> Pairs:
    return [(name, _text(value)) for name, value in table.items()]


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
