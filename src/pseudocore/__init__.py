"""pseudocore turns a training set into a tiny one that carries its posterior.

coreset = pseudocore.reduce("vbpc", "digits", per_class=1)
pseudocore.evaluate(coreset)["metrics"]["accuracy"]
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pseudocore.api import evaluate, experts, infer, load, reduce
    from pseudocore.core.types import Coreset, Dataset, Examples

__version__ = "0.1.0"
__all__ = [
    "Coreset",
    "Dataset",
    "Examples",
    "__version__",
    "evaluate",
    "experts",
    "infer",
    "load",
    "reduce",
]

_HOMES = dict.fromkeys(("evaluate", "experts", "infer", "load", "reduce"), "pseudocore.api")
_HOMES |= dict.fromkeys(("Coreset", "Dataset", "Examples"), "pseudocore.core.types")


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import pseudocore` is instant and pulls in nothing heavy."""
    if name not in _HOMES:
        raise AttributeError(f"module 'pseudocore' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """What tab completion offers, imported or not."""
    return __all__
