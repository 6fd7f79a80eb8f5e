"""PNG pictures of 8-bit images, written with the standard library alone."""

import struct
import zlib

import numpy as np
import numpy.typing as npt
from torch import Tensor

from pseudocore.core.errors import ConfigError, DataError

Pixels = npt.NDArray[np.uint8]


def encode(image: Pixels) -> bytes:
    """The PNG file of a grey (h, w) or colour (h, w, 3) image."""
    if (
        image.dtype != np.uint8
        or image.ndim not in (2, 3)
        or image.shape[2:] not in ((), (3,))
        or image.size == 0
    ):
        raise DataError(
            f"a picture must be uint8 (h, w) or (h, w, 3) with at least one pixel, not {image.dtype} {image.shape}"
        )
    height, width = image.shape[:2]
    rows = image.reshape(height, -1)
    unfiltered = np.concatenate(
        [np.zeros((height, 1), np.uint8), rows], axis=1
    )  # every row names its filter: 0, none
    colour_type = 0 if image.ndim == 2 else 2
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colour_type, 0, 0, 0)),
            _chunk(b"IDAT", zlib.compress(unfiltered.tobytes(), 9)),
            _chunk(b"IEND", b""),
        ]
    )


def to_uint8(x: Tensor) -> Pixels:
    """Images (M, c, h, w) in pixel units as 8-bit (M, h, w) for one channel or (M, h, w, 3) for
    three; [0, 1] is kept.
    """
    if x.ndim != 4 or x.shape[1] not in (1, 3):
        raise ConfigError(
            f"only images of 1 or 3 channels can be shown, (M, c, h, w), not points of shape {tuple(x.shape)}"
        )
    levels: Pixels = (x.detach().float().cpu().clamp(0, 1) * 255).round().byte().numpy()
    return levels[:, 0] if x.shape[1] == 1 else levels.transpose(0, 2, 3, 1)


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
