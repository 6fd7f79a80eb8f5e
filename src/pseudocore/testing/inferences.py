"""What every inference owes its users."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from pseudocore import api
from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Problem
from pseudocore.core.registry import inferences
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.testing.problems import Targets, small_coreset
from pseudocore.testing.suite import Suite, emulate_capture, scrambled_globals

TARGETS: tuple[Targets, ...] = ("labels", "probabilities", "outputs")


class InferenceConformance(Suite):
    """Checks of a registered inference; subclass it in a test module and name the inference.

    ```python
    class TestMine(InferenceConformance):
        inference = Mine
    ```
    """

    inference: ClassVar[type[Any]]
    """The inference's class."""

    registry = inferences
    beside = (api.evaluate, api.infer)

    def test_predictions_are_log_probabilities(self) -> None:
        """For every kind of target, weighted or not, in both types."""
        for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
            problem = self.problem(dtype=dtype)
            for targets in TARGETS:
                for weighted in (False, True):
                    points = small_coreset(problem, targets, weighted=weighted)
                    log_probs = self.predict(problem, points)
                    what = f"predictions from {targets} in {dtype}"
                    assert log_probs.shape == (len(problem.data.test.y), problem.num_classes), what
                    assert log_probs.dtype == dtype, f"{what} are {log_probs.dtype}"
                    assert log_probs.isfinite().all(), f"{what} are not finite"
                    excess = float(log_probs.logsumexp(1).abs().max())
                    assert excess < tolerance, f"{what} do not sum to 1: {excess:.3g}"
                    assert not log_probs.requires_grad, f"{what} require a gradient"

    def test_same_seed_same_bits(self) -> None:
        with scrambled_globals(1):
            first = self.predict()
        with scrambled_globals(2):
            second = self.predict()
        assert torch.equal(first, second), "the same seed gave other predictions"
        same = torch.equal(self.predict(seed=1), first)
        assert same == self.deterministic, f"deterministic = {self.deterministic} is wrong"

    def test_its_steps_can_be_captured(self) -> None:
        """Those it hands to a `StepRunner`: on a GPU they become a graph."""
        for targets in TARGETS:
            points = small_coreset(self.problem(), targets)
            plain = self.predict(points=points)
            with emulate_capture():
                captured = self.predict(points=points)
            assert torch.equal(captured, plain), f"captured steps on {targets} predict otherwise"

    def test_weights_and_labels_count(self) -> None:
        plain, problem = self.predict(), self.problem()
        points = small_coreset(problem)
        weighted = small_coreset(problem, weighted=True)
        relabelled = dataclasses.replace(points, y=(points.y + 1) % problem.num_classes)
        for what, changed in {"weights": weighted, "labels": relabelled}.items():
            difference = float((plain - self.predict(points=changed)).abs().max())
            assert difference > 1e-4, f"{what} changed nothing"

    def test_a_prediction_does_not_depend_on_the_others_in_its_batch(self) -> None:
        """Batch norm must normalise a test point by the coreset, never by other test points."""
        for norm in ("instance", "batch", "none"):
            problem = self.problem(norm=norm, dtype=torch.float64)
            fitted, x = self.fit(problem), problem.data.test.x
            whole = fitted(x)
            for part in (slice(1), slice(10, 20)):
                close = torch.allclose(fitted(x[part].flip(0)), whole[part].flip(0), 1e-9, 1e-11)
                assert close, f"with {norm} norm a prediction depends on the others"

    def test_predictions_depend_on_the_pixels_alone(self) -> None:
        """Given as bytes or as floats, and whatever was predicted before."""
        problem = self.problem()
        fitted, x = self.fit(problem), problem.data.test.x
        first = fitted(x)
        assert torch.equal(fitted(x.float() / 255), first), "bytes and floats differ"
        fitted(problem.data.train.x[:7])
        assert torch.equal(fitted(x), first), "a second prediction differs from the first"

    def test_coresets_smaller_than_a_batch(self) -> None:
        points = small_coreset(self.problem(), weighted=True)
        changes: Any = {"batch_size": len(points)} if "batch_size" in self.names() else {}
        first, second = (self.predict(points=points, **changes) for _ in range(2))
        assert first.isfinite().all()
        assert torch.equal(first, second)

    def test_one_point(self) -> None:
        points = small_coreset(self.problem())
        one = Coreset(points.x[:1], points.y[:1], points.weight[:1])
        assert self.predict(points=one).isfinite().all()

    def test_the_coreset_and_the_data_are_left_as_they_were(self) -> None:
        problem = self.problem()
        points = small_coreset(problem, "outputs", weighted=True)
        held = (points.x, points.y, points.weight, *problem.data.train, *problem.data.test)
        before = [tensor.clone() for tensor in held]
        self.predict(problem, points)
        assert all(map(torch.equal, before, held)), "the inference wrote to its inputs"

    def test_augmentation_is_followed(self) -> None:
        """An inference that trains does so on augmented points when the problem has some."""
        noisy = self.problem(augment=lambda x, rng: x + 0.3 * rng.normal(*x.shape))
        augmented = self.predict(noisy)
        assert augmented.isfinite().all()
        assert not torch.equal(self.predict(), augmented), "the augmentation changed nothing"

    def test_unknown_options_are_refused(self) -> None:
        import pytest

        name = inferences.name_of(self.make())
        with pytest.raises(ConfigError, match=f"{name}: unknown option 'num_step'"):
            api.infer(small_coreset(self.problem()), name, problem=self.problem(), num_step=3)

    def result(self, options: Mapping[str, Any], problem: Mapping[str, Any]) -> Any:
        small = self.problem(**problem)
        return self.predict(small, small_coreset(small, weighted=True), **options).tolist()

    def fit(
        self,
        problem: Problem | None = None,
        points: Coreset | None = None,
        seed: int = 0,
        **changes: Any,
    ) -> Any:
        problem = problem or self.problem()
        return self.make(**changes).fit(problem, points or small_coreset(problem), Rng(seed))

    def predict(
        self, problem: Problem | None = None, points: Coreset | None = None, **changes: Any
    ) -> Tensor:
        """Log-probabilities of the test images."""
        problem = problem or self.problem()
        log_probs: Tensor = self.fit(problem, points, **changes)(problem.data.test.x)
        return log_probs
