"""Images brought to one size: the centre square, sampled with antialiasing."""

import torch
from torch import Tensor
from torch.nn.functional import interpolate


def resized(x: Tensor, size: int, block: int = 1024) -> Tensor:
    """The centre squares of images (n, channels, height, width) at size × size, in their type."""
    height, width = x.shape[2:]
    if (height, width) == (size, size):
        return x
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = x[:, :, top : top + side, left : left + side]
    result = torch.empty(*x.shape[:2], size, size, dtype=x.dtype)
    for start in range(0, len(x), block):
        part = square[start : start + block].float()
        part = interpolate(part, size=(size, size), mode="bilinear", antialias=True)
        if x.dtype == torch.uint8:
            part = part.round_().clamp_(0, 255)
        result[start : start + block] = part
    return result
