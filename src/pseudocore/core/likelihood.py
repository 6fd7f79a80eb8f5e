r"""What targets are, given the outputs of a network: classes, or numbers with Gaussian noise.

With outputs $f(x)$ and targets standardised by the training mean $c$ and standard deviation $u$,

$$ \text{classification: } \log p(y \mid x) = \log\operatorname{softmax}_y f(x), \qquad
   \text{regression: } y \sim \mathcal N\left(c + u f(x),\; \sigma^2\right) . $$

`Problem` owns one of these and every method and inference asks it.
"""

import math
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from torch import Tensor

from pseudocore.core.errors import ConfigError

Task = Literal["classification", "regression"]

MIN_NOISE = 1e-3
"""Of the targets' standard deviation: the least noise that is chosen for a user."""


def label_log_likelihood(log_probs: Tensor, y: Tensor) -> Tensor:
    """log p(y) per example: log-probabilities (..., n, classes) at labels (n,), or their mean under
    soft labels (n, classes).
    """
    if y.is_floating_point():
        return (y * log_probs).sum(-1)
    return log_probs.gather(-1, y.expand(log_probs.shape[:-1]).unsqueeze(-1)).squeeze(-1)


class Likelihood(Protocol):
    """Of targets given the outputs of a network."""

    task: ClassVar[Task]

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """log p(y) per example, (..., n), of outputs (..., n, outputs) and targets as `targets`
        gives them.
        """

    def targets(self, y: Tensor) -> Tensor:
        """Targets as a data set or a coreset holds them, for `log_prob`."""

    def raw_targets(self, y: Tensor) -> Tensor:
        """The inverse of `targets`."""

    def describe(self) -> dict[str, float]:
        """Its numbers by name; empty where it has none."""


@dataclass(frozen=True)
class Categorical:
    """Labels (n,) or class probabilities (n, classes), given logits."""

    task: ClassVar[Task] = "classification"

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        return label_log_likelihood(outputs.log_softmax(-1), y)

    def targets(self, y: Tensor) -> Tensor:
        return y

    def raw_targets(self, y: Tensor) -> Tensor:
        return y

    def describe(self) -> dict[str, float]:
        return {}


CATEGORICAL = Categorical()


@dataclass(frozen=True)
class Gaussian:
    """Numbers (n, 1), given the mean of each in standard deviations of the training targets."""

    task: ClassVar[Task] = "regression"

    noise: float = 1.0
    """Standard deviation of an observation, in the targets' own units."""
    centre: float = 0.0
    """Mean of the training targets."""
    unit: float = 1.0
    """Standard deviation of the training targets."""

    def __post_init__(self) -> None:
        if not (0 < self.noise < math.inf and 0 < self.unit < math.inf):
            raise ConfigError(
                f"noise = {self.noise!r} and the targets' standard deviation {self.unit!r} must be"
                " positive numbers",
                code="not-positive",
                noise=self.noise,
            )

    @property
    def relative_noise(self) -> float:
        """In standard deviations of the training targets."""
        return self.noise / self.unit

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        sd = self.relative_noise
        error = ((y - outputs) / sd).square().sum(-1)
        return -0.5 * error - math.log(sd) - 0.5 * math.log(2 * math.pi)

    def targets(self, y: Tensor) -> Tensor:
        return (y.double() - self.centre) / self.unit

    def raw_targets(self, y: Tensor) -> Tensor:
        return y.double() * self.unit + self.centre

    def describe(self) -> dict[str, float]:
        return asdict(self)


@runtime_checkable
class ServesTasks(Protocol):
    """A method or an inference that serves other tasks than classification; declared as a class
    attribute.
    """

    tasks: ClassVar[Collection[Task]]


BOTH: Collection[Task] = ("classification", "regression")


def check_task(serving: Any, name: str, task: Task) -> None:
    """Refuse a method or an inference for a task it does not serve: classification, where it
    declares none.
    """
    tasks = serving.tasks if isinstance(serving, ServesTasks) else ("classification",)
    if task not in tasks:
        here = {"classification": "classes", "regression": "regression"}
        raise ConfigError(
            f"{name} is for {' and '.join(here[one] for one in tasks)}, and the targets of this"
            f" data set are {'numbers' if task == 'regression' else 'classes'}",
            code="wrong-task",
            name=name,
            task=task,
        )
