r"""Have the chains mixed? R-hat, bulk and tail effective sample size of predictions and of weights
(Vehtari et al. 2021).

With m split chains of n draws, between- and within-chain variances B and W of a quantity,
autocorrelations $\hat\rho_t$ over all chains,

$$ \hat R = \sqrt{\frac{\frac{n-1}{n} W + \frac1n B}{W}}, \qquad \mathrm{ESS} = \frac{mn}{-1 +
2\sum_{t} \hat P_t} \tag{3, 4, 10, 11} $$

where the $\hat P_t = \hat\rho_{2t} + \hat\rho_{2t+1}$ are summed as long as they are positive and
made to fall (Geyer 1992). R-hat and bulk ESS are of the draws' normal scores, tail ESS is of the
indicators of the 5 % and 95 % quantiles.

Functions are identified, weights are not: hidden units can be exchanged without changing a
prediction, so chains may agree on every prediction and on no weight. Warnings therefore go by the
predictions; random projections of theta are given beside them.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from pseudocore.core.errors import ConfigError
from pseudocore.core.rng import Rng
from pseudocore.core.types import Examples
from pseudocore.inference.draws import Draws

if TYPE_CHECKING:
    from pseudocore.inference.draws_posterior import DrawsPosterior

NUM_PROBES, NUM_PROJECTIONS = 32, 16
MIN_DRAWS = 8
"""Draws a chain below which nothing can be said."""
MAX_ENERGY_ERROR = 1000.0
"""Energy error above which a trajectory has left the level set it should stay on."""
MAX_RHAT, MIN_ESS, MIN_ACCEPT = 1.05, 50.0, 0.4
"""Beyond these a warning is due. Vehtari et al. ask for an R-hat of 1.01 and an ESS of 400 for
quantities that are published to digits.
"""
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


class Mixing(NamedTuple):
    """The worst of several quantities."""

    rhat: float
    ess_bulk: float
    ess_tail: float


class Diagnosis(NamedTuple):
    """How far the draws can be trusted; from `accept` on None for samplers without a Metropolis
    test.
    """

    num_draws: int
    num_chains: int
    predictions: Mixing  # of p(label | x) at some training points
    parameters: Mixing  # of random projections of theta
    accept: float | None  # mean acceptance probability
    stuck: int | None  # chains that accepted nothing
    divergent: int | None  # trajectories whose energy error exceeded 1000
    energy_error: float | None  # mean absolute energy error of the others

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        nested = {name: getattr(self, name)._asdict() for name in ("predictions", "parameters")}
        return self._asdict() | nested

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Diagnosis":
        """The inverse of `to_dict`."""
        nested = {name: Mixing(**values[name]) for name in ("predictions", "parameters")}
        return cls(**{**values, **nested})


def rhat(values: Tensor) -> Tensor:
    """The larger of R-hat of the normal scores and of their folded ones; values (draws, chains,
    ...) to (...).
    """
    halves = _split(values)
    folded = (halves - _median(halves)).abs()
    return torch.maximum(_rhat(_scores(halves)), _rhat(_scores(folded)))


def ess_bulk(values: Tensor) -> Tensor:
    """Effective number of draws for the centre of the distribution; values (draws, chains, ...) to
    (...).
    """
    return _ess(_scores(_split(values)))


def ess_tail(values: Tensor) -> Tensor:
    """Effective number of draws for the 5 % and 95 % quantiles, the smaller of the two; values
    (draws, chains, ...) to (...).
    """
    flat = values.double().flatten(0, 1)
    low, high = (
        _ess(_split((values <= torch.quantile(flat, q, dim=0)).double())) for q in (0.05, 0.95)
    )
    return torch.minimum(low, high)


def mixing(values: Tensor) -> Mixing:
    """The worst of several quantities (draws, chains, quantities); nan below `MIN_DRAWS` draws."""
    if len(values) < MIN_DRAWS:
        return Mixing(math.nan, math.nan, math.nan)
    return Mixing(
        float(rhat(values).max()), float(ess_bulk(values).min()), float(ess_tail(values).min())
    )


def diagnose(posterior: "DrawsPosterior", rng: Rng = Rng(0)) -> Diagnosis:  # noqa: B008  frozen
    """Diagnose the chains of a posterior, one draw at a time: their predictions for some training
    points, and themselves.
    """
    problem, draws = posterior.problem, posterior.chains
    if draws is None:
        raise ConfigError(
            "only draws of chains can be diagnosed; these networks were trained one by one",
            code="no-chains",
        )
    # Training points, or those of the coreset where there are no others.
    own = Examples(posterior.coreset.x, posterior.coreset.labels)
    points = problem.data.train if problem.has_data else own
    probes = rng("probes").permutation(len(points.y))[:NUM_PROBES]
    x, y = points.x[probes], points.y[probes]
    num_draws, (num_chains, num_parameters) = len(draws), draws[0].shape
    if problem.task == "regression":
        at_labels = [each.cpu()[:, 0] for each in posterior.each(x)]
    else:
        at_labels = [each.cpu().exp().gather(1, y[:, None])[:, 0] for each in posterior.each(x)]
    directions = rng("projections").normal(
        num_parameters, NUM_PROJECTIONS, device=draws[0].device, dtype=draws[0].dtype
    )
    projected = torch.stack([(draws[number] @ directions).cpu() for number in range(num_draws)])
    return Diagnosis(
        num_draws,
        num_chains,
        mixing(torch.stack(at_labels).view(num_draws, num_chains, -1)),
        mixing(projected),
        *_proposals(draws),
    )


def warnings(diagnosis: Diagnosis) -> list[str]:
    """Sentences on what makes the predictions doubtful; empty when nothing does."""
    num_draws, num_chains, (rhat, bulk, _) = diagnosis[:3]
    total, accept = num_draws * num_chains, diagnosis.accept
    sentences = {
        f"{num_draws} draws a chain are too few to say whether it has mixed; keep at least "
        f"{MIN_DRAWS} (num_draws)": num_draws < MIN_DRAWS,
        f"the chains have not mixed: R-hat {rhat:.2f} on predictions; run longer (num_burn, "
        "num_draws) or take longer trajectories": rhat > MAX_RHAT,
        f"the {total} draws are worth {bulk:.0f} independent ones on predictions; keep more "
        "(num_draws) or space them further": bulk < MIN_ESS,
        f"{diagnosis.divergent} of {total} trajectories diverged; lower the step size or raise "
        "target_accept": bool(diagnosis.divergent),
        f"{diagnosis.stuck} of {num_chains} chains accepted nothing; lower the step size or burn "
        "in for longer": bool(diagnosis.stuck),
        f"only {accept or 0:.0%} of proposals were accepted; lower the step size, or burn in for "
        "longer so that it adapts": accept is not None and accept < MIN_ACCEPT,
    }
    return [sentence for sentence, is_due in sentences.items() if is_due]


def of_all_seeds(diagnoses: Sequence[Diagnosis]) -> list[str]:
    """The warnings of several fits, each kind once: its numbers from the least to the largest, and
    how many fits it is of.
    """
    kinds: dict[str, list[list[str]]] = {}
    for sentence in (sentence for found in diagnoses for sentence in warnings(found)):
        kinds.setdefault(_NUMBER.sub("{}", sentence), []).append(_NUMBER.findall(sentence))
    merged = []
    for kind, numbers in kinds.items():
        spans = [
            " to ".join(dict.fromkeys([min(column, key=float), max(column, key=float)]))
            for column in zip(*numbers, strict=True)
        ]
        of_seeds = f" ({len(numbers)} of {len(diagnoses)} seeds)" if len(diagnoses) > 1 else ""
        merged.append(kind.format(*spans) + of_seeds)
    return merged


def _proposals(draws: Draws) -> tuple[float | None, int | None, int | None, float | None]:
    """`accept` to `energy_error` of a diagnosis."""
    try:
        accept, accepted, error = (
            draws.trace(name).double() for name in ("accept", "accepted", "energy_error")
        )
    except KeyError:
        return None, None, None, None
    is_fine = error.abs() <= MAX_ENERGY_ERROR
    size = float(error[is_fine].abs().mean()) if is_fine.any() else math.inf
    num_stuck, num_divergent = (
        int((accepted.sum(0) == 0).sum()),
        int((error > MAX_ENERGY_ERROR).sum()),
    )
    return float(accept.mean()), num_stuck, num_divergent, size


def _split(values: Tensor) -> Tensor:
    """Halves of chains as chains of their own: (draws, chains, ...) to (draws // 2, 2 chains, ...);
    an odd middle draw is left out.
    """
    half = len(values) // 2
    return torch.cat([values[:half], values[len(values) - half :]], 1).double()


def _median(values: Tensor) -> Tensor:
    return torch.quantile(values.flatten(0, 1), 0.5, dim=0)


def _scores(values: Tensor) -> Tensor:
    """Normal scores of ranks among all draws of all chains, ties at their mean rank (Eq. 14)."""
    flat = values.flatten(0, 1)
    ordered = flat.sort(0).values.movedim(0, -1).contiguous()
    each = flat.movedim(0, -1).contiguous()
    below, upto = torch.searchsorted(ordered, each), torch.searchsorted(ordered, each, right=True)
    rank = ((below + 1 + upto).double() / 2).movedim(-1, 0)
    scores: Tensor = torch.special.ndtri((rank - 0.375) / (len(flat) + 0.25)).view_as(values)
    return scores


def _rhat(values: Tensor) -> Tensor:
    within, between = values.var(0).mean(0), values.mean(0).var(0)  # W, and B / n
    return ((len(values) - 1) / len(values) + between / within).sqrt()


def _ess(values: Tensor) -> Tensor:
    """Eqs. (10) and (11); the number of draws itself for a quantity that never changes."""
    n, m = values.shape[:2]
    covariance = _autocovariance(values).mean(1)  # (lags, ...)
    total = covariance[0] + values.mean(0).var(0)
    rho = 1 - (covariance[0] * n / (n - 1) - covariance) / total
    rho[0] = 1
    pairs = rho[: n // 2 * 2].view(n // 2, 2, *rho.shape[1:]).sum(1)  # P_t
    positive = (pairs > 0).long().cumprod(0)
    positive[(n - 3) // 2 :] = 0  # the last lags have hardly any products behind them
    # Beyond the last whole pair one more term is taken when it is positive: it halves the bias of
    # stopping there.
    next_term = (
        rho[0 : n // 2 * 2 : 2].gather(0, positive.sum(0, keepdim=True)).squeeze(0).clamp_min(0)
    )
    tau = -1 + 2 * (pairs.cummin(0).values * positive).sum(0) + next_term
    return torch.where(total > 0, m * n / tau.clamp_min(1 / math.log10(m * n)), float(m * n))


def _autocovariance(values: Tensor) -> Tensor:
    """Of each chain at every lag, (draws, chains, ...), each divided by the number of draws; by
    Fourier transform.
    """
    n = len(values)
    spectrum = torch.fft.rfft(values - values.mean(0), n=2 * n, dim=0)
    products: Tensor = torch.fft.irfft(spectrum.abs().square(), n=2 * n, dim=0)[:n]
    return products / n
