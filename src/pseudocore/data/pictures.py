"""Picture files to one uint8 array; Pillow is imported when the first is read."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pseudocore.core.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image


_GREY = ("1", "L", "LA")
_COLOUR = ("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr")


def is_picture(path: Path) -> bool:
    return path.suffix.lower() in (".png", ".jpg", ".jpeg") and not path.name.startswith(".")


def read_pictures(paths: Sequence[Path], *, grey: bool | None = None) -> np.ndarray:
    """uint8 (n, channels, height, width): one channel if all pictures are grey (or `grey` says so),
    else RGB; alpha is dropped.

    Headers are looked at first, so a picture of another size is found before anything is decoded.
    """
    modes, sizes = zip(*map(_header, paths), strict=True)
    odd = next((i for i, size in enumerate(sizes) if size != sizes[0]), None)
    if odd is not None:
        raise DataError(
            f"pictures must have one size, but {paths[0]} is {_by(sizes[0])} and {paths[odd]} is {_by(sizes[odd])}; resize them first"
        )
    if grey is None:
        grey = all(mode in _GREY for mode in modes)
    width, height = sizes[0]
    x = np.empty((len(paths), 1 if grey else 3, height, width), np.uint8)
    for i, path in enumerate(paths):
        with _opened(path) as image:
            pixels = np.asarray(image.convert("L" if grey else "RGB"))
        x[i] = pixels[None] if grey else pixels.transpose(2, 0, 1)
    return x


def _header(path: Path) -> tuple[str, tuple[int, int]]:
    with _opened(path) as image:
        mode, size = image.mode, image.size
    if mode not in _GREY + _COLOUR:
        raise DataError(
            f"{path} has pixels of Pillow mode {mode!r}; save it with 8 bits per channel"
        )
    return mode, size


@contextmanager
def _opened(path: Path) -> "Iterator[Image]":
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(
            'reading picture files needs Pillow; pip install "pseudocore[images]"'
        ) from error
    try:
        with Image.open(path) as image:
            yield image
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} cannot be read as a picture ({error})") from error


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"
