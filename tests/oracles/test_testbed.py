"""The test bed's divergences are exact, its floors are minima, and every method drives every
divergence down on it.
"""

import itertools
import math

import pytest
import torch
from torch.distributions import MultivariateNormal
from torch.distributions.kl import kl_divergence

from pseudocore.core.errors import ConfigError
from pseudocore.core.rng import Rng
from pseudocore.objectives.small_models import Gaussian
from pseudocore.reproduce.testbed import METHODS, Bed, Curve, divergences, floor, learn, run

BED = Bed(dim=4, num_points=40)
SIZES = (4, 40)
NOISE = {"reverse_kl": 0.15, "forward_kl": 0.15, "w2_squared": 0.01}
"""What noise of the estimators may add to a last value, besides a tenth of it: nats, and squared
distance.
"""

every_method = pytest.mark.parametrize("method", METHODS)


@pytest.fixture(scope="module")
def curves() -> dict[tuple[str, int], Curve]:
    return {(curve.method, curve.size): curve for curve in run(BED, sizes=SIZES)}


@every_method
def test_every_divergence_falls_by_95_percent(
    curves: dict[tuple[str, int], Curve], method: str
) -> None:
    """Whatever divergence the method itself minimises."""
    for size in SIZES:
        for values in curves[method, size].values.values():
            assert values[-1] < 0.05 * values[0]


@every_method
def test_every_divergence_ends_at_its_floor_and_falls_with_the_size(
    curves: dict[tuple[str, int], Curve], method: str
) -> None:
    for name, noise in NOISE.items():
        ends = [curves[method, size].values[name][-1] for size in SIZES]
        for size, end in zip(SIZES, ends, strict=True):
            least = 0.0 if method == "psvi" else floor(BED, size)[name]
            assert least - 1e-9 <= end < 1.1 * least + noise
        assert all(larger < smaller + noise for smaller, larger in itertools.pairwise(ends))


def test_divergences_are_those_of_the_conjugate_posteriors() -> None:
    """At the start of a curve, from Eqs. (28, 29) written out and torch.distributions."""
    bed, size = Bed(dim=3, num_points=20, noise=0.7, prior=2.0, num_steps=1), 5
    x, rng = bed.world.points(2), Rng(9)
    curve = learn(bed, "bpc-fkl", x, size, rng)
    points = rng("points").normal(size, 3, dtype=x.dtype)

    def of(points: torch.Tensor) -> MultivariateNormal:
        covariance = torch.linalg.inv(
            torch.eye(3, dtype=x.dtype) / 2.0**2
            + len(points) * torch.eye(3, dtype=x.dtype) / 0.7**2
        )
        return MultivariateNormal(covariance @ points.sum(0) / 0.7**2, covariance)

    one, other = of(points), of(x)
    assert math.isclose(curve.values["reverse_kl"][0], kl_divergence(one, other), rel_tol=1e-9)
    assert math.isclose(curve.values["forward_kl"][0], kl_divergence(other, one), rel_tol=1e-9)
    gap = (one.mean - other.mean).square().sum() + 3 * (
        one.variance[0].sqrt() - other.variance[0].sqrt()
    ) ** 2
    assert math.isclose(curve.values["w2_squared"][0], gap, rel_tol=1e-9)


@pytest.mark.parametrize("size", SIZES)
def test_no_points_of_weight_one_go_below_the_floor(size: int) -> None:
    """Points with the right mean reach it, any shift of them is worse; and it falls with the size
    to 0.
    """
    world, x = BED.world, BED.world.points(0)
    target = world.posterior(x, torch.ones(40, dtype=x.dtype))
    right = target[0] * (1 / BED.prior**2 + size / BED.noise**2) * BED.noise**2 / size
    for shift in (0.0, 1e-3):
        points = (right + shift).expand(size, -1)
        one, other = (
            MultivariateNormal(*world.posterior(part, torch.ones(len(part), dtype=x.dtype)))
            for part in (points, x)
        )
        excess = float(kl_divergence(one, other)) - floor(BED, size)["reverse_kl"]
        assert abs(excess) < 1e-9 if shift == 0 else excess > 1e-6
    assert abs(floor(BED, BED.num_points)["forward_kl"]) < 1e-9


@every_method
def test_one_seed_one_curve(method: str) -> None:
    bed, x = Bed(dim=2, num_points=10, num_steps=3), Bed(dim=2, num_points=10).world.points(0)
    one, same, other = (learn(bed, method, x, 3, Rng(seed), every=1) for seed in (0, 0, 1))
    assert one == same
    assert one.steps == [0, 1, 2, 3]
    assert one.values != other.values


def test_a_gaussian_does_not_diverge_from_itself() -> None:
    x = BED.world.points(0)
    q = Gaussian(*BED.world.posterior(x, torch.ones(40, dtype=x.dtype)))
    assert all(abs(value) < 1e-9 for value in divergences(q, q).values())


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="no 'bpc-flk'; did you mean 'bpc-fkl'"):
        run(BED, methods=["bpc-flk"])
    with pytest.raises(ConfigError, match="0 points was asked for"):
        run(BED, methods=["psvi"], sizes=[0])
    with pytest.raises(ConfigError, match="num_steps = 0 must be at least 1"):
        Bed(num_steps=0)
