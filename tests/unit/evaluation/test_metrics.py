"""The metrics against scikit-learn, torchmetrics and hand-computed values; streaming; refusals."""

import json
import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss  # type: ignore[import-untyped]
from torch import Tensor
from torchmetrics.functional.classification import multiclass_calibration_error

from pseudocore.core.errors import ConfigError, DataError
from pseudocore.core.rng import Rng
from pseudocore.evaluation.metrics import Metrics, Tally, measure, spreads


def predictions(n: int, classes: int, seed: int = 0, scale: float = 2.0) -> tuple[Tensor, Tensor]:
    """Log-probabilities in float64 and labels that agree with them about half of the time."""
    rng = Rng(seed)
    log_probs = (scale * rng("logits").normal(n, classes, dtype=torch.float64)).log_softmax(1)
    random = rng("y").integers(classes, n)
    return log_probs, torch.where(rng("agree").uniform(n) < 0.5, log_probs.argmax(1), random)


def result(log_probs: Tensor, y: Tensor, num_bins: int = 15) -> Metrics:
    return Tally.empty(log_probs.shape[1], num_bins).add(log_probs, y).result()


def confident(*top: float) -> Tensor:
    """Log-probabilities over ten classes whose top label is 0 with these confidences."""
    confidence = torch.tensor(top, dtype=torch.float64)
    return torch.cat([confidence[:, None], ((1 - confidence) / 9)[:, None].expand(-1, 9)], 1).log()


def ece_by_hand(log_probs: Tensor, y: Tensor, num_bins: int) -> float:
    """Guo et al. (2017), Eq. 3, with a loop over their bins ((b-1)/B, b/B]."""
    p, truth = np.exp(log_probs.numpy()), y.numpy()
    top, hit, total = p.max(1), p.argmax(1) == truth, 0.0
    for b in range(num_bins):
        inside = [i for i in range(len(truth)) if b / num_bins < top[i] <= (b + 1) / num_bins]
        if inside:
            total += len(inside) / len(truth) * abs(hit[inside].mean() - top[inside].mean())
    return float(total)


@pytest.mark.parametrize(
    ("n", "classes", "scale"), [(400, 10, 2.0), (300, 2, 1.0), (200, 100, 4.0), (1, 3, 1.0)]
)
def test_agrees_with_scikit_learn_and_torchmetrics(n: int, classes: int, scale: float) -> None:
    log_probs, y = predictions(n, classes, seed=n, scale=scale)
    p, truth, labels = log_probs.exp().numpy(), y.numpy(), list(range(classes))
    got = result(log_probs, y)
    assert got.accuracy == pytest.approx(accuracy_score(truth, p.argmax(1)), abs=1e-12)
    assert got.nll == pytest.approx(log_loss(truth, p, labels=labels), abs=1e-9)
    assert got.brier == pytest.approx(
        brier_score_loss(truth, p, labels=labels, scale_by_half=False), abs=1e-9
    )
    assert got.ece == pytest.approx(
        float(multiclass_calibration_error(log_probs.exp(), y, classes, n_bins=15)), abs=1e-6
    )


@pytest.mark.parametrize("num_bins", [1, 2, 10, 15, 100])
def test_ece_agrees_with_the_definition_for_any_number_of_bins(num_bins: int) -> None:
    log_probs, y = predictions(300, 5, seed=num_bins)
    assert result(log_probs, y, num_bins).ece == pytest.approx(
        ece_by_hand(log_probs, y, num_bins), abs=1e-12
    )


EDGES = [
    k / 15 for k in range(2, 16)
]  # 1/15 lies below 1/10, the least a top label of ten can have
ADVERSARIAL = {
    "every edge": (confident(*EDGES), torch.arange(14) % 2),
    "edges among others": (confident(*EDGES, 0.45, 0.62, 0.95, 0.99), torch.tensor([0, 1, 1] * 6)),
    "exactly one, and nearly": (confident(1.0, 1.0, 1 - 1e-4, 0.97), torch.tensor([0, 3, 0, 0])),
    "exactly one, never right": (confident(1.0, 1.0), torch.tensor([1, 2])),
    "all ties": (torch.full((6, 5), 0.2, dtype=torch.float64).log(), torch.arange(6) % 5),
    "one label only": (predictions(50, 3)[0], torch.full((50,), 2)),
}


@pytest.mark.parametrize("case", ADVERSARIAL)
def test_ece_at_edges_equals_torchmetrics_a_hair_below_them(case: str) -> None:
    """Bins are (a, b] here, [a, b) with a bin of its own for exactly 1 there: a hair lower, both
    mean the same bins.
    """
    log_probs, y = ADVERSARIAL[case]
    below = log_probs.exp() - 2e-7
    referee = multiclass_calibration_error(
        below.clamp(min=0), y, log_probs.shape[1], n_bins=15, norm="l1"
    )
    assert result(log_probs, y).ece == pytest.approx(float(referee), abs=1e-6)


@pytest.mark.parametrize(
    ("classes", "num_bins"), [(3, 15), (5, 15), (15, 15), (6, 30), (20, 20), (25, 100)]
)
def test_a_confidence_on_an_edge_counts_in_the_bin_below(classes: int, num_bins: int) -> None:
    """Also where exp(log p) rounds to just above p, as for 6, 20 and 25 equally likely classes."""
    uniform = torch.zeros(8, classes, dtype=torch.float64).log_softmax(1)
    count = result(uniform, torch.zeros(8, dtype=torch.int64), num_bins).reliability.count
    assert count == tuple(8 if b == num_bins // classes - 1 else 0 for b in range(num_bins))


def test_one_class_is_certain_and_right() -> None:
    got = result(torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64))
    assert got[:4] == (1.0, 0.0, 0.0, 0.0)
    assert got.reliability.count[-1] == 4


def test_ties_go_to_the_first_class() -> None:
    log_probs = torch.full((2, 2), 0.5).log()
    assert result(log_probs, torch.tensor([0, 1])).accuracy == 0.5
    assert result(log_probs, torch.tensor([0, 0])).accuracy == 1.0


def test_a_small_example_by_hand() -> None:
    p = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], dtype=torch.float64)
    got = result(p.log(), torch.tensor([0, 1, 1]), num_bins=4)
    assert got.accuracy == 2 / 3
    assert got.nll == pytest.approx(-(math.log(0.9) + math.log(0.2) + math.log(0.7)) / 3, rel=1e-14)
    assert got.brier == pytest.approx((2 * 0.1**2 + 2 * 0.8**2 + 2 * 0.3**2) / 3, rel=1e-14)
    assert got.ece == pytest.approx(
        (0.7 + 0.3) / 3, rel=1e-14
    )  # (0.75, 1] claims 1.7 and gets 1; (0.5, 0.75] 0.7 and 1
    assert got.reliability.confidence[:2] == (None, None)
    assert got.reliability.confidence[2:] == pytest.approx((0.7, 0.85))
    assert got.reliability.accuracy == (None, None, 1.0, 0.5)
    assert got.reliability.count == (0, 0, 1, 2)


def in_batches(log_probs: Tensor, y: Tensor, size: int) -> Metrics:
    tally = Tally.empty(log_probs.shape[1])
    for start in range(0, len(y), size):
        tally = tally.add(log_probs[start : start + size], y[start : start + size])
    return tally.result()


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 300),
    classes=st.integers(1, 12),
    seed=st.integers(0, 2**32),
    size=st.integers(1, 300),
    ties=st.booleans(),
)
def test_the_batch_size_changes_nothing(
    n: int, classes: int, seed: int, size: int, ties: bool
) -> None:
    log_probs, y = predictions(n, classes, seed)
    if ties:
        log_probs = log_probs.mul(2).round().log_softmax(1)
    whole = result(log_probs, y)
    for batch in (1, 7, 256, size):
        got = in_batches(log_probs, y, batch)
        assert got.accuracy == whole.accuracy
        assert got.reliability.count == whole.reliability.count
        assert got[1:6] == pytest.approx(whole[1:6], rel=1e-12, abs=1e-13)


def test_uniform_predictions_share_a_bin_whatever_the_batch() -> None:
    """A confidence exactly on an edge (three classes: 5/15) must not depend on its place in a
    batch.
    """
    log_probs, y = torch.zeros(101, 3, dtype=torch.float64).log_softmax(1), torch.arange(101) % 3
    for size in (1, 7, 101):
        assert in_batches(log_probs, y, size).reliability.count[4] == 101


@settings(max_examples=50, deadline=None)
@given(
    n=st.integers(1, 60),
    classes=st.integers(1, 6),
    seed=st.integers(0, 2**32),
    scale=st.sampled_from([0.0, 1.0, 30.0]),
)
def test_metrics_stay_in_their_ranges_and_agree_with_each_other(
    n: int, classes: int, seed: int, scale: float
) -> None:
    got = result(*predictions(n, classes, seed, scale))
    assert 0 <= got.accuracy <= 1
    assert 0 <= got.ece <= 1 + 1e-12
    assert 0 <= got.brier <= 2 + 1e-12
    assert got.nll >= 0
    claimed, came_true = (
        np.array([value or 0.0 for value in part]) for part in got.reliability[:2]
    )
    count = np.array(got.reliability.count)
    assert count.sum() == n
    assert got.accuracy == pytest.approx((came_true * count).sum() / n)
    assert got.ece == pytest.approx((np.abs(came_true - claimed) * count).sum() / n, abs=1e-12)


def test_adding_leaves_the_old_tally_as_it_was() -> None:
    log_probs, y = predictions(20, 4)
    tally = Tally.empty(4).add(log_probs, y)
    before = tally.result()
    tally.add(*predictions(9, 4, seed=1))
    assert tally.result() == before
    assert tally.add(log_probs[:0], y[:0]).result() == before


def test_float32_and_float64_agree() -> None:
    log_probs, y = predictions(500, 10)
    assert result(log_probs.float(), y)[:4] == pytest.approx(result(log_probs, y)[:4], abs=1e-6)


def test_a_zero_probability_of_the_truth_is_an_infinite_nll() -> None:
    log_probs = torch.tensor([[1.0, 0.0], [0.5, 0.5]]).log()
    wrong, right = result(log_probs, torch.tensor([1, 0])), result(log_probs, torch.tensor([0, 0]))
    assert wrong.nll == math.inf
    assert right.nll == pytest.approx(math.log(2) / 2)
    assert wrong.brier == pytest.approx((2 + 0.5) / 2)
    assert wrong.ece == pytest.approx((1 + 0.5) / 2)


UNIFORM = torch.full((2, 3), 1 / 3).log()
LABELS = torch.tensor([0, 2])


@pytest.mark.parametrize(
    ("log_probs", "y", "words"),
    [
        (
            torch.tensor([[math.nan, 0.0, 0.0], [0.0, -math.inf, -math.inf]]),
            LABELS,
            "1 of 2 examples are NaN.* a smaller step size usually helps",
        ),
        (torch.zeros(2, 3), LABELS, "2 of 2 examples do not sum to one .*log_softmax"),
        (
            UNIFORM + torch.tensor([[0.0], [2e-3]]),
            LABELS,
            "1 of 2 examples do not sum to one .*0.002",
        ),
        (torch.full((2, 3), -math.inf), LABELS, "do not sum to one .*-inf"),
        (torch.full((2, 3), math.inf), LABELS, "do not sum to one .*inf"),
        (UNIFORM[:, :2], LABELS, r"must be \(n, 3\).*not \(2, 2\)"),
        (UNIFORM[0], LABELS, r"must be \(n, 3\).*not \(3,\)"),
        (UNIFORM, torch.tensor([0, 1, 2]), r"vector of 2 integers, not \(3,\)"),
        (UNIFORM, LABELS[:, None], r"vector of 2 integers, not \(2, 1\)"),
        (UNIFORM, LABELS.float(), "vector of 2 integers.*float32"),
        (UNIFORM, LABELS == 0, "vector of 2 integers.*bool"),
        (UNIFORM, torch.tensor([0, 3]), r"label 3 was given.*0\.\.2"),
        (UNIFORM, torch.tensor([-1, 0]), r"label -1 was given.*0\.\.2"),
    ],
)
def test_refuses_what_is_not_log_probabilities_and_labels(
    log_probs: Tensor, y: Tensor, words: str
) -> None:
    with pytest.raises(DataError, match=words):
        Tally.empty(3).add(log_probs, y)


def test_small_departures_from_one_are_rounding() -> None:
    assert result(UNIFORM + 9e-4, LABELS).accuracy == 0.5
    above_one = torch.tensor([[9e-4, -20.0, -20.0]])
    assert result(above_one, torch.tensor([0])).reliability.count[-1] == 1


def test_refuses_nothing_at_all() -> None:
    with pytest.raises(DataError, match="no examples"):
        Tally.empty(3).result()
    with pytest.raises(ConfigError, match="not 0 and 15"):
        Tally.empty(0)
    with pytest.raises(ConfigError, match="not 3 and 0"):
        Tally.empty(3, num_bins=0)


def test_measure_streams_raw_inputs_without_gradients() -> None:
    weight = torch.randn(4, 3, generator=Rng(0).generator(), requires_grad=True)
    x, y = Rng(1)("x").integers(256, 40, 4).to(torch.uint8), Rng(1)("y").integers(3, 40)
    seen = []

    def predict(raw: Tensor) -> Tensor:
        seen.append((raw.dtype, len(raw), torch.is_grad_enabled()))
        return (raw.float() / 255 @ weight).log_softmax(1)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for start in (0, 16, 32):
            yield x[start : start + 16], y[start : start + 16]

    got = measure(predict, batches(), num_classes=3)
    assert seen == [(torch.uint8, 16, False), (torch.uint8, 16, False), (torch.uint8, 8, False)]
    assert got[:4] == pytest.approx(
        result((x.float() / 255 @ weight).log_softmax(1), y)[:4], abs=1e-6
    )
    assert len(measure(predict, batches(), 3, num_bins=4).reliability.count) == 4


def test_measure_of_an_empty_test_set_is_refused() -> None:
    with pytest.raises(DataError, match="no examples"):
        measure(lambda x: x, [], num_classes=3)


def test_spreads_are_means_and_sample_deviations_over_seeds() -> None:
    got = spreads([{"nll": 1.0, "ece": 0.5}, {"nll": 2.0, "ece": 0.5}, {"nll": 4.0, "ece": 0.5}])
    assert got["nll"]["mean"] == pytest.approx(7 / 3)
    assert got["nll"]["sd"] == pytest.approx(float(np.std([1.0, 2.0, 4.0], ddof=1)))
    assert got["ece"] == {"mean": 0.5, "sd": 0.0}
    assert json.loads(json.dumps(got, allow_nan=False)) == got
    assert spreads([{"nll": 1.25}]) == {"nll": {"mean": 1.25, "sd": None}}
    assert spreads([{"nll": math.inf}, {"nll": 1.0}]) == {"nll": {"mean": math.inf, "sd": None}}
    with pytest.raises(DataError) as caught:
        spreads([])
    assert caught.value.code == "no-results"
