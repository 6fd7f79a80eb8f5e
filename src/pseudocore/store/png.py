"""Pictures of points, by the standard library alone."""

import struct
import zlib

import numpy as np
import numpy.typing as npt
from torch import Tensor

from pseudocore.core.errors import ConfigError, DataError

Pixels = npt.NDArray[np.uint8]


def encode_png(image: Pixels) -> bytes:
    """The PNG file of a grey (h, w) or colour (h, w, 3) image, by the standard library alone."""
    is_image = image.ndim == 2 or (image.ndim == 3 and image.shape[2] == 3)
    if image.dtype != np.uint8 or not is_image or image.size == 0:
        message = f"a picture must be uint8 (h, w) or (h, w, 3), not {image.dtype} {image.shape}"
        raise DataError(message, code="not-an-image", shape=image.shape)
    height, width = image.shape[:2]
    colour_type = 0 if image.ndim == 2 else 2
    rows = image.reshape(height, -1)
    no_filter = np.zeros((height, 1), np.uint8)  # every row names its filter
    header = struct.pack(">IIBBBBB", width, height, 8, colour_type, 0, 0, 0)
    pixels = zlib.compress(np.concatenate([no_filter, rows], axis=1).tobytes(), 9)
    chunks = ((b"IHDR", header), (b"IDAT", pixels), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks
    )


def to_uint8(x: Tensor) -> Pixels:
    """Images (M, c, h, w) in pixel units as 8-bit (M, h, w) or, for three channels, (M, h, w, 3).

    Values outside [0, 1] are clipped.
    """
    if x.ndim != 4 or x.shape[1] not in (1, 3):
        message = (
            f"points of shape {tuple(x.shape[1:])} cannot become pictures, only images of 1 or 3"
        )
        message = f"{message} channels; export npz instead"
        raise ConfigError(message, code="not-an-image", shape=tuple(x.shape))
    levels: Pixels = (x.detach().float().cpu().clamp(0, 1) * 255).round().byte().numpy()
    return levels[:, 0] if x.shape[1] == 1 else levels.transpose(0, 2, 3, 1)
