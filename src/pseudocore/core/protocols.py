"""The protocols that methods, inferences, networks and predictions follow.

Optional behaviour is a protocol of its own, checked with `isinstance`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from pseudocore.core.rng import Rng

if TYPE_CHECKING:
    from pseudocore.core.problem import Problem
    from pseudocore.core.types import Coreset


class Preprocess(Protocol):
    """An invertible map from pixel units to what the network sees."""

    def apply(self, x: Tensor) -> Tensor: ...
    def invert(self, x: Tensor) -> Tensor: ...
    def describe(self) -> dict[str, Any]: ...


@runtime_checkable
class Restorable(Protocol):
    """A preprocessing that a coreset can carry: rebuilt from `describe` and these tensors."""

    def constants(self) -> dict[str, Tensor]: ...


class Augment(Protocol):
    """A random, differentiable change of a batch of inputs; equal `rng`, equal change."""

    def __call__(self, x: Tensor, rng: Rng) -> Tensor: ...


Statistics = Mapping[str, Tensor]
"""Batch-norm statistics by name."""


class Model(Protocol):
    """A network as a function of one flat parameter vector: a body that gives features, and a
    linear head that gives logits.
    """

    @property
    def num_parameters(self) -> int: ...
    @property
    def num_features(self) -> int: ...
    @property
    def num_classes(self) -> int: ...
    @property
    def has_kernels(self) -> bool:
        """Whether this package has GPU kernels for it."""

    @property
    def learns_inputs(self) -> bool:
        """Whether features have a gradient in inputs, without which no points can be learned."""

    def init(
        self,
        rng: Rng,
        *,
        num: int | None = None,
        device: Any = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Initial parameters (parameters,), or (num, parameters)."""

    def features(
        self, theta: Tensor, x: Tensor, statistics: Statistics | None = None
    ) -> Tensor: ...
    def logits(self, theta: Tensor, x: Tensor, statistics: Statistics | None = None) -> Tensor: ...
    def statistics(self, theta: Tensor, x: Tensor) -> dict[str, Tensor]:
        """Batch-norm statistics of a batch; empty for other norms."""

    def head(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Weight and bias of the last layer."""

    def tensors(self, theta: Tensor) -> list[Tensor]:
        """Every parameter in its own shape, the head's last."""

    def layers(
        self, theta: Tensor, x: Tensor, statistics: Statistics | None = None
    ) -> list[Tensor]:
        """The inputs of every layer with weights but the first, then the features."""

    def layer_scale(
        self, *, device: Any = "cpu", dtype: torch.dtype = torch.float32
    ) -> tuple[Tensor, Tensor]:
        """Centre and scale of a prior that keeps every layer's outputs near unit size."""

    def describe(self) -> dict[str, Any]:
        """Name and options, for provenance."""


@runtime_checkable
class ModelSpec(Protocol):
    """Options of a network, from which it is built for a data set."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> Model: ...


class Experts(Protocol):
    """Networks trained on the whole training set, kept at the end of every epoch; epoch 0 is the
    initialisation.
    """

    @property
    def num_experts(self) -> int: ...
    @property
    def num_epochs(self) -> int:
        """The last epoch kept."""

    def at(self, expert: Tensor, epoch: Tensor) -> Tensor:
        """Parameters (n, parameters) of experts (n,) at epochs (n,), on the problem's device and in
        its type.
        """


class Reference(Protocol):
    """Draws from the posterior of all training data under the problem's model and prior."""

    @property
    def thetas(self) -> Tensor:
        """Draws (draws, parameters), in the order they were made, on the problem's device and in
        its type.
        """

    @property
    def train_log_probs(self) -> Tensor:
        """Predictions for the training inputs (n, classes), averaged over fits, on the problem's
        device and in its type.
        """

    @property
    def label(self) -> str:
        """What made them, for a person: `hmc on all 1437 training points, …`."""

    @property
    def diagnostics(self) -> Mapping[str, float]:
        """How far they can be trusted, by name (`rhat`, `ess_bulk`, …); the worst over fits."""


class Cache(Protocol):
    """Results that are slow to compute, kept between runs under a full description."""

    def load(self, what: Mapping[str, Any]) -> dict[str, Tensor] | None: ...
    def save(self, what: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None: ...
    def lock(self, what: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Let one process at a time look for a result and compute it."""
        ...


Predict = Callable[[Tensor], Tensor]
"""Raw inputs (n, ...) to log-probabilities (n, classes), already averaged over the posterior."""


class Uncertainty(NamedTuple):
    """Per example, in nats."""

    entropy: Tensor
    """Of the averaged prediction: all uncertainty."""
    mutual_information: Tensor
    """Between label and theta: the part on which draws disagree."""


@runtime_checkable
class PredictsByDraw(Protocol):
    """A `Predict` that averages draws and knows what each of them predicts."""

    def __call__(self, raw: Tensor, /) -> Tensor: ...
    def each(self, raw: Tensor) -> Iterator[Tensor]:
        """Log-probabilities (n, classes) of every draw in turn."""

    def uncertainty(self, raw: Tensor) -> Uncertainty: ...


@runtime_checkable
class SelectsSettings(Protocol):
    """A `Predict` some of whose settings were selected on training data."""

    @property
    def selected_settings(self) -> Mapping[str, float]: ...


@runtime_checkable
class HasMoments(Protocol):
    """A `Predict` of a network that was kept at earlier moments of its training, too."""

    @property
    def earlier(self) -> Sequence[Predict]: ...


LogDensity = Callable[[Tensor, Rng], Tensor]
"""Flat theta to an unnormalised log-density; `rng` draws the mini-batch or augmentation, if any."""


@runtime_checkable
class Iterative(Protocol):
    """Iterative reduction. Fields are configuration; the state is a NamedTuple of tensors."""

    @property
    def num_steps(self) -> int: ...
    def init(self, problem: "Problem", rng: Rng) -> Any: ...
    def step(self, problem: "Problem", state: Any, rng: Rng) -> tuple[Any, Any]: ...
    def coreset(self, problem: "Problem", state: Any) -> "Coreset": ...


@runtime_checkable
class Diagnosed(Protocol):
    """An iterative method that measures its last state, at a cost of its own."""

    def diagnostics(self, problem: "Problem", state: Any) -> Mapping[str, Any]:
        """Entries of the coreset's provenance, measured once, at the end of a run."""


@runtime_checkable
class Selector(Protocol):
    """One-shot reduction: selects training points."""

    def select(self, problem: "Problem", rng: Rng) -> "Coreset": ...


@runtime_checkable
class SelectsInRounds(Protocol):
    """A selector that can select from what selections from parts of the data gave; declared as a
    class attribute.
    """

    in_rounds: ClassVar[Literal["mass", "clusters"]]
    """What a point of the first round stands for: as many examples as every other of its class, or
    those nearest to it.
    """


Method = Iterative | Selector


@runtime_checkable
class Budgeted(Protocol):
    """A method with a budget of points per class."""

    @property
    def per_class(self) -> int | None: ...


@runtime_checkable
class LearnsTotalWeight(Protocol):
    """A method that learns what its weights sum to; declared as a class attribute."""

    learns_total_weight: ClassVar[bool]


@runtime_checkable
class NeedsExperts(Protocol):
    """A method that learns from experts."""

    @property
    def num_experts(self) -> int: ...
    @property
    def expert_epochs(self) -> int:
        """The last epoch of an expert that the method reads."""

    @property
    def expert_loss(self) -> str: ...


@runtime_checkable
class NeedsReference(Protocol):
    """A method that may learn from the full-data posterior, `Problem.reference`."""

    @property
    def needs_reference(self) -> bool | str:
        """Whether it does, by the best sampler affordable; or the name of the inference."""


@runtime_checkable
class ServesNetworks(Protocol):
    """A method whose coreset can serve several networks at once, `Problem.also`."""

    @property
    def also(self) -> str | None:
        """The other ones, as `mlp width=64, convnet3 norm=none`."""


@runtime_checkable
class AssumesInference(Protocol):
    """A method whose points are made for one inference, by name; declared as a class attribute.
    None takes the declaration of a parent class back.
    """

    assumes: ClassVar[str | None]


class Sampler(Protocol):
    """A Markov chain (or, at temperature zero, an optimiser) on flat parameters."""

    def init(self, log_density: LogDensity, theta: Tensor, rng: Rng) -> Any: ...
    def step(self, log_density: LogDensity, state: Any, rng: Rng) -> tuple[Any, Any]: ...


@runtime_checkable
class Inference(Protocol):
    """Anything that turns a coreset into predictions."""

    def fit(self, problem: "Problem", coreset: "Coreset", rng: Rng) -> Predict: ...
