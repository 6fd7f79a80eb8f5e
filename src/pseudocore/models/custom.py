"""A network of the user's own: an `nn.Module`, a function that returns one, or the name of such a
function as `--model package.module:function`.

SAFETY: naming one imports that module and calls that function, with all a Python program may do.
That is for the user to decide: a name that comes out of a file, be it a coreset, a run's
config.toml or a preset, is refused (`refuse_code`), so a stranger's file runs no code.

The function is called by keyword with those of `num_classes`, `shape`, `channels` it has parameters
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


def refuse_code(setup: Mapping[str, Any], source: str) -> None:
    """Refuse a network outside this package that a file names; `source` says which file."""
    model = str(setup.get("model") or "")
    if ":" in model:
        raise ConfigError(
            f"{source} the network {model!r}, code outside this package, which a file cannot make"
            f" run; if you trust it, give it yourself (--model {model}, or model=)",
            code="custom-model",
            model=model,
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


def _refused(name: str, code: str, text: str) -> ConfigError:
    return ConfigError(f"network {name!r} {text}", code=f"network-{code}", network=name)


def _factory(name: str) -> Any:
    place, _, path = name.partition(":")
    if not all(part.isidentifier() for part in (*place.split("."), *path.split("."))):
        raise _refused(name, "name", "is not named by package.module:function; write that")
    try:
        found: Any = importlib.import_module(place)
    except Exception as error:  # a stranger's module may raise anything on import
        raise _refused(
            name,
            "import",
            f"is in {place!r}, which cannot be imported ({type(error).__name__}: {error}); "
            "install it, or put the folder that contains it on PYTHONPATH",
        ) from error
    try:
        for part in path.split("."):
            found = getattr(found, part)
    except AttributeError:
        text = f"is not there: {place!r} has no {path!r}; name a function in it"
        raise _refused(name, "missing", text) from None
    if not callable(found):
        text = f"is a {type(found).__name__}; name a function that returns an nn.Module"
        raise _refused(name, "not-callable", text)
    return found


def _call(
    name: str, factory: Any, offered: Mapping[str, Any], given: Mapping[str, Any]
) -> nn.Module:
    keywords = _keywords(name, factory, offered, given)
    try:
        # torch's own layers draw their initial weights from the global stream
        with torch.random.fork_rng(devices=[]):
            network = factory(**keywords)
    except Exception as error:  # so may a stranger's function
        text = f"could not be made with {keywords} ({type(error).__name__}: {error})"
        raise _refused(name, "factory", text) from error
    if not isinstance(network, nn.Module):
        text = f"is a {type(network).__name__}; its function must return an nn.Module"
        raise _refused(name, "not-a-module", text)
    return network


def _keywords(
    name: str, factory: Any, offered: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """What is given, and of what is offered the factory's parameters."""
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError) as error:
        text = f"has parameters that cannot be read ({error}); wrap it in a Python function"
        raise _refused(name, "signature", text) from error
    kinds = {one.kind for one in parameters.values()}
    unknown = sorted(option for option in given if option not in parameters)
    if unknown and inspect.Parameter.VAR_KEYWORD not in kinds:
        known = ", ".join(parameters) or "none"
        text = f"has no {' or '.join(unknown)}; its parameters are {known}"
        raise _refused(name, "options", text)
    values = {key: value for key, value in offered.items() if key in parameters} | dict(given)
    variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    unmet = [
        key
        for key, one in parameters.items()
        if one.default is one.empty and one.kind not in variadic and key not in values
    ]
    if unmet:
        raise _refused(
            name,
            "parameters",
            f"requires {', '.join(unmet)}; it can be given {', '.join(offered)}, and width, depth "
            "and norm where asked for",
        )
    return values


def _behead(name: str, network: nn.Module, num_classes: int) -> tuple[nn.Module, int]:
    """The network with its last linear layer replaced by the identity, and that layer's inputs."""
    linear = [(path, layer) for path, layer in _layers(network) if isinstance(layer, nn.Linear)]
    if not linear or not linear[-1][0]:
        text = "holds no nn.Linear that could be its head; its last layer must be one"
        raise _refused(name, "head", text)
    path, head = linear[-1]
    if head.out_features != num_classes:
        raise _refused(
            name,
            "classes",
            f"has {head.out_features} outputs in its last nn.Linear ({path}), but the data has "
            f"{num_classes} classes",
        )
    body = copy.deepcopy(network)
    _replace(body, path, nn.Identity())
    return body, head.in_features


def _without_state(name: str, body: nn.Module) -> nn.Module:
    """The same body with torch's batch norms as ours, whose statistics are values; other state and
    randomness are refused.
    """
    ours: set[str] = set()
    for path, layer in _layers(body):
        if isinstance(layer, nn.BatchNorm2d):
            if not layer.affine:
                text = f"has a batch norm, {path!r}, with no gain and shift; make it affine"
                raise _refused(name, "batch-norm", text)
            _replace(body, path, BatchNorm(layer.num_features, layer.eps))
            ours |= {f"{path}.mean", f"{path}.var"}
        elif isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0:
            raise _refused(
                name,
                "dropout",
                f"has a layer, {path!r}, that is dropout, which would draw from the global stream; "
                "set its p to 0",
            )
    if other := sorted({path for path, _ in body.named_buffers()} - ours):
        text = f"keeps state in buffers ({', '.join(other[:3])}); only nn.BatchNorm2d may"
        raise _refused(name, "buffers", text)
    return body


def _check(
    name: str,
    body: nn.Module,
    network: nn.Module,
    shape: tuple[int, ...],
    num_features: int,
    num_classes: int,
) -> None:
    """Refuse a body that fails on the data's inputs or is random, and a head whose output is
    changed.
    """
    outputs: list[Tensor] = []
    head = [layer for _, layer in _layers(network) if isinstance(layer, nn.Linear)][-1]
    handle = head.register_forward_hook(lambda _, __, output: outputs.append(output))
    x = Rng(0)("foreign", name).normal(2, *shape)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            features, again, output = body.train()(x), body(x), network.eval()(x)
    except Exception as error:  # so may a stranger's network
        text = f"fails on inputs of shape {shape} ({type(error).__name__}: {error})"
        raise _refused(name, "input-shape", text) from error
    finally:
        handle.remove()
    if not isinstance(features, Tensor) or features.shape != (2, num_features):
        found = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        text = f"must end in its head, but without it gives {found}, not (n, {num_features})"
        raise _refused(name, "features", text)
    if not torch.equal(features, again):
        text = "gives other features when asked twice; it must draw nothing at random"
        raise _refused(name, "random", text)
    fits = isinstance(output, Tensor) and output.shape == (2, num_classes)
    if not (outputs and fits and torch.equal(output, outputs[-1])):
        text = "changes what its last nn.Linear gives; it must return those logits as they are"
        raise _refused(name, "logits", text)


def _layers(network: nn.Module) -> list[tuple[str, nn.Module]]:
    return list(network.named_modules())


def _replace(network: nn.Module, path: str, layer: nn.Module) -> None:
    parent, _, attribute = path.rpartition(".")
    setattr(network.get_submodule(parent), attribute, layer)
