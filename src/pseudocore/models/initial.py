"""Where the parameters of a network start, and the natural scale of each: by its layer's kind."""

import math

import torch
from torch import Tensor, nn

from pseudocore.models.batch_norm import BatchNorm

Convolution = nn.modules.conv._ConvNd

NORMS = (
    BatchNorm,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.modules.batchnorm._NormBase,
)
"""Layers whose gains start at 1 and shifts at 0."""


def initial_spread(
    body: nn.Module, num_features: int, num_outputs: int, spread: float, *, flax: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Centre, natural scale and half-width of the initial uniform distribution of each parameter.

    Weights of dense, convolutional and attention layers, and of the head, lie around 0 with the
    scale one over the root of their fan-in. Embeddings have the scale 1, gains of norms 1 around 1.
    Parameters of other layers start with the mean and spread of the values they have.

    Args:
        body: The network without its head.
        num_features: Inputs of the head.
        num_outputs: Outputs of the head.
        spread: Half-width of weights times the root of their fan-in.
        flax: Whether biases start at 0.

    Returns:
        Three vectors (parameters,), in the order of theta.
    """
    rows: list[Tensor] = []

    def add(num: int, centre: float, scale: float, width: float) -> None:
        rows.append(torch.tensor([centre, scale, width]).expand(num, 3))

    for name, parameter in body.named_parameters():
        layer, _, kind = name.rpartition(".")
        owner, num = body.get_submodule(layer), parameter.numel()
        own = 0.0 if flax and kind.endswith("bias") else spread
        if isinstance(owner, nn.Linear | Convolution):
            scale = 1 / math.sqrt(owner.weight[0].numel())
            add(num, 0.0, scale, own * scale)
        elif isinstance(owner, nn.MultiheadAttention):
            scale = 1 / math.sqrt(owner.embed_dim)
            add(num, 0.0, scale, own * scale)
        elif isinstance(owner, NORMS):
            add(num, float(kind == "weight"), 1.0, 0.0)
        elif isinstance(owner, nn.Embedding | nn.EmbeddingBag):
            per_row = torch.tensor([0.0, 1.0, math.sqrt(3)]).repeat(len(parameter), 1)
            if owner.padding_idx is not None:
                per_row[owner.padding_idx, 2] = 0.0
            rows.append(per_row.repeat_interleave(parameter.shape[1], 0))
        else:
            values = parameter.detach().float()
            sd = float(values.std(correction=0)) if num > 1 else 0.0
            add(num, float(values.mean()), sd or 1.0, math.sqrt(3) * sd)
    scale = 1 / math.sqrt(num_features)
    add(num_features * num_outputs, 0.0, scale, spread * scale)
    add(num_outputs, 0.0, scale, (0.0 if flax else spread) * scale)
    centre, natural, width = torch.cat(rows).unbind(1)
    return centre.contiguous(), natural.contiguous(), width.contiguous()
