"""Networks as functions of one flat parameter vector; `build` makes one by name for given data."""

from pseudocore.models import convnet, dense
from pseudocore.models.flat import FlatModel

__all__ = ["FlatModel", "convnet", "dense"]
