"""CIFAR-10-C-style corruptions: fifteen kinds in five severities, on uint8 images, before any
normalisation.

`corrupt` makes them from any images, of any size, grey or RGB. Image i depends on (seed, kind, i)
alone, so that a kind's severities share their random draws and a batch can be any part of a set.
`official` reads the files of CIFAR-10-C itself, where they are on the search path. Kinds and
constants are in `distort`; `docs/robustness.md` says what differs.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pseudocore.core.errors import ConfigError, DataError
from pseudocore.core.registry import did_you_mean
from pseudocore.core.rng import Rng
from pseudocore.core.types import Examples
from pseudocore.data.corruptions.distort import DISTORTIONS, as_bytes
from pseudocore.data.sources import search_path

__all__ = ["CORRUPTIONS", "SEVERITIES", "corrupt", "official"]

CORRUPTIONS = tuple(DISTORTIONS)
SEVERITIES = (1, 2, 3, 4, 5)

_OFFICIAL_FOLDERS = {"cifar10": "CIFAR-10-C", "cifar100": "CIFAR-100-C"}
_OFFICIAL_SIZE = 10_000
"""Images per severity: the CIFAR test set, in its order."""


def corrupt(
    x: Tensor, kind: str, severity: int, rng: Rng, *, first: int = 0, block: int = 256
) -> Tensor:
    """Corrupted copies of uint8 images.

    Args:
        x: Images (n, channels, height, width), at least 8×8.
        kind: One of `CORRUPTIONS`.
        severity: 1 to 5.
        rng: The random stream of the set.
        first: The number of the first image within its set.
        block: How many images are changed at a time.
    """
    _check(kind, severity)
    if x.dtype != torch.uint8 or x.ndim != 4 or min(x.shape[2:]) < 8:
        needed = "uint8 images (n, channels, height, width) of at least 8×8"
        message = f"corruptions work on {needed}, not on {x.dtype} {tuple(x.shape)}"
        raise DataError(message, code="not-images", shape=tuple(x.shape))
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    for start in range(0, len(x), block):
        part = x[start : start + block].cpu().double() / 255
        rngs = [rng("corrupt", kind, first + start + i) for i in range(len(part))]
        out[start : start + block] = as_bytes(DISTORTIONS[kind](part, severity, rngs))
    return out


def official(name: str, kind: str, severity: int, *, root: Path | None = None) -> Examples | None:
    """The corrupted test set of `cifar10` or `cifar100` from the official files; None without them.

    Args:
        name: The data set.
        kind: One of `CORRUPTIONS`.
        severity: 1 to 5.
        root: A folder to search first for `CIFAR-10-C` or `CIFAR-100-C`.
    """
    _check(kind, severity)
    if name not in _OFFICIAL_FOLDERS:
        return None
    folders = [place / _OFFICIAL_FOLDERS[name] for place in search_path(root)]
    folder = next((folder for folder in folders if folder.is_dir()), None)
    if folder is None:
        return None
    rows = slice((severity - 1) * _OFFICIAL_SIZE, severity * _OFFICIAL_SIZE)
    x = _array(folder / f"{kind}.npy", (5 * _OFFICIAL_SIZE, 32, 32, 3))[rows]
    y = _array(folder / "labels.npy", (5 * _OFFICIAL_SIZE,))[rows]
    images = torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2)))
    return Examples(images, torch.from_numpy(y.astype(np.int64)))


def _check(kind: str, severity: int) -> None:
    if kind not in DISTORTIONS:
        hint = did_you_mean(kind, CORRUPTIONS)
        message = f"unknown corruption {kind!r}{hint} (known: {', '.join(CORRUPTIONS)})"
        raise ConfigError(message, code="unknown-corruption", kind=kind)
    if type(severity) is not int or severity not in SEVERITIES:
        message = f"a corruption's severity is a whole number from 1 to 5, not {severity!r}"
        raise ConfigError(message, code="out-of-range", severity=severity)


def _array(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """An array mapped into memory, so that a part costs only that part; never unpickled."""
    advice = "unpack the official archive again"
    try:
        array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        # numpy's advice for pickles is to load them unsafely
        reason = "it is none" if "pickle" in str(error) else error
        message = f"{path} cannot be read as an array ({reason}); {advice}"
        raise DataError(message, code="damaged-data", path=path) from error
    if array.shape != shape or array.dtype.kind not in "ui":
        message = f"{path} holds {array.dtype} {array.shape}, not whole numbers {shape}; {advice}"
        raise DataError(message, code="damaged-data", path=path)
    return array
