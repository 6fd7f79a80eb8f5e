r"""The log-densities that samplers climb and walk on: the project's log-posterior, exactly or
estimated.

$$ \log \pi(\theta \mid S) = \sum_m w_m \log p(y_m \mid x_m, \theta) + \log p(\theta) $$

`docs/scaling.md` holds the convention: a sum over weighted points, the prior once. Everything here
is at temperature 1; a sampler at temperature T leaves $\pi^{1/T}$ invariant, likelihood and prior
alike. All functions take thetas (chains, parameters) and return (chains,).

Priors on $\theta$, each with one `scale` $\sigma$:

| `prior` | log p(θ) up to a constant |
|---|---|
| `isotropic` | $-\lVert\theta\rVert^2 / 2\sigma^2$; $\sigma = 1/\sqrt{2\lambda}$ is the papers' $\lambda\lVert\theta\rVert^2$ |
| `fan-in` | $-\sum_i n_i (\theta_i - c_i)^2 / 2\sigma^2$, where the layer of $\theta_i$ has $n_i$ inputs |
| `unsquared` | $-M \lVert\theta\rVert / 2\sigma^2$ |

With `fan-in` and $\sigma = 1$ every layer keeps its inputs' size; $c_i$ is 1 for the gain of a norm
and 0 for all else.

Deviations: `unsquared` is what the authors of Kim et al. (2022) ran in place of the isotropic
Gaussian their Algorithms 2 and 3 print: the norm is not squared and is multiplied by the number of
points M. It is there to print their column and for nothing else.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.func import vmap

from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, LogDensity
from pseudocore.runtime import autodiff
from pseudocore.runtime.execution import map_independent

Prior = Literal["isotropic", "fan-in", "unsquared"]
LogPrior = Callable[[Tensor], Tensor]

Chains = Literal["auto", "batched", "apart"]
"""How several chains go through a network: as one batch, or each by itself."""

NUM_COPIES = 8
"""Fixed augmented copies of the coreset behind an exact density, when the problem has an
augmentation.
"""


def log_prior(problem: Problem, kind: Prior, scale: float | None, num_points: int) -> LogPrior:
    """log p(theta) up to a constant; without a `scale`, the problem's own."""
    sigma = problem.prior.scale if scale is None else scale
    if kind == "unsquared":
        return lambda theta: -num_points * theta.norm(dim=-1) / (2 * sigma**2)
    if kind == "isotropic":
        return lambda theta: -0.5 * (theta / sigma).square().sum(-1)
    if not hasattr(problem.model, "layer_scale"):
        raise ConfigError(
            "prior = 'fan-in' needs a network that knows the inputs of its layers; use prior = 'isotropic' for this one"
        )
    centre, spread = problem.model.layer_scale(device=problem.device, dtype=problem.dtype)
    return lambda theta: -0.5 * ((theta - centre) / (sigma * spread)).square().sum(-1)


@dataclass(frozen=True)
class PerChain:
    """A log-density that draws nothing and that each of several chains climbs by itself, beside the
    others where a GPU can.
    """

    value: LogDensity

    def __call__(self, theta: Tensor, rng: Rng) -> Tensor:
        return self.value(theta, rng)


def like(log_density: LogDensity, changed: LogDensity) -> LogDensity:
    """`changed`, to be climbed as the one it was made of."""
    return PerChain(changed) if isinstance(log_density, PerChain) else changed


def uphill(log_density: LogDensity, theta: Tensor, rng: Rng) -> tuple[Tensor, Tensor]:
    """Gradient (chains, parameters) of a log-density and its value (chains,), the chains not
    interacting.
    """
    if isinstance(log_density, PerChain) and len(theta) > 1:
        gradients, values = zip(
            *map_independent(
                partial(uphill, log_density, chain, rng) for chain in theta.unsqueeze(1)
            ),
            strict=True,
        )
        return torch.cat(gradients), torch.cat(values)

    def total(theta: Tensor) -> tuple[Tensor, Tensor]:
        value = log_density(theta, rng)
        return value.sum(), value

    result: tuple[Tensor, Tensor] = autodiff.grad(total, has_aux=True)(theta)
    return result


def exact(
    problem: Problem, coreset: Coreset, prior: LogPrior, rng: Rng, chains: Chains = "auto"
) -> LogDensity:
    """The log-posterior on all points, the same function at every call; `chains` says how several
    go through the network.

    With an augmentation the points are `NUM_COPIES` augmented copies of the coreset, drawn once and
    weighing as much as one together: a Metropolis test needs a density that does not move.
    """
    x, y, weight = (
        problem.inputs(coreset.x),
        _targets(problem, coreset),
        coreset.weight.to(problem.device, problem.dtype),
    )
    augment = problem.augment
    if augment is not None:
        x = torch.cat([augment(x, rng("copy", number)) for number in range(NUM_COPIES)])
        y, weight = torch.cat([y] * NUM_COPIES), weight.repeat(NUM_COPIES) / NUM_COPIES

    def log_density(theta: Tensor, rng: Rng) -> Tensor:
        return problem.log_likelihood(theta, x, y) @ weight + prior(theta)

    apart = chains == "apart" or (
        chains == "auto" and problem.device.type == "cuda" and not problem.is_dense
    )
    return PerChain(log_density) if apart else log_density


def estimated(problem: Problem, coreset: Coreset, prior: LogPrior, batch_size: int) -> LogDensity:
    """An unbiased estimate, new at every stream: a random batch for each chain and a fresh
    augmentation, when there is one.

    Coresets up to `batch_size` are used whole. Batches are drawn with replacement, and their sum is
    scaled to that of all points.
    """
    y, weight = _targets(problem, coreset), coreset.weight.to(problem.device, problem.dtype)
    whole = len(coreset) <= batch_size
    x = (
        problem.inputs(coreset.x) if whole else coreset.x.to(problem.device)
    )  # a full training set stays as it is stored
    scale = 1.0 if whole else len(coreset) / batch_size

    def augmented(inputs: Tensor, rng: Rng) -> Tensor:
        return inputs if problem.augment is None else problem.augment(inputs, rng("augment"))

    def on_all(theta: Tensor, rng: Rng) -> Tensor:
        return problem.log_likelihood(theta, augmented(x, rng), y) @ weight + prior(theta)

    def on_batches(theta: Tensor, rng: Rng) -> Tensor:
        index = rng("batch").integers(
            len(x), theta.shape[0], batch_size, device=x.device
        )  # (chains, batch)
        inputs = augmented(problem.inputs(x[index.flatten()]), rng)
        own = theta, inputs.view(*index.shape, *inputs.shape[1:]), y[index]
        if (
            x.is_cuda and not problem.is_dense
        ):  # batched convolutions are slow there, and know one layout, which is not the network's
            likelihood = torch.stack(
                [problem.log_likelihood(*one) for one in zip(*own, strict=True)]
            )
        else:
            likelihood = vmap(problem.log_likelihood)(*own)
        return scale * (weight[index] * likelihood).sum(-1) + prior(theta)

    return on_all if whole else on_batches


def _targets(problem: Problem, coreset: Coreset) -> Tensor:
    y = coreset.targets.to(problem.device)
    return y.to(problem.dtype) if y.is_floating_point() else y
