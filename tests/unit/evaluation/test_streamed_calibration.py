"""The tally's adaptive and class-wise errors, batch by batch, are those of all predictions at once."""

import pytest
import torch

from pseudocore.core.rng import Rng
from pseudocore.evaluation.calibration import adaptive_ece, classwise_ece
from pseudocore.evaluation.metrics import Tally


@pytest.mark.parametrize("size", [1, 7, 64, 500])
@pytest.mark.parametrize("num_bins", [1, 15])
def test_batches_do_not_matter(size: int, num_bins: int) -> None:
    log_probs = Rng(0)("logits").normal(123, 4, dtype=torch.float64).log_softmax(1)
    log_probs[::3] = log_probs[0]  # ties, spread over all batches
    y = Rng(0)("y").integers(4, 123)
    tally = Tally.empty(4, num_bins)
    for part in torch.arange(123).split(size):
        tally = tally.add(log_probs[part], y[part])
    got = tally.result()
    assert got.adaptive_ece == pytest.approx(adaptive_ece(log_probs, y, num_bins), abs=1e-12)
    assert got.classwise_ece == pytest.approx(classwise_ece(log_probs, y, num_bins), abs=1e-12)


def test_a_tally_is_a_value() -> None:
    log_probs, y = (
        torch.tensor([[0.9, 0.1], [0.6, 0.4]], dtype=torch.float64).log(),
        torch.tensor([0, 1]),
    )
    once = Tally.empty(2).add(log_probs, y)
    once.add(log_probs, 1 - y)
    assert once.result().classwise_ece == pytest.approx(
        (0.1 + 0.6) / 2
    )  # either column errs by as much
    assert once.result().adaptive_ece == pytest.approx((0.1 + 0.6) / 2)
