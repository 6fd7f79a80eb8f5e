"""What is timed: noise of some data set's shape, a network, and the sizes of a step.

Speed does not depend on what is seen, so nothing is loaded or trained. Images are random, experts
are fresh networks and so is a reference. Step sizes on images are too small to lead anywhere.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from pseudocore import assembly
from pseudocore.assembly import Setup
from pseudocore.core import config
from pseudocore.core.config import Count, Range
from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Precision, Problem
from pseudocore.core.registry import methods, models
from pseudocore.core.rng import Rng
from pseudocore.core.types import Dataset, Examples, Iterative, NeedsExperts, NeedsReference
from pseudocore.data.augment import OPERATIONS
from pseudocore.training.experts import Resident

SHAPES = {"digits": (1, 8, 8), "fashion-mnist": (1, 28, 28), "cifar": (3, 32, 32)}
OptionalCount = Annotated[int | None, Range(low=1)]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Sizes of what is timed; None is the method's or the network's own."""

    shape: Literal["digits", "fashion-mnist", "cifar"] = "digits"
    """Data set whose images' shape the noise has."""
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
    """Network. Defaults to the one each method was published with."""
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
        least = self.num_classes * self.per_class
        if self.num_train < least:
            raise ConfigError(
                f"{self.per_class} points for each of {self.num_classes} classes were asked for, "
                f"but num_train is {self.num_train}; it must be at least {least}",
                code="too-few-images",
                num_train=self.num_train,
                least=least,
            )


SIZES = {
    "small": Workload(num_inner_steps=5, num_draws=3, batch_size=128, width=16),
    "full": Workload(shape="cifar", num_train=50_000, precision="tf32"),
}
"""A minute of a CPU; the published sizes: ConvNet-3 of width 128 on 3×32×32, 10 per class."""

_ONE_POSTERIOR = ("psvi", "bpc-pcd", "fbpc", "black-box-vi")
"""Methods that refuse augmentation, with which there is no one posterior."""
_CONVNET_WIDE = ("vbpc", "frepo", "ld-rr", "real-batch", "last-layer")
"""Published with `convnet-wide`, or parts of methods that were; the others have `convnet3`."""

NUM_THETAS = 100
"""Draws of the reference of a method that needs one."""

_METHOD_SIZES = ("per_class", "num_inner_steps", "num_draws", "batch_size")


def device_of(word: str) -> str:
    """cpu or cuda: where a problem on auto, cpu or cuda is put."""
    return problem_of("inner-step", SIZES["small"], word).device.type


def problem_of(name: str, workload: Workload, device: str) -> Problem:
    """The problem for a method or part of this name; reduced precision is set for the whole
    process, as torch knows no other way.
    """
    is_psvi = name == "psvi"
    model = workload.model or ("convnet-wide" if name in _CONVNET_WIDE else "convnet3")
    shape = workload.shape
    if is_psvi:  # the covariance of all parameters must fit in memory
        model, shape = workload.model or "linear", "digits"
    known = {option.name for option in config.options(models[model].make)}
    setup: dict[str, Any] = {
        key: value
        for key in ("width", "norm")
        if key in known and (value := getattr(workload, key)) is not None
    }
    if workload.augment and name not in _ONE_POSTERIOR:
        setup["augment"] = "_".join(OPERATIONS)
    data = _noise(shape, workload.num_train, workload.num_classes)
    made = Setup(model=model, precision=workload.precision, **setup)
    return assembly.build(made, data, device=device)


def method_of(name: str, workload: Workload) -> Any:
    """The method in the workload's sizes, as far as it has them; it starts from young experts, of
    which few need be there.
    """
    make = methods[name].make
    known = {option.name for option in config.options(make)}
    sizes = {key: value for key in _METHOD_SIZES if (value := getattr(workload, key)) is not None}
    given = {"max_start": 2, "image_lr": 1e-4, **sizes}
    method = config.build(make, {key: given[key] for key in given if key in known}, what=name)
    if not isinstance(method, Iterative):
        raise ConfigError(
            f"{name!r} selects at once and has no steps to time; benchmarks/selection_speed.py "
            "times selection",
            code="no-steps",
            name=name,
        )
    return method


def with_experts(problem: Problem, method: Any) -> Problem:
    """The problem with two experts that were never trained, or a reference of initial parameters,
    if the method needs any.
    """
    if isinstance(method, NeedsReference) and method.needs_reference:
        thetas = problem.model.init(
            Rng(0)("reference"), num=NUM_THETAS, device=problem.device, dtype=problem.dtype
        )
        unsure = problem.train_y.new_zeros(problem.num_train, problem.num_classes)
        unsure = unsure.to(problem.dtype).log_softmax(1)
        return replace(problem, reference=Untrained(thetas, unsure))
    if not isinstance(method, NeedsExperts):
        return problem
    num = method.expert_epochs + 1
    thetas = problem.model.init(
        Rng(0)("experts"), num=2 * num, device=problem.device, dtype=problem.dtype
    )
    return replace(problem, experts=Resident(thetas.view(2, num, -1)))


@dataclass(frozen=True, eq=False)
class Untrained:
    """A reference that is no posterior."""

    thetas: Tensor
    train_log_probs: Tensor
    label: str = "initial parameters"
    diagnostics: Mapping[str, float] = field(default_factory=dict)


@functools.lru_cache(maxsize=1)
def _noise(shape: str, num_train: int, num_classes: int) -> Dataset:
    size = (num_train, *SHAPES[shape])
    x = Rng(0)("x").draw(torch.randint, 256, size, device="cpu", dtype=torch.uint8)
    y = torch.arange(num_train) % num_classes
    return Dataset("noise", Examples(x, y), Examples(x[:num_classes], y[:num_classes]), num_classes)
