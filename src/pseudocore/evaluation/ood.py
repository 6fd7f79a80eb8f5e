r"""Telling inputs from elsewhere by how unsure a predictor is: AUROC, AUPR and FPR95, exact also
where scores are equal.

A score says how foreign an input looks: the entropy of the prediction, the mutual information of
label and parameters (what the draws disagree on), or one minus the largest probability.
Out-of-distribution inputs are the positives. At threshold $t$ every input with score $\ge t$ is
flagged; equal scores are flagged together, so

* AUROC $= P(s_\mathrm{out} > s_\mathrm{in}) + \tfrac12 P(s_\mathrm{out} = s_\mathrm{in})$,
* AUPR $= \sum_t (R_t - R_{t+}) P_t$ over all distinct scores (average precision: no interpolation
  between points),
* FPR95 is the share of inputs from the test distribution that are flagged at the highest threshold
  that flags at least 95% of those from elsewhere.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pseudocore.core.errors import DataError


class Detection(NamedTuple):
    auroc: float
    aupr: float
    """Average precision with inputs from elsewhere as positives; chance is their share, so it
    depends on the two sizes.
    """
    aupr_in: float
    """The same with inputs from the test distribution as positives, found by low scores."""
    fpr95: float


def detect(inside: Tensor, outside: Tensor) -> Detection:
    """How well scores tell `outside` (m,), inputs from elsewhere, from `inside` (n,): higher should
    mean more foreign.
    """
    inside, outside = _checked(inside, "inside"), _checked(outside, "outside")
    false, true = _flagged(inside, outside)
    fpr, tpr = false / len(inside), true / len(outside)
    area = torch.trapezoid(torch.cat([tpr.new_zeros(1), tpr]), torch.cat([fpr.new_zeros(1), fpr]))
    enough = 100 * true >= 95 * len(outside)  # in whole numbers: .95 is none in binary
    return Detection(
        auroc=float(area),
        aupr=_average_precision(false, true),
        aupr_in=_average_precision(*_flagged(-outside, -inside)),
        fpr95=float(fpr[enough.long().argmax()]),
    )


def entropy(log_probs: Tensor) -> Tensor:
    """Entropy in nats of predictions (..., classes), probabilities of exactly 0 included."""
    total: Tensor = torch.special.entr(log_probs.exp()).sum(-1)
    return total


def doubt(log_probs: Tensor) -> Tensor:
    """One minus the largest probability of predictions (..., classes): the score of the
    maximum-softmax baseline.
    """
    return -torch.expm1(log_probs.max(-1).values)


def mutual_information(log_probs: Tensor) -> Tensor:
    """Of label and parameters, in nats (n,), from the predictions (draws, n, classes) of every
    draw; never below 0.
    """
    if log_probs.ndim != 3:
        raise DataError(
            f"mutual information needs the predictions of every draw, (draws, n, classes), not {tuple(log_probs.shape)}"
        )
    mean = log_probs.logsumexp(0) - math.log(len(log_probs))
    return (entropy(mean) - entropy(log_probs).mean(0)).clamp(min=0)


def _checked(scores: Tensor, what: str) -> Tensor:
    if scores.ndim != 1 or len(scores) == 0:
        raise DataError(
            f"scores {what} the distribution must be a vector of at least one number, not {tuple(scores.shape)}"
        )
    if scores.isnan().any():
        raise DataError(
            f"{int(scores.isnan().sum())} of {len(scores)} scores {what} the distribution are NaN; they must be numbers"
        )
    return scores.detach().cpu().double()


def _flagged(negative: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    """How many of either are flagged at each distinct score, from the highest threshold to the
    lowest.
    """
    values, place = torch.cat([negative, positive]).unique(return_inverse=True)  # type: ignore[no-untyped-call]
    parts = torch.split(place, [len(negative), len(positive)])
    counts = [
        torch.bincount(part, minlength=len(values)).flip(0).cumsum(0).double() for part in parts
    ]
    return counts[0], counts[1]


def _average_precision(false: Tensor, true: Tensor) -> float:
    precision, gain = true / (true + false), true.diff(prepend=true.new_zeros(1))
    return float((precision * gain).sum() / true[-1])
