"""What evaluations beyond the plain ones add to the page: a corruption heat map and the state of
the chains.
"""

from pathlib import Path

import pytest

from pseudocore import api
from pseudocore.data import digits
from pseudocore.report.page import render
from pseudocore.store.run_folder import Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    api.reduce("uniform", "digits", per_class=1, model="linear", out=tmp_path / "run")
    return Run.open(tmp_path / "run")


def page(run: Run, **entries: object) -> str:
    evaluation = api.evaluate(run.coreset(), digits(), inference="sgd", num_steps=2, seeds=1)
    run.save_evaluation("sgd", {**evaluation, **entries})
    return render([run], run.path / "page.html").read_text()


def test_corruptions_are_drawn(run: Run) -> None:
    text = page(run, corruptions={"fog": {"1": 0.5, "5": 0.25}, "snow": {"1": 0.75, "5": 0.5}})
    assert "corruption heat map of sgd" in text
    assert "heat map" not in page(run, corruptions={})


def test_chains_are_described_by_their_worst_seed(run: Run) -> None:
    seeds = [
        {"predictions": {"rhat": rhat, "ess_bulk": ess}, "accept": accept}
        for rhat, ess, accept in ((1.25, 40.0, 0.75), (1.5, 20.0, 0.5))
    ]
    text = page(run, diagnostics=seeds)
    for fact in (
        "R-hat of predictions</dt><dd>1.5",
        "ESS of predictions</dt><dd>20",
        "acceptance</dt><dd>0.5",
    ):
        assert fact in text
    assert "R-hat" not in page(run, diagnostics="a stranger's word")
