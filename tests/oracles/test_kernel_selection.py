"""Kernel selectors and discrepancies against brute force, autograd and quadrature."""

import importlib.util
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pseudocore as pc
from pseudocore.core.rng import Rng
from pseudocore.evaluation.discrepancy import discrepancies
from pseudocore.selection import kernel_selection, kernels

X = Rng(0)("x").normal(24, 3).double()
EVERY = torch.arange(24)
LENGTH = 1.3


def between(i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
    return kernels.gaussian(X[i], X[j], LENGTH)


def gram() -> torch.Tensor:
    return torch.tensor(
        [[math.exp(-float((a - b).square().sum()) / (2 * LENGTH**2)) for b in X] for a in X],
        dtype=torch.float64,
    )


def test_the_gaussian_kernel() -> None:
    torch.testing.assert_close(kernels.gaussian(X, X, LENGTH), gram())
    far = X + 1e4  # offsets cost no digits
    torch.testing.assert_close(kernels.gaussian(far, far, LENGTH), gram(), rtol=1e-8, atol=1e-10)


def test_the_stein_kernel_by_autograd() -> None:
    """p(x, y) = ∇ₓ·∇ᵧ c + s(x)·∇ᵧ c + s(y)·∇ₓ c + s(x)·s(y) c, from c alone."""
    score = kernels.gaussian_score(X)

    def base(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (1 + (a - b).square().sum() / LENGTH**2) ** -0.5

    expected = torch.zeros(5, 4, dtype=torch.float64)
    for i, a in enumerate(X[:5]):
        for j, b in enumerate(X[5:9]):
            to_a, to_b = (torch.func.grad(base, place)(a, b) for place in (0, 1))
            cross = torch.func.jacfwd(torch.func.grad(base, 1), 0)(a, b).diagonal().sum()
            s, t = score(a[None])[0], score(b[None])[0]
            expected[i, j] = cross + s @ to_b + t @ to_a + (s @ t) * base(a, b)
    found = kernels.stein(X[:5], score(X[:5]), X[5:9], score(X[5:9]), LENGTH)
    torch.testing.assert_close(found, expected)


def test_the_stein_kernel_has_mean_zero_under_its_density() -> None:
    """On a grid, under a standard normal."""
    grid = torch.linspace(-9, 9, 2001, dtype=torch.float64)[:, None]
    density = torch.exp(-grid[:, 0].square() / 2) / math.sqrt(2 * math.pi)
    found = kernels.stein(torch.tensor([[0.7]]).double(), torch.tensor([[-0.7]]).double(), grid, -grid, 1.0)  # fmt: skip
    assert float(torch.trapezoid(found[0] * density, grid[:, 0])) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("kind", ["gaussian", "kde"])
def test_scores_are_gradients(kind: str) -> None:
    if kind == "gaussian":
        centred = X - X.mean(0)
        covariance = centred.T @ centred / len(X)
        covariance += 1e-3 * covariance.trace() / 3 * torch.eye(3, dtype=torch.float64)
        density: Any = torch.distributions.MultivariateNormal(X.mean(0), covariance).log_prob
        score = kernels.gaussian_score(X)
    else:
        score = kernels.kde_score(X, LENGTH)

        def density(y: torch.Tensor) -> torch.Tensor:
            return ((y - X).square().sum(1) / (-2 * LENGTH**2)).logsumexp(0)

    for y in X[:4] + 0.3:
        torch.testing.assert_close(score(y[None])[0], torch.func.grad(density)(y))


def test_mmd_by_its_definition() -> None:
    w = Rng(1)("w").uniform(5).double()
    w, v = w / w.sum(), torch.full((24,), 1 / 24, dtype=torch.float64)
    k = gram()
    expected = sum(float(w[i] * w[j] * k[i, j]) for i in range(5) for j in range(5))
    expected -= 2 * sum(float(w[i] * v[j] * k[i, j]) for i in range(5) for j in range(24))
    expected += float(k.mean())
    between_rows = lambda a, b: kernels.gaussian(a, b, LENGTH)  # noqa: E731
    assert kernels.mmd(X[:5], w, X, v, between_rows) == pytest.approx(math.sqrt(expected))
    assert kernels.mmd(X, v, X, v, between_rows) == pytest.approx(0, abs=1e-7)


def test_ksd_by_its_definition() -> None:
    score = kernels.gaussian_score(X)(X)
    p = kernels.stein(X, score, X, score, LENGTH)
    w = torch.full((24,), 1 / 24, dtype=torch.float64)
    assert kernels.ksd(X, score, w, LENGTH) == pytest.approx(math.sqrt(float(p.mean())))
    assert torch.linalg.eigvalsh(p).min() > -1e-9


def test_the_median_distance() -> None:
    distances = torch.pdist(X).sort().values
    assert kernels.median_distance(X) == pytest.approx(float(distances[(len(distances) - 1) // 2]))
    assert kernels.median_distance(torch.ones(5, 2)) == 1


def test_herding_by_brute_force() -> None:
    k, taken = gram(), list[int]()
    for step in range(9):
        values = [
            -math.inf if i in taken else float(k[i].mean()) - sum(float(k[i, s]) for s in taken) / (step + 1)
            for i in range(24)
        ]  # fmt: skip
        taken.append(values.index(max(values)))
    assert kernel_selection.herding(between, 24, 9, EVERY).tolist() == taken


def test_stein_thinning_by_brute_force() -> None:
    """The greedy rule is that of the smallest KSD of the points with one more."""
    score, taken = kernels.gaussian_score(X)(X), list[int]()
    p = kernels.stein(X, score, X, score, LENGTH)
    for _ in range(9):
        rest = [i for i in range(24) if i not in taken]
        best = min(rest, key=lambda i: float(p[[*taken, i]][:, [*taken, i]].sum()))
        taken.append(best)
    found = kernel_selection.stein_thinning(lambda i, j: p[i][:, j], p.diagonal(), 24, 9)
    assert found.tolist() == taken


def one_walk(k: torch.Tensor, coins: torch.Tensor, delta: float) -> tuple[list[int], list[int]]:
    """KT-Split of all rows once, as in the paper's Algorithm 1a, sums and all."""
    first, second, seen, sigma = list[int](), list[int](), list[int](), 0.0
    for step in range(len(k) // 2):
        x, y = 2 * step, 2 * step + 1
        b2 = float(k[x, x] + k[y, y] - 2 * k[x, y])
        a = max(math.sqrt(b2) * sigma * math.sqrt(2 * math.log(2 / delta)), b2)
        growth = 1 + (b2 - 2 * a) * sigma**2 / a**2
        sigma = math.sqrt(sigma**2 + b2 * max(growth, 0))
        alpha = sum(float(k[z, x] - k[z, y]) for z in seen)
        alpha -= 2 * sum(float(k[z, x] - k[z, y]) for z in first)
        seen += [x, y]
        if float(coins[step]) < min(1, max(0, (1 - alpha / a) / 2)):
            x, y = y, x
        first.append(x)
        second.append(y)
    return first, second


@pytest.mark.parametrize("seed", range(3))
def test_halving_is_the_papers(seed: int) -> None:
    x = Rng(seed)("x").normal(160, 2).double()
    k = kernels.gaussian(x, x, 1.0)
    halves = kernel_selection._halved(lambda i, j: k[i][:, j], torch.arange(160)[None], Rng(5), 0.5)
    coins = Rng(5).uniform(1, 80)[0].double()
    assert halves.tolist() == list(one_walk(k, coins, 0.5))


def test_halving_balances() -> None:
    """Halves are nearer to all than halves at random; several parts at once are each halved."""
    x = Rng(2)("x").normal(512, 2).double()
    k = kernels.gaussian(x, x, 1.0)

    def distance(part: torch.Tensor) -> float:
        w = torch.zeros(512, dtype=torch.float64)
        w[part] = 1 / len(part)
        w -= 1 / 512
        return math.sqrt(float(w @ k @ w))

    parts = kernel_selection._halved(
        lambda i, j: k[i][:, j], torch.arange(512)[None], Rng(0), 0.001
    )
    again = kernel_selection._halved(lambda i, j: k[i][:, j], parts, Rng(1), 0.001)
    assert sorted(again.flatten().tolist()) == list(range(512))
    random = [distance(Rng(seed).permutation(512)[:128]) for seed in range(20)]
    assert sum(distance(part) for part in again) / 4 < 0.6 * sum(random) / 20


def test_thinning_is_refined() -> None:
    """No single exchange lowers the last point's discrepancy, and few random choices are better."""
    k, mean = gram(), gram().mean(1)
    found = kernel_selection.thinning(between, 24, 5, EVERY, Rng(0), most=24)
    assert len(set(found.tolist())) == 5

    def cost(part: list[int]) -> float:
        return float(k[part][:, part].mean() - 2 * mean[part].mean())

    own = found.tolist()
    others = [i for i in range(24) if i not in own]
    assert cost(own) <= min(cost([*own[:4], i]) for i in others) + 1e-12
    random = sorted(cost(Rng(s).permutation(24)[:5].tolist()) for s in range(50))
    assert cost(own) < random[5]


@pytest.mark.parametrize("name", ["kernel-herding", "kernel-thinning", "stein-thinning"])
def test_as_methods(name: str) -> None:
    """Nearer to their classes by MMD than uniform ones, except Stein thinning, which is nearer to
    its density by KSD.
    """
    run = pc.reduce(name, "digits", per_class=8, model="linear")
    uniform = pc.reduce("uniform", "digits", per_class=8, model="linear")
    assert len(run.coreset.indices.unique()) == 80
    measure = {"stein-thinning": "ksd"}.get(name, "mmd")
    own, random = (discrepancies(run.problem, one.coreset)[measure] for one in (run, uniform))
    assert own < 0.8 * random


BESIDE = """
import sys, numpy as np, jax
jax.config.update("jax_enable_x64", True)
from coreax.data import Data
from coreax.kernels import SquaredExponentialKernel
from coreax.metrics import MMD
from coreax.solvers import KernelHerding
x, length = np.load(sys.argv[1]), float(sys.argv[2])
kernel = SquaredExponentialKernel(length_scale=length)
found = KernelHerding(coreset_size=20, kernel=kernel, unique=True).reduce(Data(x))[0]
chosen = np.asarray(found.unweighted_indices)
print(*chosen, float(MMD(kernel=kernel).compute(Data(x), Data(x[chosen]))))
"""


def test_beside_coreax(tmp_path: Path) -> None:
    if importlib.util.find_spec("coreax") is None:
        pytest.skip("coreax is not installed")
    x = Rng(3)("x").normal(200, 4).double()
    np.save(path := tmp_path / "x.npy", x.numpy())
    command = [sys.executable, "-W", "ignore", "-c", BESIDE, str(path), "1.7"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    said = said.strip().splitlines()[-1].split()
    between = lambda a, b: kernels.gaussian(a, b, 1.7)  # noqa: E731
    own = kernel_selection.herding(lambda i, j: between(x[i], x[j]), 200, 20, torch.arange(200))
    assert list(map(int, said[:-1])) == own.tolist()
    w, v = (torch.full((num,), 1 / num, dtype=torch.float64) for num in (20, 200))
    assert kernels.mmd(x[own], w, x, v, between) == pytest.approx(float(said[-1]), abs=1e-5)
