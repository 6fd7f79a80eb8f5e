"""The scores of DD-Ranking, on numbers made up and on sets whose scores are known."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

import pseudocore as pc
from pseudocore.core.rng import Rng
from pseudocore.evaluation.ranking import Accuracies, scaled, scores
from pseudocore.workflows.arguments import problem_of
from pseudocore.workflows.ranking import random_like

FAST: dict[str, Any] = {"model": "linear", "num_steps": 30, "step_size": 0.1, "seeds": 2}


def test_scores_by_hand() -> None:
    found = scores(Accuracies(0.9, 0.5, 0.7, 0.4), weight=0.5)
    assert found["hlr"] == pytest.approx(0.4)
    assert found["ior"] == pytest.approx(0.3)
    e = math.e
    assert found["lrs"] == pytest.approx((e ** (0.15 - 0.2) - 1 / e) / (e - 1 / e))
    assert "ars" not in found


def test_augmentation_by_hand() -> None:
    """The improvement over random is that of the set's own training, augmented."""
    found = scores(Accuracies(0.9, 0.5, 0.7, 0.4, 0.8, 0.6), weight=0.25)
    assert found["ior"] == pytest.approx(0.2)
    e = math.e
    assert found["lrs"] == pytest.approx((e ** (0.05 - 0.3) - 1 / e) / (e - 1 / e))
    assert found["ars"] == pytest.approx((e ** (0.05 + 0.225) - 1 / e) / (e - 1 / e))


def test_the_ends_of_the_scale() -> None:
    assert (scaled(-1), scaled(1)) == (0, 1)
    assert scaled(0) == pytest.approx(0.2689, abs=1e-4)


def test_random_examples_score_as_random() -> None:
    """A random subset improves over others by nothing but chance, hard and soft; labels of classes
    that are wrong lose to it.
    """
    random = pc.reduce("uniform", "digits", per_class=5, model="linear").coreset
    found = pc.ranking(random, **FAST)
    assert abs(found.metrics["ior"]["mean"]) < 0.1
    assert found.metrics["own"] == found.metrics["own_hard"]
    assert 0 < found.metrics["hlr"]["mean"] < 0.5
    assert math.isnan(found.ars)
    wrong = pc.ranking(replace(random, y=(random.y + 1) % 10), "digits", **FAST)
    assert wrong.metrics["ior"]["mean"] < -0.5
    assert wrong.lrs < found.lrs - 0.15


def test_soft_labels_are_taken_out() -> None:
    """Random examples labelled by the full data's networks gain from it under `own`, and lose all
    of it against random examples labelled alike.
    """
    problem = problem_of(pc.reduce("uniform", "digits", per_class=5, model="linear"), None, "cpu", None, {})  # fmt: skip
    full = pc.references.reference(problem, "sgd", num_steps=30, step_size=0.1)
    hard = problem.subset(torch.cat([own[:20] for own in problem.class_indices]))
    soft = replace(hard, y=full.train_log_probs[hard.indices].exp())
    found = pc.ranking(soft, "digits", reference=full, augment="crop_scale", **FAST)
    assert found.labels == "soft"
    assert abs(found.metrics["ior"]["mean"]) < 0.1
    assert scaled(-0.15) < found.ars < scaled(0.15)
    assert found.metrics["all_hard"]["sd"] == 0
    assert found["metrics"] is found.metrics
    assert "augmentation-robust" in found.table()
    random = random_like(problem, soft, full, Rng(0))
    drawn = problem.data.train.y[random.indices]
    assert torch.equal(drawn.bincount(), soft.labels.bincount())
    assert float(random.weight.sum()) == pytest.approx(problem.num_train)
    torch.testing.assert_close(random.y, full.train_log_probs[random.indices].exp())


def test_a_regression_is_refused(fails: Any) -> None:
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    run = pc.reduce("uniform", (x, x[:, 0]), points=4, model="linear")
    with fails("needs-classes"):
        pc.ranking(run, **FAST)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"weight": 1.5}, "invalid-options"),
        ({"seeds": 0}, "invalid-options"),
        ({"augment": "crop"}, "augmentation-needs-images"),
    ],
)
def test_refused(changes: dict[str, Any], code: str, fails: Any) -> None:
    coreset = pc.reduce("uniform", "moons", per_class=2, model="linear").coreset
    with fails(code):
        pc.ranking(coreset, **{**FAST, **changes})
