r"""What published evaluators print under familiar names, for comparison with printed numbers only.

*Batch-mean NLL.* Over draws $d$ and test batches $B$ the evaluator of Kim et al. (2022) averages
whole-batch likelihoods,

$$ -\sum_B \frac{|B|}{n} \log \frac1D \sum_d \exp \Bigl( \frac{1}{|B|} \sum_{i \in B} \log p(y_i
\mid x_i, \theta_d) \Bigr) , $$

not each example's. By the convexity of log-sum-exp it is never below the NLL of the model average,
and equal to it only for batches of one (or draws that agree). It depends on the batch size, and on
the order of the test set.

*Batch-wise ECE.* The calibration error of every test batch, averaged. By the triangle inequality
never below that of the whole set: in small batches bins hold few examples, and chance looks like
miscalibration.

*Best accuracy.* Of a network at several moments of its training, the highest accuracy, picked on
the test set itself (Shin et al. 2023 and the protocol it follows). Never below that of the last
moment; not given where moments were not kept.
"""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from pseudocore.core.errors import ConfigError, DataError
from pseudocore.core.types import HasMoments, Predict, PredictsByDraw
from pseudocore.evaluation.metrics import NUM_BINS, Tally, check_predictions


def batch_mean_nll(log_probs: Tensor, y: Tensor, batch_size: int = 256) -> float:
    """The batch-mean NLL of the predictions (draws, n, classes) of every draw."""
    if log_probs.ndim != 3 or 0 in log_probs.shape:
        raise DataError(
            "the batch-mean NLL needs the predictions of every draw, (draws, n, classes), not"
            f" {tuple(log_probs.shape)}",
            code="wrong-shape",
        )
    _check_size(batch_size)
    log_probs, y = log_probs.detach().cpu().double(), y.detach().cpu()
    for of_draw in log_probs:
        check_predictions(of_draw, y, log_probs.shape[2])
    num_draws, n, _ = log_probs.shape
    likelihood = log_probs.gather(2, y.long().expand(num_draws, n).unsqueeze(2)).squeeze(2)
    total = sum(
        float(part.mean(1).logsumexp(0) - math.log(num_draws)) * part.shape[1]
        for part in torch.split(likelihood, batch_size, 1)
    )
    return -total / n


def batchwise_ece(
    log_probs: Tensor, y: Tensor, batch_size: int = 256, num_bins: int = NUM_BINS
) -> float:
    """The batch-wise ECE of averaged predictions (n, classes)."""
    _check_size(batch_size)
    if log_probs.ndim != 2 or len(log_probs) == 0 or len(log_probs) != len(y):
        raise DataError(
            "the batch-wise ECE needs predictions (n, classes) and as many labels, not"
            f" {tuple(log_probs.shape)} and {len(y)}",
            code="wrong-shape",
        )
    parts = zip(torch.split(log_probs, batch_size), torch.split(y, batch_size), strict=True)
    return sum(
        Tally.empty(log_probs.shape[1], num_bins).add(p, part).result().ece * len(part)
        for p, part in parts
    ) / len(y)


def published_scores(
    predict: Predict, batches: Iterable[tuple[Tensor, Tensor]], batch_size: int = 256
) -> dict[str, float]:
    """All of them over a test set; each batch given should be a multiple of `batch_size`."""
    nll = ece = 0.0
    num = 0
    earlier: Sequence[Predict] = predict.earlier if isinstance(predict, HasMoments) else ()
    correct = [0] * (len(earlier) + 1)
    for x, y in batches:
        draws = list(predict.each(x)) if isinstance(predict, PredictsByDraw) else [predict(x)]
        each = torch.stack(draws).cpu()  # (draws, batch, classes)
        mean = each.double().logsumexp(0) - math.log(len(each))
        nll += batch_mean_nll(each, y, batch_size) * len(y)
        ece += batchwise_ece(mean, y, batch_size) * len(y)
        num += len(y)
        moments = [mean, *(moment(x).cpu() for moment in earlier)]
        hits = [int((log_probs.argmax(1) == y).sum()) for log_probs in moments]
        correct = [before + new for before, new in zip(correct, hits, strict=True)]
    best = {"published_accuracy": max(correct) / num} if earlier else {}
    return {**best, "published_nll": nll / num, "published_ece": ece / num}


def _check_size(batch_size: int) -> None:
    if batch_size < 1:
        raise ConfigError(
            f"a batch must hold at least one example, not {batch_size}", code="invalid-options"
        )
