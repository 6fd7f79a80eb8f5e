"""Taking an `nn.Module` apart into a body and a linear head, or a sentence why that cannot be.

The head is the `nn.Linear` that is run last; it must give the network's output. All before it is
the body. Initial weights are not used: theta is drawn as for every network here (`models.initial`),
and the head has a bias.

- Batch norms of any dimension become ours, whose statistics are values (`models.batch_norm`).
- Buffers are constants; a pass that changes one is refused.
- Dropout is declared by the module's own mode: a layer in evaluation mode (`network.eval()`) is left
  out. One in training mode is refused, as a posterior is over weights and not over masks.
- A network that draws at random, changes its inputs, or cannot be run and differentiated for
  several thetas at once is refused.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from pseudocore.core.errors import ConfigError
from pseudocore.core.rng import Rng
from pseudocore.models.batch_norm import BatchNorm
from pseudocore.models.flat import FlatModel

FAST_PATHS = (nn.MultiheadAttention, nn.TransformerEncoder, nn.TransformerEncoderLayer)
"""In evaluation mode these call kernels that know no batch of thetas."""


def refused(name: str, code: str, text: str) -> ConfigError:
    return ConfigError(f"network {name!r} {text}", code=f"network-{code}", network=name)


def check_kind(name: str, network: nn.Module) -> None:
    """Refuse a network that holds what cannot be a function of a flat vector."""
    if any(isinstance(layer, torch.jit.ScriptModule) for layer in network.modules()):
        text = "is scripted, and its parameters cannot be replaced; give the module it was made of"
        raise refused(name, "scripted", text)
    for path, value in network.named_parameters():
        if isinstance(value, nn.parameter.UninitializedParameter):
            text = f"has a lazy layer, {path!r} has no shape yet; run the network once before"
            raise refused(name, "lazy", text)
        if not value.is_floating_point():
            text = f"has a parameter of type {value.dtype}, {path!r}; parameters must be real"
            raise refused(name, "parameter-type", text)


def taken_apart(
    name: str, network: nn.Module, shape: tuple[int, ...], num_outputs: int
) -> tuple[nn.Module, int]:
    """The body of a network, and the number of features it gives its head.

    Args:
        name: What to call the network.
        network: The network, which is changed.
        shape: Shape of one input.
        num_outputs: Outputs that the head must have.
    """
    _prepare(name, network)
    linear = [layer for path, layer in network.named_modules() if isinstance(layer, nn.Linear)]
    linear = [layer for layer in linear if layer is not network]
    if not linear:
        text = "holds no nn.Linear that could be its head; its last layer must be one"
        raise refused(name, "head", text)
    # bits are valid token ids, too
    x = Rng(0)("foreign", name).integers(2, 2, *shape).float()
    outputs: list[tuple[nn.Linear, Tensor]] = []
    handles = [
        layer.register_forward_hook(lambda layer, _, output: outputs.append((layer, output)))
        for layer in linear
    ]
    try:
        output = _tried(name, network, x, shape)
    finally:
        for handle in handles:
            handle.remove()
    head = outputs[-1][0] if outputs else linear[-1]
    path = next(path for path, layer in network.named_modules() if layer is head)
    if head.out_features != num_outputs:
        raise refused(
            name,
            "classes",
            f"has {head.out_features} outputs in its last nn.Linear ({path}), but the data has "
            f"{num_outputs} classes",
        )
    body = copy.deepcopy(network)
    _replace(body, path, nn.Identity())
    before = {place: value.clone() for place, value in body.named_buffers()}
    version, features = x._version, _tried(name, body, x, shape)
    if x._version != version:
        text = "changes its inputs; its first layer must not work in place"
        raise refused(name, "in-place", text)
    if not isinstance(features, Tensor) or features.shape != (2, head.in_features):
        found = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        text = f"must end in its head, but without it gives {found}, not (n, {head.in_features})"
        raise refused(name, "features", text)
    changed = [place for place, value in body.named_buffers() if not value.equal(before[place])]
    if changed:
        text = f"changes its buffers ({', '.join(changed[:3])}) in a pass; they must be constants"
        raise refused(name, "buffers", text)
    if not torch.equal(features, _tried(name, body, x, shape, seed=1)):
        text = "gives other features when asked twice; it must draw nothing at random"
        raise refused(name, "random", text)
    fits = isinstance(output, Tensor) and output.shape == (2, num_outputs)
    if not (outputs and fits and torch.equal(output, outputs[-1][1])):
        text = "changes what its last nn.Linear gives; it must return those logits as they are"
        raise refused(name, "logits", text)
    shared = [place for place, one in body.named_parameters() if one.shape == head.weight.shape]
    own = dict(network.named_parameters(remove_duplicate=False))
    if tied := [place for place in shared if own[place] is head.weight]:
        text = f"shares the weight of its head with {tied[0]!r}; the head's must be its own"
        raise refused(name, "tied-head", text)
    return body, head.in_features


def check_draws(name: str, model: FlatModel, shape: tuple[int, ...]) -> bool:
    """Refuse a network that cannot be run for several thetas at once.

    Returns:
        Whether its features have a gradient in its inputs.
    """
    thetas, x = model.init(Rng(0), num=2), Rng(0)("draws").integers(2, 2, *shape).float()
    try:
        both = model.features(thetas.requires_grad_(), x)
        if both.requires_grad:  # layers before the head have parameters
            torch.autograd.grad(both.square().sum(), thetas)
        single = model.features(thetas[1].detach(), x.requires_grad_())
        slope = None
        if single.requires_grad:
            (slope,) = torch.autograd.grad(single.square().sum(), x, allow_unused=True)
    except Exception as error:  # a stranger's network may raise anything
        text = (
            "cannot be run and differentiated for several draws of its parameters at once "
            f"({type(error).__name__}: {_first_line(error)})"
        )
        raise refused(name, "draws", text) from error
    if not torch.allclose(both[1], single, rtol=1e-3, atol=1e-4):
        text = "gives other features for several draws of its parameters at once than for each"
        raise refused(name, "draws", text)
    return slope is not None


def _prepare(name: str, network: nn.Module) -> None:
    """Batch norms as ours, idle dropout out, attention on its differentiable way."""
    for path, layer in list(network.named_modules()):
        rate = layer.p if isinstance(layer, nn.modules.dropout._DropoutNd) else None
        if isinstance(layer, nn.MultiheadAttention | nn.RNNBase):
            rate = layer.dropout
        if rate and layer.training:
            raise refused(
                name,
                "dropout",
                f"has dropout in training mode, {path!r}, and a posterior is over weights, not over"
                " masks; leave it out by the evaluation mode, network.eval()",
            )
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            ours = BatchNorm(layer.num_features, layer.eps, affine=layer.affine)
            _replace(network, path, ours)
        elif isinstance(layer, nn.modules.dropout._DropoutNd) and path:
            _replace(network, path, nn.Identity())
        elif isinstance(layer, nn.MultiheadAttention | nn.RNNBase):
            layer.dropout = 0.0
        if isinstance(layer, FAST_PATHS):
            layer.training = True


def _tried(
    name: str, network: nn.Module, x: Tensor, shape: tuple[int, ...], *, seed: int = 0
) -> Any:
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return network(x)
    except Exception as error:  # so may a stranger's network
        text = f"fails on inputs of shape {shape} ({type(error).__name__}: {_first_line(error)})"
        raise refused(name, "input-shape", text) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]


def _replace(network: nn.Module, path: str, layer: nn.Module) -> None:
    parent, _, attribute = path.rpartition(".")
    setattr(network.get_submodule(parent), attribute, layer)
