"""Lines that no other test notices when they are broken: each here is checked alone."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pseudocore.core.problem import Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.tree import flatten
from pseudocore.methods.condense.dc import DC
from pseudocore.methods.condense.kip import KIP
from pseudocore.methods.condense.ld import LabelDistillationRidge
from pseudocore.methods.select import adacore, gradmatch
from pseudocore.methods.select.craig import CRAIG
from pseudocore.objectives import class_matching, distances, pool
from pseudocore.objectives.class_matching import ClassLoss
from pseudocore.selection import facility, facility_selection
from pseudocore.selection.last_layer_gradients import LastLayer
from pseudocore.testing.problems import small_problem


def test_stochastic_greedy_takes_nothing_twice() -> None:
    """Nearly all of few points, each chosen among one or two random ones."""
    x = Rng(0)("x").normal(12, 2, dtype=torch.float64)
    rows = facility.from_matrix(torch.cdist(x, x).max() - torch.cdist(x, x))
    for seed in range(20):
        chosen = facility.facility_location(rows, 12, 11, epsilon=0.5, rng=Rng(seed))
        assert len(set(chosen.tolist())) == 11


def test_points_weigh_their_class_over_their_number() -> None:
    problem = small_problem(imbalanced=True)
    counts = problem.data.class_counts.tolist()
    for method in ("uniform", "forgetting"):
        coreset = methods[method].make(per_class=2).select(problem, Rng(0))
        weight = [size / 2 for size in counts for _ in range(2)]
        assert coreset.weight.tolist() == weight


def test_both_sides_of_dc_are_normalised_by_real_images_of_all_classes() -> None:
    problem, size = small_problem(norm="batch"), 5
    method = DC(per_class=2, batch_size=size)
    state, rng = method.init(problem, Rng(0)), Rng(1)
    _, info = method.step(problem, state, rng)
    batches = class_matching.draw(problem, state.theta, size, rng("batch")).batches
    everyone, _ = problem.batch(torch.cat(batches))
    real = problem.model.statistics(state.theta, everyone)
    own = problem.model.statistics(state.theta, state.images.x)

    def mismatch(of_real: Any, of_own: Any) -> float:
        total = 0.0
        for label, images in enumerate(state.images.x.split(2)):
            sides = (problem.batch(batches[label])[0], of_real), (images, of_own)
            slopes = [
                class_matching.slope(ClassLoss(problem, label, statistics), state.theta, x)[0]
                for x, statistics in sides
            ]
            total += float(distances.between("cosine", *slopes))
        return total

    assert float(info.loss) == pytest.approx(mismatch(real, real), rel=1e-5)
    for other in (mismatch(real, own), mismatch(own, own), mismatch(own, real)):
        assert float(info.loss) != pytest.approx(other, rel=1e-3)


def test_networks_of_ld_rr_are_trained_on_the_labels_of_the_step() -> None:
    problem = small_problem()
    method = LabelDistillationRidge(per_class=2, batch_size=16, pool_size=2, label_lr=0.5)
    state, rng = method.init(problem, Rng(0)), Rng(1)
    after, _ = method.step(problem, state, rng)
    x, _ = problem.batch(state.indices)

    def trained_on(y: Tensor) -> Tensor:
        place = pool.pick(state.pool, rng("network"))
        options: Any = {"step_size": method.pool_lr, "max_age": method.max_age}
        found = pool.advance(state.pool, place, problem, x, y, rng("fresh"), **options)
        return found.theta

    assert torch.equal(after.pool.theta, trained_on(after.learned.y))
    assert not torch.equal(after.pool.theta, trained_on(state.learned.y))


def test_step_sizes_of_kip_fall_along_a_cosine() -> None:
    problem = small_problem()
    method = KIP(per_class=2, batch_size=16, num_steps=8, num_networks=1)
    state = method.init(problem, Rng(0))
    changes = []
    for step in (0.0, 4.0):
        after, _ = method.step(problem, state._replace(step=torch.tensor(step)), Rng(1))
        pairs = zip(flatten(after.learned).values(), flatten(state.learned).values(), strict=True)
        changes.append([one.double() - other.double() for one, other in pairs])
    for whole, half in zip(*changes, strict=True):
        torch.testing.assert_close(half, whole / 2, rtol=1e-3, atol=1e-7)
        assert whole.abs().max() > 1e-4


def test_of_a_large_group_random_candidates_cover_a_random_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(facility, "ENTRIES", 8 * 8)
    seen: list[tuple[int, list[int]]] = []
    original = facility.from_distance

    def spy(distance: Any, n: int, farthest: float, **options: Any) -> facility.Rows:
        references = options.get("references")
        seen.append((n, [] if references is None else references.tolist()))
        return original(distance, n, farthest, **options)

    monkeypatch.setattr(facility_selection.facility, "from_distance", spy)
    problem = small_problem()
    method = CRAIG(per_class=2, pretrain_epochs=1, weighting="mass")
    coreset = method.select(problem, Rng(0))
    assert [n for n, _ in seen] == [8] * 10  # of 12 in a class
    assert all(references == [] for _, references in seen)  # 8 × 8 fit
    members = [indices.tolist() for indices in problem.class_indices]
    found = {
        members[label].index(index)
        for seed in range(4)
        for place, index in enumerate(method.select(problem, Rng(seed)).indices.tolist())  # type: ignore[union-attr]
        for label in [place // 2]
    }
    assert max(found) >= 8  # not the first ones of the class
    seen.clear()
    replace(method, per_class=3).select(problem, Rng(0))  # four candidates for each point: all
    assert [n for n, _ in seen] == [12] * 10
    assert {len(references) for _, references in seen} == {64 // 12}
    assert all(len(set(references)) == len(references) for _, references in seen)
    assert len({tuple(references) for _, references in seen}) > 1
    seen.clear()
    exact = replace(method, exact=True).select(problem, Rng(0))
    assert seen == [(12, [])] * 10
    assert exact.indices is not None
    assert coreset.indices is not None
    assert exact.indices.tolist() != coreset.indices.tolist()


def as_seen(problem: Problem, p: Tensor) -> LastLayer:
    """A last layer of random features that predicts the probabilities p (n, classes)."""
    features = Rng(3).normal(problem.num_train, 4)
    return LastLayer(features, p.log(), problem.train_y)


def test_gradmatch_shares_the_class_where_every_gradient_is_zero(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = small_problem()
    certain = torch.eye(10)[problem.train_y]
    monkeypatch.setattr(gradmatch, "extract_last_layer", lambda *_: as_seen(problem, certain))
    for weighting in ("scaled", "learned"):
        method = gradmatch.GradMatch(per_class=3, weighting=weighting)  # type: ignore[arg-type]
        coreset = method.select(problem, Rng(0))
        assert coreset.weight.tolist() == pytest.approx([4.0] * 30)  # 12 a class, by three
        assert len(set(coreset.indices.tolist())) == 30  # type: ignore[union-attr]


@pytest.mark.filterwarnings("ignore:.*labels are noisy:UserWarning")
def test_adacore_without_any_curvature_is_facility_location_of_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A network that is certain, and wrong of some."""
    problem = small_problem()
    wrong = (problem.train_y + (torch.arange(120) % 3 == 0)) % 10
    layer = as_seen(problem, torch.eye(10)[wrong])
    monkeypatch.setattr(adacore, "extract_last_layer", lambda *_: layer)
    monkeypatch.setattr("pseudocore.methods.select.craig.extract_last_layer", lambda *_: layer)
    chosen = adacore.AdaCore(per_class=3).select(problem, Rng(0)).indices
    same = CRAIG(per_class=3).select(problem, Rng(0)).indices
    assert chosen is not None
    assert same is not None
    assert chosen.tolist() == same.tolist()
