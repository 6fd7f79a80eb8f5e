r"""How rough images are: their power by spatial frequency, averaged over directions (after Kim et
al. 2022, Fig. 2).

With the discrete Fourier transform $\hat x$ of an H × W image and rings $R_f$ of frequencies in
cycles a pixel, $f \le |(u/H, v/W)| < f + 1/\min(H, W)$,

$$ P(f) = \frac{1}{|R_f|} \sum_{(u, v) \in R_f} \frac{|\hat x_{uv}|^2}{H W}, \qquad
   \sum_f |R_f|\, P(f) = \sum_{ij} x_{ij}^2 \quad\text{(Parseval)} $$

averaged over channels and images. The first ring is the mean brightness; half a cycle a pixel is
the finest stripe along an axis, and the rings beyond it are the corners of the spectrum. Noise is
flat, natural images fall roughly as $1/f^2$; a learned image above the real ones at the right end
is noisier than they are. Kim et al. draw the amplitude along the diagonal alone, which is noisier
to read.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from pseudocore.core.errors import DataError

_BATCH = 256


class Spectrum(NamedTuple):
    frequency: Tensor  # (rings,), lower edges in cycles a pixel
    power: Tensor  # (rings,), mean over the ring, the channels and the images
    size: Tensor  # (rings,), frequencies in the ring


def spectrum(images: Tensor) -> Spectrum:
    """Radially averaged power of images (n, channels, height, width) in pixel units; uint8 counts
    as 0 to 1.
    """
    if images.ndim != 4 or len(images) == 0:
        raise DataError(
            f"a spectrum is one of images (n, channels, height, width), not {tuple(images.shape)}"
        )
    ring = _rings(*images.shape[2:])
    num_rings = int(ring.max()) + 1
    total = torch.zeros(num_rings, dtype=torch.float64)
    for part in torch.split(images, _BATCH):
        x = part.cpu().double() / (255 if part.dtype == torch.uint8 else 1)
        power = torch.fft.fft2(x).abs().square().mean(1).sum(0) / ring.numel()  # (height, width)
        total = total.index_add(0, ring.flatten(), power.flatten())
    size = torch.bincount(ring.flatten(), minlength=num_rings)
    frequency = torch.arange(num_rings, dtype=torch.float64) / min(ring.shape)
    return Spectrum(frequency, total / (size.clamp_min(1) * len(images)), size)


def _rings(height: int, width: int) -> Tensor:
    """The ring each entry of the transform falls into, (height, width)."""
    down, across = (torch.fft.fftfreq(side, dtype=torch.float64) for side in (height, width))
    radius: Tensor = (down[:, None].square() + across[None, :].square()).sqrt() * min(height, width)
    return (radius + 1e-9).long()  # a radius on an edge belongs to the ring that begins there
