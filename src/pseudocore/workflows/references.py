r"""References: the posterior of all training data, made once.

A reference is an inference of `inference/` fitted to every training point with weight 1, under the
problem's own likelihood and prior at temperature 1. It is fitted several times over, with streams
of its own. The distance between the fits is the floor below which no difference to it can be told.
Its label says what made it: `hmc` is exact up to the number of draws; `sghmc` has no Metropolis
test; an ensemble draws from no posterior.

Each fit is kept in the problem's cache under a full description as soon as it is made. A reference
can be saved to a file that others can load: nothing in it is executed.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from pseudocore.core import config
from pseudocore.core.errors import ArtifactError, ConfigError
from pseudocore.core.problem import Problem
from pseudocore.core.registry import inferences
from pseudocore.core.rng import Rng
from pseudocore.core.types import Inference, NeedsReference
from pseudocore.inference import full_posterior
from pseudocore.inference.diagnostics import Diagnosis, of_all_seeds
from pseudocore.inference.full_posterior import Fit, FullPosterior, Role
from pseudocore.inference.posterior import Posterior
from pseudocore.runtime.profiling import stage
from pseudocore.store.coreset_file import read_tensors, write_tensors
from pseudocore.store.files import StrPath, decode_json, encode_json, file_error

Source = str | Path | FullPosterior | None
"""A reference: the name of an inference, a file, one that is made, or None for the default."""

NUM_FITS = 2
"""Independent fits of a reference."""

MAX_WORK = {"hmc": 1e9, "sghmc": 1e13}
"""Multiplications of a pass over all training points up to which an inference is affordable on a
CPU; an ensemble beyond.
"""

OPTIONS: dict[str, dict[str, Any]] = {
    "hmc": {"num_chains": 4, "num_burn": 200, "num_draws": 100},
    "sghmc": {"num_chains": 2, "num_burn": 60, "num_draws": 40, "num_inner": 50},
    "ensemble": {"num_members": 10, "num_steps": 2000},
}
"""Options of each inference on all data, beside its own defaults: long enough to compare with."""


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
    problem = _bare(problem)
    made = _built(inference or affordable(problem), options)
    fits, diagnoses = [], []
    for number in range(num_fits):
        fit, diagnosis = _fit(problem, made, seed, role, number)
        fits.append(fit)
        diagnoses += [] if diagnosis is None else [diagnosis]
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


def beside(problem: Problem, fitted: Inference, source: Source) -> FullPosterior:
    """The reference to compare an inference on a coreset with: the one given, else the same
    inference on all data; of samplers, with the options of a reference.
    """
    if isinstance(source, FullPosterior):
        return source
    if source is not None and str(source) not in inferences:
        return load(source, problem)
    return reference(problem, _beside(fitted, source))


def fit(problem: Problem, fitted: Inference, source: str | None, number: int) -> None:
    """Make one of the fits of `beside`, and keep it in the problem's cache."""
    _fit(_bare(problem), _beside(fitted, source), 0, "measure", number)


def _beside(fitted: Inference, source: str | Path | None) -> Inference:
    """The inference on all data to compare an inference on a coreset with."""
    name = inferences.name_of(fitted)
    if source is not None and str(source) != name:
        return _built(str(source), {})
    return _built(name, {} if name in OPTIONS else config.to_dict(fitted))


def against(full: FullPosterior | None, fitted: Inference) -> str | None:
    """The name of a reference's inference, where it is not the one on the coreset."""
    if full is None or full.inference == inferences.name_of(fitted):
        return None
    return full.inference


def with_reference(problem: Problem, method: object) -> Problem:
    """The problem with a reference, where the method learns from one: the problem's own, else the
    inference that the method names or the default. The same holds for the data under other
    networks.
    """
    if not isinstance(method, NeedsReference) or not method.needs_reference:
        return problem
    also = tuple(with_reference(other, method) for other in problem.also)
    problem = dataclasses.replace(problem, also=also)
    if problem.reference is not None:
        return problem
    name = method.needs_reference if isinstance(method.needs_reference, str) else None
    with stage("reference", problem.device):
        return dataclasses.replace(problem, reference=reference(problem, name, role="learn"))


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
        _built(reference.inference, reference.options),
        reference.seed,
        reference.role,
    )
    about["num_fits"] = len(reference.fits)
    header = {**full_posterior.to_header(reference), "about": about}
    write_tensors(path, full_posterior.to_tensors(reference), kind="reference", header=header)


def load(path: StrPath, problem: Problem) -> FullPosterior:
    """Read a reference of this problem; nothing in the file is executed.

    Raises ArtifactError when it is of other data, or another model, preprocessing or prior.
    """
    problem = _bare(problem)
    tensors, header = read_tensors(path, kind="reference")
    about = header.get("about")
    if not isinstance(about, Mapping):
        raise file_error(path, "is damaged: it does not say what it is of", "damaged-file")
    own = decode_json(encode_json(describe_problem(problem)))
    if differing := [name for name, value in own.items() if about.get(name) != value]:
        raise ArtifactError(
            f"{path} is the reference of another problem: {', '.join(differing)} differ from this"
            " coreset's",
            code="other-reference",
            path=path,
            differing=differing,
        )
    found = full_posterior.from_stored(problem, tensors, header)
    if found is None:
        raise file_error(path, "is damaged: it is no complete reference", "damaged-file")
    return found


def _fit(
    problem: Problem, made: Inference, seed: int, role: Role, number: int
) -> tuple[Fit, Diagnosis | None]:
    """One fit: from the cache, else made and kept there, so that a killed reference is resumed."""
    if (cache := problem.cache) is None or not is_describable(problem):
        return _make(problem, made, seed, role, number)
    about = {**_description(problem, made, seed, role), "fit": number}
    with cache.lock(about):
        kept = cache.load(about)
        if kept is not None and (found := _unpacked(problem, kept)) is not None:
            return found
        fit, diagnosis = _make(problem, made, seed, role, number)
        text = encode_json({"diagnosis": None if diagnosis is None else diagnosis.to_dict()})
        header = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        cache.save(about, {**full_posterior.fit_tensors(fit), "header": header})
        return fit, diagnosis


def _make(
    problem: Problem, made: Inference, seed: int, role: Role, number: int
) -> tuple[Fit, Diagnosis | None]:
    predict = full_posterior.fit_all(made, problem, full_posterior.stream(seed, role, number))
    diagnosis = predict.diagnostics if isinstance(predict, Posterior) else None
    return full_posterior.fit_of(predict, problem), diagnosis


def _bare(problem: Problem) -> Problem:
    """Without what belongs to making a coreset."""
    return dataclasses.replace(problem, augment=None, experts=None, reference=None, also=())


def _built(inference: str | Inference, options: Mapping[str, Any]) -> Inference:
    if not isinstance(inference, str):
        return inference
    chosen = {**OPTIONS.get(inference, {}), **options}
    built: Inference = config.build(inferences[inference].make, chosen, what=inference)
    return built


def is_describable(problem: Problem) -> bool:
    """Whether a description of the network says what it computes: code from outside may change."""
    return ":" not in str(problem.model.describe().get("name"))


def describe_problem(problem: Problem) -> dict[str, Any]:
    noise = problem.likelihood.describe()
    return {
        "data": problem.data.fingerprint,
        "model": problem.model.describe(),
        "preprocess": problem.preprocess.describe(),
        "prior": dataclasses.asdict(problem.prior),
        **({"likelihood": noise} if noise else {}),
    }


def _description(problem: Problem, made: Inference, seed: int, role: Role) -> dict[str, Any]:
    """All that a reference depends on."""
    return {
        "kind": "reference",
        **describe_problem(problem),
        "inference": inferences.name_of(made),
        "options": config.to_dict(made),
        "seed": seed,
        "role": role,
        "arithmetic": [str(problem.dtype), problem.precision, problem.device.type],
    }


def _unpacked(
    problem: Problem, kept: Mapping[str, torch.Tensor]
) -> tuple[Fit, Diagnosis | None] | None:
    """A fit from the cache; None for what is none."""
    try:
        found = decode_json(bytes(kept["header"].tolist()))["diagnosis"]
        diagnosis = None if found is None else Diagnosis.from_dict(found)
    except (KeyError, ValueError, TypeError):
        return None
    tensors = {name: value for name, value in kept.items() if name != "header"}
    fit = full_posterior.stored_fit(problem, tensors)
    return None if fit is None else (fit, diagnosis)
