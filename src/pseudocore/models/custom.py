"""A network of the user's own: an `nn.Module`, a function that returns one, or the name of such a
function as `--model package.module:function`.

SAFETY: naming one imports that module and calls that function, with all a Python program may do.
That is for the user to decide. A name that comes out of a file, be it a coreset, a run's
config.toml or a preset, is refused (`refuse_code`), so a stranger's file runs no code.

The function is called by keyword with those of `num_classes`, `shape`, `channels` it has parameters
for, and with any of `width`, `depth`, `norm` that were asked for. How a network is taken apart is
in `models/anatomy.py`.
"""

import copy
import importlib
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from pseudocore.core import config
from pseudocore.core.errors import ConfigError
from pseudocore.core.registry import models, place_of
from pseudocore.core.types import Model, ModelSpec
from pseudocore.models.anatomy import check_draws, check_kind, refused, taken_apart
from pseudocore.models.flat import FlatModel, Initial


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
            f"{source} the network {model!r}, code outside this package, which is not run"
            f" just because a file names it; if you trust it, give it yourself (--model {model}, or model=)",
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
        check_kind(name, network)
        module = copy.deepcopy(network).cpu()
    else:
        factory = named(name) if isinstance(network, str) else network
        offered = {"num_classes": num_classes, "shape": shape, "channels": shape[0]}
        module = _call(name, factory, offered, options)
        check_kind(name, module)
    body, num_features = taken_apart(name, module, shape, num_classes)
    description = {"name": name, **options, "init": initial}
    model = FlatModel(body, num_features, num_classes, description, initial)
    model.may_attend = True
    model.learns_inputs = check_draws(name, model, shape)
    return model


def named(name: str) -> Any:
    """What `package.module:function` names; importing it runs its code."""
    place, _, path = name.partition(":")
    if not all(part.isidentifier() for part in (*place.split("."), *path.split("."))):
        raise refused(name, "name", "is not named by package.module:function; write that")
    try:
        found: Any = importlib.import_module(place)
    except Exception as error:  # a stranger's module may raise anything on import
        raise refused(
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
        raise refused(name, "missing", text) from None
    if not callable(found):
        text = f"is a {type(found).__name__}; name a function that returns an nn.Module"
        raise refused(name, "not-callable", text)
    return found


def _call(
    name: str, factory: Any, offered: Mapping[str, Any], given: Mapping[str, Any]
) -> nn.Module:
    keywords = _keywords(name, factory, offered, given)
    try:
        # torch's own layers draw their initial weights from the global stream
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # buffers and unusual parameters keep what they are given
            network = factory(**keywords)
    except Exception as error:  # so may a stranger's function
        text = f"could not be made with {keywords} ({type(error).__name__}: {error})"
        raise refused(name, "factory", text) from error
    if not isinstance(network, nn.Module):
        text = f"is a {type(network).__name__}; its function must return an nn.Module"
        raise refused(name, "not-a-module", text)
    return network


def _keywords(
    name: str, factory: Any, offered: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """What is given, and of what is offered the factory's parameters."""
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError) as error:
        text = f"has parameters that cannot be read ({error}); wrap it in a Python function"
        raise refused(name, "signature", text) from error
    kinds = {one.kind for one in parameters.values()}
    unknown = sorted(option for option in given if option not in parameters)
    if unknown and inspect.Parameter.VAR_KEYWORD not in kinds:
        known = ", ".join(parameters) or "none"
        text = f"has no {' or '.join(unknown)}; its parameters are {known}"
        raise refused(name, "options", text)
    values = {key: value for key, value in offered.items() if key in parameters} | dict(given)
    variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    unmet = [
        key
        for key, one in parameters.items()
        if one.default is one.empty and one.kind not in variadic and key not in values
    ]
    if unmet:
        raise refused(
            name,
            "parameters",
            f"requires {', '.join(unmet)}; it can be given {', '.join(offered)}, and width, depth "
            "and norm where asked for",
        )
    return values
