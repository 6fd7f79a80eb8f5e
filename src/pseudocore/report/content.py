"""What the page says, before it is put in words: runs grouped over seeds, each part checked, what
is missing noted.

A run folder may come from a stranger: nothing is assumed about the values in its configuration,
manifest and evaluations beyond what the store has checked, and every text stays a text until the
template escapes it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pseudocore.core.errors import ConfigError
from pseudocore.evaluation.names import metric_title
from pseudocore.evaluation.tables import (
    Row,
    best,
    comparison,
    flat,
    format_metric,
    look,
    metric_names,
    variants,
)
from pseudocore.report import evaluation_images as extra
from pseudocore.report.figure import colours
from pseudocore.report.gallery import Gallery, show
from pseudocore.report.images import Image, charts, corruption_map, curves, is_finite, reliability
from pseudocore.store.coreset_file import CORESET_FILE
from pseudocore.store.run_folder import Run

Pairs = list[tuple[str, str]]
Read = tuple[Run, dict[str, dict[str, Any]]]


class Cell(NamedTuple):
    text: str
    is_best: bool


class Line(NamedTuple):
    """One row of the comparison."""

    row: Row
    colour: str
    cells: list[Cell]


class Evaluation(NamedTuple):
    name: str
    inference: str
    facts: Pairs
    diagrams: list[Image]


class Member(NamedTuple):
    """One run of a group: one seed."""

    seed: str
    folder: str
    status: str
    reason: str
    facts: Pairs
    posterior: Pairs
    gallery: Gallery | None
    evaluations: list[Evaluation]


class Group(NamedTuple):
    """Runs that differ in nothing but their seed."""

    anchor: str
    method: str
    about: str
    colour: str
    members: list[Member]
    curves: list[Image]
    config: Pairs


class Content(NamedTuple):
    title: str
    about: str
    heads: list[str]
    lines: list[Line]
    charts: list[Image]
    groups: list[Group]
    commands: list[str]
    versions: list[str]


def gather(runs: Sequence[Run]) -> Content:
    """Read everything there is to show of some runs."""
    runs = list({run.path.resolve(): run for run in runs}.values())
    if not runs:
        raise ConfigError("a report needs at least one run; give the folders of one or more")
    reads = [(run, run.evaluations()) for run in runs]
    records = [
        (run.config, evaluation)
        for run, evaluations in reads
        for evaluation in evaluations.values()
    ]
    staged = [(run.config, table) for run in runs for table in run.continual().values()]
    rows = comparison(records)
    colour_of = colours(look(run.config)[0] for run in runs)
    data = list(dict.fromkeys(look(run.config)[1] for run in runs))
    commands = [run.manifest.get("command") for run in runs] + [
        evaluation.get("command") for _, evaluation in records
    ]
    return Content(
        title=f"Coresets of {data[0]}" if len(data) == 1 else "Coresets compared",
        about=f"{_count(len(runs), 'run')} of {_count(len(colour_of), 'method')}, {_count(len(records), 'evaluation')}",
        heads=[metric_title(name) for name in metric_names(rows)],
        lines=_lines(rows, colour_of),
        charts=[
            *charts(rows, colour_of),
            *_present(
                extra.architecture_bars(records, colour_of),
                extra.corruption_radar(records, colour_of),
                extra.stage_curves(staged, colour_of),
            ),
        ],
        groups=_groups(reads, colour_of),
        commands=list(dict.fromkeys(str(command) for command in commands if command)),
        versions=list(dict.fromkeys(text for run in runs if (text := _versions(run.manifest)))),
    )


def _lines(rows: Sequence[Row], colour_of: Mapping[str, str]) -> list[Line]:
    marked, lines = best(rows), []
    for number, row in enumerate(rows):
        cells = [
            Cell(format_metric(*row.metrics.get(name, (None, None))), (number, name) in marked)
            for name in metric_names(rows)
        ]
        lines.append(Line(row, colour_of[row.method], cells))
    return lines


def _groups(reads: Sequence[Read], colour_of: Mapping[str, str]) -> list[Group]:
    alike: dict[str, list[Read]] = {}
    for run, evaluations in reads:
        alike.setdefault(repr(sorted(_settings(run).items())), []).append((run, evaluations))
    configs = [_settings(own[0][0]) for own in alike.values()]
    texts = variants([look(own[0][0].config) for own in alike.values()], configs)
    groups = []
    for number, (own, config, variant) in enumerate(
        zip(alike.values(), configs, texts, strict=True), start=1
    ):
        method, data, per_class = look(own[0][0].config)
        budget = {None: "", "all": "all points"}.get(per_class, f"{per_class} per class")  # type: ignore[arg-type]
        model = str(config.get("setup.model", ""))
        about = " · ".join(part for part in (budget, data, model, variant) if part)
        members = [_member(run, evaluations, colour_of[method]) for run, evaluations in own]
        lines = curves([run for run, _ in own], colour_of[method])
        pairs = [(name, _text(value)) for name, value in config.items()]
        groups.append(
            Group(f"run-{number}", method, about, colour_of[method], members, lines, pairs)
        )
    return groups


def _settings(run: Run) -> dict[str, Any]:
    return flat({name: value for name, value in run.config.items() if name != "seed"})


def _member(run: Run, evaluations: Mapping[str, Any], colour: str) -> Member:
    gallery, posterior, num_points = None, None, None
    if (run.path / CORESET_FILE).exists():
        coreset = run.coreset()
        num_points = len(coreset)
        names = run.manifest.get("class_names")
        gallery = show(coreset, [str(name) for name in names] if isinstance(names, list) else [])
        posterior = coreset.provenance.get("posterior")
    return Member(
        seed=_text(run.config.get("seed", "not recorded")),
        folder=run.path.resolve().name,
        status=str(run.manifest["status"]),
        reason=str(run.manifest.get("reason") or ""),
        facts=_cost(run.manifest, num_points),
        posterior=[(name, _text(value)) for name, value in flat(posterior).items()]
        if isinstance(posterior, Mapping)
        else [],
        gallery=gallery,
        evaluations=_evaluations(run, evaluations, colour),
    )


def _cost(manifest: Mapping[str, Any], num_points: int | None) -> Pairs:
    steps = manifest.get("num_steps")
    facts = {
        "points": str(num_points) if num_points is not None else "",
        "time": _duration(manifest.get("seconds")),
        "steps": f"{steps:,}" if type(steps) is int and steps else "",
        "hardware": str(manifest.get("hardware") or ""),
        "data fingerprint": str(manifest.get("data_fingerprint") or "")[:12],
    }
    return [(name, text) for name, text in facts.items() if text] + _stages(manifest.get("cost"))


def _evaluations(run: Run, evaluations: Mapping[str, Any], colour: str) -> list[Evaluation]:
    """One entry each; figures of the run as a whole, whatever the inference, go with the first."""
    shown = [_evaluation(name, run.config, one, colour) for name, one in evaluations.items()]
    ones = list(evaluations.values())
    spectra = (image for one in ones if (image := extra.spectrum_curves(one, colour)))
    whole = _present(next(spectra, None), extra.temperature_curves(ones))
    return [
        one._replace(diagrams=one.diagrams + (whole if place == 0 else []))
        for place, one in enumerate(shown)
    ]


def _evaluation(
    name: str, config: Mapping[str, Any], evaluation: Mapping[str, Any], colour: str
) -> Evaluation:
    row = comparison([(config, evaluation)])[0]
    facts = [
        (metric_title(metric), format_metric(*row.metrics[metric]))
        for metric in metric_names([row], details=True)
    ]
    facts += [("seeds", str(row.num))]
    if duration := _duration(evaluation.get("seconds")):
        facts.append(("time", duration))
    facts += _mixing(evaluation.get("diagnostics"))
    facts += _stages(evaluation.get("cost"))
    diagrams = _present(
        reliability(evaluation, colour),
        extra.trace_panels(evaluation),
        corruption_map(evaluation),
        extra.landscape_curves(evaluation, colour),
    )
    return Evaluation(name, row.inference, facts, diagrams)


def _present(*images: Image | None) -> list[Image]:
    return [image for image in images if image is not None]


def _stages(cost: Any) -> Pairs:
    """Time and peak memory of every stage, in one line."""
    parts, peaks = [], []
    for name, entry in cost.items() if isinstance(cost, Mapping) else ():
        if isinstance(entry, Mapping) and (text := _duration(entry.get("seconds"))):
            parts.append(f"{name} {text}")
            peaks += [entry["peak_mib"]] if is_finite(entry.get("peak_mib")) else []
    return ([("stages", ", ".join(parts))] if parts else []) + (
        [("peak memory", f"{max(peaks):,.0f} MiB")] if peaks else []
    )


def _mixing(diagnostics: Any) -> Pairs:
    """Of a sampler's chains, the worst over seeds."""
    found = (
        [d for d in diagnostics if isinstance(d, Mapping)] if isinstance(diagnostics, list) else []
    )
    predictions = [d["predictions"] for d in found if isinstance(d.get("predictions"), Mapping)]
    facts = {
        "R-hat of predictions": max(_finite(predictions, "rhat"), default=None),
        "ESS of predictions": min(_finite(predictions, "ess_bulk"), default=None),
        "acceptance": min(_finite(found, "accept"), default=None),
    }
    return [(name, f"{value:.3g}") for name, value in facts.items() if value is not None]


def _finite(tables: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [float(table[name]) for table in tables if is_finite(table.get(name))]


def _versions(manifest: Mapping[str, Any]) -> str:
    versions = manifest.get("versions")
    return (
        ", ".join(f"{name} {version}" for name, version in versions.items())
        if isinstance(versions, Mapping)
        else ""
    )


def _duration(seconds: Any) -> str:
    if not is_finite(seconds):
        return ""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
