"""Matching losses and their pixel gradients against finite differences of the objectives written
out, and against numbers by hand.
"""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy

from pseudocore.core.errors import ConfigError, DataError
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Dataset, Examples
from pseudocore.data import augment
from pseudocore.data import preprocessing as whiten
from pseudocore.methods.condense.cafe import CAFE
from pseudocore.methods.condense.dc import DC, DSA
from pseudocore.methods.condense.dm import DM
from pseudocore.methods.condense.lcmat_c import LCMatC
from pseudocore.models.convnet import ConvNet
from pseudocore.models.dense import Linear
from pseudocore.models.flat import FlatModel
from pseudocore.objectives import class_matching
from pseudocore.objectives.distances import between
from pseudocore.objectives.image_sgd import ImagesState
from pseudocore.runtime import autodiff
from pseudocore.runtime.loop import run
from pseudocore.selection.last_layer_gradients import LastLayer, gradient_variance

MakeProblem = Callable[..., Problem]
Differentiate = Callable[[Callable[[Tensor], float], Tensor], Tensor]

BATCH = 7
SMALL: dict[str, Any] = {"per_class": 2, "batch_size": BATCH}
STEP = Rng(11)("step", 0)


class Smooth:
    """Two hidden layers without kinks, which finite differences would stumble over."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> FlatModel:
        body = nn.Sequential(nn.Linear(math.prod(shape), 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh())
        return FlatModel(body, 4, num_classes)


SHAPES = [(5, 6), (5,), (4, 5), (4,), (3, 4), (3,)]
"""Of the parameters of `Smooth` on six features and three classes."""


@pytest.fixture
def problem(make_problem: MakeProblem) -> Problem:
    """Three classes of fifteen points, which an augmentation drawn from the stream stretches."""
    return replace(make_problem(Smooth()), augment=stretched)


def stretched(x: Tensor, rng: Rng) -> Tensor:
    return x * (1 + 0.3 * rng.normal(x.shape[1], dtype=x.dtype))


def pieces(theta: Tensor) -> list[Tensor]:
    parts = torch.split(theta, [math.prod(shape) for shape in SHAPES])
    return [part.view(shape) for part, shape in zip(parts, SHAPES, strict=True)]


def hidden(theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Both hidden layers and the logits."""
    w1, b1, w2, b2, w3, b3 = pieces(theta)
    first = (x @ w1.T + b1).tanh()
    second = (first @ w2.T + b2).tanh()
    return first, second, second @ w3.T + b3


def real(problem: Problem, label: int) -> Tensor:
    """What STEP draws of a class, as the network is shown it."""
    chance = STEP("batch").uniform(problem.num_train, dtype=torch.float64)
    members = sorted(problem.class_indices[label].tolist(), key=lambda index: float(chance[index]))
    return stretched(problem.batch(torch.tensor(members[:BATCH]))[0], STEP("augment", label))


def gradient(theta: Tensor, x: Tensor, label: int) -> list[Tensor]:
    theta = theta.clone().requires_grad_()
    return pieces(
        torch.autograd.grad(
            cross_entropy(hidden(theta, x)[2], torch.full((len(x),), label)), theta
        )[0]
    )


def last_layer_variance(theta: Tensor, x: Tensor, label: int) -> Tensor:
    """Eq. (14), one example's gradient at a time."""
    each = [
        torch.cat([part.flatten() for part in gradient(theta, point[None], label)[-2:]])
        for point in x
    ]
    return torch.stack(each).var(0, correction=1)


def written_out(kind: str, one: list[Tensor], other: list[Tensor]) -> Tensor:
    matrices = [(a, b) for a, b in zip(one, other, strict=True) if a.ndim == 2]
    if kind == "cosine":
        return sum(
            1 - cosine_similarity(a[row], b[row], dim=0)
            for a, b in matrices
            for row in range(len(a))
        )
    if kind in ("mse", "squares"):
        return sum((a - b).square().sum() for a, b in matrices) / (
            sum(a.numel() for a, _ in matrices) if kind == "mse" else 1
        )
    return sum((a - b).square().sum() for a, b in zip(one, other, strict=True)).sqrt()


def by_class(x: Tensor, score: Callable[[Tensor, int], Tensor]) -> float:
    """The sum over classes of a score of their pseudo-images, as the network is shown them."""
    return float(
        sum(
            score(stretched(x[2 * label : 2 * label + 2], STEP("augment", label)), label)
            for label in range(3)
        )
    )


# --- losses and pixel gradients


@pytest.mark.parametrize("distance", ["cosine", "mse", "squares", "l2"])
@pytest.mark.parametrize("method", [DC, DSA])
def test_gradient_matching(
    problem: Problem, differentiate: Differentiate, method: Any, distance: Any
) -> None:
    method = method(**SMALL, distance=distance, image_lr=0.3)
    state = method.init(problem, Rng(0))
    targets = [gradient(state.theta, real(problem, label), label) for label in range(3)]

    def objective(x: Tensor) -> float:
        return by_class(
            x,
            lambda own, label: written_out(
                distance, targets[label], gradient(state.theta, own, label)
            ),
        )

    after, info = method.step(problem, state, STEP)
    torch.testing.assert_close(
        after.images.velocity, differentiate(objective, state.images.x), rtol=1e-7, atol=1e-10
    )
    assert float(info.loss) == pytest.approx(objective(state.images.x), rel=1e-12)
    torch.testing.assert_close(after.images.x, state.images.x - 0.3 * after.images.velocity)
    again, _ = method.step(problem, after, STEP)
    slope = differentiate(objective_at(problem, distance, after.theta), after.images.x)
    torch.testing.assert_close(
        again.images.velocity, 0.5 * after.images.velocity + slope, rtol=1e-6, atol=1e-9
    )


def objective_at(problem: Problem, distance: str, theta: Tensor) -> Callable[[Tensor], float]:
    targets = [gradient(theta, real(problem, label), label) for label in range(3)]
    return lambda x: by_class(
        x, lambda own, label: written_out(distance, targets[label], gradient(theta, own, label))
    )


@pytest.mark.parametrize("distance", ["cosine", "mse", "squares", "l2"])
def test_curvature_matching_is_equation_15(
    problem: Problem, differentiate: Differentiate, distance: Any
) -> None:
    method = LCMatC(**SMALL, distance=distance, rho=0.7)
    state = method.init(problem, Rng(0))
    targets = [gradient(state.theta, real(problem, label), label) for label in range(3)]
    spreads = [last_layer_variance(state.theta, real(problem, label), label) for label in range(3)]

    def score(own: Tensor, label: int) -> Tensor:
        slopes = written_out(distance, targets[label], gradient(state.theta, own, label))
        return (
            slopes
            + 0.5
            * 0.7
            * (spreads[label] - last_layer_variance(state.theta, own, label)).abs().sum()
        )

    after, info = method.step(problem, state, STEP)
    assert float(info.loss) == pytest.approx(by_class(state.images.x, score), rel=1e-12)
    torch.testing.assert_close(
        after.images.velocity,
        differentiate(lambda x: by_class(x, score), state.images.x),
        rtol=1e-7,
        atol=1e-10,
    )


def test_mean_features(problem: Problem, differentiate: Differentiate) -> None:
    method = DM(**SMALL)
    state = method.init(problem, Rng(0))
    theta = problem.model.init(STEP("network"), dtype=torch.float64)

    def objective(x: Tensor) -> float:
        def score(own: Tensor, label: int) -> Tensor:
            return (
                (hidden(theta, own)[1].mean(0) - hidden(theta, real(problem, label))[1].mean(0))
                .square()
                .sum()
            )

        return by_class(x, score)

    after, info = method.step(problem, state, STEP)
    assert float(info.loss) == pytest.approx(objective(state.x), rel=1e-12)
    torch.testing.assert_close(
        after.velocity, differentiate(objective, state.x), rtol=1e-7, atol=1e-10
    )


def test_aligned_features_with_discrimination(
    problem: Problem, differentiate: Differentiate
) -> None:
    method = CAFE(**SMALL, discrimination=0.8)
    state = method.init(problem, Rng(0))
    seen = [hidden(state.theta, real(problem, label)) for label in range(3)]
    labels = torch.arange(3).repeat_interleave(BATCH)

    def objective(x: Tensor) -> float:
        own = [
            hidden(state.theta, stretched(x[2 * label : 2 * label + 2], STEP("augment", label)))
            for label in range(3)
        ]
        apart = sum(
            (own[label][layer].mean(0) - seen[label][layer].mean(0)).square().sum()
            for label in range(3)
            for layer in range(2)
        )
        scores = (
            torch.cat([features for _, features, _ in seen])
            @ torch.stack([features.mean(0) for _, features, _ in own]).T
        )
        return float(apart + 0.8 * cross_entropy(scores, labels))

    after, info = method.step(problem, state, STEP)
    assert float(info.loss) == pytest.approx(objective(state.images.x), rel=1e-12)
    torch.testing.assert_close(
        after.images.velocity, differentiate(objective, state.images.x), rtol=1e-7, atol=1e-10
    )


def test_mean_features_by_hand() -> None:
    """Features are the points themselves; two real points and one pseudo-point a class, in the
    plane.
    """
    x, y = (
        torch.tensor([[0.0, 0.0], [10.0, 0.0], [2.0, 4.0], [10.0, 2.0]]),
        torch.tensor([0, 1, 0, 1]),
    )
    data = Dataset("plane", Examples(x, y), Examples(x, y), 2)
    problem = Problem(data, Linear().build((2,), 2), whiten.make("none", data))
    points = torch.tensor([[3.0, 2.0], [10.0, 0.0]])  # the classes' means are (1, 2) and (10, 1)
    state = ImagesState(points, torch.tensor([0, 1]), torch.zeros(2, 2))
    after, info = DM(per_class=1, image_lr=0.25).step(problem, state, STEP)
    assert float(info.loss) == 4 + 1
    assert after.velocity.tolist() == [[4, 0], [0, -2]]
    assert after.x.tolist() == [[2, 2], [10, 0.5]]


# --- distances and variances


@pytest.mark.parametrize("kind", ["cosine", "mse", "squares", "l2"])
def test_distances_by_hand(kind: Any) -> None:
    one = [torch.tensor([[3.0, 4.0], [1.0, 0.0]]), torch.tensor([1.0, 1.0])]
    other = [torch.tensor([[4.0, 3.0], [0.0, 2.0]]), torch.tensor([1.0, 3.0])]
    assert float(between(kind, one, other)) == pytest.approx(
        {"cosine": 1 / 25 + 1, "mse": 7 / 4, "squares": 7, "l2": math.sqrt(11)}[kind]
    )
    assert float(between(kind, one, one)) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("side", [0, 1])
def test_a_node_without_gradient_counts_one_and_pulls_at_nothing(side: int) -> None:
    rows = [torch.tensor([[3.0, 4.0], [1.0, 2.0]]), torch.tensor([[1.0, 0.0], [0.0, 0.0]])]
    one, other = (rows[side].requires_grad_(), rows[1 - side].requires_grad_())
    loss = between("cosine", [one], [other])
    loss.backward()
    assert loss.item() == pytest.approx(2 - 3 / 5)
    for value in (one.grad, other.grad):
        assert value is not None
        assert value.isfinite().all()
        assert not value[1].any()


def test_filters_are_nodes() -> None:
    one, other = (STEP(name).normal(3, 2, 5, 5, dtype=torch.float64) for name in ("one", "other"))
    expected = sum(
        1 - cosine_similarity(a.flatten(), b.flatten(), dim=0)
        for a, b in zip(one, other, strict=True)
    )
    torch.testing.assert_close(between("cosine", [one], [other]), expected)


def test_gradient_variance_is_that_of_single_gradients(
    problem: Problem, differentiate: Differentiate
) -> None:
    """Labels of all classes, value and derivative in the features."""
    theta = problem.model.init(Rng(3), dtype=torch.float64)
    *_, weight, bias = pieces(theta)
    x, y = problem.batch(torch.arange(9))
    features = hidden(theta, x)[1]

    def closed(features: Tensor) -> Tensor:
        return gradient_variance(
            LastLayer(features, (features @ weight.T + bias).log_softmax(1), y)
        )

    each = torch.stack(
        [
            torch.cat([p.flatten() for p in gradient(theta, x[i : i + 1], int(y[i]))[-2:]])
            for i in range(9)
        ]
    )
    expected = each.var(0, correction=1)
    torch.testing.assert_close(closed(features)[:, :-1].flatten(), expected[:12])
    torch.testing.assert_close(closed(features)[:, -1], expected[12:])
    direction = STEP.normal(3, 5, dtype=torch.float64)
    slope = torch.func.grad(lambda features: (direction * closed(features)).sum())(features)
    torch.testing.assert_close(
        slope,
        differentiate(lambda f: float((direction * closed(f)).sum()), features),
        rtol=1e-7,
        atol=1e-10,
    )


def test_one_example_has_no_variance(problem: Problem) -> None:
    layer = LastLayer(
        torch.randn(1, 4, generator=Rng(0).generator()),
        torch.full((1, 3), -math.log(3)),
        torch.tensor([1]),
    )
    assert gradient_variance(layer).abs().max() < 1e-6
    with_curvature, without = (
        LCMatC(per_class=1, num_steps=2, rho=rho, max_age=1) for rho in (0.5, 0.0)
    )
    moved, plain = (run(method, problem, seed=0).coreset.x for method in (with_curvature, without))
    torch.testing.assert_close(moved, plain, rtol=1e-12, atol=1e-12)


def test_without_curvature_it_is_gradient_matching(problem: Problem) -> None:
    """Under fresh networks, where nothing is trained: bit for bit."""
    options: dict[str, Any] = {**SMALL, "num_steps": 4, "max_age": 1, "initial": "noise"}
    ours, theirs = (
        run(method, problem, seed=0).coreset.x
        for method in (LCMatC(**options, rho=0.0), DC(**options))
    )
    assert torch.equal(ours, theirs)
    assert not torch.equal(ours, run(LCMatC(**options, rho=0.1), problem, seed=0).coreset.x)


# --- networks


@pytest.mark.parametrize(
    "method",
    [DC(**SMALL, num_inner_steps=3, inner_lr=0.2), CAFE(**SMALL, num_inner_steps=3, inner_lr=0.2)],
)
def test_the_network_is_trained_on_the_pseudo_images(problem: Problem, method: Any) -> None:
    state = method.init(problem, Rng(0))
    after, _ = method.step(problem, state, STEP)
    theta = state.theta
    for number in range(3):
        theta = theta.detach().requires_grad_()
        shown = stretched(after.images.x, STEP("inner")("view", number))
        theta = (
            theta
            - 0.2
            * torch.autograd.grad(cross_entropy(hidden(theta, shown)[2], after.images.y), theta)[0]
        )
    torch.testing.assert_close(after.theta, theta.detach(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("momentum", [0, 0.7])
def test_the_network_of_curvature_matching_is_trained_on_the_data(
    problem: Problem, momentum: float
) -> None:
    method = LCMatC(
        **SMALL,
        num_inner_steps=3,
        inner_lr=0.2,
        inner_momentum=momentum,
        inner_batch_size=8,
        max_age=2,
    )
    state = method.init(problem, Rng(0))
    theta = state.theta.clone().requires_grad_()
    sgd = torch.optim.SGD([theta], 0.2, momentum)
    after, _ = method.step(problem, state, STEP)
    for number in range(3):
        x, y = problem.batch(STEP("inner")("batch", number).integers(problem.num_train, 8))
        sgd.zero_grad()
        cross_entropy(
            hidden(theta, stretched(x, STEP("inner")("augment", number)))[2], y
        ).backward()
        sgd.step()
    torch.testing.assert_close(after.theta, theta.detach(), rtol=1e-10, atol=1e-12)
    assert after.velocity.any()
    assert not method.step(problem, after, STEP)[0].velocity.any()  # a fresh network is at rest


@pytest.mark.parametrize("make", [DC, CAFE, LCMatC])
def test_a_network_lives_for_as_many_steps_as_it_should(problem: Problem, make: Any) -> None:
    method = make(**SMALL, max_age=3, num_inner_steps=1)
    state, ages, fresh = method.init(problem, Rng(0)), [], []
    for number in range(7):
        rng = Rng(0)("step", number)
        state, _ = method.step(problem, state, rng)
        ages.append(int(state.age))
        fresh.append(
            torch.equal(state.theta, problem.model.init(rng("fresh"), dtype=torch.float64))
        )
    assert ages == [1, 2, 0, 1, 2, 0, 1]
    assert fresh == [age == 0 for age in ages]


# --- inputs


def test_a_batch_is_drawn_without_replacement_and_is_all_of_a_small_class() -> None:
    y = torch.tensor([0] * 5 + [1] * 40 + [2] * 12)[Rng(0).permutation(57)]
    x = torch.arange(57.0)[:, None].expand(57, 2).contiguous()
    data = Dataset("uneven", Examples(x, y), Examples(x, y), 3)
    problem = Problem(data, Linear().build((2,), 3), whiten.make("none", data))
    theta, seen = problem.model.init(Rng(0)), torch.zeros(57)
    for number in range(200):
        batches = class_matching.draw(problem, theta, 10, Rng(0)(number)).batches
        assert [len(batch) for batch in batches] == [5, 10, 10]
        for label, batch in enumerate(batches):
            assert len(set(batch.tolist())) == len(batch)
            assert (y[batch] == label).all()
            seen[batch] += 1
    assert (seen[y == 0] == 200).all()
    share = seen / 200
    assert (share[y == 1] - 10 / 40).abs().max() < 4 * math.sqrt(0.25 * 0.75 / 200)
    assert (share[y == 2] - 10 / 12).abs().max() < 4 * math.sqrt(10 / 12 * 2 / 12 / 200)


def test_batch_norm_sees_all_classes_alike(make_problem: MakeProblem) -> None:
    """A dark class normalised by itself would look like a bright one: its features must be those
    under all classes' statistics.
    """
    y = torch.arange(20) % 2
    x = Rng(0).normal(20, 1, 4, 4, dtype=torch.float64) + 5.0 * y[:, None, None, None]
    data = Dataset("dark and bright", Examples(x, y), Examples(x, y), 2)
    model = ConvNet(width=3, depth=1, norm="batch").build((1, 4, 4), 2)
    problem = Problem(
        data, model, whiten.make("none", data, dtype=torch.float64), dtype=torch.float64
    )
    theta = model.init(STEP("network"), dtype=torch.float64)
    statistics = model.statistics(theta, x)  # a batch of ten of each class is all of them
    method = DM(per_class=1, batch_size=10)
    state = method.init(problem, Rng(0))
    own, everything = (model.features(theta, points, statistics) for points in (state.x, x))
    expected = sum(
        (own[label] - everything[y == label].mean(0)).square().sum() for label in range(2)
    )
    assert float(method.step(problem, state, STEP)[1].loss) == pytest.approx(
        float(expected), rel=1e-9
    )
    smooth = make_problem(Smooth())
    assert (
        class_matching.draw(
            smooth, smooth.model.init(Rng(0), dtype=torch.float64), 3, Rng(0)
        ).statistics
        is None
    )


@pytest.mark.parametrize("make", [DC, DSA, LCMatC])
def test_one_class_has_nothing_to_match(make: Any) -> None:
    x = Rng(0).normal(6, 1, 4, 4)
    data = Dataset(
        "alone",
        Examples(x, torch.zeros(6, dtype=torch.int64)),
        Examples(x, torch.zeros(6, dtype=torch.int64)),
        1,
    )
    problem = Problem(data, Linear().build((1, 4, 4), 1), whiten.make("none", data))
    with pytest.raises(
        DataError, match=r"matches gradients .* 'alone' has 1, two or more would work"
    ):
        make(per_class=1).init(problem, Rng(0))
    assert run(DM(per_class=1, num_steps=2), problem, seed=0).status == "finished"


def test_siamese_augmentation_needs_images_a_known_strategy_and_one_draw_for_both(
    make_problem: MakeProblem,
) -> None:
    problem = make_problem(Smooth())
    with pytest.raises(
        ConfigError,
        match=r"dsa augments images, but 'gaussians' has features of shape \(6,\); dc takes them",
    ):
        DSA().init(problem, Rng(0))
    with pytest.raises(ConfigError, match=r"siamese is off"):
        DSA().init(replace(problem, augment=augment.DSA(siamese=False)), Rng(0))
    x, y = Rng(0).normal(4, 1, 4, 4), torch.arange(4) % 2
    data = Dataset("few", Examples(x, y), Examples(x, y), 2)
    images = Problem(data, Linear().build((1, 4, 4), 2), whiten.make("none", data))
    with pytest.raises(
        ConfigError,
        match=r"unknown augmentation 'crap' in strategy 'crap_flip'; did you mean 'crop'",
    ):
        DSA(strategy="crap_flip", per_class=1).init(images, Rng(0))


def test_dsa_is_dc_augmented(make_problem: MakeProblem) -> None:
    x, y = Rng(0).normal(12, 1, 4, 4), torch.arange(12) % 2
    data = Dataset("few", Examples(x, y), Examples(x, y), 2)
    problem = Problem(data, Linear().build((1, 4, 4), 2), whiten.make("none", data))
    augmented = replace(problem, augment=augment.DSA(strategy="crop_scale"))
    options: dict[str, Any] = {
        "per_class": 1,
        "num_steps": 5,
        "max_age": 2,
        "num_inner_steps": 2,
        "initial": "noise",
    }
    ours = run(DSA(**options, strategy="crop_scale"), problem, seed=0).coreset.x
    assert torch.equal(ours, run(DC(**options), augmented, seed=0).coreset.x)
    assert not torch.equal(ours, run(DC(**options), problem, seed=0).coreset.x)


@pytest.mark.parametrize("make", [DC, DSA, LCMatC, DM, CAFE])
@pytest.mark.parametrize("image_lr", [1e5, 1e307])
def test_a_step_size_that_explodes_is_a_status(
    problem: Problem, make: Any, image_lr: float
) -> None:
    """Even where every hidden unit saturates, so that no number of the network's ever tells."""
    outcome = run(make(**SMALL, image_lr=image_lr, num_steps=30), problem, seed=0)
    assert outcome.status == "diverged"
    assert re.match(
        r"(images\.)?x became NaN or infinite by step \d+; kept step \d+", outcome.reason
    )
    assert outcome.coreset.x.isfinite().all()
    assert outcome.coreset.x.abs().mean() < 1000 * problem.data.train.x.abs().mean() * 2


@pytest.mark.parametrize(
    "method",
    [
        DC(**SMALL),
        DC(**SMALL, distance="l2"),
        LCMatC(**SMALL, rho=0.7),
        LCMatC(**SMALL, rho=0),
        DM(**SMALL),
        CAFE(**SMALL),
    ],
    ids=["dc", "dc-l2", "lcmat-c", "lcmat-c-0", "dm", "cafe"],
)
def test_where_a_network_has_kernels_the_gradient_is_the_same(
    method: Any, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There it goes by the slope along one direction, not by a derivative of the whole gradient."""
    steps = []
    for has_kernels in (False, True):
        monkeypatch.setattr(autodiff, "uses_kernels", lambda _, known=has_kernels: known)
        steps.append(method.step(problem, method.init(problem, Rng(0)), STEP))
    (one, info), (other, again) = steps
    images, others = (state.images if hasattr(state, "images") else state for state in (one, other))
    torch.testing.assert_close(others.velocity, images.velocity, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(again.loss, info.loss, rtol=1e-12, atol=0)


def test_images_are_shown_class_by_class(problem: Problem) -> None:
    """All at once, those of a hundred classes would be in memory together."""
    order: list[str] = []

    def view(x: Tensor, rng: Rng) -> Tensor:
        order.append("shown")
        return x

    def against(real: Tensor, label: int) -> class_matching.Mismatch:
        order.append("matched")
        return lambda own: (own.sum(), own)

    method = DM(**SMALL)
    state = method.init(problem, Rng(0))
    drawn = class_matching.draw(
        problem, problem.model.init(Rng(0), dtype=problem.dtype), BATCH, Rng(0)
    )
    gradient, loss = class_matching.match(method, problem, view, state.x, drawn, against, Rng(0))
    assert order == ["shown", "shown", "matched"] * problem.num_classes
    torch.testing.assert_close(gradient, state.x)
    torch.testing.assert_close(loss, state.x.sum())
