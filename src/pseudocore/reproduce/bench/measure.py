"""Clocks and counters: the time of a step, its operations and bytes, and what the machine can do at
best.

Operations are those of the matrix products and convolutions of an eager step (torch's own formulas;
factorisations are left out). Bytes are what the kernels of an eager step read and write, each by
itself: a compiled step that keeps intermediate results on the chip moves fewer, so its share of the
copy ceiling can pass 1.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from pseudocore.core.problem import Precision
from pseudocore.core.types import Model
from pseudocore.runtime.profiling import wait

MIN_READING_SECONDS = 0.1
"""Shorter steps are timed in groups, so that the host runs ahead of the device as in a run."""

MIN_READINGS, MAX_READINGS = 3, 15


class Timing(NamedTuple):
    """Of one step."""

    ms: float
    """Median of the readings."""
    low_ms: float
    high_ms: float
    num: int
    """Steps timed."""
    first_seconds: float
    """The first step with loading of libraries and compilation; capture comes with the third."""

    def over(self, num: int) -> "Timing":
        """Of one of `num` things that a step did."""
        times = (self.ms / num, self.low_ms / num, self.high_ms / num)
        return Timing(*times, self.num * num, self.first_seconds)


class Work(NamedTuple):
    """What one step does, counted."""

    flop: int
    bytes: int
    images: int
    """Images passed through a network, each pass counted."""

    def over(self, num: int) -> "Work":
        return Work(*(round(amount / num) for amount in self))


class Ceilings(NamedTuple):
    """The best the machine does, measured."""

    matmul: float
    """Operations a second of a large matrix product in the run's precision."""
    copy: float
    """Bytes a second, read and written, of a large copy."""


def timed(take: Callable[[int], None], device: torch.device, *, seconds: float) -> Timing:
    """Time `take`, called with the step's number, for about so many seconds after warming up."""
    first, number = _seconds(lambda: take(0), device), 1
    last = first
    for number in range(1, 6 if device.type == "cuda" else 2):
        last = _seconds(lambda step=number: take(step), device)  # type: ignore[misc]
    group = max(1, round(MIN_READING_SECONDS / max(last, 1e-6)))

    def take_group() -> None:
        nonlocal number
        for _ in range(group):
            number += 1
            take(number)

    readings: list[float] = []
    end = time.perf_counter() + seconds
    while len(readings) < MIN_READINGS or (
        len(readings) < MAX_READINGS and time.perf_counter() < end
    ):
        readings.append(1000 * _seconds(take_group, device) / group)
    num = group * len(readings)
    return Timing(statistics.median(readings), min(readings), max(readings), num, first)


def counted(take: Callable[[int], None], images: Callable[[], int]) -> Work:
    """Operations and bytes of one eager step, and by how much it raised `images`."""
    before = images()
    with _Counter() as counter:
        take(0)
    return Work(counter.flop, counter.bytes, images() - before)


class CountingModel:
    """A model that counts the images that pass through it."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.images = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def features(
        self, theta: Tensor, x: Tensor, statistics: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        self._count(theta, x)
        return self._model.features(theta, x, statistics)

    def logits(
        self, theta: Tensor, x: Tensor, statistics: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        self._count(theta, x)
        return self._model.logits(theta, x, statistics)

    def _count(self, theta: Tensor, x: Tensor) -> None:
        self.images += len(x) * (len(theta) if theta.ndim == 2 else 1)


def ceilings(device: torch.device, precision: Precision) -> Ceilings:
    """The best of several readings of one large product and one large copy."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.backends.cuda.matmul.allow_tf32 = precision != "float32"
    side, length = (8192, 2**28) if on_gpu else (1024, 2**24)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    matrix = torch.ones(side, side, device=device, dtype=dtype)
    product = torch.empty_like(matrix)
    source = torch.ones(length, device=device)
    target = torch.empty_like(source)

    def best(call: Callable[[], object]) -> float:
        return min(_seconds(call, device) for _ in range(8))

    return Ceilings(
        2 * side**3 / best(lambda: torch.mm(matrix, matrix, out=product)),
        2 * 4 * length / best(lambda: target.copy_(source)),
    )


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    """Of a call, until the device is done."""
    wait(device)
    began = time.perf_counter()
    call()
    wait(device)
    return time.perf_counter() - began


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up what every kernel does; a view moves nothing, and of a table only what is looked up.

    Not torch's `FlopCounterMode`, whose formulas these are: its module hooks fail under
    `torch.func.grad`.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flop = 0
        self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        result = func(*args, **kwargs)
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        packet, name = func.overloadpacket, func.overloadpacket.__name__
        if packet in flop_registry:
            self.flop += flop_registry[packet](*args, **kwargs, out_val=result)
        is_view = not func._schema.is_mutable and any(
            new.untyped_storage()._cdata == old.untyped_storage()._cdata
            for new in made
            for old in given
        )
        if not is_view and "empty" not in name:
            read = [*made, *given[1:]] if name in _LOOK_UPS else given
            self.bytes += sum(_size(leaf) for leaf in (*read, *made))
        return result


_LOOK_UPS = ("index", "index_select", "gather", "embedding")


def _size(tensor: Tensor) -> int:
    """Bytes; of an expanded tensor, those that are stored."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())
