"""What scikit-learn asks of a regressor, and that it does what `reduce` and `infer` do."""

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_diabetes
from sklearn.linear_model import Ridge
from sklearn.utils.estimator_checks import parametrize_with_checks

import pseudocore as pc

CoresetRegressor = pc.estimators.CoresetRegressor


@pytest.mark.filterwarnings("ignore:60 points")
@pytest.mark.filterwarnings("ignore:Skipping check_array_api_input")
@parametrize_with_checks([CoresetRegressor("uniform", points=60)])
def test_it_keeps_what_scikit_learn_promises(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


def test_few_points_predict_as_all_data() -> None:
    """Twenty points for eleven parameters: as good as ridge regression on all rows."""
    x, y = load_diabetes(return_X_y=True)
    fitted = CoresetRegressor(points=20).fit(x[:350], y[:350])
    theirs = Ridge(alpha=1e-3).fit(x[:350], y[:350])
    assert abs(fitted.score(x[350:], y[350:]) - theirs.score(x[350:], y[350:])) < 0.02
    mean, sd = fitted.predict(x, return_std=True)
    low, high = (fitted.predict_quantile(x, level) for level in (0.05, 0.95))
    assert 0.85 < ((low <= y) & (y <= high)).mean() < 0.95
    np.testing.assert_allclose((high - low) / sd, 2 * 1.6448536, rtol=1e-6)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_allclose(again.predict(x), mean)


def test_a_given_noise_is_the_likelihoods() -> None:
    x, y = load_diabetes(return_X_y=True)
    fitted = CoresetRegressor("uniform", noise=12.5).fit(x, y)
    assert fitted.coreset_.contract.target["noise"] == 12.5
    with pytest.raises(ValueError, match="every training target of 'table' is the same"):
        fitted.fit(x, np.ones(len(x)))
