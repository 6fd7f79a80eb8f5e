"""Shared by the report's tests: run folders with made-up content, and a reader of pages."""

import html.parser
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pseudocore.core.types import Coreset
from pseudocore.report.page import render
from pseudocore.store.run_folder import Run

MakeRun = Callable[..., Run]


@pytest.fixture
def images() -> Coreset:
    """Two chosen grey pictures of each of three classes."""
    x = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return Coreset(
        x, torch.tensor([2, 0, 1, 1, 0, 2]), torch.ones(6), torch.tensor([5, 6, 7, 8, 9, 4])
    )


@pytest.fixture
def make_run(tmp_path: Path, images: Coreset) -> MakeRun:
    """A finished run with a coreset, twelve logged steps and an evaluation per accuracy."""

    def make(
        name: str = "run", method: str = "vbpc", coreset: Coreset | None = images, **given: Any
    ) -> Run:
        seed, accuracies = given.pop("seed", 0), given.pop("accuracies", (0.9,))
        options = {"per_class": 2, **given.pop("options", {})}
        options = {name: value for name, value in options.items() if value is not None}
        config = {
            "method": method,
            "seed": seed,
            "setup": {"data": "digits"},
            "options": options,
        }
        run = Run.create(
            tmp_path / name,
            config,
            command=given.pop("command", f"pseudocore reduce {method} digits --seed {seed}"),
        )
        if coreset is not None:
            run.save_coreset(coreset)
        for step in range(10, given.pop("num_logged", 12) * 10 + 1, 10):
            run.log(step, {"loss": math.exp(-step / 50), "accuracy": 0.5})
        for number, accuracy in enumerate(accuracies):
            run.save_evaluation(
                f"hmc-{number}", _evaluation(accuracy, options={"num_draws": number})
            )
        run.finish(
            given.pop("status", "finished"),
            given.pop("reason", ""),
            **({"seconds": 75.0, "num_steps": 1234} | given),
        )
        return Run.open(run.path)

    return make


@pytest.fixture
def evaluation() -> Callable[..., dict[str, Any]]:
    """Makes an evaluation by `hmc` with one seed of some accuracy."""
    return _evaluation


def _evaluation(accuracy: float, **entries: Any) -> dict[str, Any]:
    per_seed = [{"seed": 0, "accuracy": accuracy, "nll": 1 - accuracy, "ece": 0.02, "brier": 0.1}]
    diagram = {"confidence": [None, 0.4, 0.8], "accuracy": [None, 0.5, 0.75], "count": [0, 10, 40]}
    found = {
        "inference": "hmc",
        "options": {},
        "model": {},
        "per_seed": per_seed,
        "reliability": diagram,
        "seconds": 1.5,
    }
    return {**found, "command": "pseudocore evaluate run --inference hmc", **entries}


class PageReader(html.parser.HTMLParser):
    """Checks that tags nest, and collects images, headings, text and tag names."""

    _VOID = frozenset({"meta", "img", "br", "hr", "link", "input"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.images: list[dict[str, str | None]] = []
        self.tags: set[str] = set()
        self.headings: list[str] = []
        self.emphasised: list[str] = []
        self.words: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag == "img":
            self.images.append(dict(attrs))
        if tag not in self._VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self._open:
            return
        self.words.append(data)
        if self._open and self._open[-1] in ("h1", "h2", "h3"):
            self.headings.append(data.strip())
        if self._open and self._open[-1] == "strong":
            self.emphasised.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture
def page(tmp_path: Path) -> Callable[..., PageReader]:
    """Renders runs into `report.html` and reads it."""

    def read(*runs: Run) -> PageReader:
        return PageReader(render(runs, tmp_path / "report.html").read_text(encoding="utf-8"))

    return read
