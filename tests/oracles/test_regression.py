"""Regression against exact answers: posteriors of Bayesian linear regression written out densely,
and scores of Gaussians in closed form.
"""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import pseudocore as pc
from pseudocore.core.mixture import Mixture
from pseudocore.evaluation import regression as scores

N, D = 60, 3


def data(seed: int = 0) -> pc.Dataset:
    """Targets far from 0 and of large spread: nothing works on them as they are."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(N + 40, D, generator=rng)
    slopes = torch.tensor([1.0, -2.0, 0.5])[:D]
    y = 500 + 30 * (x @ slopes + 0.8 * torch.randn(N + 40, generator=rng))
    return pc.dataset(x[:N], y[:N], test=(x[N:], y[N:]))


def exact(problem: pc.Problem, coreset: pc.Coreset, raw: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of a target under the weighted points, in its own units, by dense
    algebra in natural parameters.
    """
    own, sd = problem.gaussian, float(problem.prior.scale) / math.sqrt(D)

    def rows(x: Tensor) -> Tensor:
        inputs = problem.inputs(x).double()
        return torch.cat([inputs, torch.ones(len(x), 1).double()], 1)

    x, y = rows(coreset.x), (coreset.y.double() - own.centre) / own.unit
    weight = coreset.weight.double() / (own.noise / own.unit) ** 2
    precision = x.mT @ (weight[:, None] * x) + torch.eye(D + 1).double() / sd**2
    covariance = precision.inverse()
    mean = covariance @ (x.mT @ (weight[:, None] * y))
    at = rows(raw)
    variance = ((at @ covariance) * at).sum(1)
    return own.centre + own.unit * (at @ mean)[:, 0], (own.unit**2 * variance + own.noise**2).sqrt()


@pytest.fixture(scope="module")
def run() -> Any:
    return pc.reduce("full", data(), model="linear", target_noise=24.0)


def test_last_layer_vi_is_exact_bayesian_linear_regression(run: Any) -> None:
    raw = run.problem.data.test.x
    for coreset in (run.coreset, run.coreset[:7]):
        mean, sd = exact(run.problem, coreset, raw)
        found = pc.infer(coreset, "last-layer-vi").predict(raw)
        assert torch.allclose(found.mean, mean, rtol=1e-5)
        assert torch.allclose(found.sd, sd, rtol=1e-5)


def test_functions_have_the_moments_of_the_posterior(run: Any) -> None:
    raw = run.problem.data.test.x[:5]
    mean, sd = exact(run.problem, run.coreset, raw)
    posterior = pc.infer(run.coreset, "last-layer-vi")
    drawn = posterior.predict(raw).sample(4000)
    spread = (sd.square() - 24.0**2).sqrt()
    assert ((drawn.mean(0) - mean) / (spread / math.sqrt(4000))).abs().max() < 4
    assert (drawn.std(0) / spread - 1).abs().max() < 4 / math.sqrt(2 * 4000)
    noisy = posterior.predict(raw).sample(4000, noise=True)
    assert (noisy.std(0) / sd - 1).abs().max() < 4 / math.sqrt(2 * 4000)


def test_hmc_finds_the_exact_posterior(run: Any) -> None:
    """|z| < 4 of the mean at every test input, by the effective number of draws."""
    raw = run.problem.data.test.x
    mean, sd = exact(run.problem, run.coreset, raw)
    posterior = pc.infer(run.coreset, "hmc", num_draws=150, num_burn=60)
    assert posterior.diagnostics is not None
    ess = posterior.diagnostics.predictions.ess_bulk
    found = posterior.predict(raw)
    spread = (sd.square() - 24.0**2).sqrt()
    z = (found.mean - mean) / (spread / math.sqrt(ess))
    assert z.abs().max() < 4
    ratio = ((found.sd.square() - 24.0**2).sqrt() / spread).mean()
    assert abs(ratio - 1) < 0.1


def test_the_noise_has_the_largest_marginal_likelihood() -> None:
    problem = pc.reduce("uniform", data(), model="linear").problem
    own, sd = problem.gaussian, 2 / math.sqrt(D)
    x, y = problem.batch(torch.arange(N))
    rows = torch.cat([x, torch.ones(N, 1)], 1).double()

    def evidence(noise: float) -> float:
        covariance = noise**2 * torch.eye(N).double() + sd**2 * rows @ rows.mT
        return float(
            torch.distributions.MultivariateNormal(torch.zeros(N).double(), covariance).log_prob(
                y[:, 0].double()
            )
        )

    best = own.relative_noise
    assert evidence(best) > max(evidence(best * 1.01), evidence(best / 1.01))


def test_crps_of_a_gaussian_in_closed_form() -> None:
    """Gneiting & Raftery (2007), Eq. (21)."""
    mean, sd, y = (
        torch.tensor([[0.0], [2.0]]),
        torch.tensor([[1.0], [3.0]]),
        torch.tensor([0.3, -4.0]),
    )
    z = (y - mean[:, 0]) / sd[:, 0]
    normal = torch.distributions.Normal(0.0, 1.0)
    expected = sd[:, 0] * (
        z * (2 * normal.cdf(z) - 1) + 2 * normal.log_prob(z).exp() - 1 / math.sqrt(math.pi)
    )
    assert torch.allclose(Mixture(mean, sd).crps(y), expected, atol=1e-6)


def mixture() -> Mixture:
    mean = torch.tensor([[-2.0, 0.0, 5.0], [1.0, 1.0, 2.0]]).double()
    return Mixture(mean, torch.tensor([[1.0, 0.5, 2.0], [0.1, 1.0, 0.3]]).double())


def test_crps_and_quantiles_of_a_mixture_by_quadrature() -> None:
    """CRPS = ∫ (F(t) − 1[y ≤ t])² dt."""
    predicted, y = mixture(), torch.tensor([0.7, 3.0]).double()
    at = torch.linspace(-40, 40, 160_001).double()
    cdf = torch.stack(
        [
            torch.special.ndtr((at[:, None] - m) / s).mean(1)
            for m, s in zip(predicted.mean, predicted.sd, strict=True)
        ]
    )
    gaps = (cdf - (at >= y[:, None]).double()).square()
    assert torch.allclose(predicted.crps(y), torch.trapezoid(gaps, at), atol=1e-3)
    for level in (0.05, 0.5, 0.95):
        places = predicted.quantile(level)
        assert torch.allclose(predicted.cdf(places), torch.full((2,), level).double(), atol=1e-9)


def test_crps_of_scoringrules() -> None:
    package = pytest.importorskip("scoringrules", reason="scoringrules is not installed")
    predicted, y = mixture(), torch.tensor([0.7, 3.0]).double()
    theirs = package.crps_mixnorm(y.numpy(), predicted.mean.numpy(), predicted.sd.numpy())
    assert torch.allclose(predicted.crps(y), torch.as_tensor(theirs), atol=1e-6)


def test_crps_of_properscoring() -> None:
    """A Gaussian in closed form; draws without noise as an ensemble."""
    package = pytest.importorskip("properscoring", reason="properscoring is not installed")
    predicted, y = mixture(), torch.tensor([0.7, 3.0]).double()
    mean, sd = predicted.mean[:, :1], predicted.sd[:, :1]
    theirs = package.crps_gaussian(y.numpy(), mean[:, 0].numpy(), sd[:, 0].numpy())
    assert torch.allclose(Mixture(mean, sd).crps(y), torch.as_tensor(theirs), atol=1e-10)
    exact = predicted._replace(sd=torch.full_like(predicted.sd, 1e-9))
    theirs = package.crps_ensemble(y.numpy(), predicted.mean.numpy())
    assert torch.allclose(exact.crps(y), torch.as_tensor(theirs), atol=1e-6)


def test_scores_of_a_calibrated_predictor() -> None:
    """Targets from the predictive itself: coverage, RMSE and NLL are known up to sampling."""
    rng, num = torch.Generator().manual_seed(1), 20_000
    mean = torch.randn(num, generator=rng).double()
    y = mean + 2 * torch.randn(num, generator=rng).double()

    def predict(raw: Tensor) -> Tensor:
        return torch.stack([raw[:, 0], torch.full_like(raw[:, 0], 2.0)], 1)

    found = scores.measure(predict, [(mean[:, None], y[:, None])])
    assert abs(found.coverage_50 - 0.5) < 4 * 0.5 / math.sqrt(num)
    assert abs(found.coverage_90 - 0.9) < 4 * 0.3 / math.sqrt(num)
    assert abs(found.rmse - 2) < 4 * 2 / math.sqrt(2 * num)
    assert abs(found.nll - (math.log(2) + 0.5 * math.log(2 * math.pi) + 0.5)) < 0.02
    assert abs(found.crps - 2 / math.sqrt(math.pi)) < 0.03
    assert abs(found.width_90 - 2 * 2 * 1.6448536) < 1e-5


def test_distances_between_predictives() -> None:
    one, other = torch.tensor([[1.0, 2.0]]).double(), torch.tensor([[0.0, 1.5]]).double()
    p, q = (torch.distributions.Normal(*part[0]) for part in (one, other))
    found = scores.distances(one, other)
    assert torch.allclose(found["kl"], torch.distributions.kl_divergence(p, q))
    assert torch.allclose(found["reverse_kl"], torch.distributions.kl_divergence(q, p))
    assert torch.allclose(found["w2"], torch.tensor([math.hypot(1.0, 0.5)]).double())


def test_full_data_have_no_distance_to_themselves(run: Any) -> None:
    found = pc.fidelity(run, inference="last-layer-vi")
    assert abs(found.kl) < 1e-9
    assert found.metrics["fidelity_w2"]["mean"] < 1e-6


def test_laplace_is_exact_on_a_linear_network(run: Any) -> None:
    raw = run.problem.data.test.x
    mean, sd = exact(run.problem, run.coreset, raw)
    found = pc.infer(run.coreset, "laplace", num_steps=3000, step_size=0.01).predict(raw)
    assert (found.mean - mean).abs().max() < 0.01 * sd.min()
    assert torch.allclose(found.sd, sd, rtol=1e-4)


@pytest.mark.parametrize(
    ("method", "options", "limit"),
    [
        ("psvi", {"num_steps": 250}, 1e-4),
        ("vbpc", {"image_lr": 0.03, "num_steps": 400}, 5e-3),
        ("giga", {"draws": "laplace"}, 1e-2),
    ],
)
def test_enough_points_carry_the_exact_posterior(
    method: str, options: dict[str, Any], limit: float
) -> None:
    """Ten points for four parameters: the predictive of all data is within reach, while as many
    uniform ones are far from it.
    """
    whole = data()
    found = pc.reduce(method, whole, model="linear", points=10, target_noise=24.0, **options)
    uniform = pc.reduce("uniform", whole, model="linear", points=10, target_noise=24.0)
    kl, other = (pc.fidelity(one, inference="last-layer-vi").kl for one in (found, uniform))
    assert kl < limit < 0.02 < other
    assert found.coreset.y.shape == (10, 1)
    low, high = whole.train.y.min(), whole.train.y.max()
    assert low - 300 < found.coreset.y.min() <= found.coreset.y.max() < high + 300


def test_the_gradient_of_the_chains_is_that_of_the_forward_kl(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """bpc-pcd learns points and numbers towards the data: the gap closes, and so does the KL."""
    short = {"num_chains": 4, "num_burn": 60, "num_draws": 40, "num_leapfrog": 10}
    monkeypatch.setitem(pc.references.OPTIONS, "hmc", short)
    whole = data()
    options: dict[str, Any] = {"model": "linear", "points": 8, "target_noise": 24.0}
    found = pc.reduce("bpc-pcd", whole, num_steps=150, image_lr=0.1, num_warmup=30, **options)
    uniform = pc.reduce("uniform", whole, **options)
    kl, other = (pc.fidelity(one, inference="last-layer-vi").kl for one in (found, uniform))
    assert kl < 0.5 * other
