"""The posterior of all training data, as draws and as predictions: what a coreset is compared with.

`workflows/references.py` makes, keeps and reads it.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from pseudocore.core import config
from pseudocore.core.errors import ConfigError
from pseudocore.core.likelihood import Task, check_task
from pseudocore.core.problem import Problem
from pseudocore.core.registry import inferences
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, Inference, Predict
from pseudocore.inference.posterior import Posterior
from pseudocore.inference.regression import posterior_of_draws

MAX_PREDICTIONS = 100_000
"""Training points whose predictions are stored where there are no draws to make them of."""

Role = Literal["measure", "learn"]
"""What a reference is for. A coreset is measured against draws that its method did not see."""


class Fit(NamedTuple):
    """One fit to all data."""

    thetas: Tensor | None  # (draws, parameters); None where there are no draws
    log_probs: dict[str, Tensor]
    """Predictions (n, classes) by digest of the inputs; of a regression mean and sd, (n, 2)."""


class FullPredictions(NamedTuple):
    """What full-data inference predicts for some inputs."""

    log_probs: Sequence[Tensor]  # (n, classes) by each fit
    floor_of: str
    """What the floor is between: `fits`, or `halves` of the draws of the only one; empty where
    there is none.
    """
    halves: Sequence[Tensor]  # predictions behind that floor
    draws: Sequence[Tensor | None] = ()  # thetas (draws, parameters) where they are identified
    task: Task = "classification"  # of a regression predictions are means and sds, (n, 2)


@dataclass(frozen=True, eq=False)
class FullPosterior:
    """A `core.types.Reference`: the posterior of all training data."""

    problem: Problem
    inference: str
    options: dict[str, Any]
    """Of the inference, all of them."""
    seed: int
    role: Role
    fits: tuple[Fit, ...]
    diagnostics: dict[str, float]
    """The worst over fits."""
    warnings: list[str]
    _predictors: dict[int, Predict] = field(default_factory=dict)

    @cached_property  # a captured graph must not copy from the host
    def thetas(self) -> Tensor:
        """Draws of all fits, (draws, parameters)."""
        thetas = [fit.thetas for fit in self.fits if fit.thetas is not None]
        if not thetas:
            raise ConfigError(
                f"{self.label} holds predictions but no draws; a reference by hmc or sghmc has some",
                code="no-draws",
                inference=self.inference,
            )
        return torch.cat(thetas).to(self.problem.device, self.problem.dtype)

    @cached_property
    def train_log_probs(self) -> Tensor:
        """Predictions for the training inputs (n, classes), averaged over fits."""
        each = torch.stack(self.log_probs(self.problem.data.train.x))
        mean = each.logsumexp(0).log_softmax(1)
        return mean.to(self.problem.device, self.problem.dtype)

    @property
    def label(self) -> str:
        """What it is, for a person."""
        num, thetas = len(self.fits), self.fits[0].thetas
        if thetas is None:
            made = f"{num} fit{'s' * (num > 1)}"
        elif self.inference == "ensemble":
            made = f"{num} × {len(thetas)} networks, which are no draws from a posterior"
        else:
            made = f"{num} × {len(thetas)} draws"
        return f"{self.inference} on all {self.problem.num_train} training points ({made})"

    def log_probs(self, raw: Tensor) -> list[Tensor]:
        """Log-probabilities (n, classes) of raw inputs by each fit, on the CPU in float64."""
        key = digest(raw)
        return [self._predicted(number, raw, key).double() for number in range(len(self.fits))]

    def predictions(self, raw: Tensor) -> FullPredictions:
        """What `evaluation.fidelity` measures against."""
        log_probs, task = self.log_probs(raw), self.problem.task
        is_identified = self.problem.model.describe().get("name") == "linear"
        draws = [fit.thetas for fit in self.fits] if is_identified else []
        if len(log_probs) > 1:
            return FullPredictions(log_probs, "fits", log_probs, draws, task)
        thetas = self.fits[0].thetas
        if thetas is None or len(thetas) < 2:
            return FullPredictions(log_probs, "", [], draws, task)
        halves = [predicted(self._of_draws(part), raw).double() for part in thetas.tensor_split(2)]
        return FullPredictions(log_probs, "halves", halves, draws, task)

    def _predicted(self, number: int, raw: Tensor, key: str) -> Tensor:
        fit = self.fits[number]
        if key not in fit.log_probs:
            if number not in self._predictors:
                made: Inference = config.build(inferences[self.inference].make, self.options)
                self._predictors[number] = (
                    fit_all(made, self.problem, stream(self.seed, self.role, number))
                    if fit.thetas is None
                    else self._of_draws(fit.thetas)
                )
            fit.log_probs[key] = predicted(self._predictors[number], raw)
        return fit.log_probs[key]

    def _of_draws(self, thetas: Tensor) -> Predict:
        thetas = thetas.to(self.problem.device, self.problem.dtype)
        return posterior_of_draws(self.problem, thetas, _every(self.problem))


def fit_all(made: Inference, problem: Problem, rng: Rng) -> Any:
    """The inference fitted to every training point with weight 1."""
    check_task(made, inferences.name_of(made), problem.task)
    return made.fit(problem, _every(problem), rng)


def _every(problem: Problem) -> Coreset:
    return problem.subset(torch.arange(problem.num_train))


def stream(seed: int, role: Role, number: int) -> Rng:
    """Of one of a reference's fits."""
    return Rng(seed)("reference", role, number)


def fit_of(predict: Predict, problem: Problem) -> Fit:
    """Draws of a fit, and its predictions for the test set; without draws, for the training set
    too.
    """
    thetas, sets = flat_draws(predict), [problem.data.test.x]
    if thetas is None and problem.num_train <= MAX_PREDICTIONS:
        sets.append(problem.data.train.x)
    return Fit(thetas, {digest(raw): predicted(predict, raw) for raw in sets})


def flat_draws(predict: Predict) -> Tensor | None:
    """Draws (draws, parameters) behind a prediction, chain by chain within a draw."""
    draws = predict.draws if isinstance(predict, Posterior) else None
    return None if draws is None else draws.cpu()


@torch.no_grad()
def predicted(predict: Callable[[Tensor], Tensor], raw: Tensor, size: int = 1024) -> Tensor:
    """Log-probabilities (n, classes) of raw inputs, batch by batch, on the CPU."""
    return torch.cat([predict(part).cpu() for part in torch.split(raw, size)])


def digest(raw: Tensor) -> str:
    """What predictions for inputs are stored under."""
    found = hashlib.blake2b(f"{tuple(raw.shape)} {raw.dtype}".encode(), digest_size=16)
    found.update(raw.contiguous().numpy().data)
    return found.hexdigest()


HEADER: Mapping[str, type] = {
    "inference": str,
    "options": dict,
    "seed": int,
    "role": str,
    "diagnostics": dict,
    "warnings": list,
}
"""Entries of a stored reference beside its tensors."""


def to_header(posterior: FullPosterior) -> dict[str, Any]:
    entries = {name: getattr(posterior, name) for name in HEADER}
    return {**entries, "label": posterior.label, "num_fits": len(posterior.fits)}


def to_tensors(posterior: FullPosterior) -> dict[str, Tensor]:
    tensors = {}
    for number, fit in enumerate(posterior.fits):
        for name, value in fit_tensors(fit).items():
            kind, _, key = name.partition(".")
            tensors[f"{kind}.{number}" + (f".{key}" if key else "")] = value
    return tensors


def fit_tensors(fit: Fit) -> dict[str, Tensor]:
    """What `stored_fit` makes it of again."""
    tensors = {} if fit.thetas is None else {"thetas": fit.thetas}
    return tensors | {f"log_probs.{key}": value for key, value in fit.log_probs.items()}


def stored_fit(problem: Problem, tensors: Mapping[str, Tensor]) -> Fit | None:
    """The fit that was stored; None when these are not all of one, or of another network."""
    start, thetas = "log_probs.", tensors.get("thetas")
    known = {
        name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)
    }
    width = 2 if problem.task == "regression" else problem.num_classes
    if {value.shape[1:] for value in known.values()} != {(width,)}:
        return None
    if thetas is not None and thetas.shape[1:] != (problem.model.num_parameters,):
        return None
    return Fit(thetas, known)


def from_stored(
    problem: Problem, tensors: Mapping[str, Tensor], header: Mapping[str, Any]
) -> FullPosterior | None:
    """The reference that was stored; None when these are not all of one, or of another network."""
    num = header.get("num_fits")
    if not all(isinstance(header.get(name), kind) for name, kind in HEADER.items()):
        return None
    if type(num) is not int or not 0 < num <= len(tensors):
        return None
    fits = []
    for number in range(num):
        own = {
            f"{kind}.{key}" if key else kind: value
            for name, value in tensors.items()
            for kind, place, key in [_place(name)]
            if place == str(number)
        }
        if (fit := stored_fit(problem, own)) is None:
            return None
        fits.append(fit)
    return FullPosterior(problem, fits=tuple(fits), **{name: header[name] for name in HEADER})


def _place(name: str) -> tuple[str, str, str]:
    """Kind, number of the fit and key of a tensor's name: `log_probs.0.KEY` or `thetas.0`."""
    kind, number, key = (*name.split(".", 2), "", "")[:3]
    return kind, number, key
