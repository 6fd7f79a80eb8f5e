"""VBPC and FRePo: a whole step against the objective recomputed in numpy with h × h matrices, and
its gradient by differences.

The gradient is read where the step leaves it: Adam's first moment after a first step is (1 − β₁)
times it.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.data import digits
from pseudocore.data import preprocessing as whiten
from pseudocore.inference.last_layer_vi import LastLayerVI
from pseudocore.methods.bayes.vbpc import VBPC, FRePo, VBPCLearned, VBPCState
from pseudocore.models.convnet import ConvNet
from pseudocore.models.dense import MLP, Linear
from pseudocore.objectives import pool
from pseudocore.testing.problems import FewDraws

MakeProblem = Callable[..., Problem]
Differentiate = Callable[[Callable[[Tensor], float], Tensor], Tensor]
Array = NDArray[np.float64]

RNG = Rng(3)("step", 0)
TOLERANCE = 1e-8
# M = 6 or 9 points; h is 6 features of the linear model, or the width of the hidden layer.
NETWORKS = {
    "M=h": (2, Linear()),
    "M>h": (3, Linear()),
    "M<h": (2, MLP(width=16, depth=1)),
    "M>h, mlp": (3, MLP(width=5, depth=1)),
}


class Scene(NamedTuple):
    """One step seen from outside: what it started from, and the network and batch that its streams
    decided on.
    """

    method: Any
    problem: Problem
    state: VBPCState
    theta: Array
    x: Array
    y: NDArray[np.int64]
    target: Array  # what the NLL is of, (n, classes)


def scene(method: Any, problem: Problem) -> Scene:
    """A state whose targets, scale and weights have moved off their start, so that no gradient
    vanishes by symmetry.
    """
    state = method.init(problem, RNG("init"))
    y = state.learned.y + 0.1 * RNG("y").normal(*state.learned.y.shape, dtype=torch.float64)
    shift = 0.3 * RNG("weight").normal(len(y), dtype=torch.float64)
    learned = state.learned._replace(
        y=y,
        log_variance=state.learned.log_variance + 0.3,
        log_weight=state.learned.log_weight + shift,
    )
    place = int(pool.pick(state.pool, RNG("network")))
    index = RNG("batch").integers(problem.num_train, method.batch_size)
    x, labels = problem.batch(index)
    target = np.eye(problem.num_classes)[labels.numpy()]
    if problem.reference is not None:
        target = problem.reference.train_log_probs[index].exp().numpy()
    return Scene(
        method,
        problem,
        state._replace(learned=learned),
        state.pool.theta[place].numpy(),
        x.numpy(),
        labels.numpy(),
        target,
    )


@pytest.fixture(params=NETWORKS)
def small(request: pytest.FixtureRequest, make_problem: MakeProblem) -> tuple[int, Problem]:
    per_class, model = NETWORKS[request.param]
    return per_class, make_problem(model)


def settings(per_class: int = 2, **changes: Any) -> dict[str, Any]:
    return {
        "per_class": per_class,
        "num_steps": 10,
        "batch_size": 12,
        "pool_size": 3,
        "max_age": 5,
        "logit_scale": 3.0,
        **changes,
    }


class Terms(NamedTuple):
    nll: float
    kl: float
    """Summed over classes."""
    squared_error: float


def numpy_terms(scene: Scene, learned: VBPCLearned, active: set[bytes] | None = None) -> Terms:
    """Every term of both objectives by dense Bayesian linear regression; `active` collects which
    hidden units were on.
    """
    variance = (
        math.exp(learned.log_variance)
        if getattr(scene.method, "learn_variance", False)
        else getattr(scene.method, "prior_variance", 1.0)
    )
    phi, real = (numpy_features(scene, x) for x in (learned.x.numpy(), scene.x))
    if active is not None:
        active.add((phi > 0).tobytes())
    weight = np.exp(learned.log_weight.numpy())
    weight = weight / weight.mean()
    typical = (weight * (phi**2).sum(1)).mean()
    r, rho = scene.method.ridge * typical, typical / variance
    V = np.linalg.inv(rho * np.eye(phi.shape[1]) + rho / r * (phi.T * weight) @ phi)
    m = rho / r * V @ (phi.T * weight) @ learned.y.numpy()
    mean, sigma, s = real @ m, np.einsum("ni,ij,nj->n", real, V, real), math.exp(learned.log_scale)
    if isinstance(scene.method, FRePo):
        sigma = np.zeros_like(sigma)
    logits = s * mean / np.sqrt(1 + np.pi / 8 * s**2 * sigma)[:, None]
    log_probs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    one_hot = np.eye(scene.problem.num_classes)[scene.y]
    kl = 0.5 * (rho * np.trace(V) + rho * (m**2).sum(0) - len(V) - np.linalg.slogdet(rho * V)[1])
    squared_error = 0.5 * ((mean - one_hot + 1 / scene.problem.num_classes) ** 2).sum(1).mean()
    return Terms(
        float(-(scene.target * log_probs).sum(1).mean()), float(kl.sum()), float(squared_error)
    )


def numpy_features(scene: Scene, x: Array) -> Array:
    if isinstance(scene.problem.model.describe().get("width"), int):
        width = scene.problem.model.num_features
        weight, bias = (
            scene.theta[: 6 * width].reshape(width, 6),
            scene.theta[6 * width : 7 * width],
        )
        return np.maximum(x @ weight.T + bias, 0)
    return x


def vbpc_loss(scene: Scene, learned: VBPCLearned, active: set[bytes] | None = None) -> float:
    terms = numpy_terms(scene, learned, active)
    return terms.nll + float(scene.method.kl_weight) / scene.problem.num_train * terms.kl


def gradient_of_step(scene: Scene) -> VBPCLearned:
    after, _ = scene.method.step(scene.problem, scene.state, RNG)
    return VBPCLearned(*(moments.first / (1 - 0.9) for moments in after.moments))


def distance(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"kl_weight": 1.0},
        {"kl_weight": 0.0, "ridge": 0.1},
        {"learn_variance": True, "kl_weight": 0.5},
    ],
)
def test_vbpc_loss(small: tuple[int, Problem], changes: dict[str, Any]) -> None:
    shown = scene(VBPC(**settings(small[0], prior_variance=0.2, **changes)), small[1])
    _, info = shown.method.step(shown.problem, shown.state, RNG)
    assert float(info.loss) == pytest.approx(vbpc_loss(shown, shown.state.learned), rel=1e-10)


@pytest.mark.parametrize(
    "changes",
    [{}, {"weighting": "learned"}, {"learn_variance": True, "kl_weight": 1.0}],
)
def test_vbpc_gradient(
    small: tuple[int, Problem], changes: dict[str, Any], differentiate: Differentiate
) -> None:
    shown = scene(VBPC(**settings(small[0], prior_variance=0.2, **changes)), small[1])
    learned, gradient, active = shown.state.learned, gradient_of_step(shown), set[bytes]()
    for part in (
        "x",
        "y",
        "log_scale",
        *(("log_variance",) if shown.method.learn_variance else ()),
        *(("log_weight",) if shown.method.weighting == "learned" else ()),
    ):

        def loss(at: Tensor, part: str = part) -> float:
            return vbpc_loss(shown, learned._replace(**{part: at}), active)

        expected = differentiate(loss, getattr(learned, part))
        assert distance(getattr(gradient, part), expected) < TOLERANCE, part
    assert len(active) == 1  # no difference was taken across the kink of a ReLU
    if shown.method.weighting != "learned":
        assert not gradient.log_weight.any()


def test_the_full_datas_predictive_in_place_of_labels(
    small: tuple[int, Problem], differentiate: Differentiate
) -> None:
    """Loss and gradient by numpy; without a reference it is refused."""
    per_class, problem = small
    method = VBPC(**settings(per_class, prior_variance=0.2, match="posterior"))
    assert method.needs_reference == "last-layer-vi"
    assert not VBPC().needs_reference
    with pytest.raises(ConfigError) as error:
        method.init(problem, RNG)
    assert error.value.code == "no-reference"
    size = problem.num_train, problem.num_classes
    full = RNG("full").normal(*size, dtype=torch.float64).log_softmax(1)
    shown = scene(method, replace(problem, reference=FewDraws(full, full)))
    _, info = method.step(shown.problem, shown.state, RNG)
    assert float(info.loss) == pytest.approx(vbpc_loss(shown, shown.state.learned), rel=1e-10)
    gradient = gradient_of_step(shown)
    for part in ("x", "y", "log_scale"):
        expected = differentiate(
            lambda at, part=part: vbpc_loss(shown, shown.state.learned._replace(**{part: at})),
            getattr(shown.state.learned, part),
        )
        assert distance(getattr(gradient, part), expected) < TOLERANCE, part


def test_frepo_loss(small: tuple[int, Problem]) -> None:
    shown = scene(FRePo(**settings(small[0])), small[1])
    _, info = shown.method.step(shown.problem, shown.state, RNG)
    terms = numpy_terms(shown, shown.state.learned)
    assert float(info.loss) == pytest.approx(terms.squared_error + terms.nll, rel=1e-10)


def test_frepo_gradient(small: tuple[int, Problem], differentiate: Differentiate) -> None:
    """Points and targets follow the squared error alone; the logit scale follows the log-likelihood
    alone.
    """
    shown = scene(FRePo(**settings(small[0])), small[1])
    learned, gradient, active = shown.state.learned, gradient_of_step(shown), set[bytes]()
    for part, term in (("x", "squared_error"), ("y", "squared_error"), ("log_scale", "nll")):

        def loss(at: Tensor, part: str = part, term: str = term) -> float:
            return float(getattr(numpy_terms(shown, learned._replace(**{part: at}), active), term))

        expected = differentiate(loss, getattr(learned, part))
        assert distance(getattr(gradient, part), expected) < TOLERANCE, part
    assert gradient.log_variance == 0
    assert len(active) == 1


def test_frepos_points_do_not_feel_the_logit_scale(make_problem: MakeProblem) -> None:
    problem = make_problem(MLP(width=16, depth=1))
    small, large = (
        gradient_of_step(scene(FRePo(**settings(logit_scale=scale)), problem))
        for scale in (0.5, 50.0)
    )
    assert torch.equal(small.x, large.x)
    assert torch.equal(small.y, large.y)
    assert not torch.equal(small.log_scale, large.log_scale)


@pytest.mark.parametrize(
    "method",
    [
        VBPC(**settings(), image_lr=1e-3, label_lr=1e-3),
        FRePo(**settings(), image_lr=1e-3, label_lr=1e-3),
    ],
)
@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_a_small_step_lowers_the_loss(
    method: Any, network: tuple[int, Any], make_problem: MakeProblem
) -> None:
    shown = scene(replace(method, per_class=network[0]), make_problem(network[1]))
    after, _ = shown.method.step(shown.problem, shown.state, RNG)

    def loss(learned: VBPCLearned) -> float:
        terms = numpy_terms(shown, learned)
        return terms.squared_error if isinstance(method, FRePo) else vbpc_loss(shown, learned)

    start = shown.state.learned
    assert loss(after.learned) < loss(start)
    for part in ("x", "y"):  # each of them pulls its weight
        assert loss(start._replace(**{part: getattr(after.learned, part)})) < loss(start)


def test_the_kl_term_is_the_divergence_over_the_number_of_training_points(
    small: tuple[int, Problem],
) -> None:
    without, with_kl = (
        scene(VBPC(**settings(small[0], kl_weight=weight)), small[1]) for weight in (0.0, 1.0)
    )
    losses = [
        float(shown.method.step(shown.problem, shown.state, RNG)[1].loss)
        for shown in (without, with_kl)
    ]
    kl = numpy_terms(without, without.state.learned).kl
    assert kl > 1  # or the difference below would show nothing
    assert losses[1] - losses[0] == pytest.approx(kl / small[1].num_train, rel=1e-8)


def run(method: Any, problem: Problem, num: int = 4) -> list[VBPCState]:
    states = [method.init(problem, RNG("init"))]
    for step in range(num):
        states.append(method.step(problem, states[-1], RNG("run", step))[0])
    return states


@pytest.mark.parametrize("method", [VBPC(**settings()), FRePo(**settings())])
def test_the_prior_variance_stays_unless_it_is_learned(
    method: Any, make_problem: MakeProblem
) -> None:
    states = run(method, make_problem())
    assert all(
        torch.equal(state.learned.log_variance, states[0].learned.log_variance) for state in states
    )
    learning = run(VBPC(**settings(learn_variance=True)), make_problem())
    assert learning[-1].learned.log_variance != learning[0].learned.log_variance


@pytest.mark.parametrize("make", [VBPC, FRePo])
def test_label_lr_zero_keeps_the_targets_at_centred_one_hot(
    make: Any, make_problem: MakeProblem
) -> None:
    states = run(make(**settings(label_lr=0.0)), make_problem())
    one_hot = torch.eye(3, dtype=torch.float64).repeat_interleave(2, 0)
    assert torch.equal(states[-1].learned.y, one_hot - 1 / 3)
    assert not torch.equal(states[-1].learned.x, states[0].learned.x)
    assert not torch.equal(
        run(make(**settings()), make_problem())[-1].learned.y, states[0].learned.y
    )


def test_points_start_from_real_ones_of_their_class(make_problem: MakeProblem) -> None:
    problem = make_problem()
    train, labels = problem.batch(torch.arange(problem.num_train))
    learned = VBPC(**settings()).init(problem, RNG("init")).learned
    for point, target in zip(learned.x, learned.y, strict=True):
        matches = (train == point).all(1).nonzero().flatten()
        assert labels[matches].tolist() == [int(target.argmax())]
    noise = VBPC(**settings(initial="noise")).init(problem, RNG("init")).learned
    assert not any((train == point).all(1).any() for point in noise.x)


@pytest.mark.parametrize("decay", [0.5, 0.9])
def test_averaging_is_a_moving_average_of_the_iterates(
    decay: float, make_problem: MakeProblem
) -> None:
    problem, method = make_problem(), VBPC(**settings(averaging=decay))
    states = run(method, problem)
    expected = states[0].learned
    for state in states[1:]:
        expected = VBPCLearned(
            *(
                decay * old + (1 - decay) * new
                for old, new in zip(expected, state.learned, strict=True)
            )
        )
    coreset = method.coreset(problem, states[-1])
    assert distance(problem.inputs(coreset.x), expected.x) < 1e-12
    assert distance(coreset.y, expected.y) < 1e-12
    assert coreset.provenance["posterior"]["logit_scale"] == pytest.approx(
        math.exp(expected.log_scale), rel=1e-12
    )
    last = method.coreset(
        problem, run(VBPC(**settings()), problem)[-1]
    )  # without averaging: the last iterate
    assert distance(problem.inputs(last.x), states[-1].learned.x) < 1e-12


def test_the_coreset_carries_what_was_learned(make_problem: MakeProblem) -> None:
    problem, method = make_problem(), VBPC(**settings(learn_variance=True, ridge=0.05))
    state = run(method, problem)[-1]
    numbers = method.coreset(problem, state).provenance["posterior"]
    assert numbers["logit_scale"] == pytest.approx(math.exp(state.learned.log_scale), rel=1e-12)
    assert numbers["prior_variance"] == pytest.approx(
        math.exp(state.learned.log_variance), rel=1e-12
    )
    assert numbers["ridge"] == pytest.approx(0.05 * 45 / 6)  # the noise of a point of weight 1
    ones = replace(method, weighting="ones").coreset(problem, state)
    assert ones.provenance["posterior"]["ridge"] == 0.05


@pytest.mark.parametrize("method", [VBPC, FRePo])
def test_the_sum_of_weights_changes_no_prediction(method: Any, make_problem: MakeProblem) -> None:
    """The coreset's ridge makes up for it, so weights N / M give what weights 1 gave."""
    problem = make_problem(MLP(width=8))
    few = settings(num_steps=4)
    predictions = []
    for weighting in ("mass", "ones"):
        made = method(**few, weighting=weighting)
        coreset = made.coreset(problem, run(made, problem)[-1])
        vi = LastLayerVI(num_steps=3)
        predictions.append(vi.fit(problem, coreset, RNG)(problem.data.test.x))
    torch.testing.assert_close(*predictions, rtol=1e-8, atol=1e-8)


def test_learned_weights_sum_to_the_size_of_the_data(make_problem: MakeProblem) -> None:
    problem, method = make_problem(), VBPC(**settings(weighting="learned", weight_lr=0.1))
    weight = method.coreset(problem, run(method, problem)[-1]).weight
    assert float(weight.sum()) == pytest.approx(45)
    assert float(weight.std()) > 0.1
    assert (weight > 0).all()


@pytest.mark.parametrize("augment_on", ["data", "both"])
def test_augmentation_acts_where_it_is_told_to(augment_on: Any, make_problem: MakeProblem) -> None:
    def shift(x: Tensor, rng: Rng) -> Tensor:
        return x + 0.5 + rng.uniform(1, dtype=x.dtype)

    problem = replace(make_problem(), augment=shift)
    shown = scene(VBPC(**settings(augment_on=augment_on)), problem)
    _, info = shown.method.step(problem, shown.state, RNG)
    by = float(0.5 + RNG("augment").uniform(1, dtype=torch.float64))
    moved, learned = shown._replace(x=shown.x + by), shown.state.learned
    expected = vbpc_loss(
        moved, learned._replace(x=learned.x + by) if augment_on == "both" else learned
    )
    assert float(info.loss) == pytest.approx(expected, rel=1e-10)


def test_with_batch_norm_real_images_are_normalised_by_the_coresets_statistics() -> None:
    """D3, by torch's own batch norm: the coreset sets the running statistics, the real batch is
    evaluated under them.
    """
    data = digits()
    model = ConvNet(width=3, depth=1, norm="batch").build(data.shape, 10)
    problem = Problem(
        data, model, whiten.make("standard", data, dtype=torch.float64), dtype=torch.float64
    )
    shown = scene(VBPC(**settings(per_class=1)), problem)
    network = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.BatchNorm2d(3, momentum=1.0),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
    )
    nn.utils.vector_to_parameters(
        torch.from_numpy(shown.theta)[: 30 + 6], network.double().parameters()
    )
    with torch.no_grad():
        features = network(shown.state.learned.x)
        cast(Tensor, network[1].running_var).mul_(
            1 - 1 / (10 * 64)
        )  # torch's is the unbiased estimate
        real_features = network.eval()(torch.from_numpy(shown.x))
    _, info = shown.method.step(problem, shown.state, RNG)
    expected, _ = shown.method.loss(
        problem, shown.state.learned, features, real_features, torch.from_numpy(shown.y)
    )
    assert float(info.loss) == pytest.approx(float(expected), rel=1e-10)
