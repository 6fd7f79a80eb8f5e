"""training/experts.py and training/losses.py against torch's own losses, layers and optimiser."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, multi_margin_loss, one_hot

from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Dataset, Examples
from pseudocore.data import DSA, digits
from pseudocore.data import preprocessing as whiten
from pseudocore.models.convnet import ConvNetWide
from pseudocore.models.dense import MLP
from pseudocore.runtime.draws import Step, record
from pseudocore.training import experts
from pseudocore.training.experts import Resident, Trainer, Training, default_group, train
from pseudocore.training.losses import Loss, per_example

MakeProblem = Callable[..., Problem]

WIDTH, SEED = 5, 3


def focal(logits: Tensor, y: Tensor) -> Tensor:
    """Written out from Lin et al. (2017), Eq. 4, γ = 2."""
    p = torch.stack(
        [row.exp()[label] / row.exp().sum() for row, label in zip(logits, y, strict=True)]
    )
    return -((1 - p) ** 2) * p.log()


REFERENCE: dict[Loss, Callable[[Tensor, Tensor], Tensor]] = {
    "cross-entropy": lambda logits, y: cross_entropy(logits, y, reduction="none"),
    "focal": focal,
    "multi-margin": lambda logits, y: multi_margin_loss(logits, y, reduction="none"),
}

every_loss = pytest.mark.parametrize("kind", REFERENCE)


@pytest.fixture
def problem(make_problem: MakeProblem) -> Problem:
    return make_problem(MLP(width=WIDTH, depth=1))


def shaken(x: Tensor, rng: Rng) -> Tensor:
    """An augmentation that shows every difference between two streams."""
    return x + 0.3 * rng.normal(*x.shape, dtype=x.dtype)


# --- losses


@every_loss
def test_losses_and_their_gradients(kind: Loss) -> None:
    logits = (3 * Rng(0).normal(20, 4, dtype=torch.float64)).requires_grad_()
    y = Rng(1).integers(4, 20)
    ours, theirs = per_example(kind, logits, y), REFERENCE[kind](logits, y)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    weight = Rng(2).normal(20, dtype=torch.float64)
    gradients = [torch.autograd.grad((weight * loss).sum(), logits)[0] for loss in (ours, theirs)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


@every_loss
def test_a_soft_label_is_the_mean_over_labels(kind: Loss) -> None:
    logits, soft = (
        Rng(0).normal(6, 4, dtype=torch.float64),
        Rng(1).normal(6, 4, dtype=torch.float64).softmax(1),
    )
    each = torch.stack(
        [per_example(kind, logits, torch.full((6,), label)) for label in range(4)], dim=1
    )
    torch.testing.assert_close(per_example(kind, logits, soft), (soft * each).sum(1))
    hard = torch.arange(6) % 4
    torch.testing.assert_close(
        per_example(kind, logits, one_hot(hard).double()), per_example(kind, logits, hard)
    )
    if kind == "cross-entropy":
        torch.testing.assert_close(
            per_example(kind, logits, soft), cross_entropy(logits, soft, reduction="none")
        )


@every_loss
def test_losses_of_several_networks(kind: Loss) -> None:
    logits, shared, own = Rng(0).normal(3, 5, 4), Rng(1).integers(4, 5), Rng(2).integers(4, 3, 5)
    for y in (shared, own):
        expected = [
            per_example(kind, part, labels)
            for part, labels in zip(logits, y.expand(3, 5), strict=True)
        ]
        assert torch.equal(per_example(kind, logits, y), torch.stack(expected))


def test_the_focal_loss_of_a_sure_and_right_network_keeps_its_digits() -> None:
    """1 − p = 2.06e-9 here, which float32 would round to zero as a difference from one."""
    loss = per_example("focal", torch.tensor([[20.0, 0.0]]), torch.tensor([0]))
    assert loss.item() == pytest.approx(2.0611536e-9**3, rel=1e-4)


# --- training


def by_torch(problem: Problem, training: Training, number: int, num_epochs: int) -> list[Tensor]:
    """The same expert by torch's modules, losses and optimiser, batch by batch."""
    rng, batch_loss = Rng(SEED)("experts", number), REFERENCE[training.loss]
    network = nn.Sequential(nn.Linear(6, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 3)).double()
    nn.utils.vector_to_parameters(
        problem.model.init(rng("theta"), dtype=torch.float64), network.parameters()
    )
    options = {
        "lr": training.lr,
        "momentum": training.momentum,
        "weight_decay": training.weight_decay,
    }
    optimiser = torch.optim.SGD(network.parameters(), **options)
    snapshots = [nn.utils.parameters_to_vector(network.parameters()).detach().clone()]
    for epoch in range(1, num_epochs + 1):
        order = rng("epoch", epoch, "order").permutation(problem.num_train)
        for place, first in enumerate(range(0, problem.num_train, training.batch_size)):
            x, y = problem.batch(order[first : first + training.batch_size])
            x = (
                x
                if problem.augment is None
                else problem.augment(x, rng("epoch", epoch, "augment", place))
            )
            optimiser.zero_grad()
            torch.autograd.backward(batch_loss(network(x), y).mean())
            optimiser.step()
        snapshots.append(nn.utils.parameters_to_vector(network.parameters()).detach().clone())
    return snapshots


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"loss": "focal"},
        {"loss": "multi-margin"},
        {"momentum": 0.9},
        {"weight_decay": 0.1},
        {"momentum": 0.5, "weight_decay": 0.1},
        {"batch_size": 1000},
    ],
)
def test_training_is_sgd_as_torch_has_it(problem: Problem, options: dict[str, Any]) -> None:
    """45 points in batches of eight: the last batch of an epoch has five."""
    training = Training(**{"lr": 0.05, "batch_size": 8, **options})
    found = train(problem, training, num=2, num_epochs=3, seed=SEED)
    for number in range(2):
        expected = torch.stack(by_torch(problem, training, number, 3))
        ours = found.at(torch.full((4,), number), torch.arange(4))
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-10)


def test_batches_are_augmented(problem: Problem) -> None:
    problem = replace(problem, augment=shaken)
    found = train(problem, Training(batch_size=8), num=1, num_epochs=2, seed=SEED)
    expected = by_torch(problem, Training(batch_size=8), 0, 2)[-1]
    torch.testing.assert_close(
        found.at(torch.tensor([0]), torch.tensor([2]))[0], expected, rtol=0, atol=1e-10
    )


def test_an_epoch_visits_every_point_once_and_in_an_order_of_its_own(problem: Problem) -> None:
    visited: list[Tensor] = []

    def record(x: Tensor, rng: Rng) -> Tensor:
        visited.append(x.clone())
        return x

    train(replace(problem, augment=record), Training(batch_size=16), num=2, num_epochs=2)
    assert [len(x) for x in visited] == [16, 16, 13] * 4
    everything, _ = problem.batch(torch.arange(problem.num_train))
    orders = [torch.cat(visited[first : first + 3]) for first in range(0, 12, 3)]
    for order in orders:
        assert torch.equal(order.sort(0).values, everything.sort(0).values)
    assert len({tuple(order[:, 0].tolist()) for order in orders}) == 4


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_batched_experts_are_those_trained_one_by_one(problem: Problem, momentum: float) -> None:
    problem, training = (
        replace(problem, augment=shaken),
        Training(lr=0.05, batch_size=8, momentum=momentum),
    )
    one_by_one, batched = (
        train(problem, training, num=5, num_epochs=3, group=group) for group in (1, 3)
    )
    assert batched._rows.shape == (20, problem.model.num_parameters)
    torch.testing.assert_close(batched._rows, one_by_one._rows, rtol=0, atol=1e-12)


def test_more_experts_later_are_those_of_training_all_at_once(problem: Problem) -> None:
    problem = replace(problem, augment=shaken)
    few, many = (
        train(problem, Training(batch_size=8), num=num, num_epochs=2, group=1) for num in (2, 4)
    )
    assert torch.equal(many._rows[:6], few._rows)
    assert not torch.equal(many._rows[6:9], many._rows[:3])


def test_the_loss_reported_is_that_of_the_batches(problem: Problem) -> None:
    """With a vanishing step the network stands still, and an epoch's mean over batches is the mean
    over the data.
    """
    trainer = Trainer(problem, Training(lr=1e-30, batch_size=8), SEED)
    state = trainer.start([4, 7])
    _, losses = trainer.epoch([4, 7], state, 1)
    x, y = problem.batch(torch.arange(problem.num_train))
    expected = [cross_entropy(problem.model.logits(theta, x), y).item() for theta in state.theta]
    assert losses == pytest.approx(expected, rel=1e-10)


def test_an_expert_that_explodes_is_refused(problem: Problem) -> None:
    with pytest.raises(
        ConfigError,
        match=r"expert 0 became NaN or infinite in epoch \d+, .* lr = 1e\+30 .* smaller lr",
    ):
        train(problem, Training(lr=1e30, batch_size=8), num=1, num_epochs=5)


def test_settings_out_of_bounds_are_refused(problem: Problem) -> None:
    with pytest.raises(
        ConfigError, match=r"lr = -1.0 must be above 0; batch_size = 0 must be at least 1"
    ):
        Trainer(problem, Training(lr=-1.0, batch_size=0), 0)


def test_resident_snapshots_are_found_by_expert_and_epoch() -> None:
    theta = torch.arange(24.0).view(2, 3, 4)
    found = Resident(theta.bfloat16(), torch.float64)
    assert (found.num_experts, found.num_epochs) == (2, 2)
    at = found.at(torch.tensor([1, 0, 1]), torch.tensor([2, 1, 0]))
    assert at.dtype == torch.float64
    assert torch.equal(at, torch.stack([theta[1, 2], theta[0, 1], theta[1, 0]]).double())


@pytest.mark.parametrize("group", [1, 3])
def test_a_replayed_step_draws_from_each_experts_own_stream(group: int) -> None:
    """As a captured graph would: recorded under some experts' streams, replayed under those of
    others.
    """
    problem, replayed = images("cpu"), 0

    class Replaying:
        """Stands for `StepRunner`: takes every step from a recording of the first."""

        def __init__(self, step: Step, problem: Problem, *_: Any, **__: Any) -> None:
            self.step, self.problem, self.recorded = step, problem, None

        def __call__(self, state: Any, rng: Rng) -> Any:
            nonlocal replayed
            replayed += 1
            self.recorded = self.recorded or record(self.step, self.problem, state, rng)  # type: ignore[func-returns-value]
            return self.recorded.step(state, self.recorded.draws(rng))

    expected = train(problem, Training(batch_size=500), num=4, num_epochs=2, group=group)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experts, "StepRunner", Replaying)
        found = train(problem, Training(batch_size=500), num=4, num_epochs=2, group=group)
    assert replayed == 2 * 3 * -(-4 // group)
    assert torch.equal(found._rows, expected._rows)


@pytest.mark.gpu
@pytest.mark.parametrize("group", [1, 3])
def test_captured_training_is_eager_training(group: int) -> None:
    """Long enough that full batches and the last of an epoch are captured; float64, so that only a
    fault can show.
    """
    problem, numbers, thetas = images("cuda"), list(range(group)), []
    for way in ("auto", "off"):
        trainer = Trainer(problem, Training(lr=0.05, batch_size=200, momentum=0.5), 0, compile=way)  # type: ignore[arg-type]
        state = trainer.start(numbers)
        for epoch in range(1, 9):
            state, _ = trainer.epoch(numbers, state, epoch)
        thetas.append(state.theta)
        assert [runner.note for runner in trainer.loop.runners.values()] == ["", ""]
        assert all(
            (runner._graph is None) == (way == "off") for runner in trainer.loop.runners.values()
        )
    torch.testing.assert_close(*thetas, rtol=0, atol=1e-11)


@pytest.mark.gpu
def test_dense_networks_are_trained_together_on_colour_images() -> None:
    """Twenty at once by default on a GPU, batched; the layout of convolutions is not for them."""
    x = (256 * Rng(0).uniform(40, 3, 8, 8)).to(torch.uint8)
    y, device = torch.arange(40) % 4, torch.device("cuda")
    data = Dataset("colours", Examples(x, y), Examples(x[:4], y[:4]), 4)
    problem = Problem(
        data,
        MLP(width=16).build(data.shape, 4),
        whiten.make("standard", data, device=device),
        device=device,
    )
    assert default_group(problem) > 1
    found = train(problem, Training(batch_size=16), num=3, num_epochs=2)
    assert found._rows.isfinite().all()


def images(device: str) -> Problem:
    """The digits in float64 under a small convolutional network and all of DSA but the flip."""
    data = digits()
    model = ConvNetWide(width=4, norm="instance").build(data.shape, data.num_classes)
    preprocess = whiten.make("standard", data, device=device, dtype=torch.float64)
    return Problem(
        data,
        model,
        preprocess,
        DSA("color_crop_cutout_scale_rotate"),
        device=torch.device(device),
        dtype=torch.float64,
    )
