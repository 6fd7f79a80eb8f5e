"""A scikit-learn estimator that selects weighted samples of its training set."""

from collections.abc import Mapping
from typing import Any, Self

from pseudocore.core.errors import ConfigError
from pseudocore.core.registry import methods
from pseudocore.core.types import Coreset, Method, Selector
from pseudocore.estimators.training_set import Array, checked, of_classes, seed_of, sklearn


class CoresetSelector(sklearn.base.BaseEstimator):  # type: ignore[misc]
    """Selects weighted samples of a training set.

    It takes samples away, which no step of a scikit-learn `Pipeline` can; in one of
    imbalanced-learn it is a step, by `fit_resample`.

    Args:
        method: Selects the samples: a name, or a method such as `methods.Herding(per_class=5)`.
        per_class: Samples per class. Defaults to 10.
        points: Samples in all, instead of per class.
        model: The network, for methods that use one, as in `reduce`.
        random_state: Seed of every random stream.
        options: Other fields of the method and the setup.
        device: "auto", "cpu" or "cuda".

    After `fit`, `indices_` are rows of the training set, `weights_` how many rows each of them
    stands for, to be passed on as `sample_weight`, and `coreset_` is the coreset.
    """

    classes_: Array
    coreset_: Coreset
    indices_: Array
    weights_: Array

    def __init__(
        self,
        method: str | Method = "herding",
        *,
        per_class: int | None = None,
        points: int | None = None,
        model: Any = None,
        random_state: Any = 0,
        options: Mapping[str, Any] | None = None,
        device: str = "auto",
    ) -> None:
        self.method = method
        self.per_class = per_class
        self.points = points
        self.model = model
        self.random_state = random_state
        self.options = options
        self.device = device

    def fit(self, X: Any, y: Any) -> Self:
        """Select from a training set (n, features) with labels (n,)."""
        x, places = checked(self, X, y)
        _check_selects(self.method)
        coreset = of_classes(self, x, places, seed_of(self.random_state))
        assert coreset.indices is not None
        self.coreset_ = coreset
        self.indices_ = coreset.indices.numpy()
        self.weights_ = coreset.weight.double().numpy()
        return self

    def fit_resample(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Select, and return the selected rows of `X` and `y`, in the form they have."""
        self.fit(X, y)
        return _rows(X, self.indices_), _rows(y, self.indices_)


def _check_selects(method: Any) -> None:
    made = methods[method].make if isinstance(method, str) else type(method)
    if not issubclass(made, Selector):
        name = method if isinstance(method, str) else methods.name_of(method)
        raise ConfigError(
            f"method {name!r} makes points of its own, and CoresetSelector selects samples; take a"
            " method of the kind select, as `pseudocore methods` lists them",
            code="no-selector",
            method=name,
        )


def _rows(values: Any, index: Array) -> Any:
    if hasattr(values, "iloc"):
        return values.iloc[index]
    return values[index] if hasattr(values, "shape") else [values[place] for place in index]
