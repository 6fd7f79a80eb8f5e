"""What reaches a terminal."""

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.table import Table

import pseudocore
from pseudocore.runtime.reporting import listening, report
from pseudocore.workflows import progress
from pseudocore.workflows.progress import PlainConsole


def test_control_characters_are_spelled_out() -> None:
    """Escape sequences of a file's name, C1 codes and changes of direction; our own colours stay."""
    screen = io.StringIO()
    console = PlainConsole(file=screen, force_terminal=True, color_system="standard", markup=False)
    hostile = "a\x1b]0;title\x07b\x9b2Jc\u202ed\re\u2068"
    table = Table(title="t")
    table.add_column("[x]", style="red")
    table.add_row(hostile)
    console.print(hostile, table, sep="\n")
    shown = screen.getvalue()
    for char in "\x07\x9b\u202e\r\u2068":
        assert char not in shown
    assert "\x1b]" not in shown
    assert "a\\x1b]0;title" in shown
    assert "\x1b[31m" in shown


def test_plain_text_and_lines_stay() -> None:
    screen = io.StringIO()
    PlainConsole(file=screen, soft_wrap=True).print("ä ± 日本 x\ny")
    assert screen.getvalue() == "ä ± 日本 x\ny\n"


@pytest.mark.parametrize(
    ("method", "options", "title", "total"),
    [
        ("el2n", {"pretrain_epochs": 2, "pretrain_batch_size": 500}, "training a network", 6),
        ("lcmat-s", {"pretrain_epochs": 1, "balanced": False, "points": 12}, "selecting", 12),
    ],
)
def test_selectors_say_how_far_they_are(
    method: str, options: dict[str, Any], title: str, total: int
) -> None:
    heard: list[tuple[str, int, int]] = []
    budget = {} if "points" in options else {"per_class": 1}
    with listening(lambda *said: heard.append(said)):
        pseudocore.reduce(method, "digits", model="linear", **options, **budget)
    of_it = [(done, num) for name, done, num in heard if name.startswith(title)]
    assert of_it == [(done, total) for done in range(1, total + 1)]


def test_chains_and_training_say_how_far_they_are() -> None:
    run = pseudocore.reduce("uniform", "digits", per_class=1, model="linear")
    heard: list[tuple[str, int, int]] = []
    with listening(lambda *said: heard.append(said)):
        pseudocore.infer(run, "hmc", num_draws=3, num_burn=2, num_leapfrog=1)
        pseudocore.infer(run, "sgd", num_steps=4)
    assert heard == [("sampling", k, 5) for k in range(1, 6)] + [
        ("training", k, 4) for k in range(1, 5)
    ]


@pytest.mark.parametrize("around", [False, True])
def test_a_part_is_shown_beside_the_bar_or_as_one(
    around: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen, clock = io.StringIO(), iter(range(0, 1000, 2))
    console = PlainConsole(file=screen, force_terminal=True, width=120)
    monkeypatch.setattr(progress, "console", console)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    monkeypatch.setenv("PSEUDOCORE_VERBOSITY", "")
    with progress.parts():
        if around:
            with progress.progress("outer", 5):
                report("sampling", 1, 9)
                report("sampling", 2, 9)
        else:
            report("sampling", 1, 9)
            report("sampling", 2, 9)
    assert ("sampling 2/9" if around else "2/9") in screen.getvalue()
    assert "sampling" in screen.getvalue()
