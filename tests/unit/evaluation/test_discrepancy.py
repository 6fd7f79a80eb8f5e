"""MMD and KSD of a coreset by their definitions, and as columns of `compare`."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

import pseudocore as pc
from pseudocore.cli.main import main
from pseudocore.core.rng import Rng
from pseudocore.evaluation import discrepancy
from pseudocore.evaluation.discrepancy import discrepancies
from pseudocore.selection import kernels

X, Y = Rng(0)("x").normal(40, 3), torch.arange(40) % 2


@pytest.fixture(scope="module")
def run() -> Any:
    return pc.reduce("uniform", (X, Y, X[:8], Y[:8]), per_class=3, model="linear")


def test_mmd_of_inputs_and_labels(run: Any) -> None:
    """Soft labels count by their products, weights by their shares; all data give 0."""
    problem, coreset = run.problem, run.coreset
    p = torch.tensor([[0.8, 0.2]] * 3 + [[0.0, 1.0]] * 3)
    w = torch.tensor([1.0, 2, 3, 4, 5, 6])
    own = replace(coreset, y=p, weight=w)
    x = problem.inputs(own.x).double()
    z = problem.inputs(X).double()
    length = float(torch.pdist(z).median())
    labels = torch.nn.functional.one_hot(Y).double()

    def mean(a: Any, p: Any, v: Any, b: Any, q: Any, u: Any) -> float:
        return sum(
            float(v[i] * u[j] * (p[i] @ q[j]) * ((a[i] - b[j]).square().sum() / (-2 * length**2)).exp())
            for i in range(len(a))
            for j in range(len(b))
        )  # fmt: skip

    points, data = (x, p.double(), w / 21), (z, labels, torch.full((40,), 1 / 40))
    expected = mean(*points, *points) - 2 * mean(*points, *data) + mean(*data, *data)
    assert discrepancies(problem, own)["mmd"] == pytest.approx(math.sqrt(expected), rel=1e-6)
    everything = problem.subset(torch.arange(40))
    assert discrepancies(problem, everything)["mmd"] == pytest.approx(0, abs=1e-6)


def test_ksd_by_class(run: Any) -> None:
    problem, coreset = run.problem, run.coreset
    z, length = problem.inputs(X).double(), 0.0
    length = kernels.median_distance(z)
    total = 0.0
    for label in (0, 1):
        score = kernels.gaussian_score(z[label == Y])
        x = problem.inputs(coreset.x[coreset.y == label]).double()
        p = kernels.stein(x, score(x), x, score(x), length)
        total += 0.5 * float(p.mean())
    assert discrepancies(problem, coreset)["ksd"] == pytest.approx(math.sqrt(total))
    one = coreset[coreset.y == 0]  # a class without points is left out
    assert discrepancies(problem, one)["ksd"] > 0


def test_many_examples_are_represented(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = discrepancies(run.problem, run.coreset)
    monkeypatch.setattr(discrepancy, "NUM_DATA", 30)
    rough = discrepancies(run.problem, run.coreset)
    assert rough != exact
    assert rough["mmd"] == pytest.approx(exact["mmd"], rel=0.5)
    assert discrepancies(run.problem, run.coreset) == rough


def test_a_regression_is_refused(fails: Any) -> None:
    made = pc.reduce("uniform", (X, X[:, 0]), points=4, model="linear")
    with fails("needs-classes"):
        pc.evaluate(made, seeds=1, discrepancy=True)


def test_columns_of_compare(own_world: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def call(line: str) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main(line.split())
        assert not stop.value.code, capsys.readouterr().err
        return capsys.readouterr().out

    call("reduce kernel-herding moons --ipc 3 --model linear --out run")
    call("evaluate run --seeds 2 --discrepancy")
    assert "MMD to the data" in call("compare run")
    assert "KSD to the classes" in call("compare run --markdown")
