"""A scikit-learn regressor that learns from a coreset of its training set."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch

from pseudocore import api
from pseudocore.core.errors import DataError
from pseudocore.core.types import Coreset, Dataset, Examples, Inference, Method
from pseudocore.estimators.training_set import (
    Array,
    reduced,
    seed_of,
    sklearn,
    validation,
)
from pseudocore.inference.posterior import Posterior
from pseudocore.inference.regression import RegressionPosterior

BATCH = 10_000
"""Rows that are predicted at once."""


class CoresetRegressor(sklearn.base.RegressorMixin, sklearn.base.BaseEstimator):  # type: ignore[misc]
    """Predictions of the posterior on a few points that stand for the training set.

    Args:
        method: Makes the points: a name, or a method such as `methods.PSVI(points=20)`.
        points: Points. Defaults to 10.
        model: The network, as in `reduce`. Defaults to linear.
        noise: Standard deviation of an observation. Defaults to one chosen on the training set.
        inference: Infers from the points: a name or an object, as in `infer`. Defaults to
            last-layer-vi, which is exact for a linear network.
        random_state: Seed of every random stream.
        options: Other fields of the method and the setup, such as `{"num_steps": 500}`.
        inference_options: Fields of the inference, where it is given by name.
        device: "auto", "cpu" or "cuda".

    After `fit`, `coreset_` is the coreset and `posterior_` what was inferred from it. Pickling keeps
    the coreset, and infers again.
    """

    coreset_: Coreset
    posterior_: Posterior

    def __init__(
        self,
        method: str | Method = "psvi",
        *,
        points: int | None = None,
        model: Any = "linear",
        noise: float | None = None,
        inference: str | Inference | None = "last-layer-vi",
        random_state: Any = 0,
        options: Mapping[str, Any] | None = None,
        inference_options: Mapping[str, Any] | None = None,
        device: str = "auto",
    ) -> None:
        self.method = method
        self.points = points
        self.model = model
        self.noise = noise
        self.inference = inference
        self.random_state = random_state
        self.options = options
        self.inference_options = inference_options
        self.device = device

    def fit(self, X: Any, y: Any) -> Self:
        """Reduce a training set (n, features) with targets (n,), and infer from the coreset."""
        x, targets = validation.validate_data(
            self, X, y, dtype=np.float32, y_numeric=True, ensure_min_samples=2
        )
        self._seed = seed_of(self.random_state)
        examples = Examples(
            torch.from_numpy(x.copy()), torch.from_numpy(targets.astype(np.float64))[:, None]
        )
        try:
            data = Dataset("table", examples, examples, 1, task="regression")
        except DataError as error:  # scikit-learn's own kind of error
            raise ValueError(str(error)) from error
        given = {"points": self.points, "target_noise": self.noise}
        self.coreset_ = reduced(self, data, given, self._seed)
        self.posterior_ = self._inferred()
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean of each row's target, (n,); with `return_std` its standard deviation beside."""
        found = np.concatenate([self._posterior()(part).numpy() for part in self._parts(X)])
        return (found[:, 0], found[:, 1]) if return_std else found[:, 0]

    def predict_quantile(self, X: Any, level: float) -> Array:
        """What each row's target is below with probability `level`, (n,)."""
        posterior = self._posterior()
        parts = [posterior.predict(part).quantile(level).numpy() for part in self._parts(X)]
        return np.concatenate(parts)

    def _parts(self, X: Any) -> tuple[torch.Tensor, ...]:
        validation.check_is_fitted(self, "coreset_")
        x = validation.validate_data(self, X, dtype=np.float32, reset=False)
        return torch.split(torch.from_numpy(x.copy()), BATCH)

    def _posterior(self) -> Any:
        validation.check_is_fitted(self, "coreset_")
        if "posterior_" not in vars(self):
            self.posterior_ = self._inferred()
        assert isinstance(self.posterior_, RegressionPosterior)
        return self.posterior_

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
