"""A scikit-learn classifier that learns from a coreset of its training set."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch

from pseudocore import api
from pseudocore.core.types import Coreset, Inference, Method
from pseudocore.estimators.training_set import (
    Array,
    checked,
    of_classes,
    seed_of,
    sklearn,
    validation,
)
from pseudocore.inference.posterior import Posterior

BATCH = 10_000
"""Rows that are predicted at once."""


class CoresetClassifier(sklearn.base.ClassifierMixin, sklearn.base.BaseEstimator):  # type: ignore[misc]
    """Predictions of the posterior on a few points that stand for the training set.

    Args:
        method: Makes the points: a name, or a method such as `methods.VBPC(per_class=1)`.
        per_class: Points per class. Defaults to 10.
        points: Points in all, instead of per class.
        model: The network, as in `reduce`.
        inference: Infers from the points: a name or an object, as in `infer`.
        random_state: Seed of every random stream.
        options: Other fields of the method and the setup, such as `{"num_steps": 500}`.
        inference_options: Fields of the inference, where it is given by name.
        device: "auto", "cpu" or "cuda".

    After `fit`, `coreset_` is the coreset, `posterior_` what was inferred from it and `classes_`
    are the labels. Pickling keeps the coreset, and infers again.
    """

    classes_: Array
    coreset_: Coreset
    posterior_: Posterior

    def __init__(
        self,
        method: str | Method = "herding",
        *,
        per_class: int | None = None,
        points: int | None = None,
        model: Any = None,
        inference: str | Inference | None = None,
        random_state: Any = 0,
        options: Mapping[str, Any] | None = None,
        inference_options: Mapping[str, Any] | None = None,
        device: str = "auto",
    ) -> None:
        self.method = method
        self.per_class = per_class
        self.points = points
        self.model = model
        self.inference = inference
        self.random_state = random_state
        self.options = options
        self.inference_options = inference_options
        self.device = device

    def fit(self, X: Any, y: Any) -> Self:
        """Reduce a training set (n, features) with labels (n,), and infer from the coreset."""
        x, places = checked(self, X, y)
        self._seed = seed_of(self.random_state)
        self.coreset_ = of_classes(self, x, places, self._seed)
        self.posterior_ = self._inferred()
        return self

    def predict_proba(self, X: Any) -> Array:
        """Class probabilities (n, classes), averaged over the posterior."""
        validation.check_is_fitted(self, "coreset_")
        x = validation.validate_data(self, X, dtype=np.float32, reset=False)
        if not hasattr(self, "posterior_"):
            self.posterior_ = self._inferred()
        parts = torch.split(torch.from_numpy(x.copy()), BATCH)
        log_probs = torch.cat([self.posterior_(part).cpu() for part in parts])
        probs: Array = log_probs.double().softmax(1).numpy()
        return probs

    def predict(self, X: Any) -> Array:
        """The likeliest class of each row, (n,)."""
        probs = self.predict_proba(X)
        labels: Array = self.classes_[probs.argmax(1)]
        return labels

    def _inferred(self) -> Posterior:
        return api.infer(
            self.coreset_,
            self.inference,
            model=self.model,
            seed=self._seed,
            device=self.device,
            **(self.inference_options or {}),
        )

    def __getstate__(self) -> dict[str, Any]:
        """All but the posterior, which is functions."""
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name != "posterior_"}
