"""Corruption sweeps and OOD scores against predictors whose answers are known."""

import pytest
import torch
from torch import Tensor

from pseudocore import api
from pseudocore.core.errors import DataError
from pseudocore.core.rng import Rng
from pseudocore.core.types import Dataset, Examples
from pseudocore.data import digits, moons
from pseudocore.data.corruptions import corrupt
from pseudocore.evaluation.metrics import in_batches
from pseudocore.evaluation.published_metrics import batch_mean_nll, batchwise_ece, published_scores
from pseudocore.evaluation.robustness import corrupted_scores, corrupted_sets, ood_scores

KINDS = ("contrast", "brightness")


def by_brightness(raw: Tensor) -> Tensor:
    """Class 0 for dark images, class 1 for bright ones; as sure as the image is far from grey."""
    bright = raw.float().mean((1, 2, 3)) / 255
    return torch.stack([1 - bright, bright], 1).clamp(1e-6, 1 - 1e-6).log()


def striped(level: int, num: int = 20) -> Tensor:
    images = torch.full((num, 1, 8, 8), level, dtype=torch.uint8)
    images[:, :, ::2] += 10
    return images


@pytest.fixture
def grey() -> Dataset:
    x, y = torch.cat([striped(20), striped(200)]), torch.arange(2).repeat_interleave(20)
    return Dataset("grey", Examples(x, y), Examples(x, y), 2)


def test_a_sweep_scores_the_corrupted_images(grey: Dataset) -> None:
    sets = corrupted_sets(grey, (1, 5), 40, kinds=KINDS)
    assert set(sets) == {(kind, severity) for kind in KINDS for severity in (1, 5)}
    assert torch.equal(sets["contrast", 5].x, corrupt(grey.test.x, "contrast", 5, Rng(0)))
    found = corrupted_scores(by_brightness, sets, 2)
    for key, (x, y) in sets.items():
        assert found[key].accuracy == pytest.approx(
            (by_brightness(x).argmax(1) == y).float().mean().item()
        )


def test_only_the_first_images_are_used(grey: Dataset) -> None:
    assert all(
        len(examples.y) == 7 for examples in corrupted_sets(grey, (3,), 7, kinds=KINDS).values()
    )


def test_the_sets_made_last_are_kept_and_never_those_of_others(grey: Dataset) -> None:
    sets = corrupted_sets(grey, (1,), 7, kinds=KINDS)
    alike = Dataset(
        "grey", *(Examples(x.clone(), y.clone()) for x, y in (grey.train, grey.test)), 2
    )
    assert corrupted_sets(alike, (1,), 7, kinds=KINDS) is sets
    darker = Dataset("grey", grey.train, Examples(grey.test.x // 2, grey.test.y), 2)
    for data, severities, num in ((darker, (1,), 7), (grey, (2,), 7), (grey, (1,), 8)):
        made = corrupted_sets(data, severities, num, kinds=KINDS)
        assert torch.equal(
            made["contrast", severities[0]].x,
            corrupt(data.test.x[:num], "contrast", severities[0], Rng(0)),
        )


def test_features_cannot_be_corrupted() -> None:
    with pytest.raises(DataError, match="corruptions are for images"):
        corrupted_sets(moons(), (1,), 10)


def test_uncertainty_tells_grey_from_black_and_white(grey: Dataset) -> None:
    """Mid-grey inputs are the ones `by_brightness` is unsure of: perfectly told apart, and never by
    chance.
    """
    unsure = Dataset(
        "unsure",
        Examples(striped(122), torch.arange(2).repeat(10)),
        Examples(striped(122), torch.arange(2).repeat(10)),
        2,
    )
    scores = ood_scores(by_brightness, grey, unsure, 40)
    assert scores == {"ood_auroc_entropy": 1.0, "ood_aupr_entropy": 1.0, "ood_fpr95_entropy": 0.0}
    assert ood_scores(by_brightness, grey, grey, 40)["ood_auroc_entropy"] == pytest.approx(0.5)


def test_foreign_inputs_of_another_shape_are_refused(grey: Dataset) -> None:
    with pytest.raises(DataError, match="the shapes must agree"):
        ood_scores(by_brightness, grey, moons(), 10)


def test_evaluate_reports_both() -> None:
    coreset = api.reduce("uniform", digits(), per_class=2, model="mlp", width=16)
    found = api.evaluate(
        coreset,
        digits(),
        inference="ensemble",
        num_members=2,
        num_steps=5,
        seeds=2,
        severities=(2,),
        ood=digits(),
        num_robust=16,
    )
    assert len(found["corruptions"]) == 15
    assert all(set(row) == {"2"} for row in found["corruptions"].values())
    mean = sum(row["2"] for row in found["corruptions"].values()) / 15
    assert found["metrics"]["corrupted_accuracy"]["mean"] == pytest.approx(mean)
    assert found["metrics"]["ood_auroc_information"]["mean"] == pytest.approx(
        0.5
    )  # the same inputs on both sides
    assert found["metrics"]["accuracy"]["sd"] is not None


def test_evaluate_says_whether_chains_have_mixed() -> None:
    coreset = api.reduce("uniform", digits(), per_class=1, model="linear")
    found = api.evaluate(
        coreset,
        digits(),
        inference="hmc",
        num_draws=8,
        num_burn=2,
        num_leapfrog=2,
        num_chains=2,
        seeds=2,
    )
    assert len(found["diagnostics"]) == 2
    assert found["diagnostics"][0]["num_draws"] == 8
    assert 0 <= found["diagnostics"][0]["accept"] <= 1
    assert any("worth" in sentence or "mixed" in sentence for sentence in found["warnings"])
    assert len(set(found["warnings"])) == len(found["warnings"])
    assert "diagnostics" not in api.evaluate(
        coreset, digits(), inference="ensemble", num_members=2, num_steps=2, seeds=1
    )


def test_published_scores_are_the_quirks_of_whole_arrays() -> None:
    coreset = api.reduce("uniform", digits(), per_class=1, model="linear").coreset
    problem = api.build_problem(coreset, digits())
    predict = api.infer(coreset, "ensemble", problem=problem, num_members=3, num_steps=3)
    x, y = problem.data.test
    each = torch.stack(list(predict.each(x)))  # type: ignore[attr-defined]
    for size in (64, 128):
        found = published_scores(predict, in_batches(problem.data.test, size), 64)
        assert found["published_nll"] == pytest.approx(batch_mean_nll(each, y, 64), abs=1e-6)
        assert found["published_ece"] == pytest.approx(batchwise_ece(predict(x), y, 64), abs=1e-6)
    scores = api.evaluate(
        coreset, digits(), inference="ensemble", num_members=3, num_steps=3, seeds=1, published=True
    )["metrics"]
    assert (
        scores["published_nll"]["mean"] > scores["nll"]["mean"]
    )  # Jensen: equal only for batches of one
    assert scores["published_ece"]["mean"] >= scores["ece"]["mean"]
