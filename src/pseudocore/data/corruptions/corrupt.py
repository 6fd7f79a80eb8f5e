"""CIFAR-10-C-style corruptions: fifteen kinds in five severities, on uint8 images, before any
normalisation.

`corrupt` makes them from any images, of any size, grey or RGB; what image i gets depends on (seed,
kind, i) alone, so that a kind's severities share their random draws and a batch can be any part of
a set. `official` reads the files of CIFAR-10-C itself, where they lie on the search path. Kinds and
constants are described in `distort`; `docs/robustness.md` says what differs.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pseudocore.core.errors import ConfigError, DataError
from pseudocore.core.registry import did_you_mean
from pseudocore.core.rng import Rng
from pseudocore.core.types import Examples
from pseudocore.data.corruptions.distort import DISTORTIONS
from pseudocore.data.sources import search_path

CORRUPTIONS = tuple(DISTORTIONS)
SEVERITIES = (1, 2, 3, 4, 5)

_OFFICIAL_FOLDERS = {"cifar10": "CIFAR-10-C", "cifar100": "CIFAR-100-C"}
_OFFICIAL_SIZE = 10_000
"""Images per severity: the CIFAR test set, in its order."""


def corrupt(
    x: Tensor, kind: str, severity: int, rng: Rng, *, first: int = 0, block: int = 256
) -> Tensor:
    """Corrupted copies of uint8 images (n, channels, height, width), the first of which is number
    `first` of its set.
    """
    _check_words(kind, severity)
    if x.dtype != torch.uint8 or x.ndim != 4:
        raise DataError(
            f"corruptions work on uint8 images (n, channels, height, width), not on {x.dtype} {tuple(x.shape)}"
        )
    if min(x.shape[2:]) < 8:
        raise DataError(f"corruptions need images of at least 8×8, not {x.shape[2]}×{x.shape[3]}")
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    for start in range(0, len(x), block):
        part = x[start : start + block].cpu().double() / 255
        rngs = [rng("corrupt", kind, first + start + i) for i in range(len(part))]
        changed = DISTORTIONS[kind](part, severity, rngs)
        # Truncated, as in the official files; the margin keeps whole values whole.
        out[start : start + block] = (255 * changed.clamp(0, 1) + 1e-6).to(torch.uint8)
    return out


def official(name: str, kind: str, severity: int, *, root: Path | None = None) -> Examples | None:
    """The test set of `cifar10` or `cifar100` as the official files hold it, or None where there
    are no such files.
    """
    _check_words(kind, severity)
    if name not in _OFFICIAL_FOLDERS:
        return None
    folder = next(
        (path for place in search_path(root) if (path := place / _OFFICIAL_FOLDERS[name]).is_dir()),
        None,
    )
    if folder is None:
        return None
    rows = slice((severity - 1) * _OFFICIAL_SIZE, severity * _OFFICIAL_SIZE)
    x = _array(folder / f"{kind}.npy", (5 * _OFFICIAL_SIZE, 32, 32, 3))[rows]
    y = _array(folder / "labels.npy", (5 * _OFFICIAL_SIZE,))[rows]
    images = torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2)))
    return Examples(images, torch.from_numpy(y.astype(np.int64)))


def _check_words(kind: str, severity: int) -> None:
    if kind not in DISTORTIONS:
        raise ConfigError(
            f"unknown corruption {kind!r}{did_you_mean(kind, CORRUPTIONS)} (known: {', '.join(CORRUPTIONS)})"
        )
    if type(severity) is not int or severity not in SEVERITIES:
        raise ConfigError(
            f"a corruption's severity is a whole number from 1 to 5, not {severity!r}"
        )


def _array(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """A part of a large file costs only that part: it is mapped, and never unpickled."""
    try:
        array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = (
            "it is none" if "pickle" in str(error) else error
        )  # numpy's advice is to load it unsafely
        raise DataError(
            f"{path} cannot be read as an array ({reason}); unpack the official archive again"
        ) from error
    if array.shape != shape or array.dtype.kind not in "ui":
        raise DataError(
            f"{path} holds {array.dtype} {array.shape} where whole numbers {shape} should be; unpack the official archive again"
        )
    return array
