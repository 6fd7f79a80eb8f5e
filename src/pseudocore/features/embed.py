"""A data set as the features of a frozen network: batch by batch, once, kept in the cache.

The cache knows features by the fingerprints of the data and of the network. What is reduced is then
a data set of vectors, so every method works on it. The inputs behind the points stay known by their
places in the training half (`Coreset.nearest`).
"""

import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pseudocore.core.errors import ConfigError, DataError
from pseudocore.core.problem import Problem
from pseudocore.core.types import Cache, Coreset, Dataset, Embedded
from pseudocore.data.arrays import load_archive
from pseudocore.features import backbone as backbones

BATCH = 256
"""Inputs that pass through a network together."""

BLOCK = 4096
"""Training points whose distances are computed together."""


def embed(
    data: Dataset,
    features: Any,
    *,
    weights: str | None = None,
    device: torch.device = torch.device("cpu"),
    cache: Cache | None = None,
) -> Dataset:
    """A data set with features in place of its inputs.

    Args:
        data: Any data set.
        features: An `nn.Module`; a name, as "timm:resnet18" or "package.module:function"; features
            of both halves, (train, test); or the path of an .npz file that holds these two.
        weights: A file of a named network's weights.
        device: Where a named network runs.
        cache: Where features are kept between runs. Defaults to nowhere.

    Returns:
        The same labels, with inputs (n, features).
    """
    if isinstance(features, str | Path) and Path(features).suffix == ".npz":
        features = _read(Path(features).expanduser())
    if isinstance(features, tuple | list):
        return _ready(data, features)
    if not isinstance(features, nn.Module | str):
        raise ConfigError(
            "features must be an nn.Module, a name, two arrays (train, test) or the path of an .npz"
            f" file, not {type(features).__name__}",
            code="features",
            features=type(features).__name__,
        )
    network = backbones.load(features, weights, device)
    own = backbones.fingerprint(network)
    about = {"kind": "features", "data": data.fingerprint, "network": own}
    lock: AbstractContextManager[None] = nullcontext() if cache is None else cache.lock(about)
    with lock:
        kept = None if cache is None else cache.load(about)
        if kept is None or {*kept} != {"train", "test"}:
            kept = {
                "train": _features(network, data.train.x),
                "test": _features(network, data.test.x),
            }
            if cache is not None:
                cache.save(about, kept)
    digest = hashlib.sha256(f"{data.fingerprint} {own}".encode()).hexdigest()
    return _with(data, kept["train"], kept["test"], Embedded(network.name, digest))


def nearest(problem: Problem, coreset: Coreset) -> Tensor:
    """The training point nearest to each point of a coreset, among those of its class, (M,); of a
    regression among all.
    """
    points, labels = problem.inputs(coreset.x).flatten(1), coreset.labels.to(problem.device)
    best = points.new_full((len(points),), torch.inf)
    place = torch.zeros(len(points), dtype=torch.int64, device=points.device)
    for number, (x, y) in enumerate(problem.batches(BLOCK)):
        gaps = torch.cdist(points, x.flatten(1))
        if problem.task == "classification":
            gaps = gaps.masked_fill(labels[:, None] != y, torch.inf)
        found, index = gaps.min(1)
        place = torch.where(found < best, index + number * BLOCK, place)
        best = torch.minimum(found, best)
    return place.cpu()


@torch.no_grad()
def _features(network: backbones.Backbone, x: Tensor) -> Tensor:
    """Of all inputs, which may be a memory map, with one batch in memory."""
    first = next(network.network.parameters(), torch.zeros(()))
    was_training = network.network.training
    network.network.eval()
    try:
        parts = [
            _passed(network.call, network.name, batch.to(first.device))
            for batch in torch.split(x, BATCH)
        ]
    finally:
        network.network.train(was_training)
    return torch.cat(parts)


def _passed(call: Callable[[Tensor], Any], name: str, x: Tensor) -> Tensor:
    x = x.float() / 255 if x.dtype == torch.uint8 else x.float()
    try:
        out = call(x)
    except DataError:
        raise
    except Exception as error:  # a stranger's network may raise anything
        text = f"fails on inputs of shape {tuple(x.shape[1:])} ({type(error).__name__}: {error})"
        raise ConfigError(
            f"features {name!r}: it {text}", code="features", features=name
        ) from error
    if not isinstance(out, Tensor) or out.ndim != 2 or len(out) != len(x):
        shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        text = f"gives {shape}, not features (n, h); let it end by pooling and flattening"
        raise ConfigError(f"features {name!r}: it {text}", code="features", features=name)
    return out.float().cpu()


def _read(path: Path) -> tuple[Any, Any]:
    advice = "numpy.savez(path, train=..., test=...) writes them"
    if not path.is_file():
        message = f"{path} is no file of features; {advice}"
        raise DataError(message, code="unfit-arrays", where=path)
    halves = ("train", "test")
    found = load_archive(path, lambda names: [half for half in halves if half in names])
    if {*found} != {*halves} or any(part.dtype.kind not in "biuf" for part in found.values()):
        message = f"{path} cannot be read as features; {advice}"
        raise DataError(message, code="unfit-arrays", where=path)
    return found["train"], found["test"]


def _ready(data: Dataset, features: Any) -> Dataset:
    """Features that were computed before, in the order of the data."""
    if len(features) != 2:
        message = f"ready features are two arrays, of training and test half, not {len(features)}"
        raise DataError(message, code="unfit-arrays", where="features")
    train, test = (torch.as_tensor(part).float() for part in features)
    for part, half, name in ((train, data.train, "training"), (test, data.test, "test")):
        if part.ndim != 2 or len(part) != len(half.y):
            message = f"features of the {name} half must be ({len(half.y)}, h), not"
            raise DataError(f"{message} {tuple(part.shape)}", code="unfit-arrays", where="features")
    return _with(data, train, test, Embedded("ready features"))


def _with(data: Dataset, train: Tensor, test: Tensor, embedded: Embedded) -> Dataset:
    note = f"inputs are {train.shape[1]} features by {embedded.name}"
    return replace(
        data,
        train=data.train._replace(x=train),
        test=data.test._replace(x=test),
        encoding=(),
        embedded=embedded,
        notes=(*data.notes, note),
    )
