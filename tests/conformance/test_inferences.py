"""What every registered inference owes its users. A new one gets all of this by being registered."""

import dataclasses
import inspect
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pseudocore import api
from pseudocore.core import config
from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Problem
from pseudocore.core.registry import Entry, inferences
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.runtime.steps import StepRunner
from pseudocore.store import toml
from pseudocore.testing import small_coreset

MakeProblem = Callable[..., Problem]

TINY = {
    "num_steps": 5,
    "num_members": 2,
    "batch_size": 64,
    "num_draws": 3,
    "num_burn": 2,
    "num_leapfrog": 2,
    "num_inner": 2,
}
"""For whichever of these an inference has."""

every_inference = pytest.mark.parametrize(
    "entry", [pytest.param(entry, id=entry.name) for entry in inferences]
)
every_kind_of_label = pytest.mark.parametrize("kind", ["labels", "probabilities", "outputs"])


def tiny(entry: Entry, **changes: Any) -> Any:
    fields = {option.name for option in config.options(entry.make)}
    return config.build(
        entry.make, {name: value for name, value in {**TINY, **changes}.items() if name in fields}
    )


def predict(
    entry: Entry, problem: Problem, points: Coreset, seed: int = 0, **changes: Any
) -> Tensor:
    log_probs: Tensor = tiny(entry, **changes).fit(problem, points, Rng(seed))(problem.data.test.x)
    return log_probs


@every_inference
@every_kind_of_label
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_predictions_are_log_probabilities(
    entry: Entry, make_problem: MakeProblem, kind: str, weighted: bool, dtype: torch.dtype
) -> None:
    problem = make_problem(dtype=dtype)
    log_probs = predict(entry, problem, small_coreset(problem, kind, weighted=weighted))
    assert log_probs.shape == (len(problem.data.test.y), problem.num_classes)
    assert log_probs.dtype == dtype
    assert log_probs.isfinite().all()
    assert log_probs.logsumexp(1).abs().max() < (1e-5 if dtype == torch.float32 else 1e-12)
    assert not log_probs.requires_grad


@every_inference
def test_one_seed_one_prediction(
    entry: Entry,
    problem: Problem,
    scramble: Callable[[int], None],
    global_state: Callable[[], list[Any]],
) -> None:
    scramble(1)
    before = global_state()
    first = predict(entry, problem, small_coreset(problem))
    assert global_state() == before
    scramble(2)
    assert torch.equal(predict(entry, problem, small_coreset(problem)), first)
    assert not torch.equal(predict(entry, problem, small_coreset(problem), seed=1), first)


@every_inference
@every_kind_of_label
def test_its_steps_can_be_captured(
    entry: Entry, problem: Problem, kind: str, replayed: Callable[[], int]
) -> None:
    """Those it hands to a `StepRunner`: on a GPU they become a graph, here they are taken as that
    takes them.
    """
    plain = predict(entry, problem, small_coreset(problem, kind))
    replayed()
    assert torch.equal(predict(entry, problem, small_coreset(problem, kind)), plain)


@pytest.mark.gpu
@every_inference
@every_kind_of_label
@pytest.mark.parametrize("batch_size", [64, 8])
def test_on_a_gpu_its_steps_are_captured(
    entry: Entry,
    make_problem: MakeProblem,
    kind: str,
    batch_size: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All thirty points in every step, or batches of them."""
    problem, steppers = make_problem(device="cuda"), []
    prepare = StepRunner.__init__

    def watched(stepper: StepRunner, *words: Any, **more: Any) -> None:
        steppers.append(stepper)
        prepare(stepper, *words, **more)

    monkeypatch.setattr(StepRunner, "__init__", watched)
    log_probs = predict(entry, problem, small_coreset(problem, kind), batch_size=batch_size)
    assert [stepper.note for stepper in steppers] == [""] * len(steppers)
    assert log_probs.logsumexp(1).abs().max() < 1e-5
    assert torch.equal(
        predict(entry, problem, small_coreset(problem, kind), batch_size=batch_size), log_probs
    )


@every_inference
def test_weights_count(entry: Entry, problem: Problem) -> None:
    plain, weighted = (
        predict(entry, problem, small_coreset(problem, weighted=weighted))
        for weighted in (False, True)
    )
    assert (plain - weighted).abs().max() > 1e-4


@every_inference
def test_labels_count(entry: Entry, problem: Problem) -> None:
    points = small_coreset(problem)
    others = dataclasses.replace(points, y=(points.y + 1) % problem.num_classes)
    assert (predict(entry, problem, points) - predict(entry, problem, others)).abs().max() > 1e-4


@every_inference
@pytest.mark.parametrize("norm", ["instance", "batch", "none"])
def test_a_prediction_does_not_depend_on_the_others_in_its_batch(
    entry: Entry, make_problem: MakeProblem, norm: str
) -> None:
    """A batch-norm network must normalise a test point by the coreset, never by its neighbours in
    the test set.
    """
    problem = make_problem(norm=norm, dtype=torch.float64)
    fitted = tiny(entry).fit(problem, small_coreset(problem), Rng(0))
    x = problem.data.test.x
    whole = fitted(x)
    assert torch.allclose(fitted(x[:1]), whole[:1], rtol=1e-9, atol=1e-11)
    assert torch.allclose(fitted(x[10:20].flip(0)), whole[10:20].flip(0), rtol=1e-9, atol=1e-11)


@every_inference
def test_pixels_may_come_as_bytes_or_as_floats(entry: Entry, problem: Problem) -> None:
    fitted = tiny(entry).fit(problem, small_coreset(problem), Rng(0))
    x = problem.data.test.x
    assert torch.equal(fitted(x), fitted(x.float() / 255))


@every_inference
def test_predicting_twice_is_predicting_once(entry: Entry, problem: Problem) -> None:
    fitted = tiny(entry).fit(problem, small_coreset(problem), Rng(0))
    first = fitted(problem.data.test.x)
    fitted(problem.data.train.x[:7])
    assert torch.equal(fitted(problem.data.test.x), first)


@every_inference
def test_coresets_larger_than_a_batch(entry: Entry, problem: Problem) -> None:
    log_probs = predict(entry, problem, small_coreset(problem, weighted=True), batch_size=8)
    assert log_probs.isfinite().all()
    assert torch.equal(
        log_probs, predict(entry, problem, small_coreset(problem, weighted=True), batch_size=8)
    )


@every_inference
def test_one_point(entry: Entry, problem: Problem) -> None:
    points = small_coreset(problem)
    one = Coreset(points.x[:1], points.y[:1], points.weight[:1])
    assert predict(entry, problem, one).isfinite().all()


@every_inference
def test_the_coreset_and_the_data_are_left_as_they_were(entry: Entry, problem: Problem) -> None:
    points = small_coreset(problem, "outputs", weighted=True)
    held = (points.x, points.y, points.weight, *problem.data.train, *problem.data.test)
    before = [tensor.clone() for tensor in held]
    predict(entry, problem, points)
    assert all(torch.equal(old, new) for old, new in zip(before, held, strict=True))


@every_inference
def test_augmentation_is_followed(entry: Entry, problem: Problem) -> None:
    """An inference that trains does so on augmented points when the problem has an augmentation."""
    shifted = dataclasses.replace(problem, augment=lambda x, rng: x + 0.3 * rng.normal(*x.shape))
    plain, augmented = (predict(entry, one, small_coreset(one)) for one in (problem, shifted))
    assert augmented.isfinite().all()
    assert not torch.equal(plain, augmented)


# --- on paper
# ---------------------------------------------------------------------------------------------------------


@every_inference
def test_every_option_has_a_help(entry: Entry) -> None:
    assert [option.name for option in config.options(entry.make) if not option.help] == []


@every_inference
def test_no_option_is_taken_for_another(entry: Entry) -> None:
    taken = set(inspect.signature(api.evaluate).parameters) | set(
        inspect.signature(api.infer).parameters
    )
    assert {option.name for option in config.options(entry.make)} & taken == set()


@every_inference
def test_its_configuration_survives_toml(entry: Entry) -> None:
    way = tiny(entry)
    assert config.build(entry.make, toml.loads(toml.dumps(config.to_dict(way)))) == way


@every_inference
def test_unknown_options_are_refused(entry: Entry, problem: Problem) -> None:
    with pytest.raises(ConfigError, match=rf"{entry.name}: unknown option 'num_step'"):
        api.infer(small_coreset(problem), entry.name, problem=problem, num_step=3)


@every_inference
def test_it_says_what_it_is_and_where_it_comes_from(entry: Entry) -> None:
    assert entry.kind
    assert entry.summary
    page = sys.modules[entry.make.__module__].__doc__ or ""
    assert len(page) > 50
    if years := re.findall(r"\b(?:19|20)\d\d\b", entry.paper):  # "plain training" needs no citation
        assert re.findall(r"\w+", entry.paper)[0] in page
        assert years[0] in page or entry.paper.rpartition(" ")[2] in page
