"""Figures: sound SVG, equal bytes for equal content, nobody's global state touched, the right
lengths drawn; from evaluations, there when the numbers are sound and left out when they are a
stranger's nonsense.
"""

import base64
import math
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
import matplotlib.axes
import numpy as np
import pytest
import torch

from pseudocore.core.errors import ConfigError
from pseudocore.evaluation.tables import Estimate, Row
from pseudocore.report import comparison_figures, curves, evaluation_figures, gallery, svg
from pseudocore.report.comparison_figures import bars
from pseudocore.report.conclusion import Scale
from pseudocore.report.curves import Curve
from pseudocore.report.gap_figure import gap

Calls = dict[str, list[Any]]
INK, PALETTE = svg.INK, svg.PALETTE


def row(method: str, accuracy: float | None = 0.9, sd: float | None = 0.1, **fields: Any) -> Row:
    metrics = {} if accuracy is None else {"accuracy": Estimate(accuracy, sd)}
    return Row(method, "digits", 1, "hmc", "", 1, 3, metrics)._replace(**fields)


def record(method: str, model: str = "mlp", accuracy: float = 0.5, **entries: Any) -> Any:
    config = {"method": method, "setup": {"data": "digits"}, "options": {"per_class": 1}}
    per_seed = [{"seed": 0, "accuracy": accuracy}]
    return config, {"inference": "sgd", "model": {"name": model}, "per_seed": per_seed, **entries}


def stage(classes: Any, accuracy: Any) -> dict[str, Any]:
    return {"num_classes": classes, "metrics": {"accuracy": accuracy}}


def sampled(temperature: Any, nll: float, scale: float = 8.0) -> dict[str, Any]:
    options = {"temperature": temperature, "prior": "fan-in", "prior_scale": scale}
    return {"inference": "hmc", "options": options, "per_seed": [{"nll": nll}, {"nll": nll}]}


SOUND: dict[str, Any] = {
    "inference": "hmc",
    "reliability": {
        "confidence": [None, 0.5, 0.9],
        "accuracy": [None, 0.4, 1.0],
        "count": [0, 10, 30],
    },
    "traces": {"accept": [[0.5, None, 0.7], [1.0, 0.25, 0.5]], "log_density": [[1.0, 2.0, 1.0]]},
    "corruptions": {"fog": {"1": 0.5, "5": 0.25}, "$\\bad{$": {"1": 1.0}, "snow": {"5": 0.0}},
    "landscape": {"at": [0.0, 1.0], "coreset": [0.1, 1.0], "data": [1.0, 0.1]},
    "spectrum": {"frequency": [0.0, 0.1], "coreset": [2.0, 0.0], "data": [2.0, 0.5]},
}
COLOURS = {"vbpc": "#ff0000", "uniform": "#0000ff"}
RECORDS = [
    record("vbpc", corruptions=SOUND["corruptions"]),
    record("vbpc", "vgg11", 0.25),
    record("vbpc", "vgg11", 0.75),
    record("uniform", corruptions=SOUND["corruptions"]),
]
STAGES = [stage(4, 0.5), stage(2, 1.0), stage(2, 0.5), stage("6", 0.5), stage(8, "x"), 3]
STAGED = [(record("uniform")[0], {"inference": "sgd", "stages": STAGES})]
SAMPLED = [
    sampled(1.0, 2.0),
    sampled(0.1, 1.0),
    sampled(0.1, 3.0, scale=4.0),
    sampled("cold", 1.0),
]
POINTS = torch.rand(40, 2, generator=torch.Generator().manual_seed(0))


def _curve(*lines: Curve, name: str = "loss") -> list[svg.Image]:
    return [curves.curves(name, lines, "k")]


FIGURES: dict[str, Callable[[], list[svg.Image]]] = {
    "evaluation": lambda: evaluation_figures.of_evaluation(SOUND, PALETTE[0]),
    "run": lambda: evaluation_figures.of_run([SOUND, *SAMPLED], PALETTE[0]),
    "comparison": lambda: comparison_figures.of_comparison(
        [row("vbpc"), row("uniform", math.inf), row("vbpc", None)], RECORDS, STAGED, COLOURS
    ),
    "bars of nothing": lambda: [bars([row("a", 0.0, None)], "accuracy", svg.colours("a"))],
    "curve": lambda: _curve(Curve("seed 0", [1, 2, 3], [3.0, 2.0, 1.0])),
    "noisy curves": lambda: _curve(
        *(Curve(f"s{k}", range(3000), [math.nan, 1.0, 900.0] * 1000) for k in (0, 1))
    ),
    "negative curve": lambda: _curve(Curve("a", [1, 2], [-1.0, math.inf]), name="$\\frac{$"),
    "scatter": lambda: [gallery.scatter(POINTS, [f"c{k % 20}" for k in range(40)])],
    "heat map": lambda: [
        gallery.heat_map(torch.eye(4) - 0.25, ["a", "a", "b", "汉字"], ["a", "bird", "$\\x{$", "d"])
    ],
    "large heat map": lambda: [
        gallery.heat_map(torch.eye(100), list(map(str, range(100))), list(map(str, range(100))))
    ],
    "heat map of zeros": lambda: [gallery.heat_map(torch.zeros(1, 2), ["a"], ["a", "b"])],
}


def _svg(image: svg.Image) -> bytes:
    return base64.b64decode(image.source.removeprefix("data:image/svg+xml;base64,"))


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_sound_svg_and_equal_each_time(name: str) -> None:
    images = FIGURES[name]()
    assert len(images) == {"evaluation": 4, "run": 2, "comparison": 4}.get(name, 1)
    assert FIGURES[name]() == images
    for image in images:
        assert ET.fromstring(_svg(image)).tag == "{http://www.w3.org/2000/svg}svg"
        assert len(_svg(image)) < 250_000


def test_a_figure_follows_the_readers_theme() -> None:
    text = _svg(FIGURES["bars of nothing"]()[0]).decode()
    assert "currentColor" in text
    assert text.count(INK) == 1  # in the rule that says what currentColor is
    assert "prefers-color-scheme:dark" in text


def test_the_users_matplotlib_is_neither_asked_nor_changed() -> None:
    plain = FIGURES["curve"]()
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "text.usetex": True}):
        before = dict(matplotlib.rcParams)
        assert FIGURES["curve"]() == plain
        assert dict(matplotlib.rcParams) == before
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or not pyplot.get_fignums()


def test_without_matplotlib_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r'pip install "pseudocore\[report\]"') as error:
        svg.draw(1, 1, print)
    assert error.value.code == "missing-package"


@contextmanager
def drawing() -> Iterator[Calls]:
    """What is handed to the axes, by the name of the call."""
    calls: Calls = {}

    def recording(name: str) -> Callable[..., Any]:
        call = getattr(matplotlib.axes.Axes, name)

        def record(axes: Any, *args: Any, **style: Any) -> Any:
            calls.setdefault(name, []).append((*args, style))
            return call(axes, *args, **style)

        return record

    with pytest.MonkeyPatch.context() as patch:
        for name in ("plot", "bar", "barh", "errorbar", "set_yscale"):
            patch.setattr(matplotlib.axes.Axes, name, recording(name))
        yield calls


def test_bars_are_as_long_as_the_means() -> None:
    rows = [row("a", 0.75, 0.125), row("b", math.inf, None), row("c", 0.5, None)]
    with drawing() as drawn:
        bars(rows, "accuracy", svg.colours("abc"))
    assert [call[1] for call in drawn["barh"]] == [0.75, 0.0, 0.5]
    assert [call[-1]["color"] for call in drawn["barh"]] == list(PALETTE[:3])
    ((at, place, style),) = drawn["errorbar"]
    assert (at, place, style["xerr"]) == (0.75, 0, 0.125)


def test_an_evaluation_is_drawn_at_its_place() -> None:
    with drawing() as drawn:
        assert len(evaluation_figures.of_evaluation(SOUND, "k")) == 4
    (centres, heights, _), (_, counts, _) = drawn["bar"]
    assert centres == pytest.approx([0.5, 5 / 6])
    assert (heights, list(counts)) == ([0.4, 1.0], [0, 10, 30])
    diagonal, points, *lines = (call[:2] for call in drawn["plot"])
    assert diagonal == ([0, 1], [0, 1])
    assert points == ([0.5, 0.9], [0.4, 1.0])
    assert [list(chain) for _, chain in lines[1:3]] == [[1.0, 0.25, 0.5], [1.0, 2.0, 1.0]]
    assert math.isnan(lines[0][1][1])
    assert lines[3:] == [([0.0, 1.0], [1.0, 0.1]), ([0.0, 1.0], [0.1, 1.0])]


NONSENSE = [
    "a word",
    [],
    5,
    {"accept": "x", "fog": "y", "frequency": 1, "at": None, "count": None},
    {"accept": [["a"]], "fog": {"1": "x"}, "frequency": [1.0], "at": [1.0]},
    {"accept": [[None]], "coreset": [1.0], "data": [1.0, 1.0], "at": [0.0, math.inf]},
    {"accept": [[0.5] * 5000], "coreset": [1.0] * 2, "data": [1.0] * 2, "at": ["0", "1"]},
    {"frequency": [10**400] * 2, "coreset": [1.0] * 2, "data": [1.0] * 2},
    {"confidence": [2.0], "accuracy": [0.5], "count": [1]},
]


@pytest.mark.parametrize("nonsense", NONSENSE, ids=str)
def test_nonsense_is_left_out(nonsense: Any) -> None:
    evaluation = dict.fromkeys((*SOUND, "options", "per_seed", "model", "stages"), nonsense)
    assert evaluation_figures.of_evaluation(evaluation, "k") == []
    assert evaluation_figures.of_run([evaluation], "k") == []
    records = [(record("vbpc")[0], evaluation)] * 2
    assert comparison_figures.of_comparison([], records, records, COLOURS) == []


def test_a_curve_that_spans_a_lot_is_logarithmic() -> None:
    with drawing() as drawn:
        _curve(Curve("a", [1, 2], [1.0, 1000.0]))
        _curve(Curve("a", [1, 2], [0.0, 1000.0]))
        _curve(Curve("a", [1, 2], [1.0, 2.0]))
    assert [call[0] for call in drawn["set_yscale"]] == ["log"]


def test_a_long_curve_is_smoothed_without_bending_a_line() -> None:
    values = [2.0 * step for step in range(200)]
    values[100] = math.nan
    with drawing() as drawn:
        _curve(Curve("a", range(200), values))
    _, (steps, smooth, _) = drawn["plot"]
    inside = (steps >= 5) & (steps < 195) & (abs(steps - 100) > 5)
    np.testing.assert_allclose(smooth[inside], 2.0 * steps[inside])
    assert np.isnan(smooth[[0, 4, -1, -5]]).all()
    assert smooth[100] == pytest.approx(200)  # the gap itself, from its neighbours


def test_networks_and_corruptions_are_compared_where_there_are_several() -> None:
    one = comparison_figures.of_comparison([], RECORDS[:1], [], COLOURS)
    assert one == []
    with drawing() as drawn:
        found = comparison_figures.of_comparison([], RECORDS, [], COLOURS)
    assert [image.alt for image in found] == [
        "bar chart of accuracy by network",
        "radar chart of accuracy under corruptions",
    ]
    (_, means, _, style), (_, _, deviations, _) = *drawn["bar"], *drawn["errorbar"]
    assert means == (0.5, 0.5)
    assert deviations == [0.0, pytest.approx(0.5**0.5 / 2)]
    assert (style["label"], style["color"]) == ("vbpc", COLOURS["vbpc"])
    assert [call[1][:3] for call in drawn["plot"]] == [[0.375, 1.0, 0.0]] * 2
    assert [call[-1]["color"] for call in drawn["plot"]] == list(COLOURS.values())


def test_what_was_set_differently_is_never_pooled() -> None:
    """Nor drawn under one label: neither settings of a method nor widths of a network."""
    quick, wide = {"options": {"num_steps": 5}}, {"name": "mlp", "width": 64}
    records = [record("vbpc"), record("vbpc", "vgg11", 0.25)]
    records += [record("vbpc", accuracy=0.1, **quick), record("vbpc", "vgg11", 0.2, **quick)]
    records.append((records[0][0], {**records[0][1], "model": wide}))
    with drawing() as drawn:
        comparison_figures.of_comparison([], records, [], COLOURS)
    bars = {call[-1]["label"]: call[1] for call in drawn["bar"]}
    assert bars == {
        "vbpc · inference.num_steps=unset": (0.5, 0.25, 0.5),
        "vbpc · inference.num_steps=5": (0.1, 0.2),
    }


def test_a_gap_is_drawn_by_points_a_line_for_each_setting() -> None:
    scales = {("vbpc", "digits", (ipc, None, None)): Scale(10 * ipc, 1000) for ipc in (1, 5)}
    rows = [row("vbpc", 0.7, 0.1), row("vbpc", 0.875, None, per_class=5)]
    rows += [row("vbpc", 0.5, None, variant="width=4"), row("full", 0.9375, 0.25, per_class="all")]
    with drawing() as drawn:
        assert gap(rows, "accuracy", scales, svg.colours(["vbpc", "full"])) is not None
        assert gap(rows[1:2], "accuracy", scales, COLOURS) is None  # one budget is no curve
        assert gap(rows[:2], "accuracy", scales, COLOURS) is None  # nothing to compare with
    lines = [call[:3] for call in drawn["errorbar"]]
    assert lines[0] == ((10, 50), (pytest.approx(0.2375), 0.0625), (0.1, 0.0))
    assert lines[1] == ((10,), (0.4375,), (0.0,))


def test_cut_labels_stay_distinct() -> None:
    names = ["a" * 30 + "1", "a" * 30 + "2", "b"]
    assert svg.labels(names, 10) == ["a" * 6 + "… #1", "a" * 6 + "… #2", "b"]


def test_temperatures_of_one_prior_make_a_curve() -> None:
    assert evaluation_figures.of_run(SAMPLED[:1], "k") == []
    with drawing() as drawn:
        assert len(evaluation_figures.of_run(SAMPLED, "k")) == 1
    ((at, means, deviations, style),) = drawn["errorbar"]
    assert (at, means, deviations) == ((0.1, 1.0), (1.0, 2.0), (0.0, 0.0))
    assert style["label"] == "hmc fan-in 8.0"


def test_stages_are_averaged_over_seeds() -> None:
    with drawing() as drawn:
        assert len(comparison_figures.of_comparison([], [], STAGED, COLOURS)) == 1
    ((classes, means, deviations, _),) = drawn["errorbar"]
    assert (classes, means) == ((2, 4), (0.75, 0.5))
    assert deviations == (pytest.approx(0.5**0.5 / 2), 0.0)


def test_labels_name_what_rows_do_not_share() -> None:
    labels = comparison_figures.row_labels
    assert labels([row("a"), row("b")]) == ["a", "b"]
    full = row("full", per_class="all", inference="sgd")
    assert labels([row("a"), row("a", per_class=10), full, row("a", per_class=None)]) == [
        "a\n1 per class · hmc",
        "a\n10 per class · hmc",
        "full\nall · sgd",
        "a\nhmc",
    ]


def test_colours_follow_the_order_of_first_appearance() -> None:
    assert svg.colours(["b", "a", "b"]) == {"b": PALETTE[0], "a": PALETTE[1]}
    many = svg.colours(map(str, range(9)))
    assert many["8"] == many["0"]
    assert all(re.fullmatch(r"#[0-9a-f]{6}", colour) for colour in PALETTE)


def test_plain_text_is_short_printable_and_on_one_line() -> None:
    assert svg.plain_text("a\nb\x00\ud800") == "a b ?"
    assert svg.plain_text("x" * 40, 10) == "x" * 9 + "…"
    assert svg.plain_text(3) == "3"
