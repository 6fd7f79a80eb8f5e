"""Networks as functions of one flat parameter vector, one file a family, imported on first use."""

from typing import TYPE_CHECKING, Any

from pseudocore.core.registry import lazy_attribute, models

if TYPE_CHECKING:
    from pseudocore.models.alexnet import AlexNet
    from pseudocore.models.convnet import ConvNet, ConvNetWide
    from pseudocore.models.dense import MLP, Linear
    from pseudocore.models.densenet import DenseNet121
    from pseudocore.models.flat import FlatModel
    from pseudocore.models.inception import InceptionV3
    from pseudocore.models.resnet import ResNet10, ResNet18
    from pseudocore.models.vgg import VGG11, VGG16
    from pseudocore.models.wideresnet import WideResNet

register = models.register
"""A decorator that enters a class of another package under a name."""

INDEX = {
    "alexnet": "alexnet:AlexNet",
    "convnet-wide": "convnet:ConvNetWide",
    "convnet3": "convnet:ConvNet",
    "densenet121": "densenet:DenseNet121",
    "inception-v3": "inception:InceptionV3",
    "linear": "dense:Linear",
    "mlp": "dense:MLP",
    "resnet10": "resnet:ResNet10",
    "resnet18": "resnet:ResNet18",
    "vgg11": "vgg:VGG11",
    "vgg16": "vgg:VGG16",
    "wrn-16-8": "wideresnet:WideResNet",
}
"""`module:Class` by name."""

__all__ = [
    "MLP", "VGG11", "VGG16", "AlexNet", "ConvNet", "ConvNetWide", "DenseNet121", "FlatModel",
    "InceptionV3", "Linear", "ResNet10", "ResNet18", "WideResNet", "register",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    return lazy_attribute(__name__, [*INDEX.values(), "flat:FlatModel"], name)


def __dir__() -> list[str]:
    return __all__
