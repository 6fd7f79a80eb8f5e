"""From a setup to the problem it describes."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pseudocore.assembly.setup import NETWORK_FIELDS, Setup
from pseudocore.core import config
from pseudocore.core.errors import ConfigError
from pseudocore.core.likelihood import Categorical, Gaussian, Likelihood
from pseudocore.core.problem import GaussianPrior, Problem
from pseudocore.core.registry import models
from pseudocore.core.rng import Rng
from pseudocore.core.types import Dataset, DataSpec, Model, Preprocess
from pseudocore.data import DSA, Reading, columns, read
from pseudocore.data import preprocessing as whiten
from pseudocore.features.embed import embed
from pseudocore.inference.noise import choose_noise, moments
from pseudocore.models import custom
from pseudocore.runtime.allocator import keep_freed_memory
from pseudocore.runtime.profiling import stage
from pseudocore.runtime.warmup import warming_up
from pseudocore.store.cache import CacheFolder
from pseudocore.store.expert_folder import ExpertFolder


def reading(setup: Setup, *, lenient: bool = False) -> Reading:
    """How to read the data of a setup."""
    return Reading(
        target=setup.target,
        labels=setup.labels,
        drop=columns(setup.drop or ()),
        missing=setup.missing or "refuse",
        resize=setup.resize,
        task=setup.task,
        lenient=lenient,
    )


def resolve(setup: Setup, data: Dataset | DataSpec) -> Setup:
    """The same setup with its network written out."""
    default = "convnet3" if data.is_images else "mlp"
    if isinstance(data, Dataset) and data.embedded is not None:
        default = "linear"
    return replace(setup, model=setup.model or default)


def build(
    setup: Setup,
    data: Dataset | DataSpec | None = None,
    *,
    device: str = "auto",
    root: Path | None = None,
    network: Any = None,
    preprocess: Preprocess | None = None,
    features: Any = None,
    likelihood: Likelihood | None = None,
) -> Problem:
    """Load the data, make the network and fit the preprocessing.

    Args:
        setup: What to build.
        data: The data set, or its description where no examples are needed. Defaults to the data
            set that the setup names.
        device: `auto`, `cpu` or `cuda`.
        root: A folder to look for data sets in first.
        network: The network, where the setup cannot rebuild it (see `described`).
        preprocess: The preprocessing, where it is known. Defaults to one fitted to the data.
        features: The frozen network, or features of training and test half, where the setup cannot
            rebuild them. Defaults to those the setup names.
        likelihood: That of a regression, where it is known. Defaults to one standardised by the
            data, with the setup's noise or one chosen on training data.

    Returns:
        The problem.
    """
    config.check(setup)
    where = device_of(device)
    on_gpu = where.type == "cuda"
    if not on_gpu:
        keep_freed_memory()
    with warming_up(where, reduced=setup.precision == "bf16") if on_gpu else nullcontext():
        if data is None:
            with stage("load"):
                data = read(setup.data, reading(setup), root=root)
        data = _embedded(setup, data, features, where)
        model = _model(resolve(setup, data), data, network)
        augment = DSA(strategy=setup.augment, siamese=setup.siamese) if setup.augment else None
        if augment is not None and not data.is_images:
            raise ConfigError(
                f"augmentation {setup.augment!r} needs images, but {data.name!r} has features of"
                f" shape {data.shape}",
                code="augmentation-needs-images",
            )
        if on_gpu:  # torch has both as globals only
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = (
                setup.precision != "float32"
            )
            # Otherwise a convolution's gradient differs from call to call in its last bits.
            torch.backends.cudnn.deterministic = True
        if preprocess is None:
            with stage("preprocess", where):
                preprocess = whiten.make(setup.preprocess, data, device=where)
        problem = Problem(
            data,
            model,
            preprocess,
            augment,
            GaussianPrior(setup.prior_scale, setup.prior),
            where,
            precision=setup.precision,
            cache=CacheFolder(),
            likelihood=likelihood or _likelihood(setup, data),
        )
        if problem.task == "regression" and likelihood is None and setup.target_noise is None:
            with stage("noise", where):
                noise = choose_noise(problem, Rng(0)("noise"))
            problem = replace(problem, likelihood=replace(problem.gaussian, noise=noise))
        if setup.experts is None:
            return problem
        return replace(problem, experts=ExpertFolder.open(setup.experts).mapped(problem))


def _likelihood(setup: Setup, data: Dataset | DataSpec) -> Likelihood:
    """That of the data; a noise that is not known yet is the standard deviation of the targets."""
    if data.task == "classification":
        if setup.target_noise is not None:
            raise ConfigError(
                f"target_noise = {setup.target_noise:g} is of a regression, and {data.name!r} has classes; leave"
                " it out, or say task = 'regression'",
                code="unused-option",
                option="target_noise",
            )
        return Categorical()
    centre, unit = moments(data.train.y)
    return Gaussian(noise=setup.target_noise or unit, centre=centre, unit=unit)


def networks(text: str, data: Dataset) -> list[Model]:
    """Networks by name, each with its options, separated by commas: `mlp width=64, linear`."""
    made = []
    for part in filter(None, map(str.strip, text.split(","))):
        name, *words = part.split()
        given: dict[str, Any] = {"model": name}
        for field, _, value in (word.partition("=") for word in words):
            given[field] = int(value) if value.isdigit() else value
        made.append(_model(config.build(Setup, given, what=part), data, None))
    return made


def _embedded(
    setup: Setup, data: Dataset | DataSpec, features: Any, device: torch.device
) -> Dataset | DataSpec:
    """The data as features of a frozen network, where one is given and they are not yet."""
    source = setup.features if features is None else features
    if source is None and setup.feature_weights is not None:
        raise ConfigError(
            f"feature_weights = {setup.feature_weights!r} belong to no network; name it (features)",
            code="weights-without-network",
        )
    if source is None or isinstance(data, DataSpec) or data.embedded is not None:
        return data
    with stage("features", device):
        weights = setup.feature_weights
        return embed(data, source, weights=weights, device=device, cache=CacheFolder())


def described(model: Any) -> tuple[dict[str, Any], Any]:
    """The fields of a setup for a network, and what to pass to `build` as `network`."""
    if model is None or isinstance(model, str):
        return ({} if model is None else {"model": model}), None
    return custom.described(model)


def device_of(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise ConfigError(
            f"unknown device {name!r}; there are auto, cpu and cuda",
            code="unknown-device",
            name=name,
        )
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("torch finds no CUDA device here; use cpu or auto", code="no-cuda")
    return torch.device(name)


def _model(setup: Setup, data: Dataset | DataSpec, network: Any) -> Model:
    name = setup.model or ""
    given = {field: getattr(setup, field) for field in NETWORK_FIELDS}
    given = {field: value for field, value in given.items() if value is not None}
    if network is not None or ":" in name:
        return custom.load(network or name, data.shape, data.num_classes, given)
    make = models[name].make
    known = {option.name for option in config.options(make)}
    if unknown := sorted(set(given) - known):
        raise ConfigError(
            f"model {name!r} has no {' or '.join(unknown)}; it has"
            f" {', '.join(sorted(known)) or 'no options'}",
            code="unknown-model-option",
            model=name,
            options=unknown,
        )
    model: Model = config.build(make, given, what=f"model {name}").build(
        data.shape, data.num_classes
    )
    return model
