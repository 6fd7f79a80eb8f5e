"""What is timed: noise of some data set's shape, a network, and how much of everything a step
takes.

Speed does not depend on what is seen, so nothing is loaded and nobody is trained: images are
random, experts are fresh networks, and step sizes on images are too small to lead anywhere.
"""

import functools
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch

from pseudocore import assembly as setups
from pseudocore.assembly import Setup
from pseudocore.core import config
from pseudocore.core.config import Count, Range
from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Precision, Problem
from pseudocore.core.registry import methods, models
from pseudocore.core.rng import Rng
from pseudocore.core.types import Dataset, Examples
from pseudocore.data.augment import OPERATIONS
from pseudocore.training.experts import Resident

SHAPES = {"digits": (1, 8, 8), "fashion-mnist": (1, 28, 28), "cifar": (3, 32, 32)}
OptionalCount = Annotated[int | None, Range(low=1)]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Sizes of what is timed; those left out are the method's or the network's own."""

    shape: Literal["digits", "fashion-mnist", "cifar"] = "digits"
    """Whose images' shape the noise has."""
    num_train: Count = 1437
    """Training images."""
    num_classes: Annotated[int, Range(low=2)] = 10
    """Classes."""
    per_class: Count = 10
    """Pseudo-images per class."""
    num_inner_steps: OptionalCount = None
    """Training steps on the pseudo-images, L_u."""
    num_draws: OptionalCount = None
    """Gaussian draws, S."""
    batch_size: OptionalCount = None
    """Real images per step."""
    model: str | None = None
    """Network; unless told, the one each method was published with."""
    width: OptionalCount = None
    """Width of the network."""
    norm: Literal["instance", "batch", "none"] | None = None
    """Normalisation inside the network."""
    augment: bool = True
    """Whether images are augmented (DSA, all operations)."""
    precision: Precision = "float32"
    """Arithmetic on a GPU: float32, tf32 matrix products, or bf16 passes through the network."""

    def __post_init__(self) -> None:
        config.check(self)
        if self.model is not None:
            models[self.model]  # refuses an unknown name
        if self.num_train < self.num_classes * self.per_class:
            raise ConfigError(
                f"{self.per_class} points for each of {self.num_classes} classes were asked for, but num_train is {self.num_train}; "
                f"it must be at least {self.num_classes * self.per_class}"
            )


SMALL = Workload(num_inner_steps=5, num_draws=3, batch_size=128, width=16)
"""A minute of a CPU."""

FULL = Workload(shape="cifar", num_train=50_000, precision="tf32")
"""The published sizes: ConvNet-3 of width 128 on 3×32×32, 10 per class, L_u and S as in the papers.
"""

SIZES = {"small": SMALL, "full": FULL}

WIDE = ("vbpc", "frepo", "ld-rr", "real-batch", "last-layer")
"""What is published with, or belongs to methods published with, `convnet-wide`; the others have
`convnet3`.
"""


def device_of(word: str) -> str:
    """cpu or cuda: where a problem goes that is told auto, cpu or cuda, or the refusal it gets."""
    return problem_of("inner-step", SMALL, word).device.type


def problem_of(name: str, workload: Workload, device: str) -> Problem:
    """The problem for a method or part of this name; reduced precision is set for the whole
    process, as torch knows no other way.
    """
    model = workload.model or (
        "linear" if name == "psvi" else "convnet-wide" if name in WIDE else "convnet3"
    )
    known = {option.name for option in config.options(models[model].make)}
    words: dict[str, Any] = {
        key: value
        for key in ("width", "norm")
        if key in known and (value := getattr(workload, key)) is not None
    }
    if workload.augment and name != "psvi":  # which takes the data as they are
        words["augment"] = "_".join(OPERATIONS)
    shape = (
        "digits" if name == "psvi" else workload.shape
    )  # whose covariance of all parameters has no room for more
    data = _noise(shape, workload.num_train, workload.num_classes)
    return setups.build(
        Setup(model=model, precision=workload.precision, **words), data, device=device
    )


def method_of(name: str, workload: Workload) -> Any:
    """The method in the workload's sizes, as far as it has them; it starts from young experts, of
    which few need be there.
    """
    make = methods[name].make
    if not hasattr(make, "step"):
        raise ConfigError(
            f"{name!r} selects at once and has no steps to time; benchmarks/selection_speed.py times selection"
        )
    words = {"max_start": 2, "image_lr": 1e-4}
    words |= {key: value for key in _SIZED if (value := getattr(workload, key)) is not None}
    known = {option.name for option in config.options(make)}
    return config.build(
        make, {key: value for key, value in words.items() if key in known}, what=name
    )


def with_experts(problem: Problem, method: Any) -> Problem:
    """The problem with two experts that were never trained, when the method asks for any."""
    num_epochs = getattr(method, "expert_epochs", None)
    if num_epochs is None:
        return problem
    thetas = problem.model.init(
        Rng(0)("experts"), num=2 * (num_epochs + 1), device=problem.device, dtype=problem.dtype
    )
    return replace(problem, experts=Resident(thetas.view(2, num_epochs + 1, -1)))


_SIZED = ("per_class", "num_inner_steps", "num_draws", "batch_size")


@functools.lru_cache(maxsize=1)
def _noise(shape: str, num_train: int, num_classes: int) -> Dataset:
    x = Rng(0)("x").draw(
        torch.randint, 256, (num_train, *SHAPES[shape]), device="cpu", dtype=torch.uint8
    )
    y = torch.arange(num_train) % num_classes
    return Dataset("noise", Examples(x, y), Examples(x[:num_classes], y[:num_classes]), num_classes)
