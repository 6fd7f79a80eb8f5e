r"""CutMix: images with a box of another image in them, and their labels in the boxes' shares.

Yun et al. (2019), "CutMix: regularization strategy to train strong classifiers with localizable
features". With probability `chance` a batch gets one box for all its images, with centre uniform
and sides $\sqrt{1 - \lambda}$ of the image's, $\lambda \sim U(0, 1)$, as far as it lies in the
image. It shows the same place of the image's partner, and the loss is

$$ (1 - s)\,\ell(y_i) + s\,\ell(y_{\pi(i)}), \qquad s = \text{the box's share of the pixels}, \quad
\pi \text{ a random order} . $$
"""

from typing import NamedTuple

import torch
from torch import Tensor

from pseudocore.core.rng import Rng


class Mixed(NamedTuple):
    x: Tensor  # images (n, channels, height, width)
    partner: Tensor  # index of the image whose box each holds, (n,)
    share: Tensor  # share of the pixels that is the partner's, ()


def mixed(x: Tensor, chance: float, rng: Rng) -> Mixed:
    """Images (n, channels, height, width), mixed with probability `chance`, else as they are (share
    0); no branch, so that a step can be captured.
    """
    height, width = x.shape[-2:]
    happens, amount, row, column = rng("box").uniform(4, device=x.device, dtype=x.dtype)
    half = (1 - amount).sqrt() / 2 * (happens < chance)
    down, across = (
        torch.arange(side, device=x.device, dtype=x.dtype) + 0.5 for side in (height, width)
    )
    inside = ((down - height * row).abs() < height * half).unsqueeze(1) & (
        (across - width * column).abs() < width * half
    )
    partner = rng("partner").permutation(len(x), device=x.device)
    return Mixed(torch.where(inside, x[partner], x), partner, inside.to(x.dtype).mean())
