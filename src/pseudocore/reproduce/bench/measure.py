"""Clocks and counters: the time of a step, its operations and bytes, the memory it takes, and what
the machine can do at best.

A step's operations are those of the matrix products and convolutions of an eager step (torch's own
formulas; factorisations are left out). Its bytes are what the kernels of an eager step read and
write, each by itself: a compiled step that keeps intermediate results on the chip moves fewer, so
its share of the copy ceiling can pass 1.
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

LEAST_SECONDS = 0.1
"""Of one reading of the clock: shorter steps are timed several at a time, so that the host runs
ahead of the device as it does in a run.
"""

FEWEST, MOST = 3, 15
"""Readings."""


class Timing(NamedTuple):
    """Of one step."""

    ms: float
    """Median of the readings."""
    low_ms: float
    high_ms: float
    """Their extremes."""
    num: int
    """Steps timed."""
    first_seconds: float
    """The first step, whole: libraries loading, compilation; capture comes with the third."""

    def over(self, num: int) -> "Timing":
        """Of one of `num` things that a step did."""
        return Timing(
            self.ms / num, self.low_ms / num, self.high_ms / num, self.num * num, self.first_seconds
        )


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
    """Time `take`, called with the number of the step, for about so many seconds after warming up."""
    began = time.perf_counter()
    take(0)
    wait(device)
    first, number = time.perf_counter() - began, 1
    for number in range(1, 6 if device.type == "cuda" else 2):
        wait(device)
        began = time.perf_counter()
        take(number)
        wait(device)
    group = max(1, round(LEAST_SECONDS / max(time.perf_counter() - began, 1e-6)))
    readings: list[float] = []
    end = time.perf_counter() + seconds
    while len(readings) < FEWEST or (len(readings) < MOST and time.perf_counter() < end):
        began = time.perf_counter()
        for _ in range(group):
            number += 1
            take(number)
        wait(device)
        readings.append(1000 * (time.perf_counter() - began) / group)
    return Timing(
        statistics.median(readings), min(readings), max(readings), group * len(readings), first
    )


def counted(take: Callable[[int], None], images: Callable[[], int]) -> Work:
    """Operations and bytes of one eager step, and by how much it raised `images`."""
    before = images()
    with _Counter() as counter:
        take(0)
    return Work(counter.flop, counter.bytes, images() - before)


class CountingModel:
    """A model that knows how many images have passed through it."""

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
    matrix = torch.ones(
        side, side, device=device, dtype=torch.bfloat16 if precision == "bf16" else torch.float32
    )
    product = torch.empty_like(matrix)
    source = torch.ones(length, device=device)
    target = torch.empty_like(source)
    return Ceilings(
        2 * side**3 / _best(lambda: torch.mm(matrix, matrix, out=product), device),
        2 * 4 * length / _best(lambda: target.copy_(source), device),
    )


def _best(call: Callable[[], object], device: torch.device) -> float:
    readings = []
    for _ in range(8):
        wait(device)
        began = time.perf_counter()
        call()
        wait(device)
        readings.append(time.perf_counter() - began)
    return min(readings)


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up what every kernel does; a view moves nothing, and of a table only what is looked up.

    Not torch's `FlopCounterMode`, whose formulas these are: it follows modules by hooks that
    `torch.func.grad` does not bear.
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
            _one_storage(new, old) for new in made for old in given
        )
        if not is_view and "empty" not in name:
            read = [*made, *given[1:]] if name in _LOOK_UPS else given
            self.bytes += sum(_size(leaf) for leaf in (*read, *made))
        return result


_LOOK_UPS = ("index", "index_select", "gather", "embedding")


def _one_storage(one: Tensor, other: Tensor) -> bool:
    return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)


def _size(tensor: Tensor) -> int:
    """Bytes; of an expanded tensor, those that are there."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())
