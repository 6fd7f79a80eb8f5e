"""Named, splittable random streams.

A stream is a pure function of (seed, path). Equal seeds and names give equal draws on every run,
resumed or not. No generator state exists to be saved or lost. Splitting is calling:
`rng("step", 7)("batch")`.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Device = torch.device | str


@dataclass(frozen=True)
class Rng:
    """A position in the tree of streams; draw from it once, or split it by name."""

    seed: int
    path: tuple[str | int, ...] = ()

    def __call__(self, *names: str | int) -> "Rng":
        return Rng(self.seed, (*self.path, *names))

    def number(self) -> int:
        """A 63-bit number determined by (seed, path): what seeds a generator."""
        # a numpy 3 is a 3
        path = tuple(name if isinstance(name, str) else int(name) for name in self.path)
        digest = hashlib.blake2b(repr((int(self.seed), path)).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1

    def generator(self, device: Device = "cpu") -> torch.Generator:
        return torch.Generator(device).manual_seed(self.number())

    def draw(
        self, make: Callable[..., Tensor], *arguments: Any, device: Device, **options: Any
    ) -> Tensor:
        """Call one of torch's random functions with this stream's generator."""
        return make(*arguments, generator=self.generator(device), device=device, **options)

    def normal(
        self, *shape: int, device: Device = "cpu", dtype: torch.dtype = torch.float32
    ) -> Tensor:
        return self.draw(torch.randn, shape, device=device, dtype=dtype)

    def uniform(
        self, *shape: int, device: Device = "cpu", dtype: torch.dtype = torch.float32
    ) -> Tensor:
        return self.draw(torch.rand, shape, device=device, dtype=dtype)

    def integers(self, high: int, *shape: int, device: Device = "cpu") -> Tensor:
        """Uniform on 0 .. high - 1."""
        return self.draw(torch.randint, high, shape, device=device)

    def permutation(self, n: int, device: Device = "cpu") -> Tensor:
        return self.draw(torch.randperm, n, device=device)
