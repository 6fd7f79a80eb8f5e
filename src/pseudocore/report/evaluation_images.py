"""Images out of evaluations: chains, spectra, losses, corruptions, architectures, stages; what is
not sound is left out.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from pseudocore.evaluation.tables import Record, look
from pseudocore.report import chain_plots, shape_plots
from pseudocore.report.figure import colours, data_uri
from pseudocore.report.images import Image, is_finite

_LONGEST = 1000
_MOST = 8
"""Lines or bars beside each other that can still be told apart."""


def trace_panels(evaluation: Mapping[str, Any]) -> Image | None:
    """The chains of the first seed."""
    table = evaluation.get("traces")
    panels = (
        {str(name): chains for name, chains in table.items() if _is_chains(chains)}
        if isinstance(table, Mapping)
        else {}
    )
    if not panels:
        return None
    inference = evaluation.get("inference", "unknown")
    caption = (
        f"{inference}: what each chain was like over its kept draws, first seed; a colour a chain."
    )
    return Image(data_uri(chain_plots.traces(panels)), f"traces of {inference}", caption)


def temperature_curves(evaluations: Sequence[Mapping[str, Any]]) -> Image | None:
    """NLL of one run's samplers over temperature, where one prior was tried at two or more."""
    lines: dict[str, dict[float, tuple[float, float | None]]] = {}
    for evaluation in evaluations:
        options, entries = evaluation.get("options"), evaluation.get("per_seed")
        if (
            not isinstance(options, Mapping)
            or not isinstance(entries, list)
            or not is_finite(options.get("temperature"))
        ):
            continue
        values = [
            float(entry["nll"])
            for entry in entries
            if isinstance(entry, Mapping) and is_finite(entry.get("nll"))
        ]
        if values and options["temperature"] > 0:
            words = (
                evaluation.get("inference", "unknown"),
                options.get("prior", ""),
                options.get("prior_scale", "of chosen scale"),
            )
            lines.setdefault(" ".join(map(str, words)), {})[float(options["temperature"])] = (
                _estimate(values)
            )
    curves = {label: sorted(line.items()) for label, line in lines.items() if len(line) > 1}
    if not curves or len(curves) > _MOST:
        return None
    sweeps = [
        chain_plots.Sweep(
            label,
            [at for at, _ in line],
            [mean for _, (mean, _) in line],
            [sd or 0.0 for _, (_, sd) in line],
        )
        for label, line in curves.items()
    ]
    caption = "NLL on the test set over temperature: where a colder posterior predicts better, likelihood or prior are not what they should be."
    return Image(
        data_uri(chain_plots.temperatures("NLL", sweeps)), "curve of NLL over temperature", caption
    )


def spectrum_curves(evaluation: Mapping[str, Any], colour: str) -> Image | None:
    """Power of the coreset's images beside that of the data's."""
    series = _series(evaluation.get("spectrum"), ("frequency", "coreset", "data"))
    if series is None or not any(value > 0 for value in series[1]):
        return None
    caption = "Power of the images by spatial frequency: noise is flat, natural images fall."
    frequency, coreset, data = series
    picture = shape_plots.spectrum(frequency, coreset, data, colour)
    return Image(data_uri(picture), "frequency spectrum of the coreset and of the data", caption)


def landscape_curves(evaluation: Mapping[str, Any], colour: str) -> Image | None:
    """Losses along a line between two networks."""
    series = _series(evaluation.get("landscape"), ("at", "coreset", "data"))
    if series is None:
        return None
    caption = "Mean loss along the line between two networks, one trained on the coreset and one on the data."
    at, coreset, data = series
    return Image(
        data_uri(shape_plots.landscape(at, coreset, data, colour)),
        "loss along a line between two networks",
        caption,
    )


def corruption_radar(records: Sequence[Record], colour_of: Mapping[str, str]) -> Image | None:
    """Accuracy under each corruption, all severities together, of two or more ways."""
    found: dict[str, dict[str, float]] = {}
    owner: dict[str, str] = {}
    for config, evaluation in records:
        table = evaluation.get("corruptions")
        row = (
            {str(kind): _mean(values) for kind, values in table.items()}
            if isinstance(table, Mapping)
            else {}
        )
        sound = {kind: value for kind, value in row.items() if value is not None}
        if len(sound) > 2:
            name = _name(config, evaluation)
            found.setdefault(name, sound)
            owner[name] = look(config)[0]
    if not 2 <= len(found) <= _MOST:
        return None
    shown = _told_apart(owner, colour_of)
    caption = "Accuracy under each corruption, averaged over severities."
    return Image(
        data_uri(shape_plots.radar(found, shown)),
        "radar chart of accuracy under corruptions",
        caption,
    )


def architecture_bars(records: Sequence[Record], colour_of: Mapping[str, str]) -> Image | None:
    """Accuracy by network, where a way was evaluated with more than one."""
    values: dict[str, dict[str, list[float]]] = {}
    owner: dict[str, str] = {}
    for config, evaluation in records:
        model, entries = evaluation.get("model"), evaluation.get("per_seed")
        if not isinstance(model, Mapping) or not isinstance(entries, list):
            continue
        accuracies = [
            float(entry["accuracy"])
            for entry in entries
            if isinstance(entry, Mapping) and is_finite(entry.get("accuracy"))
        ]
        if accuracies and model.get("name"):
            name = _name(config, evaluation)
            values.setdefault(name, {}).setdefault(str(model["name"]), []).extend(accuracies)
            owner[name] = look(config)[0]
    several = {name: row for name, row in values.items() if len(row) > 1}
    if not several or len(several) > _MOST:
        return None
    shown = {
        name: {network: _estimate(column) for network, column in row.items()}
        for name, row in several.items()
    }
    apart = _told_apart({name: owner[name] for name in several}, colour_of)
    caption = "Accuracy by the network that was fitted on the coreset."
    return Image(
        data_uri(shape_plots.architectures(shown, apart)),
        "bar chart of accuracy by network",
        caption,
    )


def stage_curves(records: Sequence[Record], colour_of: Mapping[str, str]) -> Image | None:
    """Accuracy over all classes seen, after each stage of class-incremental learning."""
    lines: dict[str, list[shape_plots.After]] = {}
    owner: dict[str, str] = {}
    for config, table in records:
        after: dict[int, list[float]] = {}
        entries = table.get("stages")
        for stage in entries if isinstance(entries, list) else []:
            metrics, num = (
                (stage.get("metrics"), stage.get("num_classes"))
                if isinstance(stage, Mapping)
                else (None, None)
            )
            if (
                isinstance(metrics, Mapping)
                and type(num) is int
                and is_finite(metrics.get("accuracy"))
            ):
                after.setdefault(num, []).append(float(metrics["accuracy"]))
        if after:
            options = table.get("options")
            words = (
                [f"{key}={value}" for key, value in sorted(options.items())]
                if isinstance(options, Mapping)
                else []
            )
            name = ", ".join([_name(config, table), *words])
            name = f"{name}, {len(after)} stages" if name in lines else name
            lines[name] = [
                shape_plots.After(num, *_estimate(values)) for num, values in sorted(after.items())
            ]
            owner[name] = look(config)[0]
    if not lines or len(lines) > _MOST:
        return None
    caption = "Classes arrive in stages: accuracy on all seen so far, of a network that knows them from memory alone."
    return Image(
        data_uri(shape_plots.stages(lines, _told_apart(owner, colour_of))),
        "accuracy over stages of classes",
        caption,
    )


def _name(config: Mapping[str, Any], evaluation: Mapping[str, Any]) -> str:
    method, data, per_class = look(config)
    return " · ".join(
        str(part)
        for part in (method, data, per_class, evaluation.get("inference", "unknown"))
        if part is not None
    )


def _told_apart(owner: Mapping[str, str], colour_of: Mapping[str, str]) -> dict[str, str]:
    """The methods' own colours while each has one line; else a colour a line."""
    if len(set(owner.values())) == len(owner):
        return {name: colour_of[method] for name, method in owner.items()}
    return colours(owner)


def _series(table: Any, names: Sequence[str]) -> list[list[float]] | None:
    """Number lists of one length by name, or nothing."""
    found: list[Any] = [table.get(name) for name in names] if isinstance(table, Mapping) else []
    if not found or not all(
        isinstance(values, list) and 1 < len(values) <= _LONGEST for values in found
    ):
        return None
    if len({len(values) for values in found}) > 1 or not all(
        is_finite(value) for values in found for value in values
    ):
        return None
    return [[float(value) for value in values] for values in found]


def _is_chains(value: Any) -> bool:
    if not isinstance(value, list) or not 1 <= len(value) <= 64:
        return False
    sound = all(
        isinstance(chain, list)
        and len(chain) <= _LONGEST
        and all(v is None or is_finite(v) for v in chain)
        for chain in value
    )
    return sound and any(v is not None for chain in value for v in chain)


def _mean(row: Any) -> float | None:
    values = (
        [float(value) for value in row.values() if is_finite(value)]
        if isinstance(row, Mapping)
        else []
    )
    return statistics.fmean(values) if values else None


def _estimate(values: Sequence[float]) -> tuple[float, float | None]:
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None
