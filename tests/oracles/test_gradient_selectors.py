"""The selectors that look through a network, against their equations written out with autograd,
scipy and full-length vectors.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.optimize import nnls
from torch import Tensor, nn

import pseudocore.methods  # noqa: F401  (fills the registry)
from pseudocore.core.errors import ConfigError, DataError
from pseudocore.core.problem import Problem
from pseudocore.core.registry import Entry, methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, Dataset, Examples
from pseudocore.data import preprocessing as whiten
from pseudocore.models.dense import MLP, Linear
from pseudocore.selection import facility, facility_selection
from pseudocore.training.pretrain import Pretraining, pretrain

Array = npt.NDArray[np.float64]
MakeProblem = Callable[..., Problem]

EPOCHS, CLASSES, WIDTH = 3, 3, 5
LOOKING = [
    entry
    for entry in methods
    if issubclass(entry.make, Pretraining) and hasattr(entry.make, "select")
]

every_looking_selector = pytest.mark.parametrize(
    "entry", [pytest.param(entry, id=entry.name) for entry in LOOKING]
)


@pytest.fixture
def problem(make_problem: MakeProblem) -> Problem:
    return make_problem(MLP(width=WIDTH, depth=1))


def select(name: str, problem: Problem, seed: int = 0, **options: Any) -> Coreset:
    return methods[name].make(**{"pretrain_epochs": EPOCHS, **options}).select(problem, Rng(seed))  # type: ignore[no-any-return]


def indices(coreset: Coreset) -> list[int]:
    assert coreset.indices is not None
    return coreset.indices.tolist()


class Reference:
    """The trained network again, by hand: hidden features, the head, and every example's gradient
    and Hessian diagonal by autograd.
    """

    def __init__(
        self, problem: Problem, seed: int = 0, stream: tuple[str | int, ...] = (), **recipe: Any
    ) -> None:
        training = Pretraining(pretrain_epochs=EPOCHS, **recipe)
        theta = pretrain(problem, training, Rng(seed)(*stream)("pretrain")).theta
        body, head = theta[: 6 * WIDTH + WIDTH], theta[6 * WIDTH + WIDTH :]
        x, self.y = problem.batch(torch.arange(problem.num_train))
        self.phi = torch.relu(x @ body[: 6 * WIDTH].view(WIDTH, 6).T + body[6 * WIDTH :])
        self.head = torch.cat(
            [head[: WIDTH * CLASSES].view(CLASSES, WIDTH), head[WIDTH * CLASSES :].unsqueeze(1)], 1
        )
        self.p = self.logits(self.head).softmax(1)
        both = [self._derivatives(i) for i in range(len(self.y))]
        self.g = torch.stack([g for g, _ in both]).numpy()  # (n, classes · (width + 1))
        self.curved = torch.stack([curved for _, curved in both]).numpy()
        self.members = [(self.y == label).nonzero().flatten().numpy() for label in range(CLASSES)]

    def logits(self, head: Tensor) -> Tensor:
        return self.phi @ head[:, :-1].T + head[:, -1]

    def loss(self, head: Tensor, index: Any) -> Tensor:
        return nn.functional.cross_entropy(self.logits(head)[index], self.y[index])

    def _derivatives(self, i: int) -> tuple[Tensor, Tensor]:
        head = self.head.clone().requires_grad_()
        (g,) = torch.autograd.grad(self.loss(head, [i]), head, create_graph=True)
        rows = [
            torch.autograd.grad(one, head, retain_graph=True)[0].flatten() for one in g.flatten()
        ]
        return g.detach().flatten(), torch.stack(rows).diagonal()


KNOWN: dict[tuple[Any, ...], Reference] = {}


def the_reference(problem: Problem, seed: int = 0, stream: tuple[str | int, ...] = ()) -> Reference:
    """Made once: the fixture's problem is always the same."""
    if (seed, stream) not in KNOWN:
        KNOWN[seed, stream] = Reference(problem, seed, stream)
    return KNOWN[seed, stream]


def greedy_cover(distance: Array, num: int) -> list[int]:
    """Facility location: the point that most shortens the way to the nearest, the first time from
    an example far from all.
    """
    nearest, chosen = np.full(len(distance), 10 * distance.max() + 1), list[int]()
    for _ in range(num):
        gain = np.maximum(0, nearest - distance).sum(1)
        gain[chosen] = -1
        chosen.append(int(gain.argmax()))
        nearest = np.minimum(nearest, distance[chosen[-1]])
    return chosen


def apart(x: Array, order: int = 2) -> Array:
    result: Array = np.linalg.norm(x[:, None] - x[None], ord=order, axis=2)
    return result


# --- facility location


@pytest.mark.parametrize("num_dimensions", [1, 4, 18])
@pytest.mark.parametrize("rho", [0.0, 0.5, 20.0])
def test_lcmat_s(problem: Problem, rho: float, num_dimensions: int) -> None:
    reference = the_reference(problem)
    counting = reference.curved.var(0).argsort()[::-1][:num_dimensions]
    expected = []
    for members in reference.members:
        distance = apart(reference.g[members]) + 0.5 * rho * apart(
            reference.curved[members][:, counting], 1
        )
        expected += members[greedy_cover(distance, 5)].tolist()
    coreset = select("lcmat-s", problem, per_class=5, rho=rho, num_dimensions=num_dimensions)
    assert indices(coreset) == expected
    assert coreset.weight.tolist() == [problem.num_train / 15] * 15


def test_lcmat_s_of_the_mean_losses_of_batches(problem: Problem) -> None:
    """As in the authors' code: a batch of b examples of one class gives each 1/b of its gradient,
    and of its Hessian diagonal.
    """
    size, expected = 4, list[int]()
    reference = Reference(problem, pretrain_batch_size=size)
    share = np.empty(problem.num_train)
    for members in reference.members:
        for start in range(0, len(members), size):
            batch = members[start : start + size]
            share[batch] = size / len(batch)
    assert len(set(share)) > 1  # a last batch is smaller
    g, curved = share[:, None] * reference.g, share[:, None] * reference.curved
    counting = curved.var(0).argsort()[::-1][:4]
    for members in reference.members:
        distance = apart(g[members]) + 0.25 * apart(curved[members][:, counting], 1)
        expected += members[greedy_cover(distance, 5)].tolist()
    options: dict[str, Any] = {"rho": 0.5, "num_dimensions": 4, "gradients": "batches"}
    chosen = select("lcmat-s", problem, per_class=5, pretrain_batch_size=size, **options)
    assert indices(chosen) == expected


def test_lcmat_s_without_curvature_is_gradient_matching(problem: Problem) -> None:
    plain, craig = (
        select("lcmat-s", problem, per_class=6, rho=0.0, weighting="clusters"),
        select("craig", problem, per_class=6),
    )
    assert indices(plain) == indices(craig)
    assert torch.equal(plain.weight, craig.weight)
    assert indices(select("lcmat-s", problem, per_class=6, rho=50.0)) != indices(craig)


def test_craig(problem: Problem) -> None:
    reference, coreset = the_reference(problem), select("craig", problem, per_class=4)
    expected, weight = list[int](), list[float]()
    for members in reference.members:
        distance = apart(reference.g[members])
        chosen = greedy_cover(distance, 4)
        expected += members[chosen].tolist()
        weight += np.bincount(distance[chosen].argmin(0), minlength=4).tolist()
    assert indices(coreset) == expected
    assert coreset.weight.tolist() == weight
    assert coreset.weight.sum() == problem.num_train
    assert select("craig", problem, per_class=4, weighting="ones").weight.tolist() == [1] * 12


def test_craigs_weights_keep_their_promise(problem: Problem) -> None:
    """The error of the weighted gradient is at most the sum of distances to the nearest choice."""
    reference = the_reference(problem)
    for per_class in (1, 3, 8):
        coreset = select("craig", problem, per_class=per_class)
        chosen = np.array(indices(coreset))
        error = np.linalg.norm(reference.g.sum(0) - coreset.weight.numpy() @ reference.g[chosen])
        bound = 0.0
        for members in reference.members:
            own = chosen[np.isin(chosen, members)]
            bound += (
                np.linalg.norm(reference.g[members][:, None] - reference.g[own][None], axis=2)
                .min(1)
                .sum()
            )
        assert error <= bound


def test_adacore(problem: Problem) -> None:
    reference = the_reference(problem)
    curvature = reference.curved.mean(0)
    u = reference.g / (curvature + 0.3 * curvature.mean())
    expected = [
        index
        for members in reference.members
        for index in members[greedy_cover(apart(u[members]), 5)].tolist()
    ]
    assert indices(select("adacore", problem, per_class=5, damping=0.3)) == expected
    assert (
        select("adacore", problem, per_class=5, weighting="clusters").weight.sum()
        == problem.num_train
    )


@pytest.mark.parametrize("name", ["craig", "adacore", "lcmat-s"])
def test_of_all_classes_together(name: str, problem: Problem) -> None:
    coreset = select(name, problem, per_class=4, balanced=False, weighting="clusters")
    assert len(set(indices(coreset))) == 12
    assert coreset.weight.sum() == problem.num_train
    if name == "craig":
        assert indices(coreset) == greedy_cover(apart(the_reference(problem).g), 12)


@pytest.mark.parametrize("name", ["craig", "adacore", "lcmat-s"])
@pytest.mark.parametrize("entries", [36, 150])
def test_a_part_of_a_large_class_stands_for_it(
    name: str, entries: int, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = indices(select(name, problem, per_class=2))
    monkeypatch.setattr(
        facility, "ENTRIES", entries
    )  # a matrix of 6 × 6 or 12 × 12, of 15 examples
    coreset = select(name, problem, per_class=2, weighting="clusters")
    assert len(set(indices(coreset))) == 6
    assert coreset.y.tolist() == [0, 0, 1, 1, 2, 2]
    assert coreset.weight.sum() == problem.num_train  # everyone is assigned all the same
    assert indices(select(name, problem, per_class=2, exact=True)) == whole
    assert len({tuple(indices(select(name, problem, seed, per_class=2))) for seed in range(4)}) > 1


def test_parts_are_as_large_as_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert facility_selection._part_sizes(16384, 10, False) == (16384, 16384)
    assert facility_selection._part_sizes(16385, 10, False) == (16384, 16384)
    assert facility_selection._part_sizes(100_000, 10_000, False) == (40_000, 6710)
    assert facility_selection._part_sizes(100_000, 90_000, False) == (100_000, 2684)
    assert facility_selection._part_sizes(100_000, 90_000, True) == (100_000, 100_000)


@pytest.mark.parametrize("name", ["craig", "adacore", "lcmat-s"])
def test_random_candidates(name: str, problem: Problem) -> None:
    sampled = [tuple(indices(select(name, problem, per_class=4, epsilon=0.5))) for _ in range(2)]
    assert len(set(sampled[0])) == 12
    assert sampled[0] == sampled[1]
    assert list(sampled[0]) != indices(select(name, problem, per_class=4))


# --- matching


def pursue(g: Array, target: Array, num: int, ridge: float) -> tuple[list[int], Array]:
    chosen, weight = list[int](), np.zeros(0)
    while len(chosen) < num:
        correlation = g @ (target - weight @ g[chosen])
        correlation[chosen] = -np.inf
        chosen.append(int(correlation.argmax()))
        stacked = np.concatenate([g[chosen].T, np.sqrt(ridge) * np.eye(len(chosen))])
        weight = nnls(stacked, np.concatenate([target, np.zeros(len(chosen))]))[0]
    return chosen, weight


def test_gradmatch(problem: Problem) -> None:
    reference, coreset = (
        the_reference(problem),
        select("gradmatch", problem, per_class=5, ridge=0.2),
    )
    expected, weights = list[int](), list[float]()
    for members in reference.members:
        g = reference.g[members]
        chosen, weight = pursue(g, g.mean(0), 5, 0.2 * (g**2).sum(1).mean())
        expected += members[chosen].tolist()
        weights += (weight * len(members) / weight.sum()).tolist()
    assert indices(coreset) == expected
    np.testing.assert_allclose(coreset.weight.numpy(), weights, rtol=1e-7)

    raw = select("gradmatch", problem, per_class=5, ridge=0.2, weighting="learned").weight.numpy()
    scaled = raw.reshape(3, 5) * (15 / raw.reshape(3, 5).sum(1, keepdims=True))
    np.testing.assert_allclose(scaled.ravel(), weights, rtol=1e-7)
    assert (raw.reshape(3, 5).sum(1) < 15).all()  # what the ridge takes away
    assert select("gradmatch", problem, per_class=5, weighting="ones").weight.tolist() == [1] * 15


@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize(
    "name",
    [
        entry.name
        for entry in LOOKING
        if not entry.name.startswith("gradmatch") and entry.targets != "posterior"
    ],
)
def test_learned_weights(problem: Problem, name: str, balanced: bool) -> None:
    """By scipy on full-length gradients: least squares of the mean gradient of each group, times
    its size.
    """
    reference, network = the_reference(problem), {"space": "network"}
    options: Any = {"per_class": 4, "weighting": "learned", "balanced": balanced}
    coreset = select(
        name,
        problem,
        **options,
        **(network if "space" in methods[name].make.__dataclass_fields__ else {}),
    )
    chosen = np.array(indices(coreset))
    groups = reference.members if balanced else [np.arange(45)]
    expected = [
        len(members) * nnls(reference.g[own].T, reference.g[members].mean(0))[0]
        for members in groups
        for own in [chosen[np.isin(chosen, members)]]
    ]
    np.testing.assert_allclose(coreset.weight.numpy(), np.concatenate(expected), atol=1e-6)
    assert (coreset.weight >= 0).all()
    weight = coreset.weight.numpy()
    for members in groups:
        own = np.isin(chosen, members)
        total, parts = reference.g[members].sum(0), reference.g[chosen[own]]
        fitted, equal = weight[own] @ parts, 3.75 * parts.sum(0)
        assert np.linalg.norm(fitted - total) < np.linalg.norm(equal - total)


@pytest.mark.parametrize("name", ["uniform", "herding", "k-center"])
def test_learned_weights_without_a_network(problem: Problem, name: str) -> None:
    """They match the gradients of a linear network of zero weights: inputs and a constant 1."""
    options: Any = {} if name == "uniform" else {"pretrain_epochs": EPOCHS}
    coreset = (
        methods[name].make(per_class=4, weighting="learned", **options).select(problem, Rng(0))
    )
    x, _ = problem.batch(torch.arange(45))
    inputs = np.hstack([x.flatten(1).numpy(), np.ones((45, 1))])
    expected = []
    for label, members in enumerate(problem.class_indices):
        own = [index for index in indices(coreset) if problem.data.train.y[index] == label]
        expected += (15 * nnls(inputs[own].T, inputs[members].mean(0))[0]).tolist()
    np.testing.assert_allclose(coreset.weight.numpy(), expected, atol=1e-6)


def held_out(problem: Problem, share: float) -> list[list[int]]:
    """What the -val selectors leave out, by what they say: a random share of each class, from a
    stream of that name.
    """
    num = max(1, round(share * 15))
    return [
        members[Rng(0)("validation")(label).permutation(15)[:num]].tolist()
        for label, members in enumerate(problem.class_indices)
    ]


def test_gradmatch_val(problem: Problem) -> None:
    reference, coreset = (
        the_reference(problem),
        select("gradmatch-val", problem, per_class=4, validation=0.3),
    )
    expected = []
    for members, out in zip(reference.members, held_out(problem, 0.3), strict=True):
        rest = np.setdiff1d(members, out)
        g = reference.g[rest]
        chosen, _ = pursue(g, reference.g[out].mean(0), 4, 0.5 * (g**2).sum(1).mean())
        expected += rest[chosen].tolist()
    assert indices(coreset) == expected
    assert coreset.weight.sum() == pytest.approx(problem.num_train)
    assert not set(indices(coreset)) & {index for out in held_out(problem, 0.3) for index in out}


@pytest.mark.parametrize("judged_by", ["class", "all"])
@pytest.mark.parametrize("step_size", [0.0, 0.01, 2.0])
@pytest.mark.parametrize("name", ["glister", "glister-val"])
def test_glister(problem: Problem, name: str, step_size: float, judged_by: str) -> None:
    """θ_t taken literally, and the gradient of the judges' loss there by autograd."""
    reference, expected = the_reference(problem), list[int]()
    options: dict[str, Any] = {"step_size": step_size, "judges": judged_by}
    options |= {"validation": 0.2} if name == "glister-val" else {}
    everyone = np.concatenate(
        held_out(problem, 0.2) if name == "glister-val" else reference.members
    )
    for members, out in zip(reference.members, held_out(problem, 0.2), strict=True):
        judges = out if name == "glister-val" else members
        judges = everyone if judged_by == "all" else judges
        rest = np.setdiff1d(members, out) if name == "glister-val" else members
        head, chosen = reference.head.clone(), list[int]()
        for _ in range(5):
            head.requires_grad_()
            (slope,) = torch.autograd.grad(reference.loss(head, judges), head)
            gain = reference.g[rest] @ slope.flatten().numpy()
            gain[chosen] = -np.inf
            chosen.append(int(gain.argmax()))
            head = head.detach() - step_size * torch.from_numpy(
                reference.g[rest[chosen[-1]]]
            ).view_as(head)
        expected += rest[chosen].tolist()
    assert indices(select(name, problem, per_class=5, **options)) == expected


# --- scores


def scores(name: str, problem: Problem) -> Array:
    reference = the_reference(problem)
    p, one_hot = reference.p.numpy(), np.eye(CLASSES)[reference.y.numpy()]
    ordered = np.sort(p, 1)
    network = pretrain(problem, Pretraining(pretrain_epochs=EPOCHS), Rng(0)("pretrain"))
    result: Array = {
        "least-confidence": 1 - p.max(1),
        "entropy": -(p * np.log(p)).sum(1),
        "margin": 1 - (ordered[:, -1] - ordered[:, -2]),
        "grand": np.linalg.norm(reference.g, axis=1),
        "el2n": np.linalg.norm(p - one_hot, axis=1),
        "forgetting": network.forgotten.numpy().astype(float),
    }[name]
    return result


@pytest.mark.parametrize(
    "name", ["least-confidence", "entropy", "margin", "grand", "el2n", "forgetting"]
)
def test_the_highest_scores(name: str, problem: Problem) -> None:
    score, reference = scores(name, problem), the_reference(problem)
    chosen = np.array(indices(select(name, problem, per_class=6))).reshape(CLASSES, 6)
    for label, members in enumerate(reference.members):
        assert set(chosen[label]) <= set(members)
        np.testing.assert_allclose(
            score[chosen[label]], np.sort(score[members])[::-1][:6], rtol=1e-9
        )
    whole = indices(select(name, problem, per_class=6, balanced=False))
    np.testing.assert_allclose(score[whole], np.sort(score)[::-1][:18], rtol=1e-9)


def test_least_confidence_of_logits(problem: Problem) -> None:
    """As in the code behind the tables of Shin et al.: the lowest of the largest logits."""
    reference = the_reference(problem)
    top = reference.logits(reference.head).max(1).values.numpy()
    chosen = np.array(indices(select("least-confidence", problem, per_class=6, of="logits")))
    for places, members in zip(chosen.reshape(CLASSES, 6), reference.members, strict=True):
        np.testing.assert_allclose(top[places], np.sort(top[members])[:6], rtol=1e-9)


@pytest.mark.parametrize("name", ["grand", "el2n"])
def test_scores_of_several_networks_are_averaged(name: str, problem: Problem) -> None:
    references = [
        the_reference(problem),
        *(the_reference(problem, 0, ("network", number)) for number in (1, 2)),
    ]
    one_hot = np.eye(CLASSES)[references[0].y.numpy()]
    vectors = [one.g if name == "grand" else one.p.numpy() - one_hot for one in references]
    score = np.mean([np.linalg.norm(one, axis=1) for one in vectors], axis=0)
    chosen = indices(select(name, problem, per_class=5, num_networks=3))
    expected = [
        index
        for members in references[0].members
        for index in members[score[members].argsort()[::-1][:5]].tolist()
    ]
    assert chosen == expected


def test_chance_decides_between_equal_scores(problem: Problem) -> None:
    counts = scores("forgetting", problem)
    assert max(np.bincount(counts.astype(int))) > 10
    first, second = (select("forgetting", problem, seed, per_class=1) for seed in (0, 0))
    assert indices(first) == indices(second)


def test_contextual_diversity(problem: Problem) -> None:
    reference, expected = the_reference(problem), list[int]()
    p = reference.p.numpy()

    def divergence(a: Array, b: Array) -> float:
        return float((a * np.log(a / b)).sum() + (b * np.log(b / a)).sum())

    for members in reference.members:
        mean = p[members].mean(0)
        chosen = [min(members, key=lambda i: divergence(p[i], mean))]
        while len(chosen) < 5:
            left = [i for i in members if i not in chosen]
            chosen.append(max(left, key=lambda i: min(divergence(p[i], p[s]) for s in chosen)))
        expected += [int(i) for i in chosen]
    assert indices(select("c-div", problem, per_class=5)) == expected


# --- all of them


def test_all_selectors_train_one_network(problem: Problem, cache: Any) -> None:
    for entry in LOOKING:
        options: dict[str, Any] = (
            {"space": "network"} if "space" in entry.make.__dataclass_fields__ else {}
        )
        alone, shared = (
            select(entry.name, one, per_class=2, **options)
            for one in (problem, replace(problem, cache=cache))
        )
        assert indices(alone) == indices(shared)
    assert len(LOOKING) >= 16
    assert len(cache.kept) == 1


def small(x: Tensor, y: Tensor) -> Problem:
    data = Dataset("small", Examples(x, y), Examples(x, y), int(y.max()) + 1)
    return Problem(data, Linear().build((x.shape[1],), data.num_classes), whiten.make("none", data))


@every_looking_selector
def test_a_class_with_one_example_gives_it(entry: Entry) -> None:
    problem = small(Rng(0).normal(7, 2), torch.tensor([0, 0, 0, 1, 0, 0, 0]))
    if entry.name.endswith("-val"):
        with pytest.raises(
            ConfigError,
            match="1 points were asked for of 1 examples, which leaves none of them to validate on",
        ):
            select(entry.name, problem, per_class=1)
    else:
        assert indices(select(entry.name, problem, per_class=1))[1] == 3


@every_looking_selector
@pytest.mark.parametrize("kind", ["duplicates", "constant within a class"])
def test_points_that_are_the_same_are_distinct_points(entry: Entry, kind: str) -> None:
    y = torch.arange(2).repeat(8)
    x = (
        Rng(0).normal(4, 3).repeat(4, 1)
        if kind == "duplicates"
        else y.unsqueeze(1) * torch.ones(16, 3)
    )
    coreset = select(entry.name, small(x, y), per_class=6)
    assert len(set(indices(coreset))) == 12
    assert coreset.weight.isfinite().all()
    assert coreset.y.tolist() == [0] * 6 + [1] * 6


@every_looking_selector
def test_a_network_that_diverged_is_refused(entry: Entry, problem: Problem) -> None:
    options: dict[str, Any] = (
        {"space": "network"} if "space" in entry.make.__dataclass_fields__ else {}
    )
    with pytest.raises(DataError, match="diverged in pre-training"):
        select(
            entry.name,
            problem,
            per_class=2,
            pretrain_optimiser="sgd",
            pretrain_step_size=1e200,
            **options,
        )
