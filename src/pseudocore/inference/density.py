r"""The log-densities that samplers sample and optimisers maximise: the log-posterior, exactly or
estimated.

$$ \log \pi(\theta \mid S) = \sum_m w_m \log p(y_m \mid x_m, \theta) + \log p(\theta) $$

`docs/scaling.md` holds the convention: a sum over weighted points, the prior once. Everything here
is at temperature 1; a sampler at temperature T leaves $\pi^{1/T}$ invariant, likelihood and prior
alike. All functions take thetas (chains, parameters) and return (chains,).

Priors on $\theta$, each with one `scale` $\sigma$:

| `prior` | log p(θ) up to a constant |
|---|---|
| `problem` | the problem's own, one of the next two |
| `isotropic` | $-\lVert\theta\rVert^2 / 2\sigma^2$ |
| `fan-in` | $-\sum_i n_i (\theta_i - c_i)^2 / 2\sigma^2$ |
| `unsquared` | $-M \lVert\theta\rVert / 2\sigma^2$ |

The papers' $\lambda\lVert\theta\rVert^2$ is `isotropic` with $\sigma = 1/\sqrt{2\lambda}$. With
`fan-in` the layer of $\theta_i$ has $n_i$ inputs; at $\sigma = 1$ every layer keeps its inputs'
size. $c_i$ is 1 for the gain of a norm and 0 for all else.

Deviations: `unsquared` is what the authors of Kim et al. (2022) ran in place of the isotropic
Gaussian their Algorithms 2 and 3 print: the norm is not squared and is multiplied by the number of
points M. It is there to print their column and for nothing else.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.func import vmap

from pseudocore.core.problem import GaussianPrior, Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, LogDensity
from pseudocore.runtime import autodiff
from pseudocore.runtime.execution import map_independent

Prior = Literal["problem", "isotropic", "fan-in", "unsquared"]
LogPrior = Callable[[Tensor], Tensor]

NUM_COPIES = 8
"""Fixed augmented copies of the coreset behind an exact density, when the problem has an
augmentation.
"""


def under(problem: Problem, kind: Prior, scale: float | None) -> Problem:
    """The problem under another Gaussian prior; kind and scale default to its own."""
    own = problem.prior
    if kind == "unsquared" or (kind in ("problem", own.kind) and scale in (None, own.scale)):
        return problem
    prior = GaussianPrior(scale or own.scale, own.kind if kind == "problem" else kind)
    return replace(problem, prior=prior)


def log_prior(problem: Problem, kind: Prior, scale: float | None, num_points: int) -> LogPrior:
    """log p(theta) up to a constant; kind and scale default to the problem's own."""
    if kind == "unsquared":
        sigma = problem.prior.scale if scale is None else scale
        return lambda theta: -num_points * theta.norm(dim=-1) / (2 * sigma**2)
    return partial(under(problem, kind, scale).log_prior, normalised=False)


@dataclass(frozen=True)
class PerChain:
    """A log-density without randomness whose gradient is taken for each of several chains on its
    own, at once where a GPU can.
    """

    value: LogDensity

    def __call__(self, theta: Tensor, rng: Rng) -> Tensor:
        return self.value(theta, rng)


def rewrap(log_density: LogDensity, changed: LogDensity) -> LogDensity:
    """Wrap `changed` with the same chain batching as `log_density`."""
    return PerChain(changed) if isinstance(log_density, PerChain) else changed


def grad_log_density(log_density: LogDensity, theta: Tensor, rng: Rng) -> tuple[Tensor, Tensor]:
    """Gradient (chains, parameters) of a log-density and its value (chains,), the chains not
    interacting.
    """
    if isinstance(log_density, PerChain) and len(theta) > 1:
        calls = (partial(grad_log_density, log_density, one, rng) for one in theta.unsqueeze(1))
        gradients, values = zip(*map_independent(calls), strict=True)
        return torch.cat(gradients), torch.cat(values)

    def total(theta: Tensor) -> tuple[Tensor, Tensor]:
        value = log_density(theta, rng)
        return value.sum(), value

    result: tuple[Tensor, Tensor] = autodiff.grad(total, has_aux=True)(theta)
    return result


def exact(
    problem: Problem, coreset: Coreset, prior: LogPrior, rng: Rng, *, per_chain: bool | None = None
) -> LogDensity:
    """The log-posterior on all points, the same function at every call.

    With an augmentation the points are `NUM_COPIES` augmented copies of the coreset, drawn once and
    weighing as much as one together. A Metropolis test needs a density that does not move.
    `per_chain` is whether several chains go through the network one by one; defaults to whether it
    is convolutional and on a GPU.
    """
    x, y, weight = problem.inputs(coreset.x), *problem.targets_and_weight(coreset)
    if (augment := problem.augment) is not None:
        x = torch.cat([augment(x, rng("copy", number)) for number in range(NUM_COPIES)])
        y, weight = torch.cat([y] * NUM_COPIES), weight.repeat(NUM_COPIES) / NUM_COPIES

    def log_density(theta: Tensor, rng: Rng) -> Tensor:
        return problem.log_likelihood(theta, x, y) @ weight + prior(theta)

    if per_chain is None:
        per_chain = problem.device.type == "cuda" and not problem.is_dense
    return PerChain(log_density) if per_chain else log_density


def estimated(problem: Problem, coreset: Coreset, prior: LogPrior, batch_size: int) -> LogDensity:
    """An unbiased estimate, new for every stream: a random batch for each chain and a fresh
    augmentation, when there is one.

    Coresets up to `batch_size` are used whole. Batches are drawn with replacement, and their sum is
    scaled to that of all points.
    """
    y, weight = problem.targets_and_weight(coreset)
    scale, augment = len(coreset) / batch_size, problem.augment
    is_whole = len(coreset) <= batch_size
    # A full training set stays as it is stored.
    x = problem.inputs(coreset.x) if is_whole else coreset.x.to(problem.device)

    def on_all(theta: Tensor, rng: Rng) -> Tensor:
        inputs = x if augment is None else augment(x, rng("augment"))
        return problem.log_likelihood(theta, inputs, y) @ weight + prior(theta)

    def on_batches(theta: Tensor, rng: Rng) -> Tensor:
        # (chains, batch)
        index = rng("batch").integers(len(x), theta.shape[0], batch_size, device=x.device)
        inputs = problem.inputs(x[index.flatten()])
        inputs = inputs if augment is None else augment(inputs, rng("augment"))
        parts = theta, inputs.view(*index.shape, *inputs.shape[1:]), y[index]
        if x.is_cuda and not problem.is_dense:
            # Batched convolutions are slow there, and know one layout, which is not the network's.
            each = [problem.log_likelihood(*one) for one in zip(*parts, strict=True)]
            likelihood = torch.stack(each)
        else:
            likelihood = vmap(problem.log_likelihood)(*parts)
        return scale * (weight[index] * likelihood).sum(-1) + prior(theta)

    return on_all if is_whole else on_batches
