"""pseudocore turns a training set into a tiny one that carries its posterior.

run = pseudocore.reduce("vbpc", "digits", per_class=1)
print(pseudocore.evaluate(run).table())
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pseudocore import estimators, inference, loggers, methods, models, testing
    from pseudocore.api import ReduceResult, evaluate, infer, load, reduce, train_experts
    from pseudocore.core.errors import PseudocoreError
    from pseudocore.core.problem import Problem
    from pseudocore.core.rng import Rng
    from pseudocore.core.types import Coreset, Dataset, Examples
    from pseudocore.data.dataset import dataset
    from pseudocore.evaluation.evaluate import Evaluation
    from pseudocore.evaluation.fidelity import Fidelity
    from pseudocore.evaluation.ranking import Ranking
    from pseudocore.evaluation.size import Size
    from pseudocore.inference.posterior import Posterior, Prediction
    from pseudocore.selection.arrays import Selection, select
    from pseudocore.workflows import references
    from pseudocore.workflows.distilled import read_distilled
    from pseudocore.workflows.fidelity import fidelity
    from pseudocore.workflows.ranking import ranking
    from pseudocore.workflows.size import size

__version__ = "0.2.0"
__all__ = [
    "Coreset", "Dataset", "Evaluation", "Examples", "Fidelity", "Posterior", "Prediction",
    "Problem", "PseudocoreError", "Ranking", "ReduceResult", "Rng", "Selection", "Size",
    "__version__", "dataset", "estimators", "evaluate", "fidelity", "infer", "inference", "load", "loggers",
    "methods", "models", "ranking", "read_distilled", "reduce", "references", "select", "size",
    "testing", "train_experts",
]  # fmt: skip

_MODULES = {
    "estimators": "pseudocore.estimators",
    "inference": "pseudocore.inference",
    "loggers": "pseudocore.loggers",
    "methods": "pseudocore.methods",
    "models": "pseudocore.models",
    "references": "pseudocore.workflows.references",
    "testing": "pseudocore.testing",
}

_PLACES = {
    "pseudocore.api": ("ReduceResult", "evaluate", "infer", "load", "reduce", "train_experts"),
    "pseudocore.core.errors": ("PseudocoreError",),
    "pseudocore.core.problem": ("Problem",),
    "pseudocore.core.rng": ("Rng",),
    "pseudocore.core.types": ("Coreset", "Dataset", "Examples"),
    "pseudocore.data.dataset": ("dataset",),
    "pseudocore.evaluation.evaluate": ("Evaluation",),
    "pseudocore.evaluation.fidelity": ("Fidelity",),
    "pseudocore.evaluation.ranking": ("Ranking",),
    "pseudocore.evaluation.size": ("Size",),
    "pseudocore.selection.arrays": ("Selection", "select"),
    "pseudocore.workflows.distilled": ("read_distilled",),
    "pseudocore.workflows.fidelity": ("fidelity",),
    "pseudocore.workflows.ranking": ("ranking",),
    "pseudocore.workflows.size": ("size",),
    "pseudocore.inference.posterior": ("Posterior", "Prediction"),
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import pseudocore` takes no time."""
    if name in _MODULES:
        return import_module(_MODULES[name])
    for place, names in _PLACES.items():
        if name in names:
            return getattr(import_module(place), name)
    if name == "experts":
        import warnings

        warnings.warn(
            "pseudocore.experts is deprecated; use train_experts", DeprecationWarning, stacklevel=2
        )
        return import_module("pseudocore.api").train_experts
    raise AttributeError(f"module 'pseudocore' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
