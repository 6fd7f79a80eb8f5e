"""Averages over draws: streamed equals naive, and entropies add up; functions drawn from a posterior
have its moments.
"""

import math
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.inference.draws import MemoryDraws
from pseudocore.inference.draws_posterior import DrawsPosterior
from pseudocore.inference.hmc import HMC
from pseudocore.inference.laplace import Laplace, draw_heads, logit_covariance
from pseudocore.inference.last_layer_vi import LastLayerVI
from pseudocore.inference.sgd import SGD
from pseudocore.objectives import last_layer_gaussian as gaussian
from pseudocore.objectives.last_layer_gaussian import LastLayer


def whole(problem: Problem) -> Coreset:
    return problem.subset(torch.arange(problem.num_train))


@pytest.fixture
def draws(problem: Problem) -> MemoryDraws:
    """Six draws of three chains."""
    kept = MemoryDraws()
    for number in range(6):
        kept.append(4 * problem.model.init(Rng(number), num=3, dtype=torch.float64), {})
    return kept


@pytest.fixture
def predictive(problem: Problem, draws: MemoryDraws) -> DrawsPosterior:
    return DrawsPosterior(problem, draws, whole(problem))


def probabilities(problem: Problem, draws: MemoryDraws) -> Tensor:
    """All at once, (networks, test, classes)."""
    thetas = torch.cat([draws[number] for number in range(len(draws))])
    return problem.model.logits(thetas, problem.inputs(problem.data.test.x)).softmax(-1)


@pytest.mark.parametrize("batch_size", [7, 256])
def test_streamed_is_naive(
    problem: Problem, draws: MemoryDraws, predictive: DrawsPosterior, batch_size: int
) -> None:
    naive = probabilities(problem, draws).mean(0).log()
    streamed = torch.cat([predictive(batch) for batch in problem.data.test.x.split(batch_size)])
    assert (streamed - naive).abs().max() < 1e-6


@pytest.mark.parametrize("batch_size", [7, 256])
def test_uncertainty_is_naive(
    problem: Problem, draws: MemoryDraws, predictive: DrawsPosterior, batch_size: int
) -> None:
    each = probabilities(problem, draws)
    mean = each.mean(0)
    entropy = -(mean * mean.log()).sum(1)
    divergence = (
        (each * (each.log() - mean.log())).sum(2).mean(0)
    )  # mutual information as the mean KL to the average
    parts = [predictive.uncertainty(batch) for batch in problem.data.test.x.split(batch_size)]
    assert (torch.cat([part.entropy for part in parts]) - entropy).abs().max() < 1e-6
    assert (torch.cat([part.mutual_information for part in parts]) - divergence).abs().max() < 1e-6
    assert divergence.max() > 0.05


def test_bounds(problem: Problem, predictive: DrawsPosterior) -> None:
    entropy, information = predictive.uncertainty(problem.data.test.x)
    assert (information >= 0).all()
    assert (information <= entropy).all()
    assert (entropy <= math.log(2) + 1e-12).all()


def test_equal_draws_disagree_about_nothing(problem: Problem) -> None:
    theta = problem.model.init(Rng(0), dtype=torch.float64).expand(5, -1)
    entropy, information = DrawsPosterior(problem, theta, whole(problem)).uncertainty(
        problem.data.test.x
    )
    assert information.max() < 1e-12
    assert entropy.min() > 0.1


def test_certain_draws_that_contradict_each_other(problem: Problem) -> None:
    """Each is sure, and they are evenly split: one bit of entropy, all of it disagreement."""
    theta = torch.zeros(2, problem.model.num_parameters, dtype=torch.float64)
    theta[0, -1], theta[1, -2] = 800.0, 800.0  # the biases of the two classes
    entropy, information = DrawsPosterior(problem, theta, whole(problem)).uncertainty(
        problem.data.test.x
    )
    assert torch.allclose(entropy, torch.full_like(entropy, math.log(2)))
    assert torch.allclose(information, entropy)


def test_thetas_may_come_as_a_tensor(
    problem: Problem, draws: MemoryDraws, predictive: DrawsPosterior
) -> None:
    thetas = torch.cat([draws[number] for number in range(6)])
    flat = DrawsPosterior(problem, thetas, whole(problem))
    assert torch.allclose(flat(problem.data.test.x), predictive(problem.data.test.x), rtol=1e-12)


# --- what `predict` returns


def test_a_prediction_is_that_of_the_average(problem: Problem, predictive: DrawsPosterior) -> None:
    x = problem.data.test.x
    found, (entropy, information) = predictive.predict(x.numpy()), predictive.uncertainty(x)
    assert torch.equal(found.log_probs, predictive(x))
    assert torch.equal(found.probs, predictive(x).exp())
    assert torch.allclose(found.entropy, entropy)
    assert torch.equal(found.mutual_information, information)


def test_two_certain_draws_disagree_about_one_bit(problem: Problem) -> None:
    theta = torch.zeros(2, problem.model.num_parameters, dtype=torch.float64)
    theta[0, -1], theta[1, -2] = 800.0, 800.0
    found = DrawsPosterior(problem, theta, whole(problem)).predict(problem.data.test.x[:5])
    bit = torch.full((5,), math.log(2), dtype=torch.float64)
    assert torch.allclose(found.mutual_information, bit)
    assert torch.allclose(found.probs, torch.full((5, 2), 0.5, dtype=torch.float64))
    assert found.sample(2).sum(0).eq(1).all()  # one network each


def test_samples_are_networks(
    problem: Problem, draws: MemoryDraws, predictive: DrawsPosterior
) -> None:
    x = problem.data.test.x
    each, found = probabilities(problem, draws), predictive.predict(x)
    few = found.sample(7, rng=3)
    assert few.shape == (7, len(x), 2)
    nearest = (few[:, None] - each).abs().amax((2, 3))  # (samples, networks)
    assert nearest.min(1).values.max() < 1e-12
    assert nearest.argmin(1).unique().numel() == 7  # without replacement
    fewer = predictive.predict(x[:4]).sample(7, rng=3)  # other sizes round otherwise
    assert (fewer - few[:, :4]).abs().max() < 1e-12
    assert not torch.equal(found.sample(7, rng=4), few)
    assert (found.sample(36).mean(0) - found.probs).abs().max() < 1e-12  # every one twice


def test_thetas_are_flat(draws: MemoryDraws, predictive: DrawsPosterior) -> None:
    assert torch.equal(predictive.draws, torch.cat([draws[number] for number in range(6)]))
    assert predictive.chains is draws


def test_what_chains_know_of_themselves(problem: Problem, coreset: Coreset) -> None:
    chain = HMC(num_draws=4, num_burn=2, num_chains=2, temperature=1.0, prior_scale=1.0)
    found = chain.fit(problem, coreset, Rng(0))
    assert found.diagnostics is not None
    assert found.diagnostics.num_draws == 4
    assert any("too few" in sentence for sentence in found.warnings)
    single = SGD(num_steps=2).fit(problem, coreset, Rng(0))
    assert (single.diagnostics, single.warnings, single.chains) == (None, [], None)
    assert single.draws.shape == (1, problem.model.num_parameters)


@pytest.mark.parametrize("version", ["0.22.0", "1.0.0"])
def test_arviz_gets_chains_first(
    problem: Problem, coreset: Coreset, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    fake = SimpleNamespace(
        __version__=version, from_dict=lambda *args, **groups: given.append(args or groups)
    )
    monkeypatch.setitem(sys.modules, "arviz", fake)
    chain = HMC(num_draws=5, num_burn=2, num_chains=3, temperature=1.0, prior_scale=1.0)
    found = chain.fit(problem, coreset, Rng(0))
    found.to_arviz()
    groups = given[0] if version < "1" else given[0][0]
    assert groups["posterior"]["theta"].shape == (3, 5, problem.model.num_parameters)
    assert torch.equal(torch.tensor(groups["posterior"]["theta"][2, 1]), found.draws[1 * 3 + 2])
    accept = groups["sample_stats"]["accept"]
    assert torch.equal(torch.tensor(accept), found.chains.trace("accept").T)


def test_arviz_is_asked_for_in_one_sentence(
    problem: Problem, predictive: DrawsPosterior, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(ConfigError, match=r"pip install 'pseudocore\[arviz\]'") as caught:
        predictive.to_arviz()
    assert caught.value.code == "missing-package"
    single = DrawsPosterior(problem, predictive.draws[:1], whole(problem))
    with pytest.raises(ConfigError) as caught:
        single.to_arviz()
    assert caught.value.code == "no-chains"


# --- a Gaussian last layer


@pytest.fixture(params=[4, 9], ids=["M<h", "M>h"])
def last_layer(request: pytest.FixtureRequest) -> tuple[LastLayer, Tensor]:
    """And its features, rows scaled by the root of their weight."""
    num, rng = request.param, Rng(5)
    phi = rng("x").normal(num, 6, dtype=torch.float64)
    weight = torch.linspace(0.5, 3.0, num, dtype=torch.float64)
    y = rng("y").normal(num, 3, dtype=torch.float64)
    fitted = gaussian.fit(phi, y, ridge=0.1, prior_variance=0.5, weight=weight)
    return fitted, weight.sqrt()[:, None] * phi


def test_draws_of_a_last_layer_have_its_mean_and_covariance(
    last_layer: tuple[LastLayer, Tensor],
) -> None:
    """V = ρ⁻¹(I + Φᵀ Φ / r)⁻¹, written out; six standard errors of a correlation."""
    (fitted, phi), num = last_layer, 40_000
    identity = torch.eye(6, dtype=phi.dtype)
    V = torch.linalg.inv(identity + phi.mT @ phi / fitted.ridge) / fitted.precision
    drawn = gaussian.draw(fitted, num, Rng(1))
    sd = V.diagonal().sqrt()
    z = (drawn.mean(0) - fitted.mean) / sd[:, None] * math.sqrt(num)
    assert z.abs().max() < 4.5
    for label in range(3):
        deviation = torch.cov(drawn[:, :, label].mT) - V
        assert (deviation / (sd[:, None] * sd)).abs().max() < 6 / math.sqrt(num)
    across = torch.corrcoef(torch.stack([drawn[:, 0, 0], drawn[:, 0, 1]]))[0, 1]
    assert across.abs() < 5 / math.sqrt(num)  # classes are independent


@pytest.mark.parametrize(
    "inference",
    [
        LastLayerVI(num_steps=20, prior_variance=0.01),
        Laplace(num_steps=20, temperature=1.0, prior_scale=1.0, predictive="mc", num_draws=4000),
    ],
    ids=["last-layer-vi", "laplace"],
)
def test_functions_of_a_last_layer(problem: Problem, coreset: Coreset, inference: Any) -> None:
    """The same functions at any inputs; their mean is what is predicted, in the closed form of
    last-layer-vi up to its probit approximation.
    """
    posterior, x = inference.fit(problem, coreset, Rng(0)), problem.data.test.x
    found = posterior.predict(x)
    few = found.sample(5, rng=2)
    assert torch.allclose(posterior.predict(x[3:9]).sample(5, rng=2), few[:, 3:9], rtol=1e-10)
    assert not torch.allclose(found.sample(5, rng=3), few)
    assert few.var(0).max() > 0
    assert (found.sample(4000).mean(0) - found.probs).abs().max() < 0.03
    assert (found.mutual_information > 0).all()
    assert (found.mutual_information <= found.entropy + 0.02).all()
    assert (posterior.draws, posterior.diagnostics, posterior.warnings) == (None, None, [])


def test_draws_of_laplaces_head_have_its_mean_and_covariance(
    problem: Problem, coreset: Coreset
) -> None:
    num, x = 20_000, problem.inputs(problem.data.test.x[:6])
    head = Laplace(num_steps=50, prior_scale=2.0).posterior(problem, coreset, Rng(0))
    mean, covariance = logit_covariance(problem, head, x)
    features = problem.model.features(head.theta, x)
    features = torch.cat([features, torch.ones(6, 1, dtype=x.dtype)], 1)
    drawn = features @ draw_heads(problem, head, num, Rng(1), temperature=0.25)
    sd = covariance.diagonal(dim1=1, dim2=2).sqrt() / 2
    assert ((drawn.mean(0) - mean) / sd * math.sqrt(num)).abs().max() < 4.5
    for place in range(6):
        deviation = torch.cov(drawn[:, place].mT) - covariance[place] / 4
        assert (deviation / (sd[place, :, None] * sd[place])).abs().max() < 6 / math.sqrt(num)
