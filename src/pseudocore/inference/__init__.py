"""The inferences, from a coreset to predictions, one file each, imported on first use."""

from typing import TYPE_CHECKING, Any

from pseudocore.core.registry import inferences, lazy_attribute

if TYPE_CHECKING:
    from pseudocore.inference.cyclical import CyclicalSGHMC
    from pseudocore.inference.hmc import HMC
    from pseudocore.inference.langevin import SGLD
    from pseudocore.inference.laplace import Laplace
    from pseudocore.inference.last_layer_vi import LastLayerVI
    from pseudocore.inference.mean_field_vi import MeanFieldVI
    from pseudocore.inference.sgd import SGD, Ensemble
    from pseudocore.inference.sghmc import SGHMC, AlteredSGHMC
    from pseudocore.inference.swag import SWAG

register = inferences.register
"""A decorator that enters a class of another package under a name."""

INDEX = {
    "a-sghmc": "sghmc:AlteredSGHMC",
    "cyclical-sghmc": "cyclical:CyclicalSGHMC",
    "ensemble": "sgd:Ensemble",
    "hmc": "hmc:HMC",
    "laplace": "laplace:Laplace",
    "last-layer-vi": "last_layer_vi:LastLayerVI",
    "mean-field-vi": "mean_field_vi:MeanFieldVI",
    "sgd": "sgd:SGD",
    "sghmc": "sghmc:SGHMC",
    "sgld": "langevin:SGLD",
    "swag": "swag:SWAG",
}
"""`module:Class` by name."""

__all__ = [
    "HMC", "SGD", "SGHMC", "SGLD", "SWAG", "AlteredSGHMC", "CyclicalSGHMC", "Ensemble", "Laplace",
    "LastLayerVI", "MeanFieldVI", "register",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    return lazy_attribute(__name__, INDEX.values(), name)


def __dir__() -> list[str]:
    return __all__
