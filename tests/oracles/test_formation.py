"""What stored images show: tiles against torch's interpolation, and whole methods against
themselves on the tiles and mirror images.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad
from torch.nn.functional import interpolate

from pseudocore.core.errors import ArtifactError, ConfigError
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.data import augment, digits
from pseudocore.data import preprocessing as whiten
from pseudocore.inference.sgd import SGD
from pseudocore.methods.bayes.bpc_cd import BPCContrastiveDivergence
from pseudocore.methods.bayes.bpc_fkl import BPCForwardKL
from pseudocore.methods.bayes.bpc_rkl import BPCReverseKL
from pseudocore.methods.bayes.bpc_w import MTT, BPCWasserstein
from pseudocore.methods.bayes.vbpc import VBPC, FRePo
from pseudocore.methods.condense.cafe import CAFE
from pseudocore.methods.condense.dc import DC, DSA
from pseudocore.methods.condense.dd import DatasetDistillation
from pseudocore.methods.condense.dm import DM
from pseudocore.methods.condense.kip import KIP
from pseudocore.methods.condense.lcmat_c import LCMatC
from pseudocore.models.convnet import ConvNet
from pseudocore.objectives import multiformation, trajectory
from pseudocore.runtime import autodiff
from pseudocore.runtime.steps import StepRunner
from pseudocore.training.experts import Resident
from pseudocore.training.optimisers import start

RNG = Rng(6)("step", 0)
FEW: dict[str, Any] = {"per_class": 1, "num_steps": 10, "batch_size": 20}
NETWORK: dict[str, Any] = {"num_inner_steps": 3, "inner_lr": 0.1}
PATH: dict[str, Any] = {
    "per_class": 1,
    "num_steps": 10,
    "max_start": 2,
    "num_inner_steps": 3,
    "formation": 2,
}
TRAJECTORY: dict[str, Any] = {
    "bpc-w": BPCWasserstein(**PATH),
    "bpc-w-diagonal": BPCWasserstein(**PATH, covariance="diagonal", recompute=False),
    "mtt": MTT(**PATH),
    "bpc-fkl": BPCForwardKL(**PATH, num_draws=3, draw_batch=2),
    "bpc-rkl": BPCReverseKL(**PATH, num_draws=3, batch_size=20),
    "bpc-cd": BPCContrastiveDivergence(**PATH),
}
METHODS: dict[str, Any] = {
    "kip-features": KIP(**FEW, num_networks=1, formation=2),
    "kip-ntk": KIP(**FEW, kernel="ntk", formation=2),
    "dd": DatasetDistillation(**FEW, num_inner_steps=3, formation=2),
    "dc": DC(**FEW, **NETWORK, formation=2),
    "dsa": DSA(**FEW, **NETWORK, strategy="crop_scale_rotate", formation=2),
    "lcmat-c": LCMatC(**FEW, **NETWORK, formation=2),
    "dm": DM(**FEW, formation=2),
    "cafe": CAFE(**FEW, **NETWORK, formation=2),
    "vbpc": VBPC(**FEW, pool_size=2, formation=2),
    "vbpc-mirrored": VBPC(**FEW, pool_size=2, formation=2, mirror=True),
    "frepo": FRePo(**FEW, pool_size=2, formation=2),
    **TRAJECTORY,
}
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


@pytest.fixture(scope="module", params=["standard", "zca"])
def problem(request: pytest.FixtureRequest) -> Problem:
    data = digits()
    model = ConvNet(width=3, depth=2).build(data.shape, data.num_classes)
    bare = Problem(
        data, model, whiten.make(request.param, data, dtype=torch.float64), dtype=torch.float64
    )
    starts = model.init(
        Rng(5)("theta"), num=2, dtype=torch.float64
    )  # of two experts, which wander for four epochs
    steps = 0.05 * Rng(5)("steps").normal(2, 5, starts.shape[1], dtype=torch.float64)
    return replace(bare, experts=Resident(starts[:, None] + steps.cumsum(1)))


def images(num: int = 3, side: tuple[int, int] = (12, 6)) -> Tensor:
    return Rng(0)("images").normal(num, 2, *side, dtype=torch.float64)


@pytest.mark.parametrize("factor", [1, 2, 3])
def test_tiles_are_cut_and_brought_to_size_bilinearly(factor: int) -> None:
    x = images()
    height, width = 12 // factor, 6 // factor
    expected = [
        interpolate(
            image[None, :, down * height :, across * width :][:, :, :height, :width],
            (12, 6),
            mode="bilinear",
            align_corners=False,
        )
        for image in x
        for down in range(factor)
        for across in range(factor)
    ]
    torch.testing.assert_close(
        multiformation.split(x, factor), torch.cat(expected), rtol=1e-12, atol=1e-12
    )


def test_every_stored_pixel_has_its_gradient() -> None:
    """Weights of a shown pixel add up to 1, those of all stored pixels to the number shown."""
    pulled = grad(lambda x: multiformation.split(x, 2).sum())(images())
    assert (pulled > 0).all()
    assert float(pulled.sum()) == pytest.approx(multiformation.split(images(), 2).numel())


def test_it_starts_from_tiles_of_the_right_class(problem: Problem) -> None:
    x, y = multiformation.begin(problem, [2] * problem.num_classes, "real", RNG, factor=2)
    assert y.tolist() == [label for label in range(10) for _ in range(2)]
    train, labels = problem.batch(torch.arange(problem.num_train))
    small = interpolate(train, (4, 4), mode="bilinear", align_corners=False).flatten(
        1
    )  # at half the size: the mean of four
    tiles = [
        image[:, down : down + 4, across : across + 4].flatten()
        for image in x
        for down in (0, 4)
        for across in (0, 4)
    ]
    for place, tile in enumerate(tiles):
        near = (small - tile).abs().amax(1)
        assert near.min() < 1e-12
        assert int(labels[near.argmin()]) == int(y[place // 4])


@pytest.mark.parametrize("factor", [1, 2])
def test_noise_starts_at_the_scale_of_the_data(problem: Problem, factor: int) -> None:
    x, y = multiformation.begin(
        problem, [40] * 10, "noise", RNG, factor=factor
    )  # tiles of real ones would take 160 of a class: more than there are
    train, _ = problem.batch(torch.arange(problem.num_train))
    assert len(x) == len(y) == 400
    assert float(x.std()) == pytest.approx(float(train.std()), rel=0.1)


@every_method
def test_a_step_is_that_of_the_shown_images_pulled_back(method: Any, problem: Problem) -> None:
    compare(method, problem)


@pytest.mark.parametrize("siamese", [True, False])
@pytest.mark.parametrize("name", [*TRAJECTORY, "dd"])
def test_tiles_are_augmented_like_images(name: str, problem: Problem, siamese: bool) -> None:
    """Each tile on its own where augmentation is drawn per image; any other augmentation than ours
    acts on them too.
    """
    ours = augment.DSA(siamese=siamese)
    compare(METHODS[name], replace(problem, augment=ours))
    compare(METHODS[name], replace(problem, augment=lambda x, rng: ours(x, rng)))


def compare(method: Any, problem: Problem) -> None:
    """The loss equals that of the method without formation on the tiles; its gradient in them,
    pulled through `split`, is ours.
    """
    state = method.init(problem, RNG("init"))
    after, info = method.step(problem, state, RNG)
    plain_after, plain_info = replace(method, formation=1, per_class=4).step(
        problem, on_tiles(state), RNG
    )
    assert float(info.loss) == pytest.approx(float(plain_info.loss), rel=1e-10)
    in_shown = gradient(plain_after)
    pulled = grad(lambda x: (multiformation.split(x, 2) * in_shown).sum())(stored(state).x)
    assert pulled.abs().max() > 1e-8
    torch.testing.assert_close(
        gradient(after), pulled, rtol=0, atol=1e-8 * float(pulled.abs().max())
    )


@every_method
def test_decoded_the_coreset_is_what_the_method_saw(method: Any, problem: Problem) -> None:
    state, _ = method.step(problem, method.init(problem, RNG("init")), RNG)
    coreset = method.coreset(problem, state)
    assert len(coreset) == 10
    assert coreset.provenance["formation"] == 2
    whole = multiformation.decoded(problem, coreset)
    x, labels = multiformation.split(stored(state).x, 2), coreset.labels.repeat_interleave(4)
    if getattr(method, "mirror", False):
        x, labels = torch.cat([x, x.flip(3)]), labels.repeat(2)
    torch.testing.assert_close(problem.inputs(whole.x), x, rtol=0, atol=1e-9)
    assert torch.equal(whole.labels, labels)
    assert float(whole.weight.sum()) == pytest.approx(problem.num_train)
    ones = replace(method, weighting="ones").coreset(problem, state)
    assert multiformation.decoded(problem, ones).weight.tolist() == [1] * len(labels)
    assert whole.learned == coreset.learned
    assert multiformation.decoded(problem, whole) is whole
    log_probs = SGD(num_steps=2).fit(problem, whole, RNG)(problem.data.test.x[:5])
    assert log_probs.isfinite().all()


@every_method
def test_one_by_one_the_provenance_says_nothing(method: Any, problem: Problem) -> None:
    plain = replace(method, formation=1)
    assert "formation" not in plain.coreset(problem, plain.init(problem, RNG("init"))).provenance


@pytest.mark.parametrize("name", ["dc", "dsa", "cafe", "vbpc", "vbpc-mirrored", "frepo"])
def test_networks_train_on_the_tiles(name: str, problem: Problem) -> None:
    still = {
        "image_lr": 1e-12,
        **({"label_lr": 0.0} if hasattr(METHODS[name], "label_lr") else {}),
    }  # so that all see the same points
    method = replace(METHODS[name], **still)
    plain = replace(method, formation=1)
    state = method.init(problem, RNG("init"))
    ours, expected, on_stored = (
        way.step(problem, start, RNG)[0]
        for way, start in (
            (method, state),
            (replace(plain, per_class=4), on_tiles(state)),
            (plain, state),
        )
    )
    torch.testing.assert_close(networks(ours), networks(expected), rtol=0, atol=1e-9)
    assert not torch.allclose(networks(ours), networks(on_stored), rtol=0, atol=1e-6)


def stored(state: Any) -> Any:
    """Where a state keeps its images, as `x`: beside what else is learned, beside a network, or
    alone.
    """
    return getattr(state, "learned", None) or getattr(state, "images", state)


def gradient(state: Any) -> Tensor:
    """The gradient in the images that a first step leaves, times the optimiser's constant."""
    found: Tensor = state.moments.x.first if hasattr(state, "moments") else stored(state).velocity
    return found


def networks(state: Any) -> Tensor:
    theta: Tensor = state.pool.theta if hasattr(state, "pool") else state.theta
    return theta


def on_tiles(state: Any) -> Any:
    """The state of a method that stores the tiles one by one, at rest."""
    kept = stored(state)
    tiles = kept._replace(
        x=multiformation.split(kept.x, 2),
        **{
            name: multiformation.repeat(getattr(kept, name), 2)
            for name in ("y", "log_weight")
            if hasattr(kept, name)
        },
    )
    if not hasattr(state, "learned"):
        tiles = tiles._replace(velocity=torch.zeros_like(tiles.x))
        return state._replace(images=tiles) if hasattr(state, "images") else tiles
    words = {"learned": tiles, "moments": type(tiles)(*map(start, tiles))}
    words |= {"average": tiles} if hasattr(state, "average") else {}
    words |= {"y": multiformation.repeat(state.y, 2)} if hasattr(state, "y") else {}
    return state._replace(**words)


@pytest.mark.parametrize("change", [None, augment.DSA(siamese=False)], ids=["bare", "augmented"])
def test_compiled_in_pieces_the_tiles_are_one_of_them(
    problem: Problem, change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, method, pieces = replace(problem, augment=change), TRAJECTORY["bpc-w"], []

    def note(function: Callable[..., Any], **_: Any) -> Callable[..., Any]:
        pieces.append(function)
        return lambda *arguments: function(*arguments)

    monkeypatch.setattr(torch, "compile", note)
    state = method.init(problem, RNG("init"))
    compiled, _ = StepRunner(method.step, problem, "on", repeats_passes=True)(state, RNG)
    assert {trajectory.Tiles.apply, autodiff._pull} <= {
        getattr(piece, "__func__", piece) for piece in pieces
    }
    eager, _ = method.step(problem, state, RNG)
    torch.testing.assert_close(compiled.images.x, eager.images.x, rtol=0, atol=1e-9)


@pytest.mark.parametrize("make", [VBPC, FRePo])
def test_mirrored_a_step_is_that_of_twice_the_points_pulled_back(
    make: Any, problem: Problem
) -> None:
    few = {**FEW, "pool_size": 2}
    method, plain = make(**few, mirror=True), make(**few)
    state = method.init(problem, RNG("init"))
    after, info = method.step(problem, state, RNG)
    learned = state.learned._replace(
        x=torch.cat([state.learned.x, state.learned.x.flip(3)]),
        y=state.learned.y.repeat(2, 1),
        log_weight=state.learned.log_weight.repeat(2),
    )
    both = state._replace(
        learned=learned, average=learned, moments=type(learned)(*map(start, learned))
    )
    plain_after, plain_info = plain.step(problem, both, RNG)
    assert float(info.loss) == pytest.approx(float(plain_info.loss), rel=1e-10)
    of_images, of_mirrored = plain_after.moments.x.first.chunk(2)
    assert not torch.allclose(of_images, of_mirrored.flip(3))
    torch.testing.assert_close(
        after.moments.x.first, of_images + of_mirrored.flip(3), rtol=1e-8, atol=1e-12
    )
    torch.testing.assert_close(
        after.moments.y.first, sum(plain_after.moments.y.first.chunk(2)), rtol=1e-8, atol=1e-12
    )

    coreset = method.coreset(problem, after)
    assert len(coreset) == 10
    whole = multiformation.decoded(problem, coreset)
    torch.testing.assert_close(
        problem.inputs(whole.x),
        torch.cat([after.learned.x, after.learned.x.flip(3)]),
        rtol=0,
        atol=1e-9,
    )
    assert torch.equal(whole.y, coreset.y.repeat(2, 1))
    assert "mirror" not in whole.provenance
    assert multiformation.decoded(problem, whole) is whole


def test_the_pool_trains_on_mirror_images_too(problem: Problem) -> None:
    few = {
        **FEW,
        "pool_size": 1,
        "image_lr": 1e-12,
        "label_lr": 0.0,
    }  # points stay, so that both pools see the same
    state = VBPC(**few, mirror=True).init(problem, RNG("init"))
    after, _ = VBPC(**few, mirror=True).step(problem, state, RNG)
    learned: Any = state.learned._replace(
        x=multiformation.mirrored(state.learned.x),
        y=state.learned.y.repeat(2, 1),
        log_weight=state.learned.log_weight.repeat(2),
    )
    both = state._replace(
        learned=learned, average=learned, moments=type(learned)(*map(start, learned))
    )
    expected, _ = VBPC(**few).step(problem, both, RNG)
    torch.testing.assert_close(after.pool.theta, expected.pool.theta, rtol=0, atol=1e-9)
    alone, _ = VBPC(**few).step(problem, state, RNG)
    assert not torch.allclose(after.pool.theta, alone.pool.theta, rtol=0, atol=1e-6)


def test_features_have_no_mirror_image(make_problem: Callable[..., Problem]) -> None:
    with pytest.raises(
        ConfigError, match=r"mirror shows images mirrored, but .* has features of shape"
    ):
        VBPC(**FEW, mirror=True).init(make_problem(), RNG)


def _coreset(problem: Problem, factor: Any) -> Coreset:
    return problem.subset(torch.arange(4)).with_provenance(formation=factor)


@pytest.mark.parametrize("mirror", [1, "yes", None])
def test_a_mirror_without_sense_is_refused(problem: Problem, mirror: Any) -> None:
    with pytest.raises(ArtifactError, match="mirror = "):
        multiformation.decoded(
            problem, problem.subset(torch.arange(4)).with_provenance(mirror=mirror)
        )


@pytest.mark.parametrize("factor", [0, -1, 2.0, "2", True])
def test_a_provenance_without_sense_is_refused(problem: Problem, factor: Any) -> None:
    with pytest.raises(ArtifactError, match="formation = "):
        multiformation.decoded(problem, _coreset(problem, factor))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"factor": 3}, "does not divide the 8×8 images"),
        ({"counts": [100] * 10, "factor": 2}, "100 images of class 0 from 400 real ones, but"),
    ],
)
def test_what_cannot_be_cut_is_refused(
    problem: Problem, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        multiformation.begin(problem, **{"counts": [1] * 10, **changes}, kind="real", rng=RNG)
    if changes["factor"] == 3:
        with pytest.raises(ConfigError, match=message):
            multiformation.decoded(problem, _coreset(problem, 3))


@pytest.mark.parametrize("kind", ["real", "noise"])
def test_features_have_no_tiles(make_problem: Callable[..., Problem], kind: Any) -> None:
    with pytest.raises(ConfigError, match="has features of shape"):
        multiformation.begin(make_problem(), [1, 1], kind, RNG, factor=2)


@pytest.mark.parametrize("method", TRAJECTORY.values(), ids=TRAJECTORY)
def test_trajectory_methods_refuse_features(
    make_problem: Callable[..., Problem], method: Any
) -> None:
    bare = make_problem()
    experts = Resident(bare.model.init(Rng(0), num=10, dtype=torch.float64).reshape(2, 5, -1))
    with pytest.raises(
        ConfigError, match=r"formation = 2 cuts images into tiles, but .* has features of shape"
    ):
        method.init(replace(bare, experts=experts), RNG)
