"""What scikit-learn asks of estimators, and that they do what `reduce` and `infer` do."""

import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import pseudocore as pc
from pseudocore.core.errors import ConfigError

CoresetClassifier, CoresetSelector = pc.estimators.CoresetClassifier, pc.estimators.CoresetSelector

LINEAR: dict[str, Any] = {"model": "linear"}


@pytest.mark.filterwarnings("ignore:10 points per class were asked for")
@pytest.mark.filterwarnings("ignore:Skipping check_array_api_input")
@parametrize_with_checks([CoresetSelector(), CoresetClassifier("uniform", **LINEAR)])
def test_they_keep_what_scikit_learn_promises(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def wine() -> tuple[np.ndarray, np.ndarray]:
    x, y = load_wine(return_X_y=True)
    return x, np.array(["barolo", "grignolino", "barbera"])[y]


def by_hand(x: np.ndarray, y: np.ndarray, **options: Any) -> pc.ReduceResult:
    """Labels in their own order: scikit-learn's."""
    _, places = np.unique(y, return_inverse=True)
    return pc.reduce(data=(x, places, x, places), **options)


def test_a_classifier_is_reduce_and_infer(wine: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = wine
    fitted = CoresetClassifier("uniform", per_class=4, random_state=3, **LINEAR).fit(x, y)
    run = by_hand(x, y, method="uniform", per_class=4, seed=3, **LINEAR)
    expected = pc.infer(run.coreset, seed=3).predict(x.astype(np.float32)).probs.numpy()
    np.testing.assert_allclose(fitted.predict_proba(x), expected, rtol=1e-5, atol=1e-7)
    assert fitted.classes_.tolist() == ["barbera", "barolo", "grignolino"]
    assert fitted.coreset_.class_names == ("barbera", "barolo", "grignolino")
    assert (fitted.predict(x) == fitted.classes_[expected.argmax(1)]).all()
    assert fitted.score(x, y) > 0.9


def test_a_selector_is_reduce(wine: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = wine
    fitted = CoresetSelector("uniform", points=12, random_state=np.int64(2)).fit(x, y)
    run = by_hand(x, y, method="uniform", points=12, seed=2)
    assert run.coreset.indices is not None
    assert fitted.indices_.tolist() == run.coreset.indices.tolist()
    assert len(fitted.indices_) == 12
    np.testing.assert_allclose(fitted.weights_, run.coreset.weight, rtol=1e-6)
    assert fitted.weights_.sum() == pytest.approx(len(x))


def test_selected_rows_keep_their_form(wine: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = wine
    frame, labels = pd.DataFrame(x).add_prefix("f"), pd.Series(y, index=range(1000, 1178))
    selector = CoresetSelector(per_class=2)
    few_x, few_y = selector.fit_resample(frame, labels)
    assert few_x.equals(frame.iloc[selector.indices_])
    assert few_y.index.tolist() == (1000 + selector.indices_).tolist()
    assert selector.fit_resample(x, y.tolist())[1] == few_y.tolist()


def test_all_rows_with_their_weights_give_the_fit_on_all(
    wine: tuple[np.ndarray, np.ndarray],
) -> None:
    x, y = StandardScaler().fit_transform(wine[0]), wine[1]
    selector = CoresetSelector("full")
    few_x, few_y = selector.fit_resample(x, y)
    weighted = LogisticRegression().fit(few_x, few_y, sample_weight=selector.weights_)
    np.testing.assert_allclose(weighted.coef_, LogisticRegression().fit(x, y).coef_, atol=1e-3)


def test_in_a_pipeline_and_a_search(wine: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = wine
    steps = make_pipeline(StandardScaler(), CoresetClassifier(**LINEAR))
    search = GridSearchCV(steps, {"coresetclassifier__per_class": [1, 5]}, cv=3).fit(x, y)
    assert search.best_score_ > 0.9
    assert len(search.best_estimator_[-1].coreset_) == 3 * search.best_params_.popitem()[1]


def test_a_pickle_holds_the_coreset_and_infers_again(wine: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = wine
    fitted = CoresetClassifier(per_class=2, **LINEAR).fit(x, y)
    stored = pickle.dumps(fitted)
    again = pickle.loads(stored)
    assert not hasattr(again, "posterior_")
    assert (again.predict_proba(x) == fitted.predict_proba(x)).all()
    assert len(stored) < x.astype(np.float32).nbytes


def test_objects_and_options_pass_through(wine: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = wine
    fitted = CoresetClassifier(
        pc.methods.PSVI(per_class=1, num_steps=2),
        model=torch.nn.Sequential(torch.nn.Linear(13, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3)),
        inference="sgd",
        inference_options={"num_steps": 2},
        options={"preprocess": "none"},
    )
    with pytest.raises(ConfigError) as caught:  # psvi learns small models alone
        fitted.fit(x, y)
    assert caught.value.code == "model-not-supported"
    fitted.set_params(method="uniform", per_class=1).fit(x, y)
    assert fitted.coreset_.provenance["setup"]["preprocess"] == "none"
    assert fitted.posterior_.draws.shape == (1, 13 * 4 + 4 + 4 * 3 + 3)


def test_a_selector_refuses_a_method_that_makes_points(
    wine: tuple[np.ndarray, np.ndarray],
) -> None:
    for method in ("vbpc", pc.methods.VBPC()):
        with pytest.raises(ConfigError, match="method 'vbpc' makes points of its own") as caught:
            CoresetSelector(method).fit(*wine)
        assert (caught.value.code, caught.value.fields["method"]) == ("no-selector", "vbpc")


def test_one_class_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 classes, but y holds 1 class: 7"):
        CoresetClassifier().fit(np.eye(4), np.full(4, 7))


def test_the_example_of_the_page_runs() -> None:
    page = (Path(__file__).parents[3] / "docs" / "api.md").read_text()
    (code,) = re.findall(r"^## scikit-learn\n.*?^```python\n(.*?)^```$", page, re.M | re.S)
    names: dict[str, Any] = {"pc": pc}
    exec(compile(code, "docs/api.md", "exec"), names)
    assert names["classifier"].score(names["x"], names["y"]) > 0.9


def test_random_states_of_scikit_learn(wine: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = wine
    states = [np.random.RandomState(0), np.random.RandomState(0), np.random.RandomState(1)]
    first, same, other = (
        CoresetSelector("uniform", random_state=state).fit(x, y).indices_ for state in states
    )
    assert (first == same).all()
    assert (first != other).any()


def test_without_scikit_learn_there_is_one_sentence() -> None:
    code = (
        "import sys; sys.modules['sklearn'] = None\n"
        "import pseudocore as pc; from pseudocore import *\n"
        "try: pc.estimators.CoresetClassifier\n"
        "except pc.PseudocoreError as error: print(error.code, error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == (
        'missing-package this needs scikit-learn; pip install "pseudocore[sklearn]"'
    )
