"""A network of the user's own: an `nn.Module`, a function that returns one, or the name of such a
function as `--model package.module:function`.

SAFETY: naming one imports that module and calls that function, with all a Python program may do.
That is for the user to decide: a name that comes out of a coreset's provenance is refused
(`assembly.build_problem`), so a stranger's file runs no code.

The factory is called by keyword with those of `num_classes`, `shape`, `channels` it has parameters
for, and with any of `width`, `depth`, `norm` that were asked for. The last `nn.Linear` of what it
returns is the head, and must give the network's output; all before it is the body. Its own initial
weights are not used: theta is drawn as for every network here, and the head has a bias.
"""

import copy
import importlib
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pseudocore.core import config
from pseudocore.core.errors import ConfigError
from pseudocore.core.registry import models, place_of
from pseudocore.core.rng import Rng
from pseudocore.core.types import Model, ModelSpec
from pseudocore.models.flat import BatchNorm, FlatModel, Initial


def described(network: Any) -> tuple[dict[str, Any], Any]:
    """The fields of a setup for a network, and the network itself where they cannot rebuild it.

    Args:
        network: A registered model (`ConvNet(width=32)`), an `nn.Module`, or a function that makes
            one.

    Returns:
        Fields of a setup, and what to pass to `load`, or None.
    """
    if models.has_class(type(network)):
        config.check(network)
        return {"model": models.name_of(network), **config.to_dict(network)}, None
    if models.has_class(network):
        raise TypeError(f"model must be an instance, {network.__name__}(), not the class")
    if isinstance(network, FlatModel):
        return {"model": network.describe()["name"]}, network
    if isinstance(network, nn.Module | ModelSpec) or callable(network):
        return {"model": place_of(network)}, network
    raise TypeError(
        "model must be a name, a model of pseudocore.models, an nn.Module or a function that makes"
        f" one, not {type(network).__name__}"
    )


def load(
    network: Any,
    shape: tuple[int, ...],
    num_classes: int,
    given: Mapping[str, Any] | None = None,
) -> Model:
    """A network of the user's own for inputs of a shape.

    Args:
        network: `module:function`, a function that makes an `nn.Module`, a module, or a model.
        shape: Shape of one input.
        num_classes: Number of outputs.
        given: Options for the function. Defaults to none.

    Returns:
        The network on a flat vector.
    """
    if isinstance(network, ModelSpec):
        return network.build(shape, num_classes)
    options = dict(given or {})
    if isinstance(network, FlatModel | nn.Module) and options:
        raise ConfigError(
            f"{', '.join(options)} given beside a network that is already made",
            code="options-beside-instance",
            options=sorted(options),
        )
    if isinstance(network, FlatModel):
        return network
    initial: Initial = options.pop("init", "torch")
    name = network if isinstance(network, str) else place_of(network)
    if isinstance(network, nn.Module):
        module = copy.deepcopy(network).cpu()
    else:
        factory = _factory(name) if isinstance(network, str) else network
        offered = {"num_classes": num_classes, "shape": shape, "channels": shape[0]}
        module = _call(name, factory, offered, options)
    body, num_features = _behead(name, module, num_classes)
    body = _without_state(name, body)
    _check(name, body, module, shape, num_features, num_classes)
    description = {"name": name, **options, "init": initial}
    return FlatModel(body, num_features, num_classes, description, initial)


def _factory(name: str) -> Any:
    place, _, word = name.partition(":")
    if not all(part.isidentifier() for part in (*place.split("."), *word.split("."))):
        raise ConfigError(
            f"{name!r} does not name a network factory; write package.module:function"
        )
    try:
        found: Any = importlib.import_module(place)
    except Exception as error:  # whatever a stranger's module does on import
        raise ConfigError(
            f"the module {place!r} of network {name!r} cannot be imported ({type(error).__name__}: {error}); "
            "install it, or put the folder that contains it on PYTHONPATH"
        ) from error
    for part in word.split("."):
        if not hasattr(found, part):
            raise ConfigError(
                f"the module {place!r} has no {word!r}; name a function in it that returns an nn.Module"
            )
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError(
            f"{name!r} is a {type(found).__name__}; name a function that returns an nn.Module"
        )
    return found


def _call(
    name: str, factory: Any, offered: Mapping[str, Any], given: Mapping[str, Any]
) -> nn.Module:
    keywords = _keywords(name, factory, offered, given)
    try:
        with torch.random.fork_rng(
            devices=[]
        ):  # torch's own layers draw their initial weights from the global stream
            network = factory(**keywords)
    except Exception as error:
        raise ConfigError(
            f"network {name!r} could not be made with {keywords} ({type(error).__name__}: {error})"
        ) from error
    if not isinstance(network, nn.Module):
        raise ConfigError(
            f"{name!r} returned a {type(network).__name__}; it must return an nn.Module"
        )
    return network


def _keywords(
    name: str, factory: Any, offered: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """What is offered as far as the factory has parameters for it, and all that was given, for
    which it must have some.
    """
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"the parameters of {name!r} cannot be read ({error}); wrap it in a Python function"
        ) from error
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if unknown := sorted(option for option in given if option not in parameters and not takes_any):
        raise ConfigError(
            f"network {name!r} has no {' or '.join(unknown)}; its parameters are {', '.join(parameters) or 'none'}"
        )
    values = {key: value for key, value in offered.items() if key in parameters} | dict(given)
    variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    required = [
        key
        for key, one in parameters.items()
        if one.default is one.empty and one.kind not in variadic
    ]
    if unmet := [key for key in required if key not in values]:
        raise ConfigError(
            f"network {name!r} requires {', '.join(unmet)}; it can be given {', '.join(offered)}, and width, depth and norm where asked for"
        )
    return values


def _behead(name: str, network: nn.Module, num_classes: int) -> tuple[nn.Module, int]:
    """The network with its last linear layer replaced by the identity, and what that layer took."""
    linear = [
        (path, layer) for path, layer in network.named_modules() if isinstance(layer, nn.Linear)
    ]
    if not linear or not linear[-1][0]:
        raise ConfigError(
            f"network {name!r} holds no nn.Linear that could be its head; its last layer must be one"
        )
    path, head = linear[-1]
    if head.out_features != num_classes:
        raise ConfigError(
            f"the last nn.Linear of network {name!r} ({path}) has {head.out_features} outputs, but the data has {num_classes} classes"
        )
    body = copy.deepcopy(network)
    _replace(body, path, nn.Identity())
    return body, head.in_features


def _without_state(name: str, body: nn.Module) -> nn.Module:
    """The same body with torch's batch norms as ours, whose statistics are values; other state and
    randomness are refused.
    """
    for path, layer in list(body.named_modules()):
        if isinstance(layer, nn.BatchNorm2d):
            if not layer.affine:
                raise ConfigError(
                    f"batch norm {path!r} of network {name!r} has no gain and shift; make it affine"
                )
            _replace(body, path, BatchNorm(layer.num_features, layer.eps))
        elif isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0:
            raise ConfigError(
                f"layer {path!r} of network {name!r} is dropout, which would draw from the global stream; set its p to 0"
            )
    ours = {
        f"{path}.{word}"
        for path, layer in body.named_modules()
        if isinstance(layer, BatchNorm)
        for word in ("mean", "var")
    }
    if other := sorted({path for path, _ in body.named_buffers()} - ours):
        raise ConfigError(
            f"network {name!r} keeps state in buffers ({', '.join(other[:3])}); only nn.BatchNorm2d may"
        )
    return body


def _check(
    name: str,
    body: nn.Module,
    network: nn.Module,
    shape: tuple[int, ...],
    num_features: int,
    num_classes: int,
) -> None:
    """Refuse a body that fails on the data's inputs or is random, and a head that is not the last
    thing the network does.
    """
    seen: list[Tensor] = []
    head = [layer for layer in network.modules() if isinstance(layer, nn.Linear)][-1]
    handle = head.register_forward_hook(lambda _, __, output: seen.append(output))
    x = Rng(0)("foreign", name).normal(2, *shape)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            features, again, output = body.train()(x), body(x), network.eval()(x)
    except Exception as error:
        raise ConfigError(
            f"network {name!r} fails on inputs of shape {shape} ({type(error).__name__}: {error})"
        ) from error
    finally:
        handle.remove()
    if not isinstance(features, Tensor) or features.shape != (2, num_features):
        raise ConfigError(
            f"network {name!r} must end in its head, but without it gives {_say(features)}, not (n, {num_features})"
        )
    if not torch.equal(features, again):
        raise ConfigError(
            f"network {name!r} gives other features when asked twice; it must draw nothing at random"
        )
    if (
        not seen
        or not isinstance(output, Tensor)
        or output.shape != (2, num_classes)
        or not torch.equal(output, seen[-1])
    ):
        raise ConfigError(
            f"network {name!r} changes what its last nn.Linear gives; it must return those logits as they are"
        )


def _replace(network: nn.Module, path: str, layer: nn.Module) -> None:
    parent, _, word = path.rpartition(".")
    setattr(network.get_submodule(parent), word, layer)


def _say(value: Any) -> str:
    return (
        f"a tensor {tuple(value.shape)}"
        if isinstance(value, Tensor)
        else f"a {type(value).__name__}"
    )
