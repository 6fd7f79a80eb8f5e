r"""A last layer's settings by the likelihood of labels that it has not seen.

With features $\phi$ of a network **that has seen no labels either** (the one training starts from),
each candidate predicts the left-out points. A candidate is a ridge r and a prior variance; the
best, with its best logit scale s, wins:

$$ \arg\max_{r, \rho, s} \sum_i w_i \log \operatorname{softmax}_{y_i}\left(
   s\,\mu_{-i}(x_i) / \sqrt{1 + \tfrac\pi8 s^2 \Sigma_{-i}(x_i)}\right) $$

Left out are training points outside the coreset, where there are some (`workflows/reduction.py`
asks then, and stores the answer with the coreset), and otherwise the coreset's own points. These
are left out one at a time in closed form under the Gaussian likelihood
(`last_layer_gaussian.leave_one_out`), and a fifth at a time under the categorical one. Its logit
scale is then 1. Only points whose class has another point can be left out.

Features of the trained network would not do: they were fitted to the labels that are left out, and
after 1,000 steps any of them is predicted with certainty (docs/inference.md).

The ridge is the noise of a point of weight 1. For weights that sum to N it is that of a real
example, and a few points which cannot carry the certainty of N ask for a larger one.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from pseudocore.core.problem import label_log_likelihood
from pseudocore.objectives import last_layer_categorical as categorical
from pseudocore.objectives import last_layer_gaussian as gaussian
from pseudocore.objectives.last_layer_gaussian import LastLayer

Likelihood = Literal["gaussian", "categorical"]

DEFAULTS: Mapping[Likelihood, Mapping[str, float]] = {
    "gaussian": {"logit_scale": 10.0, "prior_variance": 0.01, "ridge": 0.01},
    "categorical": {"logit_scale": 1.0, "prior_variance": 10.0},
}
"""Where nothing can be left out: one point a class, and no training data at hand."""

RIDGES = tuple(10 ** (place / 2) for place in range(-6, 4))
VARIANCES: Mapping[Likelihood, tuple[float, ...]] = {
    "gaussian": (0.01, 0.1, 1.0),
    "categorical": tuple(10 ** (place / 2) for place in range(-2, 6)),
}
"""From the narrowest on; the categorical search stops where the score falls.

By folds of the coreset it takes the widest prior that is behind the best by half a standard error.
Four fifths of the points ask for a narrower prior than all of them.
"""
SCALES = tuple(2.0**place for place in range(-4, 11))
TOLERANCE = 1e-3
"""Of a mode that is only compared with others."""

NUM_FOLDS = 5
MAX_SCORED = 2000
MAX_FOLDED = 5000
"""Coreset points above which one fifth alone is left out."""


class Points(NamedTuple):
    features: Tensor  # (n, h), float64
    y: Tensor  # real-valued targets (n, classes), of the Gaussian likelihood
    targets: Tensor  # labels (n,) or class probabilities (n, classes)
    weight: Tensor  # (n,)

    def subset(self, index: Tensor) -> "Points":
        return Points(*(part[index] for part in self))


class Candidate(NamedTuple):
    ridge: float | None
    prior_variance: float
    mean: Tensor
    variance: Tensor


def fit(
    points: Points,
    likelihood: Likelihood,
    settings: Mapping[str, float],
    **search: Any,
) -> LastLayer:
    """The last layer's posterior at these settings; `search` is for the categorical mode's."""
    options: Any = {
        "prior_variance": settings["prior_variance"],
        "weight": points.weight,
        "intercept": settings["intercept"],
    }
    if likelihood == "gaussian":
        return gaussian.fit(points.features, points.y, ridge=settings["ridge"], **options)
    targets = _probabilities(points)
    return categorical.fit(points.features, targets, **options, **search)


def choose(
    points: Points,
    likelihood: Likelihood,
    given: Mapping[str, float],
    held_out: Points | None = None,
) -> dict[str, float]:
    """The settings of the likelihood that were not given, `intercept` excepted; the defaults where
    no point can be left out.
    """
    missing = [name for name in DEFAULTS[likelihood] if name not in given]
    places = torch.arange(0) if held_out is not None else _with_a_neighbour(points)
    if not missing or (held_out is None and len(places) == 0):
        return {name: DEFAULTS[likelihood][name] for name in missing}
    if held_out is not None:
        folds, scored = [], held_out
    elif likelihood == "gaussian":
        folds, scored = [places], points.subset(places)
    else:
        folds = list(_folds(points, places))
        scored = points.subset(torch.cat(folds))
    if "logit_scale" in given:
        scales: tuple[float, ...] = (given["logit_scale"],)
    else:  # the categorical likelihood has its own, unless its weights claim too much
        scales = SCALES if likelihood == "gaussian" or held_out is not None else (1.0,)
    candidates = _gaussian if likelihood == "gaussian" else _categorical
    best_score, best, chosen = -math.inf, None, None
    for one in candidates(points, given, held_out, folds):
        score, scale = max((_score(one, scored, scale), scale) for scale in scales)
        if score > best_score:
            best_score, best, chosen = score, one, (one, scale)
        elif likelihood == "categorical":
            if best is None or held_out is not None or not _as_good(one, best, scored):
                break
            chosen = (one, scale)
    if chosen is None:  # features that are not finite, of a network that ran away
        return {name: DEFAULTS[likelihood][name] for name in missing}
    one, scale = chosen
    found = {
        "logit_scale": _refined(one, scored, scale) if len(scales) > 1 else scale,
        "prior_variance": one.prior_variance,
        "ridge": one.ridge,
    }
    return {name: value for name in missing if (value := found[name]) is not None}


def _gaussian(
    points: Points, given: Mapping[str, float], held_out: Points | None, folds: list[Tensor]
) -> Iterator[Candidate]:
    ridges = [given["ridge"]] if "ridge" in given else RIDGES
    variances = [given["prior_variance"]] if "prior_variance" in given else VARIANCES["gaussian"]
    features, y, _, weight = points
    posteriors = gaussian.fit_each(
        features,
        y,
        ridges=ridges,
        prior_variance=1.0,
        weight=weight,
        intercept=given["intercept"],
    )
    for ridge, posterior in zip(ridges, posteriors, strict=True):
        if held_out is None:
            (places,) = folds
            parts = features[places], y[places], weight[places]
            mean, spread = gaussian.leave_one_out(posterior, *parts)
        else:
            mean, spread = gaussian.predict(posterior, held_out.features)
        for variance in variances:
            yield Candidate(ridge, variance, mean, variance * spread)


def _categorical(
    points: Points, given: Mapping[str, float], held_out: Points | None, folds: list[Tensor]
) -> Iterator[Candidate]:
    variances = [given["prior_variance"]] if "prior_variance" in given else VARIANCES["categorical"]
    if held_out is None:
        parts = [_split(points, left_out) for left_out in folds]
    else:
        parts = [(points, held_out)]
    starts: list[LastLayer | None] = [None] * len(parts)
    for variance in variances:
        settings = {"prior_variance": variance, "intercept": given["intercept"]}
        predictions = []
        for number, (kept, left_out) in enumerate(parts):
            search = {"start": starts[number], "tolerance": TOLERANCE}
            starts[number] = posterior = fit(kept, "categorical", settings, **search)
            predictions.append(gaussian.predict(posterior, left_out.features))
        means, spreads = zip(*predictions, strict=True)
        yield Candidate(None, variance, torch.cat(means), torch.cat(spreads))


def _log_likelihoods(one: Candidate, scored: Points, scale: float) -> Tensor:
    """Of the left-out points, weighted so that their mean is the score, (n,)."""
    log_probs = gaussian.log_probs(one.mean, one.variance, scale)
    share = scored.weight / scored.weight.mean()
    return share * label_log_likelihood(log_probs, scored.targets)


def _score(one: Candidate, scored: Points, scale: float) -> float:
    score = float(_log_likelihoods(one, scored, scale).mean())
    return score if math.isfinite(score) else -math.inf


def _as_good(one: Candidate, best: Candidate, scored: Points) -> bool:
    """Whether a wider prior is behind by no more than half a standard error."""
    behind = _log_likelihoods(best, scored, 1.0) - _log_likelihoods(one, scored, 1.0)
    return bool(behind.mean() <= 0.5 * behind.std() / math.sqrt(len(behind)))


def _refined(one: Candidate, scored: Points, scale: float) -> float:
    """The best scale within a factor 2 of this one, by golden section."""
    low, high = math.log(scale / 2), math.log(2 * scale)
    share = (math.sqrt(5) - 1) / 2
    for _ in range(20):
        left, right = high - share * (high - low), low + share * (high - low)
        if _score(one, scored, math.exp(left)) >= _score(one, scored, math.exp(right)):
            high = right
        else:
            low = left
    return math.exp((low + high) / 2)


def _split(points: Points, left_out: Tensor) -> tuple[Points, Points]:
    kept = torch.ones(len(points.weight), dtype=torch.bool, device=left_out.device)
    kept[left_out] = False
    return points.subset(kept), points.subset(left_out)


def _labels(points: Points) -> Tensor:
    return points.targets.argmax(1) if points.targets.ndim == 2 else points.targets


def _probabilities(points: Points) -> Tensor:
    if points.targets.ndim == 2:
        return points.targets
    classes = torch.arange(points.y.shape[1], device=points.y.device)
    return (points.targets[:, None] == classes).to(points.y)


def _with_a_neighbour(points: Points) -> Tensor:
    """Places of the points that can be left out, evenly thinned to at most `MAX_SCORED`."""
    labels = _labels(points)
    counts = torch.bincount(labels[points.weight > 0], minlength=points.y.shape[1])
    places = ((counts[labels] > 1) & (points.weight > 0)).nonzero().flatten()
    return places[:: max(1, math.ceil(len(places) / MAX_SCORED))]


def _folds(points: Points, places: Tensor) -> Iterator[Tensor]:
    """Places to leave out together: of every class one in `NUM_FOLDS`, in their order."""
    labels, rank = _labels(points)[places], torch.zeros_like(places)
    for label in range(points.y.shape[1]):
        members = (labels == label).nonzero().flatten()
        rank[members] = torch.arange(len(members), device=places.device)
    num = NUM_FOLDS if len(points.weight) <= MAX_FOLDED else 1
    for fold in range(num):
        left_out = places[rank % NUM_FOLDS == fold]
        if len(left_out):
            yield left_out
