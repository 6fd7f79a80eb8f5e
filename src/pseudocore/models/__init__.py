"""Networks as functions of one flat parameter vector, one file a family. Importing this package
registers all of them.
"""

import importlib
import pkgutil

from pseudocore.models.flat import FlatModel

__all__ = ["FlatModel"]

for _module in pkgutil.iter_modules(__path__):
    if not _module.ispkg:  # kernels are imported where they run
        importlib.import_module(f"{__name__}.{_module.name}")
