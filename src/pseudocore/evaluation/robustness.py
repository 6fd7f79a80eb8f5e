"""How predictions hold up where the data were not: corrupted test images, and inputs from another
data set altogether.

Corruptions are made in pixel space, before normalisation or whitening, once for all seeds; the
official CIFAR-10-C and CIFAR-100-C files are read where the search path has them
(`data/corruptions/corrupt.py`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pseudocore.core.errors import DataError
from pseudocore.core.rng import Rng
from pseudocore.core.types import Dataset, Examples, Predict, PredictsByDraw
from pseudocore.data.corruptions import CORRUPTIONS, corrupt, official
from pseudocore.evaluation.metrics import Metrics, measure
from pseudocore.evaluation.ood import detect, entropy

Corrupted = Mapping[tuple[str, int], Examples]
"""Test sets by corruption and severity."""

_BATCH = 1024
"""A multiple of 256, the batch of published evaluators; smaller ones leave a GPU waiting for its
orders.
"""


_latest: dict[tuple[str, tuple[int, ...], int, tuple[str, ...]], Corrupted] = {}
"""The sets made last: a comparison asks for the same ones again and again, and images of CIFAR's
size take seconds.
"""


def corrupted_sets(
    data: Dataset, severities: Sequence[int], num: int, *, kinds: Sequence[str] = tuple(CORRUPTIONS)
) -> Corrupted:
    """The first `num` test images under every corruption and severity; the same for every method,
    seed and machine.
    """
    if severities and data.train.x.dtype != torch.uint8:
        raise DataError(
            f"corruptions are for images, but {data.name!r} has features of shape {data.shape}"
        )
    wanted = (data.fingerprint, tuple(severities), num, tuple(kinds))
    if wanted not in _latest:
        made = _make(data, severities, num, kinds)
        _latest.clear()
        _latest[wanted] = made
    return _latest[wanted]


def _make(data: Dataset, severities: Sequence[int], num: int, kinds: Sequence[str]) -> Corrupted:
    x, y = data.test.x[:num], data.test.y[:num]
    sets = {}
    for kind in kinds:
        for severity in severities:
            found = official(data.name, kind, severity)
            sets[kind, severity] = (
                Examples(found.x[:num], found.y[:num])
                if found
                else Examples(corrupt(x, kind, severity, Rng(0)), y)
            )
    return sets


def corrupted_scores(
    predict: Predict, sets: Corrupted, num_classes: int
) -> dict[tuple[str, int], Metrics]:
    """Metrics on every corrupted test set."""
    return {
        key: measure(predict, in_batches(examples), num_classes) for key, examples in sets.items()
    }


def foreign_scores(predict: Any, data: Dataset, foreign: Dataset, num: int) -> dict[str, float]:
    """How well uncertainty tells the first `num` test inputs from as many of another set: by
    entropy, and by mutual information where
    the predictor has draws to disagree."""
    if foreign.shape != data.shape:
        raise DataError(
            f"inputs of {foreign.name!r} have shape {foreign.shape}, those of {data.name!r} {data.shape}: they cannot be told apart"
        )
    inside, outside = (
        _uncertainty(predict, examples, num) for examples in (data.test, foreign.test)
    )
    scores: dict[str, float] = {}
    for name, score in inside.items():
        found = detect(score, outside[name])
        scores |= {
            f"ood_auroc_{name}": found.auroc,
            f"ood_aupr_{name}": found.aupr,
            f"ood_fpr95_{name}": found.fpr95,
        }
    return scores


def in_batches(examples: Examples, size: int = _BATCH) -> Iterator[tuple[Tensor, Tensor]]:
    for start in range(0, len(examples.y), size):
        yield examples.x[start : start + size], examples.y[start : start + size]


def _uncertainty(predict: Any, examples: Examples, num: int) -> dict[str, Tensor]:
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
