r"""The noise of a regression where none is given, chosen on training data.

Under a linear network with prior $\mathcal N(0, \sigma_0^2)$ on its parameters the marginal
likelihood is exact. With $\lambda_i$ the eigenvalues of $\tilde X^\top\tilde X$ (a 1 appended to
inputs) and $e_i$ the squared size of standardised targets along its eigenvectors,

$$ -2 \log p(y) = \sum_i \log(\sigma^2 + \sigma_0^2\lambda_i) + (N - p)\log\sigma^2
   + \sum_i \frac{e_i}{\sigma^2 + \sigma_0^2\lambda_i} + \frac{\lVert y\rVert^2 - \sum_i e_i}{\sigma^2}
   + N\log 2\pi , $$

minimised over $\sigma$ by golden section. For other networks it is the root mean squared error on a
fifth of up to 5,000 training points of a network trained on the others.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pseudocore.core.likelihood import MIN_NOISE
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.inference.last_layer_vi import is_linear
from pseudocore.inference.sgd import SGD

MAX_POINTS = 5000
HELD_OUT = 0.2
BLOCK = 4096


def choose_noise(problem: Problem, rng: Rng) -> float:
    """Standard deviation of an observation, in the targets' own units."""
    relative = evidence_noise(problem) if is_linear(problem) else held_out_noise(problem, rng)
    return max(relative, MIN_NOISE) * problem.gaussian.unit


@torch.no_grad()
def evidence_noise(problem: Problem) -> float:
    """Of largest marginal likelihood, in standard deviations of the targets."""
    variance = (
        float(problem.prior_moments()[1][-1]) ** 2
    )  # the prior of a single layer is isotropic
    size = problem.model.num_parameters
    gram, cross = torch.zeros(size, size).double(), torch.zeros(size, 1).double()
    total = 0.0
    for x, y in problem.batches(BLOCK):
        rows, y = x.flatten(1).double().cpu(), y.double().cpu()
        rows = torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
        gram, cross, total = (
            gram + rows.mT @ rows,
            cross + rows.mT @ y,
            total + float(y.square().sum()),
        )
    values, vectors = torch.linalg.eigh(gram)
    is_used = values > 1e-10 * values.max()
    values, along = values[is_used], (vectors.mT @ cross)[is_used, 0].square() / values[is_used]
    rest, num = max(total - float(along.sum()), 0.0), problem.num_train - len(values)

    def height(log_noise: float) -> float:
        noise = math.exp(2 * log_noise)
        shifted = noise + variance * values
        fit = float((along / shifted).sum()) + rest / noise
        return -(float(shifted.log().sum()) + 2 * num * log_noise + fit)

    return math.exp(highest(height, math.log(MIN_NOISE), math.log(3.0)))


def held_out_noise(problem: Problem, rng: Rng) -> float:
    """Root mean squared error of a trained network on points it has not seen, in standard
    deviations of the targets.
    """
    order = rng("points").permutation(problem.num_train)[:MAX_POINTS]
    num = max(1, round(HELD_OUT * len(order)))
    held_out, kept = order[:num], order[num:]
    weight = torch.ones(len(kept))
    predict = SGD().fit(problem, problem.subset(kept, weight), rng("train"))
    mean = predict(problem.data.train.x[held_out])[:, 0].cpu().double()
    error = (mean - problem.data.train.y[held_out, 0]).square().mean().sqrt()
    return min(3.0, float(error) / problem.gaussian.unit)


def highest(height: Callable[[float], float], low: float, high: float) -> float:
    """Where a function of one maximum has it, by golden section."""
    share = (math.sqrt(5) - 1) / 2
    for _ in range(60):
        left, right = high - share * (high - low), low + share * (high - low)
        if height(left) >= height(right):
            high = right
        else:
            low = left
    return (low + high) / 2


def moments(y: Tensor) -> tuple[float, float]:
    """Mean and standard deviation of training targets."""
    return float(y.mean()), float(y.std(correction=0))
