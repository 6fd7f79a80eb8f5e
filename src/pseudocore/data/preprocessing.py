r"""Invertible maps from pixel units to what a network sees: none, standardising, ZCA whitening.

Standardising works per channel of images and per feature of tabular data. ZCA works on the
standardised, flattened image z = (x − μ) / σ, with μ the mean of every pixel and σ the standard
deviation of every channel:

$$ C = \tfrac1n \textstyle\sum_i z_i z_i^\top = U \operatorname{diag}(\lambda) U^\top, \qquad
   \operatorname{zca}(x)
   = U \operatorname{diag}\big((\lambda + \varepsilon \bar\lambda)^{-1/2}\big) U^\top z $$

with ε = `regularisation` and λ̄ the mean eigenvalue, so ε has no unit. The inverse is exact: the
same product with (λ + ελ̄)^{+1/2}. Fitting streams over blocks and sums in float64: d² memory and
n·d² + d³ time for images of d values. Statistics are population ones (divided by n) of the training
split.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from pseudocore.core.errors import ArtifactError, ConfigError
from pseudocore.core.registry import did_you_mean
from pseudocore.core.types import Dataset, DataSpec, Preprocess

_ONE = torch.ones(1)

Kind = Literal["none", "standard", "published", "zca"]
Device = torch.device | str


@dataclass(frozen=True)
class Identity:
    """Pixel units as they are."""

    def apply(self, x: Tensor) -> Tensor:
        return x

    def invert(self, x: Tensor) -> Tensor:
        return x

    def describe(self) -> dict[str, Any]:
        return {"kind": "none"}

    def constants(self) -> dict[str, Tensor]:
        return {}


@dataclass(frozen=True, eq=False)
class Standardise:
    """(x − mean) / std, shaped to broadcast over one input: (channels, 1, 1) or (features,)."""

    mean: Tensor
    std: Tensor
    kind: str = "standard"

    def apply(self, x: Tensor) -> Tensor:
        return (x - self.mean.to(x)) / self.std.to(x)

    def invert(self, x: Tensor) -> Tensor:
        return x * self.std.to(x) + self.mean.to(x)

    def describe(self) -> dict[str, Any]:
        if self.mean.ndim == 1:  # there may be thousands; `kind` can be fitted again
            return {"kind": self.kind, "num_features": len(self.mean)}
        mean, std = self.mean.flatten().tolist(), self.std.flatten().tolist()
        return {"kind": self.kind, "mean": mean, "std": std}

    def constants(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "std": self.std}


@dataclass(frozen=True, eq=False)
class ZCA:
    """The module's whitening; `mean` is one image, `std` (channels, 1, 1), the maps (d, d)."""

    mean: Tensor
    std: Tensor
    whitening: Tensor
    colouring: Tensor
    regularisation: float

    def apply(self, x: Tensor) -> Tensor:
        z = (x - self.mean.to(x)) / self.std.to(x)
        return (z.flatten(1) @ self.whitening.to(x)).view_as(z)

    def invert(self, x: Tensor) -> Tensor:
        z = (x.flatten(1) @ self.colouring.to(x)).view(x.shape)
        return z * self.std.to(x) + self.mean.to(x)

    def describe(self) -> dict[str, Any]:
        return {"kind": "zca", "regularisation": self.regularisation}

    def constants(self) -> dict[str, Tensor]:
        # `colouring` is the inverse of `whitening`, and as large.
        return {"mean": self.mean, "std": self.std, "whitening": self.whitening}


def make(
    kind: Kind,
    dataset: Dataset | DataSpec,
    *,
    device: Device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Preprocess:
    """The preprocessing called `kind`, fitted on the training split."""
    if kind == "none":
        return Identity()
    if kind == "standard":
        return fit_standardise(dataset.train.x, device=device, dtype=dtype)
    if kind == "zca":
        return fit_zca(dataset.train.x, device=device, dtype=dtype)
    if kind == "published":
        return _published(dataset, device, dtype)
    kinds = get_args(Kind)
    message = (
        f"unknown preprocessing {kind!r}{did_you_mean(kind, kinds)} (known: {', '.join(kinds)})"
    )
    raise ConfigError(message, code="unknown-preprocessing", kind=kind)


def restore(
    description: Mapping[str, Any], constants: Mapping[str, Tensor], shape: tuple[int, ...]
) -> Preprocess:
    """The preprocessing that `describe` and `constants` told of, for inputs of a shape; they may
    come from anyone's file.
    """
    kind, size = description.get("kind"), math.prod(shape)
    per_channel = (shape[0], 1, 1) if len(shape) == 3 else shape
    expected: dict[Any, dict[str, tuple[int, ...]]] = {
        "none": {},
        "standard": {"mean": per_channel, "std": per_channel},
        "published": {"mean": per_channel, "std": per_channel},
        "zca": {"mean": shape, "std": per_channel, "whitening": (size, size)},
    }
    found = {name: tuple(values.shape) for name, values in constants.items()}
    regularisation = description.get("regularisation", 0.1)
    is_sound = found == expected.get(kind) and bool((constants.get("std", _ONE) > 0).all())
    if kind == "zca" and is_sound and type(regularisation) is float:
        whitening = constants["whitening"]
        colouring, failed = torch.linalg.inv_ex(whitening.double())
        if not failed and colouring.isfinite().all():
            colouring = colouring.to(whitening)
            return ZCA(**constants, colouring=colouring, regularisation=regularisation)
    elif is_sound:
        return Identity() if kind == "none" else Standardise(**constants, kind=str(kind))
    raise ArtifactError(
        f"the coreset's contract has constants {found} for preprocessing {kind!r} of inputs of"
        f" shape {shape}, which cannot be",
        code="invalid-contract",
    )


def fit_standardise(
    x: Tensor, *, device: Device = "cpu", dtype: torch.dtype = torch.float32, block: int = 2048
) -> Standardise:
    """Moments of each channel of images, or of each feature; constant ones keep std 1."""
    mean, std = _moments(x, device, block)
    if x.ndim == 4:
        mean, std = _per_channel(mean, std)
    return Standardise(mean.to(dtype), _no_zeros(std, mean).to(dtype))


def fit_zca(
    x: Tensor,
    regularisation: float = 0.1,
    *,
    device: Device = "cpu",
    dtype: torch.dtype = torch.float32,
    block: int = 2048,
) -> ZCA:
    """ZCA of images (n, channels, height, width), with one block of float64 pixels in memory."""
    if x.ndim != 4:
        shape = tuple(x.shape)
        message = f"ZCA whitens images (n, channels, height, width), not {shape}; use 'standard'"
        raise ConfigError(message, code="not-images", shape=shape)
    if not regularisation > 0:
        message = f"ZCA's regularisation must be above 0, not {regularisation}; 0.1 is customary"
        raise ConfigError(message, code="out-of-range", regularisation=regularisation)
    mean, pixel_std = _moments(x, device, block)  # (channels, height, width)
    std = _no_zeros(*reversed(_per_channel(mean, pixel_std)))
    d = mean.numel()
    covariance = torch.zeros(d, d, dtype=torch.float64, device=device)
    for pixels in _blocks(x, device, block):
        z = ((pixels - mean) / std).flatten(1)
        for start in range(0, d, 512):  # eigh reads the lower triangle, so only that is summed
            rows = slice(start, start + 512)
            covariance[rows, : rows.stop].addmm_(z[:, rows].T, z[:, : rows.stop])
    eigenvalues, U = torch.linalg.eigh(covariance.div_(len(x)))
    scale = (eigenvalues.clamp(min=0) + regularisation * eigenvalues.mean()).sqrt()
    whitening, colouring = (U / scale) @ U.T, (U * scale) @ U.T
    mean, std, whitening, colouring = (m.to(dtype) for m in (mean, std, whitening, colouring))
    return ZCA(mean, std, whitening, colouring, regularisation)


def _published(dataset: Dataset | DataSpec, device: Device, dtype: torch.dtype) -> Standardise:
    """The constants in the papers' code; the std of CIFAR-10's pixels is (.247, .243, .262)."""
    if dataset.name not in ("cifar10", "cifar100"):
        message = "the published constants are those of cifar10 and cifar100"
        message = f"{message}, not of {dataset.name!r}; use 'standard'"
        raise ConfigError(message, code="no-published-constants", data=dataset.name)
    mean = torch.tensor([0.4914, 0.4822, 0.4465], dtype=dtype, device=device)
    std = torch.tensor([0.2023, 0.1994, 0.2010], dtype=dtype, device=device)
    return Standardise(mean.view(3, 1, 1), std.view(3, 1, 1), "published")


def _moments(x: Tensor, device: Device, block: int) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of every pixel or feature, float64; two passes for precision."""
    total = torch.zeros(x.shape[1:], dtype=torch.float64, device=device)
    for pixels in _blocks(x, device, block):
        total += pixels.sum(0)
    mean = total / len(x)
    squares = torch.zeros_like(mean)
    for pixels in _blocks(x, device, block):
        squares += (pixels - mean).square_().sum(0)
    return mean, (squares / len(x)).sqrt()


def _blocks(x: Tensor, device: Device, block: int) -> Iterator[Tensor]:
    for start in range(0, len(x), block):
        pixels = x[start : start + block].to(device).double()
        yield pixels / 255 if x.dtype == torch.uint8 else pixels


def _per_channel(mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """Moments of whole channels, (channels, 1, 1): variance within plus variance between pixels."""
    channel_mean = mean.mean((1, 2), keepdim=True)
    variance = (std.square() + (mean - channel_mean).square()).mean((1, 2), keepdim=True)
    return channel_mean, variance.sqrt()


def _no_zeros(std: Tensor, mean: Tensor) -> Tensor:
    """1 in place of the deviations of constants, which rounding leaves near but not at zero."""
    return torch.where(std > 1e-12 * mean.abs(), std, torch.ones_like(std))
