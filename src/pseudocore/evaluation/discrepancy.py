r"""MMD and KSD: how far the points of a coreset are from the data themselves, with no inference.

On network inputs $x$ with class probabilities $p$, weights normalised to 1,

$$ \mathrm{MMD}: \quad k\bigl((x, p), (x', p')\bigr) = p^\top p' \; e^{-\lVert x - x'\rVert^2/2\ell^2}
$$

between the points and the training set, inputs and labels jointly, and

$$ \mathrm{KSD}^2 = \sum_c \pi_c \, \mathrm{KSD}^2\bigl(S_c, \mathcal N(\mu_c, \Sigma_c)\bigr) $$

of the points of each class to the Gaussian of its training inputs, with $\pi_c$ the share of the
class among those that have points. $\ell$ is the median distance between training inputs. Of more than `NUM_DATA` training
examples random ones stand for all, always the same. Both are 0 only without any difference; KSD is
blind to what a Gaussian does not show.
"""

import math

import torch
from torch import Tensor

from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset
from pseudocore.selection import kernels

NUM_DATA = 5000
"""Training examples that stand for all."""


def discrepancies(problem: Problem, coreset: Coreset) -> dict[str, float]:
    """`mmd` and `ksd` of a coreset."""
    if problem.data.task == "regression":
        message = f"MMD and KSD are of classes, and {problem.data.name!r} is a regression"
        raise ConfigError(message, code="needs-classes", data=problem.data.name)
    index = Rng(0)("discrepancy").permutation(problem.num_train)[:NUM_DATA].sort().values
    data, y = problem.batch(index)
    data, y = data.flatten(1).double().cpu(), y.cpu()
    points = problem.inputs(coreset.x).flatten(1).double().cpu()
    weight = coreset.weight.double().cpu() / float(coreset.weight.double().sum())
    length = kernels.median_distance(data)
    return {
        "mmd": _mmd(problem, coreset, points, weight, data, y, length),
        "ksd": _ksd(coreset.labels.cpu(), points, weight, data, y, length),
    }


def _mmd(
    problem: Problem,
    coreset: Coreset,
    points: Tensor,
    weight: Tensor,
    data: Tensor,
    y: Tensor,
    length: float,
) -> float:
    num, own = problem.num_classes, coreset.probabilities.double().cpu()
    labels = torch.nn.functional.one_hot(y, num).double()

    def between(a: Tensor, b: Tensor) -> Tensor:
        return kernels.gaussian(a[:, num:], b[:, num:], length) * (a[:, :num] @ b[:, :num].T)

    each = torch.full((len(data),), 1 / len(data), dtype=torch.float64)
    x, z = torch.cat([own, points], 1), torch.cat([labels, data], 1)
    return kernels.mmd(x, weight, z, each, between)


def _ksd(
    labels: Tensor, points: Tensor, weight: Tensor, data: Tensor, y: Tensor, length: float
) -> float:
    """Over the classes that have points."""
    total = share = 0.0
    for label in range(int(y.max()) + 1):
        of_class, own = data[y == label], labels == label
        if len(of_class) > 0 and weight[own].sum() > 0:
            score, part = kernels.gaussian_score(of_class)(points[own]), len(of_class) / len(y)
            w = weight[own] / weight[own].sum()
            total += part * kernels.ksd(points[own], score, w, length) ** 2
            share += part
    return math.sqrt(total / share)
