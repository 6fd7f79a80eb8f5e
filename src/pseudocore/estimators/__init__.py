"""scikit-learn estimators on coresets, imported on first use: `pip install "pseudocore[sklearn]"`."""

from typing import TYPE_CHECKING, Any

from pseudocore.core.registry import lazy_attribute

if TYPE_CHECKING:
    from pseudocore.estimators.classifier import CoresetClassifier
    from pseudocore.estimators.regressor import CoresetRegressor
    from pseudocore.estimators.selector import CoresetSelector

__all__ = ["CoresetClassifier", "CoresetRegressor", "CoresetSelector"]

_PLACES = (
    "classifier:CoresetClassifier",
    "regressor:CoresetRegressor",
    "selector:CoresetSelector",
)


def __getattr__(name: str) -> Any:
    return lazy_attribute(__name__, _PLACES, name)


def __dir__() -> list[str]:
    return __all__
