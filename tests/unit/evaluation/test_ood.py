"""Out-of-distribution scores and their curves against scikit-learn, with ties, extremes and
one-sided sets.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import entropy as scipy_entropy
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve  # type: ignore[import-untyped]
from torch import Tensor

from pseudocore.core.errors import DataError
from pseudocore.core.rng import Rng
from pseudocore.evaluation.robustness import Detection, detect, entropy


def referee(inside: Tensor, outside: Tensor) -> Detection:
    truth = np.r_[np.zeros(len(inside)), np.ones(len(outside))]
    scores = torch.cat([inside, outside]).double().numpy()
    false, true, _ = roc_curve(truth, scores, drop_intermediate=False)
    fpr95 = false[np.argmax(np.round(true * len(outside)) * 100 >= 95 * len(outside))]
    return Detection(
        roc_auc_score(truth, scores),
        average_precision_score(truth, scores),
        average_precision_score(1 - truth, -scores),
        fpr95,
    )


@settings(max_examples=60, deadline=None)
@given(
    inside=st.lists(st.floats(-5, 5) | st.integers(-2, 2), min_size=1, max_size=60),
    outside=st.lists(st.floats(-5, 5) | st.integers(-2, 2), min_size=1, max_size=60),
)
def test_agrees_with_scikit_learn_with_and_without_ties(
    inside: list[float], outside: list[float]
) -> None:
    one, other = (
        torch.tensor(inside, dtype=torch.float64),
        torch.tensor(outside, dtype=torch.float64),
    )
    assert detect(one, other) == pytest.approx(referee(one, other), abs=1e-12)


ADVERSARIAL = {
    "many": (Rng(0).normal(1000), Rng(1).normal(700) + 1),
    "rounded": (Rng(2).normal(500).round(), (Rng(3).normal(400) + 1).round()),
    "exactly 95 percent": (torch.arange(20.0), torch.arange(20.0) + 0.5),
    "twenty at one score": (torch.zeros(20), torch.cat([torch.zeros(1), torch.ones(19)])),
    "probabilities at 0 and 1": (torch.tensor([0.0, 0, 0, 1]), torch.tensor([0.0, 1, 1, 1])),
    "one of each": (torch.tensor([1.0]), torch.tensor([0.0])),
}


@pytest.mark.parametrize("case", ADVERSARIAL)
def test_adversarial_scores_agree_with_scikit_learn(case: str) -> None:
    assert detect(*ADVERSARIAL[case]) == pytest.approx(referee(*ADVERSARIAL[case]), abs=1e-12)


def test_the_extremes() -> None:
    low, high = torch.zeros(7), torch.ones(3)
    assert detect(low, high) == (1.0, 1.0, 1.0, 0.0)
    assert detect(high, low) == pytest.approx((0.0, 0.7, 0.3, 1.0), abs=1e-12)
    assert detect(low, high * 0) == (0.5, 0.3, 0.7, 1.0)
    infinite = torch.tensor([math.inf, 0.0])
    assert detect(torch.zeros(2), infinite).auroc == 0.75


def test_fpr95_by_hand() -> None:
    """Of 20 from elsewhere 19 must be caught: the threshold is their second lowest score, which 3
    of 10 of ours reach.
    """
    outside = torch.arange(20.0) + 10
    inside = torch.tensor([0.0] * 7 + [10.9, 11.0, 11.1])
    assert detect(inside, outside).fpr95 == pytest.approx(0.2)
    assert detect(inside - 0.2, outside).fpr95 == pytest.approx(0.0)
    assert detect(inside + 0.1, outside).fpr95 == pytest.approx(0.3)


def test_scores_grow_with_what_is_unknown() -> None:
    p = torch.tensor([[1.0, 0.0, 0.0], [0.7, 0.2, 0.1], [1 / 3, 1 / 3, 1 / 3]], dtype=torch.float64)
    assert entropy(p.log()).tolist() == pytest.approx(scipy_entropy(p.numpy(), axis=1))


def test_what_is_no_scores_is_refused() -> None:
    with pytest.raises(
        DataError,
        match=r"inside the distribution must be a vector of at least one number, not \(0,\)",
    ):
        detect(torch.zeros(0), torch.zeros(3))
    with pytest.raises(DataError, match=r"outside the distribution must be a vector.*not \(3, 2\)"):
        detect(torch.zeros(3), torch.zeros(3, 2))
    with pytest.raises(DataError, match="1 of 2 scores outside the distribution are NaN"):
        detect(torch.zeros(3), torch.tensor([0.0, math.nan]))
