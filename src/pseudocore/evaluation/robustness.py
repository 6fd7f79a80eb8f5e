r"""Predictions on corrupted test images, and on inputs from another data set.

Corruptions are made in pixel space, before normalisation or whitening, once for all seeds; the
official CIFAR-10-C and CIFAR-100-C files are read where the search path has them
(`data/corruptions`).

Out-of-distribution inputs are detected by their uncertainty: the entropy of the prediction, and the
mutual information of label and parameters where there are draws. They are the positives. At
threshold $t$ every input with score $\ge t$ is flagged; equal scores are flagged together, so

* AUROC $= P(s_\mathrm{out} > s_\mathrm{in}) + \tfrac12 P(s_\mathrm{out} = s_\mathrm{in})$,
* AUPR $= \sum_t (R_t - R_{t+}) P_t$ over all distinct scores (average precision: no interpolation
  between points),
* FPR95 is the share of test inputs that are flagged at the highest threshold that flags at least
  95% of the others.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pseudocore.core.errors import DataError
from pseudocore.core.rng import Rng
from pseudocore.core.types import Dataset, Examples, Predict, PredictsByDraw
from pseudocore.data.corruptions import CORRUPTIONS, corrupt, official
from pseudocore.evaluation.metrics import Metrics, in_batches, measure
from pseudocore.inference.posterior import entropy as entropy

Corrupted = Mapping[tuple[str, int], Examples]
"""Test sets by corruption and severity."""

_latest: dict[tuple[str, tuple[int, ...], int, tuple[str, ...]], Corrupted] = {}
"""The last sets made: a comparison needs the same ones many times, and they take seconds to make."""


class Detection(NamedTuple):
    auroc: float
    aupr: float
    """Average precision; that of chance is the share of positives, so it depends on both sizes."""
    aupr_in: float
    """The same with the test inputs as positives, detected by low scores."""
    fpr95: float


def corrupted_sets(
    data: Dataset, severities: Sequence[int], num: int, *, kinds: Sequence[str] = tuple(CORRUPTIONS)
) -> Corrupted:
    """The first `num` test images under every corruption and severity; the same for every method,
    seed and machine.
    """
    if severities and data.train.x.dtype != torch.uint8:
        raise DataError(
            f"corruptions are for images, but {data.name!r} has features of shape {data.shape}",
            code="images-needed",
            data=data.name,
        )
    wanted = (data.fingerprint, tuple(severities), num, tuple(kinds))
    if wanted not in _latest:
        made = {
            (kind, severity): _corrupted(data, kind, severity, num)
            for kind in kinds
            for severity in severities
        }
        _latest.clear()
        _latest[wanted] = made
    return _latest[wanted]


def corrupted_scores(
    predict: Predict, sets: Corrupted, num_classes: int
) -> dict[tuple[str, int], Metrics]:
    """Metrics on every corrupted test set."""
    return {
        key: measure(predict, in_batches(examples), num_classes) for key, examples in sets.items()
    }


def ood_scores(predict: Predict, data: Dataset, other: Dataset, num: int) -> dict[str, float]:
    """How well each uncertainty separates the first `num` test inputs from as many of another
    data set.
    """
    if other.shape != data.shape:
        raise DataError(
            f"inputs of {other.name!r} have shape {other.shape}, those of {data.name!r}"
            f" {data.shape}; the shapes must agree",
            code="wrong-shape",
        )
    inside, outside = (_uncertainty(predict, each.test, num) for each in (data, other))
    scores: dict[str, float] = {}
    for name, score in inside.items():
        found = detect(score, outside[name])
        scores |= {
            f"ood_auroc_{name}": found.auroc,
            f"ood_aupr_{name}": found.aupr,
            f"ood_fpr95_{name}": found.fpr95,
        }
    return scores


def detect(inside: Tensor, outside: Tensor) -> Detection:
    """How well scores separate `outside` (m,), the positives, from `inside` (n,)."""
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


def _corrupted(data: Dataset, kind: str, severity: int, num: int) -> Examples:
    if found := official(data.name, kind, severity):
        return Examples(found.x[:num], found.y[:num])
    return Examples(corrupt(data.test.x[:num], kind, severity, Rng(0)), data.test.y[:num])


def _uncertainty(predict: Predict, examples: Examples, num: int) -> dict[str, Tensor]:
    parts: dict[str, list[Tensor]] = {}
    for x, _ in in_batches(Examples(examples.x[:num], examples.y[:num])):
        if isinstance(predict, PredictsByDraw):
            found = predict.uncertainty(x)
            scores = {"entropy": found.entropy, "information": found.mutual_information}
        else:
            scores = {"entropy": entropy(predict(x))}
        for name, score in scores.items():
            parts.setdefault(name, []).append(score.cpu())
    return {name: torch.cat(pieces) for name, pieces in parts.items()}


def _checked(scores: Tensor, what: str) -> Tensor:
    if scores.ndim != 1 or len(scores) == 0:
        raise DataError(
            f"scores {what} the distribution must be a vector of at least one number, not"
            f" {tuple(scores.shape)}",
            code="wrong-shape",
        )
    if num_nan := int(scores.isnan().sum()):
        raise DataError(
            f"{num_nan} of {len(scores)} scores {what} the distribution are NaN",
            code="nan-scores",
            num=num_nan,
        )
    return scores.detach().cpu().double()


def _flagged(negative: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    """How many of either are flagged at each distinct score, highest threshold first."""
    values, place = torch.cat([negative, positive]).unique(return_inverse=True)  # type: ignore[no-untyped-call]
    parts = torch.split(place, [len(negative), len(positive)])
    counts = [
        torch.bincount(part, minlength=len(values)).flip(0).cumsum(0).double() for part in parts
    ]
    return counts[0], counts[1]


def _average_precision(false: Tensor, true: Tensor) -> float:
    precision, gain = true / (true + false), true.diff(prepend=true.new_zeros(1))
    return float((precision * gain).sum() / true[-1])
