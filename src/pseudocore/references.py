r"""References: the posterior of all training data, as draws and as predictions.

A reference is the inference of `inference/` fitted to every training point with weight 1, under the
problem's own likelihood and prior at temperature 1, several times over with streams of its own: the
distance between the fits is the floor below which no difference to it can be told. What made it is
in its label: `hmc` is exact up to the number of draws; `sghmc` has no Metropolis test; an ensemble
draws from no posterior.

Made once, references are kept in the problem's cache under a full description, and can be saved to
a file that others can load: nothing in it is executed.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from pseudocore.core import config
from pseudocore.core.errors import ArtifactError, ConfigError
from pseudocore.core.problem import Problem
from pseudocore.core.registry import inferences
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, Inference, Predict
from pseudocore.inference.diagnostics import of_all_seeds
from pseudocore.inference.posterior import DrawsPosterior, Posterior
from pseudocore.runtime.profiling import stage
from pseudocore.store.coreset_file import read_tensors, write_tensors
from pseudocore.store.files import StrPath, decode_json, encode_json, file_error

NUM_FITS = 2
"""Independent fits of a reference."""

MAX_WORK = {"hmc": 1e9, "sghmc": 1e13}
"""Multiplications of a pass over all training points up to which an inference is affordable on a
CPU; an ensemble beyond.
"""

OPTIONS: dict[str, dict[str, Any]] = {
    "hmc": {"num_chains": 4, "num_burn": 150, "num_draws": 50, "num_leapfrog": 20},
    "sghmc": {"num_chains": 2, "num_burn": 60, "num_draws": 40, "num_inner": 50},
    "ensemble": {"num_members": 10, "num_steps": 2000},
}
"""Options of each inference on all data, beside its own defaults: long enough to compare with."""

MAX_PREDICTIONS = 100_000
"""Training points whose predictions are stored where there are no draws to make them of."""

Role = Literal["measure", "learn"]
"""What a reference is for. A coreset is measured against draws that its method did not see."""


class Fit(NamedTuple):
    """One fit to all data."""

    thetas: Tensor | None  # (draws, parameters); None where there are no draws
    log_probs: dict[str, Tensor]  # predictions (n, classes) by digest of the inputs


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
    _refitted: dict[int, Predict] = field(default_factory=dict)

    @property
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

    @property
    def label(self) -> str:
        num = len(self.fits)
        kind = {"ensemble": "ensembles, which draw from no posterior"}.get(self.inference)
        draws = 0 if self.fits[0].thetas is None else len(self.fits[0].thetas)
        of_draws = f" of {draws} draws" * (draws > 0 and kind is None)
        return (
            f"{self.inference} on all {self.problem.num_train} training points,"
            f" {num} {kind or 'fits'}{of_draws}"
        )

    def log_probs(self, raw: Tensor) -> list[Tensor]:
        """Log-probabilities (n, classes) of raw inputs by each fit, on the CPU in float64."""
        key = digest(raw)
        return [self._predicted(number, raw, key).double() for number in range(len(self.fits))]

    def _predicted(self, number: int, raw: Tensor, key: str) -> Tensor:
        fit = self.fits[number]
        if key not in fit.log_probs:
            if number not in self._refitted:
                self._refitted[number] = self._predictor(number)
            fit.log_probs[key] = predicted(self._refitted[number], raw)
        return fit.log_probs[key]

    def _predictor(self, number: int) -> Predict:
        thetas = self.fits[number].thetas
        if thetas is not None:
            thetas = thetas.to(self.problem.device, self.problem.dtype)
            return DrawsPosterior(self.problem, thetas, _every(self.problem))
        made = _built(self.problem, self.inference, self.options)
        return _fitted(made, self.problem, _stream(self.seed, self.role, number))


def reference(
    problem: Problem,
    inference: str | Inference | None = None,
    *,
    seed: int = 0,
    num_fits: int = NUM_FITS,
    role: Role = "measure",
    **options: Any,
) -> FullPosterior:
    """The posterior of all training data: from the problem's cache, else made and kept there.

    Args:
        problem: Data, model and prior.
        inference: A name, or an object. Defaults to hmc where a pass over the data is cheap enough,
            then sghmc, then an ensemble.
        seed: Seed of its streams.
        num_fits: Independent fits; the floor is their distance to each other.
        role: "measure", or "learn" for a reference that a method learns from: other streams.
        **options: Fields of the inference, as `num_chains` and `num_draws` of a sampler. Default to
            those of `OPTIONS`, then to the inference's own.

    Returns:
        The reference.
    """
    if num_fits < 1:
        raise ConfigError(f"num_fits = {num_fits} must be at least 1", code="invalid-options")
    problem = dataclasses.replace(problem, augment=None, experts=None, reference=None)
    made = _built(problem, inference or affordable(problem), options)
    about = _description(problem, made, seed, role, num_fits)
    if (cache := problem.cache) is None or not _is_describable(problem):
        return _make(problem, made, seed, role, num_fits)
    with cache.lock(about):
        kept = cache.load(about)
        if kept is not None and (found := _unpacked(problem, kept)) is not None:
            return found
        new = _make(problem, made, seed, role, num_fits)
        header = torch.frombuffer(bytearray(encode_json(_header(new)).encode()), dtype=torch.uint8)
        cache.save(about, {**_tensors(new), "header": header})
        return new


def with_reference(problem: Problem) -> Problem:
    """The problem with a reference for a method that learns from one: its own, else the default."""
    if problem.reference is not None:
        return problem
    with stage("reference", problem.device):
        return dataclasses.replace(problem, reference=reference(problem, role="learn"))


def affordable(problem: Problem) -> str:
    """The best sampler that the size of data and model allow."""
    work = work_per_pass(problem) / (100 if problem.device.type == "cuda" else 1)
    return next((name for name, limit in MAX_WORK.items() if work <= limit), "ensemble")


def work_per_pass(problem: Problem) -> float:
    """Multiplications of a pass of all training points through the network."""
    from torch.utils.flop_counter import FlopCounterMode

    x, _ = problem.batch(torch.zeros(1, dtype=torch.int64))
    theta = problem.model.init(Rng(0), device=problem.device, dtype=problem.dtype)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        problem.model.logits(theta, x)
    return problem.num_train * float(counter.get_total_flops()) / 2


def save(path: StrPath, reference: FullPosterior) -> None:
    """Write a reference to a safetensors file."""
    about = _description(
        reference.problem,
        _built(reference.problem, reference.inference, reference.options),
        reference.seed,
        reference.role,
        len(reference.fits),
    )
    header = {**_header(reference), "about": about}
    write_tensors(path, _tensors(reference), kind="reference", header=header)


def load(path: StrPath, problem: Problem) -> FullPosterior:
    """Read a reference of this problem; nothing in the file is executed.

    Raises ArtifactError when it is of other data, or another model, preprocessing or prior.
    """
    problem = dataclasses.replace(problem, augment=None, experts=None, reference=None)
    tensors, header = read_tensors(path, kind="reference")
    about = header.get("about")
    if not isinstance(about, Mapping):
        raise file_error(path, "is damaged: it does not say what it is of", "damaged-file")
    own = decode_json(encode_json(_of_problem(problem)))
    if differing := [name for name, value in own.items() if about.get(name) != value]:
        raise ArtifactError(
            f"{path} is the reference of another problem: {', '.join(differing)} differ from this"
            " coreset's",
            code="other-reference",
            path=path,
            differing=differing,
        )
    found = _of_tensors(problem, tensors, header)
    if found is None:
        raise file_error(path, "is damaged: it is no complete reference", "damaged-file")
    return found


@torch.no_grad()
def predicted(predict: Predict, raw: Tensor, size: int = 1024) -> Tensor:
    """Log-probabilities (n, classes) of raw inputs, batch by batch, on the CPU."""
    return torch.cat([predict(part).cpu() for part in torch.split(raw, size)])


def digest(raw: Tensor) -> str:
    """What predictions for inputs are stored under."""
    import hashlib

    found = hashlib.blake2b(f"{tuple(raw.shape)} {raw.dtype}".encode(), digest_size=16)
    found.update(raw.contiguous().numpy().data)
    return found.hexdigest()


def _make(problem: Problem, made: Inference, seed: int, role: Role, num_fits: int) -> FullPosterior:
    fits, diagnoses = [], []
    for number in range(num_fits):
        predict = _fitted(made, problem, _stream(seed, role, number))
        thetas, known = _thetas(predict), {}
        sets = [problem.data.test.x]
        if thetas is None and problem.num_train <= MAX_PREDICTIONS:
            sets.append(problem.data.train.x)
        for raw in sets:
            known[digest(raw)] = predicted(predict, raw)
        fits.append(Fit(thetas, known))
        if isinstance(predict, Posterior) and predict.diagnostics is not None:
            diagnoses.append(predict.diagnostics)
    worst = {}
    if diagnoses:
        worst["rhat"] = max(one.predictions.rhat for one in diagnoses)
        worst["ess_bulk"] = min(one.predictions.ess_bulk for one in diagnoses)
        accepts = [one.accept for one in diagnoses if one.accept is not None]
        worst |= {"accept": min(accepts)} if accepts else {}
    return FullPosterior(
        problem,
        inferences.name_of(made),
        config.to_dict(made),
        seed,
        role,
        tuple(fits),
        worst,
        of_all_seeds(diagnoses) if diagnoses else [],
    )


def _built(problem: Problem, inference: str | Inference, options: Mapping[str, Any]) -> Inference:
    if not isinstance(inference, str):
        return inference
    chosen = {**OPTIONS.get(inference, {}), **options}
    built: Inference = config.build(inferences[inference].make, chosen, what=inference)
    return built


def _fitted(made: Inference, problem: Problem, rng: Rng) -> Predict:
    return made.fit(problem, _every(problem), rng)


def _every(problem: Problem) -> Coreset:
    return problem.subset(torch.arange(problem.num_train))


def _stream(seed: int, role: Role, number: int) -> Rng:
    return Rng(seed)("reference", role, number)


def _thetas(predict: Predict) -> Tensor | None:
    """Draws (draws, parameters) behind a prediction, chain by chain within a draw."""
    draws = predict.draws if isinstance(predict, Posterior) else None
    return None if draws is None else draws.cpu()


def _is_describable(problem: Problem) -> bool:
    """Whether a description of the network says what it computes: code from outside may change."""
    return ":" not in str(problem.model.describe().get("name"))


def _of_problem(problem: Problem) -> dict[str, Any]:
    return {
        "data": problem.data.fingerprint,
        "model": problem.model.describe(),
        "preprocess": problem.preprocess.describe(),
        "prior": dataclasses.asdict(problem.prior),
    }


def _description(
    problem: Problem, made: Inference, seed: int, role: Role, num_fits: int
) -> dict[str, Any]:
    """All that a reference depends on."""
    from pseudocore import __version__

    return {
        "what": "reference",
        **_of_problem(problem),
        "inference": inferences.name_of(made),
        "options": config.to_dict(made),
        "seed": seed,
        "role": role,
        "num_fits": num_fits,
        "device": problem.device.type,
        "dtype": str(problem.dtype),
        "version": __version__,
    }


_HEADER = {"inference": str, "options": dict, "seed": int, "role": str, "diagnostics": dict,
           "warnings": list}  # fmt: skip


def _header(reference: FullPosterior) -> dict[str, Any]:
    entries = {name: getattr(reference, name) for name in _HEADER}
    return {**entries, "label": reference.label, "num_fits": len(reference.fits)}


def _tensors(reference: FullPosterior) -> dict[str, Tensor]:
    tensors = {}
    for number, fit in enumerate(reference.fits):
        if fit.thetas is not None:
            tensors[f"thetas.{number}"] = fit.thetas
        for key, log_probs in fit.log_probs.items():
            tensors[f"log_probs.{number}.{key}"] = log_probs
    return tensors


def _unpacked(problem: Problem, tensors: dict[str, Tensor]) -> FullPosterior | None:
    """A reference from the cache; None for what is none."""
    try:
        header = decode_json(bytes(tensors.pop("header").tolist()))
    except (KeyError, ValueError):
        return None
    return _of_tensors(problem, tensors, header)


def _of_tensors(
    problem: Problem, tensors: Mapping[str, Tensor], header: Mapping[str, Any]
) -> FullPosterior | None:
    if not all(isinstance(header.get(name), kind) for name, kind in _HEADER.items()):
        return None
    fits = []
    for number in range(int(header.get("num_fits", 0))):
        start = f"log_probs.{number}."
        known = {
            name.removeprefix(start): value
            for name, value in tensors.items()
            if name.startswith(start) and value.shape[1:] == (problem.num_classes,)
        }
        thetas = tensors.get(f"thetas.{number}")
        if thetas is not None and thetas.shape[1:] != (problem.model.num_parameters,):
            return None
        fits.append(Fit(thetas, known))
    return (
        FullPosterior(problem, fits=tuple(fits), **{name: header[name] for name in _HEADER})
        if fits
        else None
    )
