"""The scaling of the log-posterior against plain arithmetic, and a problem's views of its data."""

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pseudocore.core.errors import DataError
from pseudocore.core.problem import GaussianPrior, PriorKind, Problem, label_log_likelihood
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.models.convnet import ConvNet
from pseudocore.testing.problems import small_problem

MakeProblem = Callable[..., Problem]

THETA = [1.0, -2.0, 0.5, 3.0, 0.1, -0.2]  # W = [[1, -2], [0.5, 3]], b = [0.1, -0.2]
X = [[0.2, 0.4], [1.0, -1.0], [0.3, 0.0]]


def log_probs_by_hand(x: list[float]) -> list[float]:
    logits = [1.0 * x[0] - 2.0 * x[1] + 0.1, 0.5 * x[0] + 3.0 * x[1] - 0.2]
    total = math.log(math.exp(logits[0]) + math.exp(logits[1]))
    return [logit - total for logit in logits]


def log_prior_by_hand(scale: float) -> float:
    return sum(-0.5 * (t / scale) ** 2 - math.log(scale * math.sqrt(2 * math.pi)) for t in THETA)


def coreset(y: Tensor, weight: list[float]) -> Coreset:
    return Coreset(
        torch.tensor(X, dtype=torch.float64), y, torch.tensor(weight, dtype=torch.float64)
    )


@pytest.fixture
def double(make_problem: MakeProblem) -> Problem:
    return make_problem(dtype=torch.float64, prior=GaussianPrior(0.5, "isotropic"))


@pytest.fixture
def theta() -> Tensor:
    return torch.tensor(THETA, dtype=torch.float64)


def test_the_log_posterior_is_the_weighted_sum_and_the_prior_once(
    double: Problem, theta: Tensor
) -> None:
    points = coreset(torch.tensor([0, 1, 1]), [2.0, 0.5, 10.0])
    a, b, c = (log_probs_by_hand(x) for x in X)
    expected = 2.0 * a[0] + 0.5 * b[1] + 10.0 * c[1] + log_prior_by_hand(0.5)
    assert double.log_posterior(theta, points).item() == pytest.approx(expected, rel=1e-13)


def test_soft_labels_enter_as_expected_log_likelihood(double: Problem, theta: Tensor) -> None:
    soft = torch.tensor([[0.25, 0.75], [1.0, 0.0], [0.5, 0.5]], dtype=torch.float64)
    a, b, c = (log_probs_by_hand(x) for x in X)
    expected = (
        2.0 * (0.25 * a[0] + 0.75 * a[1])
        + 0.5 * b[0]
        + 10.0 * (0.5 * c[0] + 0.5 * c[1])
        + log_prior_by_hand(0.5)
    )
    assert double.log_posterior(theta, coreset(soft, [2.0, 0.5, 10.0])).item() == pytest.approx(
        expected, rel=1e-13
    )


def test_targets_that_are_no_distribution_are_logits(double: Problem, theta: Tensor) -> None:
    outputs = torch.tensor([[0.5, -0.5], [-0.5, 0.5], [0.0, 0.0]], dtype=torch.float64)
    points = coreset(outputs, [2.0, 0.5, 10.0]).with_provenance(posterior={"logit_scale": 3.0})
    sure = 1 / (1 + math.exp(-3.0))
    a, b, c = (log_probs_by_hand(x) for x in X)
    likelihood = (
        2.0 * (sure * a[0] + (1 - sure) * a[1])
        + 0.5 * ((1 - sure) * b[0] + sure * b[1])
        + 10.0 * (c[0] + c[1]) / 2
    )
    assert double.log_posterior(theta, points).item() == pytest.approx(
        likelihood + log_prior_by_hand(0.5), rel=1e-13
    )


def test_a_weight_of_two_is_the_point_twice(double: Problem, theta: Tensor) -> None:
    once = coreset(torch.tensor([0, 1, 1]), [2.0, 1.0, 1.0])
    twice = Coreset(once.x[[0, 0, 1, 2]], once.y[[0, 0, 1, 2]], torch.ones(4))
    assert double.log_posterior(theta, once).item() == pytest.approx(
        double.log_posterior(theta, twice).item(), rel=1e-13
    )


def test_a_batch_of_thetas_gives_a_log_posterior_each(double: Problem, theta: Tensor) -> None:
    thetas = torch.stack([theta, theta.flip(0), torch.zeros_like(theta)])
    for y in (
        torch.tensor([0, 1, 1]),
        torch.tensor([[0.25, 0.75], [1.0, 0.0], [0.5, 0.5]], dtype=torch.float64),
    ):
        points = coreset(y, [2.0, 0.5, 10.0])
        assert double.log_likelihood(thetas, points.x, y).shape == (3, 3)
        together = double.log_posterior(thetas, points)
        assert together.shape == (3,)
        torch.testing.assert_close(
            together, torch.stack([double.log_posterior(t, points) for t in thetas])
        )
    assert together[2].item() == pytest.approx(
        -12.5 * math.log(2) + double.log_prior(thetas[2]).item()
    )


def test_the_gradient_reaches_theta_points_and_weights(double: Problem, theta: Tensor) -> None:
    def value(theta: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        return double.log_posterior(theta, Coreset(x, torch.tensor([0, 1, 1]), weight))

    parts = (
        theta,
        torch.tensor(X, dtype=torch.float64),
        torch.tensor([2.0, 0.5, 10.0], dtype=torch.float64),
    )
    assert torch.autograd.gradcheck(value, tuple(part.requires_grad_() for part in parts))


def test_points_are_normalised_before_the_model_sees_them(
    make_problem: MakeProblem, theta: Tensor
) -> None:
    plain, shifted = (
        make_problem(dtype=torch.float64),
        make_problem(dtype=torch.float64, shift=0.3, scale=0.2),
    )
    points = coreset(torch.tensor([0, 1, 1]), [1.0, 1.0, 1.0])
    moved = dataclasses.replace(points, x=points.x * 0.2 + 0.3)
    assert shifted.log_posterior(theta, moved).item() == pytest.approx(
        plain.log_posterior(theta, points).item(), rel=1e-12
    )


@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("kind", ["fan-in", "isotropic"])
def test_the_prior_is_a_normalised_gaussian(scale: float, kind: PriorKind) -> None:
    """The network: one input channel, 2 of 3×3 weights and 2 biases, 2 gains and 2 shifts of a
    norm, then a head of 2·4·4 features and 10 classes.
    """
    problem = small_problem(model=ConvNet(width=2, depth=1, norm="instance"), dtype=torch.float64)
    problem = dataclasses.replace(problem, prior=GaussianPrior(scale, kind))
    sd = [1 / 3] * 20 + [1.0] * 4 + [32**-0.5] * 330
    centre = [0.0] * 20 + [1.0, 1.0] + [0.0] * 332
    if kind == "isotropic":
        sd, centre = [1.0] * 354, [0.0] * 354
    normal = torch.distributions.Normal(  # type: ignore[no-untyped-call]
        torch.tensor(centre, dtype=torch.float64), scale * torch.tensor(sd, dtype=torch.float64)
    )
    for found, expected in zip(problem.prior_moments(), (normal.mean, normal.stddev), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    theta = Rng(0).normal(4, 354, dtype=torch.float64)
    expected = normal.log_prob(theta).sum(-1)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(problem.log_prior(theta), expected, rtol=1e-6, atol=0)
    without = problem.log_prior(theta, normalised=False)
    torch.testing.assert_close(without - without[0], expected - expected[0], rtol=1e-5, atol=1e-5)
    at_centre = problem.log_prior(problem.prior_moments()[0], normalised=False)
    assert float(at_centre) == 0


def test_label_log_likelihood_of_hard_and_one_hot_labels_agree() -> None:
    log_probs, y = (
        Rng(0).normal(2, 5, 3, dtype=torch.float64).log_softmax(-1),
        torch.tensor([0, 2, 1, 1, 0]),
    )
    expected = torch.stack(
        [torch.stack([log_probs[d, i, y[i]] for i in range(5)]) for d in range(2)]
    )
    assert torch.equal(label_log_likelihood(log_probs, y), expected)
    assert torch.equal(label_log_likelihood(log_probs[0], y), expected[0])
    torch.testing.assert_close(
        label_log_likelihood(log_probs, torch.nn.functional.one_hot(y, 3).double()), expected
    )


def test_images_become_floats_in_the_problems_type(make_problem: MakeProblem) -> None:
    problem = make_problem(images=True, shift=0.5, scale=0.25, dtype=torch.float64)
    raw = problem.data.train.x
    seen = problem.inputs(raw)
    assert seen.dtype == torch.float64
    torch.testing.assert_close(seen, (raw.double() / 255 - 0.5) / 0.25)
    torch.testing.assert_close(
        problem.inputs(raw.double() / 255), seen
    )  # floats are in pixel units already
    torch.testing.assert_close(problem.pixels(seen), raw.double() / 255)
    assert problem.train_x.dtype == torch.uint8


def test_batches_are_the_training_set_in_order(make_problem: MakeProblem) -> None:
    problem = make_problem(shift=1.0)
    parts = list(problem.batches(3))
    assert [len(y) for _, y in parts] == [3, 1]
    assert torch.equal(torch.cat([x for x, _ in parts]), problem.data.train.x - 1.0)
    assert torch.equal(torch.cat([y for _, y in parts]), problem.data.train.y)
    x, y = problem.batch(torch.tensor([3, 1]))
    assert torch.equal(x, problem.data.train.x[[3, 1]] - 1.0)
    assert y.tolist() == [0, 1]


def test_members_and_counts(problem: Problem) -> None:
    assert [part.tolist() for part in problem.class_indices] == [[0, 2, 3], [1]]
    assert (problem.num_train, problem.num_classes) == (4, 2)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_fast_lowers_precision_only_when_asked_and_on_a_gpu(
    make_problem: MakeProblem, device: str
) -> None:
    a = torch.ones(2, 2, device=device)
    with make_problem(precision="float32", device=torch.device(device)).fast():
        assert (a @ a).dtype == torch.float32
    with make_problem(precision="bf16", device=torch.device(device)).fast():
        assert (a @ a).dtype == (torch.bfloat16 if device == "cuda" else torch.float32)
    assert (a @ a).dtype == torch.float32


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (torch.ones(2, 3), torch.tensor([0, 1]), r"shape \(3,\) but those of 'four' have \(2,\)"),
        (torch.ones(2, 2), torch.ones(2, 3), "3 classes but 'four' has 2"),
        (torch.ones(2, 2), torch.tensor([0, 2]), r"labels outside 0\.\.1"),
        (torch.ones(2, 2), torch.tensor([-1, 0]), r"labels outside 0\.\.1"),
    ],
)
def test_refuses_a_coreset_of_other_data(
    problem: Problem, x: Tensor, y: Tensor, words: str
) -> None:
    with pytest.raises(DataError, match=words):
        problem.check_fits(Coreset(x, y, torch.ones(2)))


def test_accepts_a_coreset_that_fits(problem: Problem) -> None:
    problem.check_fits(Coreset(torch.ones(2, 2), torch.tensor([0, 1]), torch.ones(2)))
    problem.check_fits(Coreset(torch.ones(2, 2), torch.ones(2, 2), torch.ones(2)))


def test_a_problem_cannot_be_changed(problem: Problem) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        problem.dtype = torch.float64  # type: ignore[misc]


def test_integer_pixels_that_are_not_uint8_are_refused(problem: Problem) -> None:
    with pytest.raises(
        DataError, match="inputs must be uint8, from 0 to 255, or floats in pixel units, not int64"
    ):
        problem.inputs(torch.ones(2, 2, dtype=torch.int64))
