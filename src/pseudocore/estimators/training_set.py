"""From what scikit-learn passes to `fit` to a coreset."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pseudocore import api
from pseudocore.core.optional import optional_module
from pseudocore.core.types import Coreset, Dataset, Examples

sklearn: Any = optional_module("sklearn", "scikit-learn", "sklearn")
validation: Any = optional_module("sklearn.utils.validation", "scikit-learn", "sklearn")
multiclass: Any = optional_module("sklearn.utils.multiclass", "scikit-learn", "sklearn")

Array = npt.NDArray[Any]


def checked(estimator: Any, X: Any, y: Any) -> tuple[Array, Array]:
    """Rows in float32, and each one's place in `classes_`, which is set."""
    x, y = validation.validate_data(estimator, X, y, dtype=np.float32)
    multiclass.check_classification_targets(y)
    estimator.classes_, places = np.unique(y, return_inverse=True)
    if len(estimator.classes_) < 2:
        raise ValueError(
            f"{type(estimator).__name__} needs samples of at least 2 classes, but y holds 1 class:"
            f" {estimator.classes_[0]}"
        )
    return x, places


def seed_of(random_state: Any) -> int:
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(sklearn.utils.check_random_state(random_state).randint(2**31 - 1))


def of_classes(estimator: Any, x: Array, y: Array, seed: int) -> Coreset:
    """The coreset of rows and places of their classes, and an estimator's budget."""
    examples = Examples(torch.from_numpy(x.copy()), torch.from_numpy(y.astype(np.int64)))
    names = tuple(map(str, estimator.classes_.tolist()))
    data = Dataset("table", examples, examples, len(names), names)  # nothing is tested on it
    budget = {"per_class": estimator.per_class, "points": estimator.points}
    return reduced(estimator, data, budget, seed)


def reduced(estimator: Any, data: Dataset, options: Mapping[str, Any], seed: int) -> Coreset:
    """The coreset of an estimator's method, model and options, and others that are not None."""
    given = {name: value for name, value in options.items() if value is not None}
    run = api.reduce(
        estimator.method,
        data,
        model=estimator.model,
        seed=seed,
        device=estimator.device,
        **given,
        **(estimator.options or {}),
    )
    return run.coreset.to("cpu")
