r"""Metrics of a regression and the distance between its predictives, in the targets' own units.

$$ \mathrm{RMSE}^2 = \overline{(y - \mathbb E[y \mid x])^2}, \qquad \mathrm{NLL} = -\overline{\log
   p(y \mid x)}, \qquad \mathrm{PICP}_\alpha = \overline{\mathbb 1[q_{(1-\alpha)/2} \le y \le
   q_{(1+\alpha)/2}]} $$

and the CRPS of `core/mixture.py`, all of the whole predictive mixture. The coverage (PICP) of
central intervals is best at their own level, and the mean width tells what it costs.

Fidelity is between the Gaussians of the predictives' moments, $p = \mathcal N(m, s^2)$ of all data
and $q = \mathcal N(m', s'^2)$ of the coreset, averaged over inputs:

$$ D_{KL}[p \| q] = \log\tfrac{s'}{s} + \frac{s^2 + (m - m')^2}{2 s'^2} - \tfrac12, \qquad
   W_2^2 = (m - m')^2 + (s - s')^2 . $$
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from pseudocore.core.errors import DataError
from pseudocore.core.likelihood import Task
from pseudocore.core.mixture import Mixture
from pseudocore.core.types import Predict
from pseudocore.evaluation.metrics import Reliability
from pseudocore.inference.regression import RegressionPosterior

LEVELS = (0.5, 0.9)
"""Of the central intervals whose coverage is measured."""


class RegressionMetrics(NamedTuple):
    rmse: float
    nll: float
    """Mean of -log p(y | x) over examples, in nats, of the density in the targets' units."""
    crps: float
    coverage_50: float
    """Share of targets inside the central 50 % interval."""
    coverage_90: float
    width_90: float
    """Mean width of the central 90 % interval."""

    @property
    def reliability(self) -> Reliability:
        return Reliability((), (), ())

    def scalars(self) -> dict[str, float]:
        """Every metric by name."""
        return dict(self._asdict())


@torch.no_grad()
def measure(predict: Predict, batches: Iterable[tuple[Tensor, Tensor]]) -> RegressionMetrics:
    """Metrics of a predictor over a test set given as batches of raw inputs and targets (n, 1)."""
    columns = [torch.stack(_each(mixture_of(predict, x), y[:, 0].double()), 1) for x, y in batches]
    if not columns:
        raise DataError("no examples were given; give at least one", code="no-examples")
    each = torch.cat(columns)
    if num_nan := int(each.isnan().any(1).sum()):
        raise DataError(
            f"the predictions of {num_nan} of {len(each)} examples are NaN: the parameters have"
            " grown too large; a smaller step size usually helps",
            code="nan-predictions",
            num=num_nan,
        )
    squared, *others = each.mean(0).tolist()
    return RegressionMetrics(squared**0.5, *others)


def mixture_of(predict: Predict, raw: Tensor) -> Mixture:
    """The predictive densities; Gaussian where a predictor gives only mean and sd."""
    if isinstance(predict, RegressionPosterior):
        return predict.mixture(raw)
    mean, sd = predict(raw).cpu().double().unbind(1)
    return Mixture(mean[:, None], sd[:, None])


def _each(predicted: Mixture, y: Tensor) -> tuple[Tensor, ...]:
    """The terms of every metric, (n,)."""
    mean, _ = predicted.moments()
    ends = [(predicted.quantile((1 - a) / 2), predicted.quantile((1 + a) / 2)) for a in LEVELS]
    inside = [((low <= y) & (y <= high)).double() for low, high in ends]
    low, high = ends[-1]
    error = (mean - y).square()
    return error, -predicted.log_prob(y), predicted.crps(y), *inside, high - low


def distances(full: Tensor, other: Tensor) -> dict[str, Tensor]:
    """kl, reverse_kl and w2 of each input, (n,), between means and sds (n, 2)."""
    gap = full - other
    return {
        "kl": _kl(full, other),
        "reverse_kl": _kl(other, full),
        "w2": gap.square().sum(1).sqrt(),
    }


def nll(predicted: Tensor, y: Tensor, task: Task = "regression") -> Tensor:
    """-log p(y) of each input: of labels (n,) under log-probabilities, or of targets (n, 1) under
    means and sds (n, 2).
    """
    if task == "classification":
        return -predicted.gather(1, y.unsqueeze(1)).squeeze(1)
    mean, sd = predicted.double().unbind(1)
    return -Mixture(mean[:, None], sd[:, None]).log_prob(y[:, 0].double())


def _kl(one: Tensor, other: Tensor) -> Tensor:
    (mean, sd), (mean_of_other, sd_of_other) = one.unbind(1), other.unbind(1)
    squared = sd.square() + (mean - mean_of_other).square()
    found = (sd_of_other / sd).log() + squared / (2 * sd_of_other.square()) - 0.5
    return found.clamp_min(0)  # below 0 only by rounding
