"""From words to a Problem: data, network, preprocessing, the half of a run's configuration that is not the method."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch

from pseudocore.core import config
from pseudocore.core.config import Positive, Range
from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import GaussianPrior, Precision, Problem
from pseudocore.core.registry import models
from pseudocore.core.types import Dataset
from pseudocore.data import DSA, load, whiten
from pseudocore.models import FlatModel

__all__ = ["Setup", "build", "resolve"]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Data set, network, preprocessing and augmentation."""

    data: str = "digits"
    """Name or path of the data set."""
    model: str | None = None
    """Network; unless told, convnet3 for images and mlp for features."""
    width: Annotated[int | None, Range(low=1)] = None
    """Width of the network; unless told, the network's own default."""
    depth: Annotated[int | None, Range(low=1)] = None
    """Depth of the network; unless told, the network's own default."""
    norm: Literal["instance", "batch", "none"] | None = None
    """Normalisation inside the network; unless told, the network's own default."""
    init: Literal["torch", "lecun", "he"] | None = None
    """Spread of initial weights; unless told, the network's own default."""
    preprocess: Literal["none", "standard", "published", "zca"] = "standard"
    """From pixels to network inputs."""
    augment: str | None = None
    """Operations of differentiable augmentation to draw from, as color_crop_cutout_flip_scale_rotate; unless told, none."""
    siamese: bool = True
    """Whether one augmentation is drawn for a whole batch rather than one per example."""
    prior_scale: Positive = 1.0
    """Standard deviation of the Gaussian prior on network parameters."""
    precision: Precision = "float32"
    """Arithmetic on a GPU: float32, tf32 matrix products, or bf16 passes through the network."""


def resolve(setup: Setup, data: Dataset) -> Setup:
    """The same setup with the network it stands for written out."""
    return replace(setup, model=setup.model or ("convnet3" if data.is_images else "mlp"))


def build(setup: Setup, data: Dataset | None = None, *, device: str = "auto", root: Path | None = None) -> Problem:
    """Load the data (unless handed in), make the network, fit the preprocessing."""
    config.check(setup)
    data = data or load(setup.data, root=root)
    where = _device(device)
    model = _model(resolve(setup, data), data)
    augment = DSA(strategy=setup.augment, siamese=setup.siamese) if setup.augment else None
    if augment is not None and not data.is_images:
        raise ConfigError(f"augmentation {setup.augment!r} needs images, but {data.name!r} has features of shape {data.shape}")
    if where.type == "cuda":
        fast = setup.precision != "float32"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = fast  # torch knows it as a global only
    preprocess = whiten.make(setup.preprocess, data, device=where)
    return Problem(data, model, preprocess, augment, GaussianPrior(setup.prior_scale), where, precision=setup.precision)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise ConfigError(f"unknown device {name!r}; there are auto, cpu and cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda was asked for, but torch sees no CUDA device here; use cpu or auto")
    return torch.device(name)


def _model(setup: Setup, data: Dataset) -> FlatModel:
    make = models[setup.model or ""].make
    known = {option.name for option in config.options(make)}
    given: dict[str, Any] = {name: getattr(setup, name) for name in ("width", "depth", "norm", "init")}
    given = {name: value for name, value in given.items() if value is not None}
    if foreign := sorted(set(given) - known):
        raise ConfigError(f"model {setup.model!r} has no {' or '.join(foreign)}; it has {', '.join(sorted(known)) or 'no options'}")
    model: FlatModel = config.build(make, given, what=f"model {setup.model}").build(data.shape, data.num_classes)
    return model
