r"""What every inference returns: predictions averaged over a posterior, and functions drawn from it.

$$ \log \bar p(y \mid x) = \log \frac1D \sum_{d=1}^{D} p(y \mid x, \theta_d), \qquad
   H[\bar p] = \frac1D \sum_d H[p_d] + I(y; \theta) $$

The entropy of the average is the draws' mean entropy and the mutual information of label and theta.
Only running sums (n, classes) are held, never draws × test × classes. Entropies are in nats.

`DrawsPosterior` holds networks: draws of chains, members of an ensemble, a single one.
`GaussianPosterior` holds one network under a Gaussian over its last layer: its predictions are in
closed form, and its functions are draws of that layer.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Predict, Uncertainty
from pseudocore.inference import diagnostics as diagnosing
from pseudocore.inference.diagnostics import Diagnosis
from pseudocore.inference.draws import Draws, all_traces

NUM_FUNCTIONS = 256
"""Draws of a Gaussian last layer behind a mutual information."""


class Posterior(ABC):
    """Predictions averaged over a posterior; calling it gives log-probabilities.

    Args:
        problem: What it was fitted to.
        selected_settings: Settings that were selected on training data, by name.
    """

    earlier: "Sequence[Posterior]" = ()
    """The same network at earlier moments of its training, where they were kept."""

    def __init__(
        self, problem: Problem, *, selected_settings: Mapping[str, float] | None = None
    ) -> None:
        self.problem = problem
        self.selected_settings: Mapping[str, float] = selected_settings or {}
        self.notes: list[str] = []
        """Warnings of those who fitted it."""

    @abstractmethod
    def __call__(self, raw: Tensor) -> Tensor:
        """Raw inputs (n, ...) to log-probabilities (n, classes)."""

    @abstractmethod
    def functions(self, raw: Tensor, num: int, rng: Rng) -> Iterator[Tensor]:
        """Log-probabilities (n, classes) of `num` functions drawn from the posterior, in turn.

        Each is one function at all inputs; equal `rng`, equal functions.
        """

    @abstractmethod
    def uncertainty(self, raw: Tensor) -> Uncertainty:
        """Entropy of the average, and how much of it is disagreement of the functions."""

    def predict(self, raw: Any) -> "Prediction":
        """Everything that is predicted for raw inputs (n, ...), tensor or array."""
        return Prediction(self, self.problem.as_tensor(raw))

    @property
    def draws(self) -> Tensor | None:
        """Thetas (networks, parameters), chain by chain within a draw; None where the posterior is
        in closed form.
        """
        return None

    @property
    def chains(self) -> Draws | None:
        """The draws with their traces, when they are those of chains."""
        return None

    @property
    def diagnostics(self) -> Diagnosis | None:
        """How far the chains can be trusted; None where there are none."""
        return None

    @property
    def warnings(self) -> list[str]:
        """Sentences on what makes the predictions doubtful; empty when nothing is known to."""
        found = self.diagnostics
        return [*self.notes, *([] if found is None else diagnosing.warnings(found))]

    def to_arviz(self) -> Any:
        """Draws and traces of the chains as arviz holds them: a DataTree, or InferenceData before
        its version 1.
        """
        if self.chains is None:
            raise ConfigError(
                "only draws of chains can be given to arviz; this posterior is no chain's",
                code="no-chains",
            )
        try:
            import arviz
        except ImportError as error:
            raise ConfigError(
                "to_arviz needs arviz: pip install 'pseudocore[arviz]'",
                code="missing-package",
                package="arviz",
            ) from error
        chains = self.chains
        thetas = torch.stack([chains[number].cpu() for number in range(len(chains))], 1)
        groups = {
            "posterior": {"theta": thetas.numpy()},  # (chains, draws, parameters)
            "sample_stats": {name: values.T.numpy() for name, values in all_traces(chains).items()},
        }
        if int(arviz.__version__.split(".")[0]) >= 1:
            return arviz.from_dict(groups)
        return arviz.from_dict(**groups)


class Prediction:
    """What a posterior predicts for some inputs; each part is computed when it is first asked for.

    Args:
        posterior: Whose prediction it is.
        raw: The inputs.
    """

    def __init__(self, posterior: Posterior, raw: Tensor) -> None:
        self._posterior, self._raw = posterior, raw

    @cached_property
    def log_probs(self) -> Tensor:
        """Of the average, (n, classes)."""
        return self._posterior(self._raw)

    @property
    def probs(self) -> Tensor:
        """Class probabilities, averaged over the posterior, (n, classes)."""
        return self.log_probs.exp()

    @property
    def entropy(self) -> Tensor:
        """Of the average, (n,) in nats: all uncertainty."""
        return entropy(self.log_probs)

    @cached_property
    def mutual_information(self) -> Tensor:
        """Between label and theta, (n,) in nats: the part on which the functions disagree."""
        return self._posterior.uncertainty(self._raw).mutual_information

    def sample(self, num: int, *, rng: Rng | int = 0) -> Tensor:
        """Class probabilities (num, n, classes) of `num` functions drawn from the posterior.

        Args:
            num: Functions. Networks are drawn without replacement until all have been.
            rng: A stream or a seed; equal ones draw the same functions, for any inputs.
        """
        rng = Rng(rng)("functions") if isinstance(rng, int) else rng
        return torch.stack([one.exp() for one in self._posterior.functions(self._raw, num, rng)])

    def __repr__(self) -> str:
        return f"Prediction({len(self._raw)} inputs, {self._posterior.problem.num_classes} classes)"


class GaussianPosterior(Posterior):
    """One network under a Gaussian over its last layer.

    Args:
        problem: What it was fitted to.
        predict: Raw inputs to log-probabilities (n, classes).
        features: Network inputs to what the last layer multiplies, (n, features); with a 1 appended
            where it has an intercept.
        heads: A number and a stream to that many draws of the last layer, (num, features, classes),
            scaled so that its outputs are logits.
        selected_settings: Settings that were selected on training data, by name.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        predict: Predict,
        features: Callable[[Tensor], Tensor],
        heads: Callable[[int, Rng], Tensor],
        selected_settings: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(problem, selected_settings=selected_settings)
        self._predict, self._features, self._heads = predict, features, heads

    @torch.no_grad()
    def __call__(self, raw: Tensor) -> Tensor:
        return self._predict(raw)

    @torch.no_grad()
    def functions(self, raw: Tensor, num: int, rng: Rng) -> Iterator[Tensor]:
        features = self._features(self.problem.asked_inputs(raw))
        for head in self._heads(num, rng):
            yield (features @ head).log_softmax(1).to(self.problem.dtype)

    def uncertainty(self, raw: Tensor) -> Uncertainty:
        drawn = uncertainty(self.functions(raw, NUM_FUNCTIONS, Rng(0)("functions")))
        return drawn._replace(entropy=entropy(self(raw)))


class FunctionPosterior(Posterior):
    """Predictions of an inference that returns a plain function: nothing else is known of it."""

    def __init__(self, problem: Problem, predict: Predict) -> None:
        super().__init__(problem)
        self._predict = predict

    def __call__(self, raw: Tensor) -> Tensor:
        return self._predict(raw)

    def functions(self, raw: Tensor, num: int, rng: Rng) -> Iterator[Tensor]:
        raise _no_functions()

    def uncertainty(self, raw: Tensor) -> Uncertainty:
        raise _no_functions()


def _no_functions() -> ConfigError:
    return ConfigError(
        "this inference returns averaged predictions alone; mutual information and samples need a "
        "posterior of inference.posterior",
        code="no-functions",
    )


def average(each: Iterable[Tensor], *, entropies: bool = False) -> tuple[Tensor, Tensor]:
    """Log of the mean probability (n, classes) of log-probabilities given in turn, and their mean
    entropy (n,) when asked for.
    """
    total, expected = torch.tensor(-math.inf), torch.tensor(0.0)
    num = 0
    for log_probs in each:
        total = torch.logaddexp(total.to(log_probs), log_probs)
        if entropies:
            expected = expected.to(log_probs) + entropy(log_probs)
        num += 1
    return total - math.log(num), expected / num


def entropy(log_probs: Tensor) -> Tensor:
    """Entropy in nats of predictions (..., classes), probabilities of exactly 0 included."""
    found: Tensor = torch.special.entr(log_probs.exp()).sum(-1)
    return found


def uncertainty(each: Iterable[Tensor]) -> Uncertainty:
    mean, expected = average(each, entropies=True)
    total = entropy(mean)
    # Negative only by rounding: the mean of concave H is below H of the mean.
    return Uncertainty(total, (total - expected).clamp_min(0))
