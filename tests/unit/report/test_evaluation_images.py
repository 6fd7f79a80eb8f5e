"""Figures out of evaluations: there when the numbers are sound, left out when they are missing or a
stranger's nonsense.
"""

import math
import xml.etree.ElementTree as ET
from typing import Any

import matplotlib.axes
import pytest

from pseudocore.report import chain_plots, shape_plots
from pseudocore.report import evaluation_images as images
from pseudocore.report.figure import PALETTE

KINDS = ("fog", "snow", "frost", "$\\bad{$")
FIGURES = {
    "traces": lambda: chain_plots.traces(
        {"log_density": [[1.0, 2.0, None], [0.0, 1.0, 2.0]], "accept": [[0.5], [1.0]]}
    ),
    "temperatures": lambda: chain_plots.temperatures(
        "NLL", [chain_plots.Sweep("a", [0.1, 1.0], [1.0, 2.0], [0.1, 0.0])], level=("b", 1.5)
    ),
    "spectrum": lambda: shape_plots.spectrum(
        [0.0, 0.1, 0.2], [3.0, 2.0, 0.0], [3.0, 1.0, 0.5], PALETTE[0]
    ),
    "landscape": lambda: shape_plots.landscape(
        [-0.5, 0.0, 1.0], [2.0, 0.1, 1.0], [3.0, 2.0, 0.2], PALETTE[0]
    ),
    "radar": lambda: shape_plots.radar(
        {"a": dict.fromkeys(KINDS, 0.5), "b": {"fog": 0.2}}, {"a": PALETTE[0], "b": PALETTE[1]}
    ),
    "stages": lambda: shape_plots.stages(
        {
            "a": [shape_plots.After(2, 0.9, 0.1), shape_plots.After(4, 0.5, None)],
            "b": [shape_plots.After(2, 0.8, None)],
        },
        {"a": PALETTE[0], "b": PALETTE[1]},
    ),
    "architectures": lambda: shape_plots.architectures(
        {"a": {"mlp": (0.5, 0.1), "vgg": (0.4, None)}}, {"a": PALETTE[0]}
    ),
}


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_sound_svg_and_equal_each_time(name: str) -> None:
    svg = FIGURES[name]()
    assert ET.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
    assert FIGURES[name]() == svg


def test_every_chain_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    plot = matplotlib.axes.Axes.plot
    monkeypatch.setattr(
        matplotlib.axes.Axes,
        "plot",
        lambda self, x, y, **more: drawn.append(list(y)) or plot(self, x, y, **more),
    )
    chain_plots.traces({"accept": [[0.5, None], [1.0, 0.25]]})
    assert drawn[1] == [1.0, 0.25]
    assert drawn[0][0] == 0.5
    assert math.isnan(drawn[0][1])


SOUND: dict[str, Any] = {
    "inference": "hmc",
    "traces": {"accept": [[0.5, None, 0.7]]},
    "spectrum": {"frequency": [0.0, 0.1], "coreset": [2.0, 1.0], "data": [2.0, 0.5]},
    "landscape": {"at": [0.0, 1.0], "coreset": [0.1, 1.0], "data": [1.0, 0.1]},
}


def drawn(evaluation: dict[str, Any]) -> list[bool]:
    found = (
        images.trace_panels(evaluation),
        images.spectrum_curves(evaluation, "k"),
        images.landscape_curves(evaluation, "k"),
    )
    return [image is not None for image in found]


def test_sound_numbers_are_drawn() -> None:
    assert drawn(SOUND) == [True, True, True]
    assert drawn({}) == [False, False, False]


@pytest.mark.parametrize(
    "nonsense",
    ["a word", [], 5, {"accept": "x", "frequency": 1, "at": None}, {"accept": [["a"]], "frequency": [1.0], "at": [1.0]},
     {"accept": [[None]], "frequency": [0.0, 1.0], "coreset": [1.0], "data": [1.0, 1.0], "at": [0.0, math.inf]},
     {"accept": [[0.5] * 5000], "frequency": [10**400] * 2, "coreset": [1.0] * 2, "data": [1.0] * 2, "at": ["0", "1"]}],
    ids=str,
)  # fmt: skip
def test_nonsense_is_left_out(nonsense: Any) -> None:
    assert drawn({"traces": nonsense, "spectrum": nonsense, "landscape": nonsense}) == [
        False,
        False,
        False,
    ]


def record(method: str, model: str = "mlp", accuracy: float = 0.5, **entries: Any) -> Any:
    config = {"method": method, "setup": {"data": "digits"}, "options": {"per_class": 1}}
    return config, {
        "inference": "sgd",
        "model": {"name": model},
        "per_seed": [{"seed": 0, "accuracy": accuracy}],
        **entries,
    }


def test_networks_are_compared_where_there_are_several(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    monkeypatch.setattr(
        shape_plots,
        "architectures",
        lambda accuracy, colours: shown.append((accuracy, colours)) or b"",
    )
    colour_of = {"vbpc": "red", "uniform": "blue"}
    records = [
        record("vbpc"),
        record("vbpc", "vgg11", 0.25),
        record("vbpc", "vgg11", 0.75),
        record("uniform"),
    ]
    assert images.architecture_bars(records[:1], colour_of) is None
    assert images.architecture_bars(records, colour_of) is not None
    ((accuracy, colours),) = shown
    assert accuracy == {
        "vbpc · digits · 1 · sgd": {"mlp": (0.5, None), "vgg11": (0.5, pytest.approx(0.5**0.5 / 2))}
    }
    assert colours == {"vbpc · digits · 1 · sgd": "red"}


def test_corruptions_are_compared_where_there_are_several(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    monkeypatch.setattr(
        shape_plots, "radar", lambda accuracy, colours: shown.append(accuracy) or b""
    )
    table = {
        "fog": {"1": 0.5, "5": 0.25},
        "snow": {"1": 1.0},
        "frost": {"1": 0.0},
        "broken": {"1": "x"},
    }
    colour_of = {"vbpc": "red", "uniform": "blue"}
    records = [record("vbpc", corruptions=table), record("uniform", corruptions=table)]
    assert images.corruption_radar(records[:1], colour_of) is None
    assert (
        images.corruption_radar([*records, record("vbpc", corruptions="x")], colour_of) is not None
    )
    assert shown[0]["uniform · digits · 1 · sgd"] == {"fog": 0.375, "snow": 1.0, "frost": 0.0}


def test_temperatures_of_one_prior_make_a_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    monkeypatch.setattr(
        chain_plots, "temperatures", lambda metric, sweeps: shown.append(sweeps) or b""
    )

    def evaluation(temperature: Any, nll: float, scale: float = 8.0) -> dict[str, Any]:
        options = {"temperature": temperature, "prior": "fan-in", "prior_scale": scale}
        return {"inference": "hmc", "options": options, "per_seed": [{"nll": nll}, {"nll": nll}]}

    several = [
        evaluation(1.0, 2.0),
        evaluation(0.1, 1.0),
        evaluation(0.1, 3.0, scale=4.0),
        evaluation("cold", 1.0),
    ]
    assert images.temperature_curves(several[:1]) is None
    assert images.temperature_curves(several) is not None
    assert shown == [[chain_plots.Sweep("hmc fan-in 8.0", [0.1, 1.0], [1.0, 2.0], [0.0, 0.0])]]


def test_stages_are_averaged_over_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    monkeypatch.setattr(shape_plots, "stages", lambda lines, colours: shown.append(lines) or b"")
    config, colour_of = (
        {"method": "uniform", "data": "digits", "options": {"per_class": 1}},
        {"uniform": PALETTE[0]},
    )

    def stage(classes: Any, accuracy: Any) -> dict[str, Any]:
        return {"num_classes": classes, "metrics": {"accuracy": accuracy}}

    table = {
        "inference": "sgd",
        "stages": [stage(4, 0.5), stage(2, 1.0), stage(2, 0.5), stage("6", 0.5), stage(8, "x"), 3],
    }
    assert images.stage_curves([(config, table)], colour_of) is not None
    [line] = shown[0].values()
    assert line == [
        shape_plots.After(2, 0.75, pytest.approx(0.5**0.5 / 2)),
        shape_plots.After(4, 0.5, None),
    ]
    for nonsense in ({}, {"stages": []}, {"stages": "x"}):
        assert images.stage_curves([(config, nonsense)], colour_of) is None
