"""Frozen networks by object or name, with weights from a local file. Nothing is downloaded.

`timm:NAME`, `torchvision:NAME` and `open_clip:NAME` are made by those packages, without their heads;
they see images at the size and under the normalisation they were trained with. An `nn.Module`, or
what `package.module:function` makes, sees the data's own units, images in [0, 1].

SAFETY: as in `models.custom`, naming a function runs its code, so a name out of a file is refused.
Weights are read as plain tensors (safetensors, or `torch.load` with `weights_only`).
"""

import hashlib
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pseudocore.core.errors import ConfigError, DataError
from pseudocore.core.optional import optional_module
from pseudocore.core.registry import place_of
from pseudocore.models import custom

LIBRARIES = ("timm", "torchvision", "open_clip")
HEADS = ("fc", "classifier", "head", "heads")
"""What torchvision calls the layer that comes off."""
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
SIZE = 224


class Backbone(NamedTuple):
    """A network to take features from."""

    name: str
    network: nn.Module
    call: Callable[[Tensor], Any]
    """Inputs in the data's units, as floats, to features."""


def described(features: Any) -> tuple[dict[str, Any], Any]:
    """The field of a setup for `features`, and the object itself where a name cannot rebuild it."""
    if features is None:
        return {}, None
    if isinstance(features, str | Path):
        return {"features": str(features)}, None
    return {"features": name_of(features)}, features


def name_of(features: Any) -> str:
    """What to call a network or ready features."""
    if isinstance(features, str | Path):
        return str(features)
    return place_of(features) if isinstance(features, nn.Module) else "ready features"


def refuse_code(setup: Mapping[str, Any], source: str) -> None:
    """Refuse code that a file names, and objects it cannot rebuild; `source` says which file."""
    name = str(setup.get("features") or "")
    if name == "ready features" or (":" in name and name.split(":")[0] not in LIBRARIES):
        raise ConfigError(
            f"{source} features by {name!r}, which is not run just because a file names it; if you"
            " trust it, name it yourself (--features), or give data that are features already",
            code="custom-features",
            features=name,
        )


def load(features: Any, weights: str | None, device: torch.device) -> Backbone:
    """The network, frozen and in evaluation mode.

    Args:
        features: An `nn.Module`, or a name.
        weights: A file of weights. Names of a library need one; others keep their own.
        device: Where a named network runs; a module stays where it is.
    """
    if isinstance(features, nn.Module):
        network = features
        if weights is not None:
            _fill(name_of(features), network, weights)
        return Backbone(name_of(features), network, network)
    name = str(features)
    library, _, own = name.partition(":")
    if library not in LIBRARIES:
        made = custom.named(name)
        network = made if isinstance(made, nn.Module) else made()
        if not isinstance(network, nn.Module):
            raise _refused(name, f"gives a {type(network).__name__}; it must be an nn.Module")
        if weights is not None:
            _fill(name, network, weights)
        network = network.to(device)
        return Backbone(name, network, network)
    if weights is None:
        raise _refused(name, "needs a file of weights (feature_weights); nothing is downloaded")
    made = {"timm": _timm, "torchvision": _torchvision, "open_clip": _open_clip}[library](own)
    _fill(name, made.network, weights, may_lack_head=True)
    made.network.to(device)
    return made


def fingerprint(backbone: Backbone) -> str:
    """sha256 of a network's class, layers and values."""
    network = backbone.network
    try:
        source = inspect.getsource(type(network))
    except (OSError, TypeError):
        source = ""
    digest = hashlib.sha256(f"{place_of(network)}\n{network!r}\n{source}".encode())
    for name, value in network.state_dict().items():
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        raw = value.detach().cpu().contiguous().flatten()
        digest.update(raw.view(torch.uint8).numpy().data if raw.numel() else b"")
    return digest.hexdigest()


def _timm(name: str) -> Backbone:
    timm = optional_module("timm", "timm", "timm")
    network = timm.create_model(name, pretrained=False, num_classes=0)
    about = network.pretrained_cfg
    call = _as_trained(network, about["mean"], about["std"], about["input_size"][-1])
    return Backbone(f"timm:{name}", network, call)


def _torchvision(name: str) -> Backbone:
    models = optional_module("torchvision.models", "torchvision", "torchvision")
    network = models.get_model(name, weights=None)
    head = next((head for head in HEADS if hasattr(network, head)), None)
    if head is None:
        raise _refused(f"torchvision:{name}", "has no head known here; give the module itself")
    setattr(network, head, nn.Identity())
    return Backbone(f"torchvision:{name}", network, _as_trained(network, *IMAGENET, SIZE))


def _open_clip(name: str) -> Backbone:
    open_clip = optional_module("open_clip", "open_clip", "open-clip")
    network = open_clip.create_model(name, pretrained=None)
    size = network.visual.image_size
    size = size if isinstance(size, int) else size[0]
    call = _as_trained(
        network.encode_image, open_clip.OPENAI_DATASET_MEAN, open_clip.OPENAI_DATASET_STD, size
    )
    return Backbone(f"open_clip:{name}", network, call)


def _as_trained(network: Callable[[Tensor], Any], mean: Any, std: Any, size: int) -> Any:
    """Images of any size, grey or RGB, as a network was trained on them."""

    def call(x: Tensor) -> Any:
        if x.ndim != 4 or x.shape[1] not in (1, 3):
            message = f"this network takes images, grey or RGB, not inputs of shape {x.shape[1:]}"
            raise DataError(message, code="features-input")
        x = x.expand(-1, 3, -1, -1)
        if x.shape[2:] != (size, size):
            x = F.interpolate(x, (size, size), mode="bicubic", antialias=True).clamp(0, 1)
        shape = (3, 1, 1)
        return network((x - x.new_tensor(mean).view(shape)) / x.new_tensor(std).view(shape))

    return call


def _fill(name: str, network: nn.Module, weights: str, *, may_lack_head: bool = False) -> None:
    """Put the values of a file into a network; all its own must be there, and no others but those
    of a head that came off.
    """
    path = Path(weights).expanduser()
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            values: Any = load_file(path)
        else:
            values = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file may raise anything
        message = f"{path} cannot be read as weights ({type(error).__name__}); give a state dict"
        raise DataError(message, code="unreadable-weights", path=path) from error
    values = values.get("state_dict", values) if isinstance(values, Mapping) else values
    if not isinstance(values, Mapping):
        raise _refused(name, f"cannot take {path}: it holds a {type(values).__name__}")
    own = network.state_dict()
    extra = sorted({*values} - {*own})
    if may_lack_head:
        extra = [one for one in extra if one.split(".")[0] not in HEADS]
    missing = sorted({*own} - {*values})
    other = [one for one in own if one in values and values[one].shape != own[one].shape]
    if wrong := [*missing, *extra, *other]:
        raise _refused(
            name,
            f"does not fit {path}: {len(missing)} values are missing, {len(extra)} unknown and"
            f" {len(other)} of another shape, such as {wrong[0]!r}",
        )
    network.load_state_dict({one: values[one] for one in own})


def _refused(name: str, text: str) -> ConfigError:
    return ConfigError(f"features {name!r}: it {text}", code="features", features=name)
