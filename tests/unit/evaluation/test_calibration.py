"""Adaptive and class-wise calibration errors against scikit-learn, torchmetrics and loops; the
published quirks and their bounds.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve  # type: ignore[import-untyped]
from torch import Tensor
from torchmetrics.functional.classification import binary_calibration_error

from pseudocore.core.errors import ConfigError, DataError
from pseudocore.core.rng import Rng
from pseudocore.evaluation.metrics import Tally
from pseudocore.evaluation.published_metrics import batch_mean_nll, batchwise_ece


def adaptive_ece(log_probs: Tensor, y: Tensor, num_bins: int = 15) -> float:
    return Tally.empty(log_probs.shape[1], num_bins).add(log_probs, y).result().adaptive_ece


def classwise_ece(log_probs: Tensor, y: Tensor) -> float:
    return Tally.empty(log_probs.shape[1]).add(log_probs, y).result().classwise_ece


def predictions(n: int, classes: int, seed: int = 0, scale: float = 2.0) -> tuple[Tensor, Tensor]:
    """Log-probabilities in float64 and labels that agree with them about half of the time."""
    rng = Rng(seed)
    log_probs = (scale * rng("logits").normal(n, classes, dtype=torch.float64)).log_softmax(1)
    random = rng("y").integers(classes, n)
    return log_probs, torch.where(rng("agree").uniform(n) < 0.5, log_probs.argmax(1), random)


@pytest.mark.parametrize(
    ("n", "classes", "num_bins"), [(150, 10, 15), (400, 3, 10), (30, 2, 15), (20, 5, 1)]
)
def test_adaptive_agrees_with_scikit_learns_quantile_bins(
    n: int, classes: int, num_bins: int
) -> None:
    """Where the number of bins divides n and no scores are equal, quantiles cut between the same
    examples.
    """
    log_probs, y = predictions(n, classes, seed=n)
    p = log_probs.exp().numpy()
    came_true, claimed = calibration_curve(
        p.argmax(1) == y.numpy(), p.max(1), n_bins=num_bins, strategy="quantile"
    )
    assert adaptive_ece(log_probs, y, num_bins) == pytest.approx(
        np.abs(came_true - claimed).mean(), abs=1e-12
    )


def adaptive_by_hand(log_probs: Tensor, y: Tensor, num_bins: int) -> float:
    """Hits shared by ties, then numpy's split of the sorted examples, then a sum over bins."""
    p = np.exp(log_probs.numpy())
    top, hit = p.max(1), (p.argmax(1) == y.numpy()).astype(float)
    shared = np.array([hit[np.isclose(top, one, rtol=0, atol=1e-12)].mean() for one in top])
    order = np.argsort(top, kind="stable")
    return float(
        sum(abs((shared[part] - top[part]).sum()) for part in np.array_split(order, num_bins))
        / len(top)
    )


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 80),
    classes=st.integers(1, 6),
    seed=st.integers(0, 2**32),
    num_bins=st.integers(1, 20),
    ties=st.booleans(),
)
def test_adaptive_agrees_with_the_definition_in_any_order(
    n: int, classes: int, seed: int, num_bins: int, ties: bool
) -> None:
    log_probs, y = predictions(n, classes, seed)
    if ties:
        log_probs = log_probs.round().log_softmax(1)
    got = adaptive_ece(log_probs, y, num_bins)
    assert got == pytest.approx(adaptive_by_hand(log_probs, y, num_bins), abs=1e-10)
    order = Rng(seed)("order").permutation(n)
    assert adaptive_ece(log_probs[order], y[order], num_bins) == pytest.approx(got, abs=1e-10)
    assert 0 <= got <= 1


def test_adaptive_of_one_confidence_is_the_gap_itself() -> None:
    """All ties: half are right, .8 is claimed, whatever the order; a bin of wrong ones alone would
    say otherwise.
    """
    log_probs = torch.tensor([[0.8, 0.2]], dtype=torch.float64).log().expand(30, 2)
    assert adaptive_ece(log_probs, torch.arange(30) // 15) == pytest.approx(0.3, abs=1e-12)


def test_adaptive_with_fewer_examples_than_bins_leaves_bins_empty() -> None:
    log_probs = torch.tensor([[0.9, 0.1], [0.6, 0.4]], dtype=torch.float64).log()
    assert adaptive_ece(log_probs, torch.tensor([0, 1])) == pytest.approx(
        (0.1 + 0.6) / 2, abs=1e-12
    )


@pytest.mark.parametrize(("n", "classes"), [(300, 10), (200, 2), (50, 4)])
def test_classwise_agrees_with_torchmetrics_class_by_class(n: int, classes: int) -> None:
    log_probs, y = predictions(n, classes, seed=n)
    p = log_probs.exp()
    referee = [
        float(binary_calibration_error(p[:, k].contiguous(), (y == k).long(), n_bins=15, norm="l1"))
        for k in range(classes)
    ]
    assert classwise_ece(log_probs, y) == pytest.approx(np.mean(referee), abs=1e-6)


def test_classwise_at_zero_and_one_by_hand() -> None:
    """Class 0: 1, 1, 0 claimed of which one is true; class 1: 0, 0, 1 of which two are; class 2
    never claimed, never true.
    """
    log_probs = torch.tensor([[1.0, 0, 0], [1, 0, 0], [0, 1, 0]], dtype=torch.float64).log()
    expected = (1 / 3 + 1 / 3 + 0) / 3
    assert classwise_ece(log_probs, torch.tensor([0, 1, 1])) == pytest.approx(expected, abs=1e-12)


def test_classwise_sees_what_the_top_label_hides() -> None:
    """The second class always gets .3 and is never true, the third .1 and always takes the rest."""
    log_probs = torch.tensor([[0.6, 0.3, 0.1]], dtype=torch.float64).log().expand(10, 3)
    y = torch.tensor([0] * 6 + [2] * 4)
    assert Tally.empty(3).add(log_probs, y).result().ece == pytest.approx(0, abs=1e-12)
    assert adaptive_ece(log_probs, y, 1) == pytest.approx(0, abs=1e-12)
    assert classwise_ece(log_probs, y) == pytest.approx((0 + 0.3 + 0.3) / 3, abs=1e-12)


def test_one_class_is_certain_and_right() -> None:
    log_probs, y = torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64)
    assert adaptive_ece(log_probs, y) == classwise_ece(log_probs, y) == 0


def draws(num: int, n: int, classes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    log_probs = (2 * Rng(seed)("logits").normal(num, n, classes, dtype=torch.float64)).log_softmax(
        2
    )
    return log_probs, Rng(seed)("y").integers(classes, n)


def true_nll(log_probs: Tensor, y: Tensor) -> float:
    return -float(log_probs.exp().mean(0).gather(1, y[:, None]).log().mean())


@pytest.mark.parametrize("batch_size", [1, 7, 64, 256])
def test_batch_mean_nll_by_a_loop(batch_size: int) -> None:
    log_probs, y = draws(5, 50, 4)
    total = 0.0
    for start in range(0, 50, batch_size):
        stop = min(start + batch_size, 50)
        per_draw = [
            math.exp(np.mean([float(log_probs[d, i, y[i]]) for i in range(start, stop)]))
            for d in range(5)
        ]
        total -= math.log(np.mean(per_draw)) * (stop - start)
    assert batch_mean_nll(log_probs, y, batch_size) == pytest.approx(total / 50, rel=1e-12)


@settings(max_examples=25, deadline=None)
@given(
    num=st.integers(1, 6),
    n=st.integers(1, 40),
    classes=st.integers(2, 5),
    seed=st.integers(0, 2**32),
    batch_size=st.integers(1, 50),
)
def test_the_quirks_only_ever_overstate(
    num: int, n: int, classes: int, seed: int, batch_size: int
) -> None:
    log_probs, y = draws(num, n, classes, seed)
    honest = true_nll(log_probs, y)
    assert batch_mean_nll(log_probs, y, batch_size) >= honest - 1e-12
    assert batch_mean_nll(log_probs, y, 1) == pytest.approx(honest, abs=1e-10)
    assert batch_mean_nll(log_probs[:1].expand(3, -1, -1), y, batch_size) == pytest.approx(
        true_nll(log_probs[:1], y), abs=1e-10
    )
    mean = log_probs.exp().mean(0).log()
    whole = Tally.empty(classes).add(mean, y).result().ece
    assert batchwise_ece(mean, y, batch_size) >= whole - 1e-12
    assert batchwise_ece(mean, y, n) == pytest.approx(whole, abs=1e-12)


def test_batchwise_ece_of_batches_of_one_is_the_mean_gap() -> None:
    log_probs, y = predictions(20, 3)
    top, label = log_probs.exp().max(1)
    assert batchwise_ece(log_probs, y, 1) == pytest.approx(
        float(((label == y).double() - top).abs().mean()), abs=1e-12
    )


def test_the_quirks_refuse_the_wrong_shapes() -> None:
    log_probs, y = draws(2, 6, 3)
    with pytest.raises(DataError, match=r"of every draw, \(draws, n, classes\), not \(6, 3\)"):
        batch_mean_nll(log_probs[0], y)
    with pytest.raises(DataError, match=r"not \(2, 6, 3\) and 6"):
        batchwise_ece(log_probs, y)
    with pytest.raises(DataError, match="do not sum to one"):
        batch_mean_nll(log_probs + 1, y)
    with pytest.raises(ConfigError, match="at least one example, not 0"):
        batchwise_ece(log_probs[0], y, 0)
    with pytest.raises(ConfigError, match="at least one example, not -1"):
        batch_mean_nll(log_probs, y, -1)
