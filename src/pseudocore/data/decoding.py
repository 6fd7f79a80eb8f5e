"""Pictures as arrays, by Pillow, which is imported when the first one is read."""

import math
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from pseudocore.core.errors import DataError, PseudocoreError
from pseudocore.core.optional import optional_module
from pseudocore.data.limits import check_size
from pseudocore.data.reading import damaged
from pseudocore.data.resize import resized

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = np.ndarray[Any, Any]

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif")
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF")
"""All that Pillow is allowed to decode, whatever a file is called."""
_GREY = ("1", "L", "LA")
_COLOUR = ("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr")
_ORIENTATION = 0x0112


def is_picture(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def array_of(image: "Image | None", what: str, *, grey: bool | None = None) -> Pixels:
    """A picture as (channels, height, width): uint8, or float32 from 0 to 1 if it has 16 bits.

    It has one channel if it is grey (or `grey`), else three; alpha is dropped. A photograph is
    turned upright.
    """
    if image is None:
        raise DataError(f"{what} has no picture", code="missing-values", where=what)
    if grey is None:
        grey = _check_mode(image, what) in _GREY
    if _orientation(image) > 1:
        image = optional_module("PIL.ImageOps", "Pillow", "images").exif_transpose(image)
    if _is_deep(image):
        deep: Pixels = np.asarray(image).astype(np.float32)[None] / np.float32(65535)
        return deep
    shown: Pixels = np.asarray(image.convert("L" if grey else "RGB"))
    return shown[None] if grey else shown.transpose(2, 0, 1)


def stacked(images: Sequence[Pixels], names: Sequence[str], size: int | None) -> Pixels:
    """Arrays of one shape as one array; images (channels, height, width) may differ in channels,
    and where `size` is given in size.
    """
    if size is not None and images[0].ndim == 3:
        images = [resized(torch.from_numpy(i.copy())[None], size)[0].numpy() for i in images]
    shapes = [image.shape for image in images]
    if len(set(shapes)) > 1 and {len(shape) for shape in shapes} == {3}:
        channels = max(shape[0] for shape in shapes)
        images = [i.repeat(channels, 0) if len(i) == 1 else i for i in images]
        shapes = [image.shape for image in images]
    odd = next((place for place, shape in enumerate(shapes) if shape != shapes[0]), None)
    if odd is not None:
        raise DataError(
            f"{names[odd]} has shape {shapes[odd]}, but {names[0]} has {shapes[0]};"
            " resize=SIZE brings images to one size",
            code="mixed-sizes",
            where=names[odd],
        )
    if {image.dtype.kind for image in images} == {"u", "f"}:
        images = [i.astype(np.float32) / 255 if i.dtype == np.uint8 else i for i in images]
    return np.stack(images)


def pixels(
    paths: Sequence[Path], *, grey: bool | None = None, size: int | None = None
) -> torch.Tensor:
    """Pictures (n, channels, height, width): one channel if all are grey (or `grey`), else RGB;
    uint8, or floats if one has 16 bits.

    Headers are read first, so a picture of another size is found before any is decoded.
    """
    headers = [_header(path) for path in paths]
    first = headers[0].size
    odd = next((i for i, header in enumerate(headers) if header.size != first), None)
    if odd is not None and size is None:
        one, other = (f"{paths[i]} is {'x'.join(map(str, headers[i].size))}" for i in (0, odd))
        message = f"pictures must have one size, but {one} and {other}; resize them with"
        message = f"{message} resize=SIZE or --resize SIZE"
        raise DataError(message, code="mixed-sizes", path=paths[odd])
    if grey is None:
        grey = all(header.is_grey for header in headers)
    width, height = first if size is None else (size, size)
    is_deep = any(header.is_deep for header in headers)
    shape = (len(paths), 1 if grey else 3, height, width)
    _check_memory(paths, headers, math.prod(shape) * (4 if is_deep else 1))
    x = np.empty(shape, np.float32 if is_deep else np.uint8)
    for i, path in enumerate(paths):
        with _opened(path) as image:
            shown = array_of(image, str(path), grey=grey)
        if size is not None:
            shown = resized(torch.from_numpy(shown.copy())[None], size)[0].numpy()
        x[i] = shown.astype(np.float32) / 255 if is_deep and shown.dtype == np.uint8 else shown
    return torch.from_numpy(x)


class _Header(NamedTuple):
    is_grey: bool
    is_deep: bool
    size: tuple[int, int]
    """Width and height, of a photograph once it is upright."""


def _header(path: Path) -> _Header:
    with _opened(path) as image:
        mode = _check_mode(image, str(path))
        turned = _orientation(image) > 4
        size = image.size[::-1] if turned else image.size
        return _Header(mode in _GREY, _is_deep(image), size)


def _check_mode(image: "Image", what: str) -> str:
    """The mode of a picture, "L" for one of 16 bits; refused if there is no way to show it."""
    mode = image.mode
    if _is_deep(image):
        return "L"
    if mode not in _GREY + _COLOUR:
        message = f"{what} has pixels of Pillow mode {mode!r}; save it with 8 or 16 bits"
        raise DataError(f"{message} per channel", code="unknown-mode", path=what)
    return mode


def _is_deep(image: "Image") -> bool:
    """Whether it is grey with 16 bits; Pillow reads colours of 16 bits as 8."""
    return image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG")


def _orientation(image: "Image") -> int:
    """The EXIF orientation of a photograph: 1 is upright, 5 to 8 lie on their side."""
    return int(image.getexif().get(_ORIENTATION, 1)) if image.format == "JPEG" else 1


def _check_memory(paths: Sequence[Path], headers: Sequence[_Header], num_bytes: int) -> None:
    """Refuse pictures that together, or one of them on its way, would take too much memory."""
    folder = paths[0].parent.parent
    check_size(folder, num_bytes, f"its {len(paths)} pictures")
    largest = max(range(len(paths)), key=lambda i: math.prod(headers[i].size))
    check_size(paths[largest], 4 * math.prod(headers[largest].size), "the picture")


@contextmanager
def _opened(path: Path) -> "Iterator[Image]":
    pillow = optional_module("PIL.Image", "Pillow", "images")
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for ever
            raise damaged(path, "is no regular file")
        with pillow.open(path, formats=_FORMATS) as image:
            yield image
    except (PseudocoreError, MemoryError):
        raise
    except Exception as error:  # a damaged picture can fail in any way
        raise damaged(path, f"cannot be read as a picture ({error})") from error
