"""What only a GPU can show of every method and inference: captured steps, and the same bits."""

from typing import Any

import pytest
import torch

from pseudocore.core.registry import Entry, inferences, methods
from pseudocore.core.types import Iterative
from pseudocore.models.dense import Linear
from pseudocore.runtime.loop import run
from pseudocore.runtime.steps import StepRunner
from pseudocore.testing import InferenceConformance, MethodConformance, small_coreset
from pseudocore.testing.methods import bits

pytestmark = pytest.mark.gpu

every_inference = pytest.mark.parametrize("entry", list(inferences), ids=lambda entry: entry.name)


def suite(entry: Entry) -> MethodConformance:
    fields = {"method": entry.make, "model": Linear() if entry.name == "psvi" else None}
    return type(entry.name, (MethodConformance,), fields)()


def every(wanted: bool) -> pytest.MarkDecorator:
    chosen = [e for e in methods if isinstance(suite(e).make(), Iterative) == wanted]
    return pytest.mark.parametrize("entry", chosen, ids=lambda entry: entry.name)


@every(True)
def test_steps_of_a_method_are_captured(entry: Entry) -> None:
    cases = suite(entry)
    problem = cases.problem(dtype=torch.float64, device="cuda")  # rounding flips no ReLU
    captured, eager = (run(cases.make(), problem, seed=0, compile=how) for how in ("auto", "off"))
    assert (captured.status, captured.note) == ("finished", "")
    for name in ("x", "y", "weight"):
        found, expected = (getattr(outcome.coreset, name) for outcome in (captured, eager))
        assert not found.is_cuda  # a coreset can be read anywhere
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@every(True)
def test_one_seed_one_coreset(entry: Entry) -> None:
    cases = suite(entry)
    first, second = (cases.reduce(cases.problem(device="cuda")) for _ in range(2))
    assert bits(first) == bits(second)


@every(False)
def test_a_selector_selects(entry: Entry) -> None:
    cases = suite(entry)
    problem = cases.problem(device="cuda")
    coreset = cases.reduce(problem)
    assert coreset.indices is not None
    assert not any(part.is_cuda for part in (coreset.x, coreset.y, coreset.weight, coreset.indices))
    assert torch.equal(coreset.y, problem.data.train.y[coreset.indices])
    assert bits(cases.reduce(problem)) == bits(coreset)


@every_inference
@pytest.mark.parametrize("targets", ["labels", "probabilities", "outputs"])
@pytest.mark.parametrize("batch_size", [64, 8])
def test_steps_of_an_inference_are_captured(
    entry: Entry, targets: Any, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All thirty points in every step, or batches of them."""
    runners: list[StepRunner] = []
    prepare = StepRunner.__init__

    def watch(runner: StepRunner, *arguments: Any, **options: Any) -> None:
        runners.append(runner)
        prepare(runner, *arguments, **options)

    monkeypatch.setattr(StepRunner, "__init__", watch)
    cases = type(entry.name, (InferenceConformance,), {"inference": entry.make})()
    problem = cases.problem(device="cuda")
    points = small_coreset(problem, targets)
    changes: Any = {"batch_size": batch_size} if "batch_size" in cases.names() else {}
    log_probs = cases.predict(problem, points, **changes)
    assert [runner.note for runner in runners] == [""] * len(runners)
    assert log_probs.logsumexp(1).abs().max() < 1e-5
    assert torch.equal(cases.predict(problem, points, **changes), log_probs)
