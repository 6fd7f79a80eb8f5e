r"""A network trained on the whole training set, which selection looks through: its features,
predictions and last-layer gradients.

Epochs of mini-batches in a random order, by Adam or by SGD with Nesterov momentum and weight decay,

$$ f = \nabla_\theta \mathcal L_B + \delta\theta, \qquad v \leftarrow \mu v + f, \qquad \theta
\leftarrow \theta - \eta\,(f + \mu v) . $$

On the way it is counted how often each example was forgotten: right when last visited, wrong at
this visit (Toneva et al. 2019). The network is a function of (data, model, recipe, seed); a problem
with a shelf keeps it there, so that any number of selectors train it once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor

from pseudocore.core.config import Count, Fraction, NonNegative, Range
from pseudocore.core.errors import DataError
from pseudocore.core.problem import Problem, label_log_likelihood
from pseudocore.core.rng import Rng
from pseudocore.runtime.autodiff import gradient_of
from pseudocore.runtime.profiling import stage
from pseudocore.runtime.steps import StepRunner
from pseudocore.selection.last_layer_gradients import DIVERGED, LastLayer
from pseudocore.training import optimisers as adam

Features = Literal["inputs", "network"]
Statistics = Mapping[str, Tensor] | None

BATCH = 512
"""Examples per forward pass, and behind the statistics of batch norm."""


@dataclass(frozen=True, kw_only=True)
class Pretraining:
    """How the network that a selector looks through is trained."""

    pretrain_epochs: Count = 10
    """Epochs of training the network that the selection looks through."""
    pretrain_optimiser: Literal["adam", "sgd"] = "adam"
    """How it is trained; sgd has Nesterov momentum."""
    pretrain_step_size: Annotated[float | None, Range(above=0)] = None
    """Step size of that training; unless told, .001 for adam and .1 for sgd."""
    pretrain_momentum: Fraction = 0.9
    """Momentum of sgd there."""
    pretrain_weight_decay: NonNegative = 5e-4
    """Weight decay of sgd there."""
    pretrain_batch_size: Count = 128
    """Examples per step there."""
    pretrain_augment: bool = True
    """Whether it sees images augmented, where the setup augments them."""


@dataclass(frozen=True, kw_only=True)
class FeatureNetwork(Pretraining):
    """How gradients are taken of the network, too."""

    batch_norm: Literal["data", "class"] = "data"
    """Batch norm where gradients are taken: as on data of all classes; or as in training, on
    batches of one class alone.
    """


class Network(NamedTuple):
    """A trained network and what was seen of the examples while it was."""

    theta: Tensor  # (parameters,)
    # (n,) times each example was forgotten; one more than there were epochs if it was never right
    forgotten: Tensor


def pretrained(problem: Problem, recipe: Pretraining, rng: Rng) -> Network:
    """The network of this recipe and stream: off the shelf if it is there, else trained and put
    there.
    """
    what: Any = _description(problem, recipe, rng)
    if what is None or (cache := problem.cache) is None:
        return _timed(problem, recipe, rng)
    with cache.lock(what):
        kept = cache.load(what)
        if kept is not None and kept.keys() == set(Network._fields):
            return Network(**{name: value.to(problem.device) for name, value in kept.items()})
        network = _timed(problem, recipe, rng)
        cache.save(what, network._asdict())
        return network


def _timed(problem: Problem, recipe: Pretraining, rng: Rng) -> Network:
    with stage("pretrain", problem.device):
        return pretrain(problem, recipe, rng)


def pretrain(problem: Problem, recipe: Pretraining, rng: Rng) -> Network:
    """Train a fresh network; augmented if the problem says so and the recipe does not object.
    Refuses to give a diverged one.
    """
    augment = problem.augment if recipe.pretrain_augment else None
    theta = problem.model.init(rng("theta"), device=problem.device, dtype=problem.dtype)
    state = _State(theta, adam.start(theta), theta[:0], theta[:0])  # a batch comes with each step
    steppers: dict[int, StepRunner] = {}  # one per batch size: a captured step has fixed shapes
    history = _History(problem.num_train, problem.device)
    for epoch in range(recipe.pretrain_epochs):
        order = rng("epoch", epoch)("order").permutation(problem.num_train, device=problem.device)
        for place, index in enumerate(torch.split(order, recipe.pretrain_batch_size)):
            stream = rng("epoch", epoch)("augment", place)
            x, y = problem.batch(index)
            x = x if augment is None else augment(x, stream)
            step = steppers.setdefault(len(index), StepRunner(_stepping(recipe), problem))
            state, info = step(state._replace(x=x, y=y), stream)
            history.visit(index, info.right)
    if not state.theta.isfinite().all():
        raise DataError(DIVERGED)
    return Network(state.theta.clone(), history.forgotten(recipe.pretrain_epochs))


def extract_last_layer(problem: Problem, recipe: Pretraining, rng: Rng) -> LastLayer:
    """What the last layer of the network of this recipe sees of all training points."""
    theta = pretrained(problem, recipe, rng("pretrain")).theta
    if isinstance(recipe, FeatureNetwork) and recipe.batch_norm == "class":
        return last_layer_by_class(problem, theta, recipe.pretrain_batch_size)
    return last_layer(problem, theta, rng("statistics"))


def last_layer(problem: Problem, theta: Tensor, rng: Rng, index: Tensor | None = None) -> LastLayer:
    """Features and log-probabilities of training points (all unless told); batch norm, if any, as
    on one random batch.
    """
    x, _ = problem.batch(rng.permutation(problem.num_train)[:BATCH])
    statistics = problem.model.statistics(theta, x) or None
    index = torch.arange(problem.num_train) if index is None else index
    return _seen(problem, theta, index, torch.split(index, BATCH), statistics)


def last_layer_by_class(problem: Problem, theta: Tensor, size: int) -> LastLayer:
    """As `last_layer` of all points, but batch norm as in training on batches of `size` consecutive
    examples of one class.
    """
    order = problem.data.train.y.argsort(stable=True)
    batches = [
        batch
        for members in torch.split(order, problem.data.class_counts.tolist())
        for batch in torch.split(members, size)
    ]
    return _seen(problem, theta, order, batches, None).at(order.argsort().to(problem.device))


def _seen(
    problem: Problem,
    theta: Tensor,
    index: Tensor,
    batches: Sequence[Tensor],
    statistics: Statistics,
) -> LastLayer:
    """What the last layer sees of some points, batch by batch."""
    weight, bias = problem.model.head(theta)
    parts = []
    with torch.no_grad():
        for batch in batches:
            with problem.fast():
                features = problem.model.features(theta, problem.batch(batch)[0], statistics)
            parts.append(features.to(problem.dtype))
        features = torch.cat(parts)
        log_probs = (features @ weight.T + bias).log_softmax(1)
    return LastLayer(features, log_probs, problem.train_y[index.to(problem.device)]).checked()


def feature_map(
    problem: Problem, kind: Features, recipe: Pretraining, rng: Rng
) -> Callable[[Tensor], Tensor]:
    """From training indices (n,) to features (n, d): flattened network inputs, or those of the
    network of this recipe.
    """
    if kind == "inputs":
        return lambda index: problem.batch(index)[0].flatten(1)
    theta = pretrained(problem, recipe, rng("pretrain")).theta
    return lambda index: last_layer(problem, theta, rng("statistics"), index).features


class _State(NamedTuple):
    theta: Tensor
    moments: adam.Moments  # sgd keeps its velocity in the first
    x: Tensor
    y: Tensor


class _Info(NamedTuple):
    right: Tensor  # (batch,) whether each example was predicted right before the step


class _History:
    """How often each example went from right to wrong between visits."""

    def __init__(self, n: int, device: torch.device) -> None:
        self.before, self.ever = (torch.zeros(n, dtype=torch.bool, device=device) for _ in range(2))
        self.count = torch.zeros(n, dtype=torch.int64, device=device)

    def visit(self, index: Tensor, right: Tensor) -> None:
        self.count[index] += self.before[index] & ~right
        self.ever[index] |= right
        self.before[index] = right

    def forgotten(self, num_epochs: int) -> Tensor:
        return self.count.masked_fill(~self.ever, num_epochs + 1)


def _stepping(recipe: Pretraining) -> Callable[[Problem, _State, Rng], tuple[_State, _Info]]:
    momentum, decay = recipe.pretrain_momentum, recipe.pretrain_weight_decay

    def step(problem: Problem, state: _State, rng: Rng) -> tuple[_State, _Info]:
        gradient, logits = gradient_of(_cross_entropy, has_aux=True)(
            state.theta, problem, state.x, state.y
        )
        if recipe.pretrain_optimiser == "adam":
            change, moments = adam.adam(gradient, state.moments, recipe.pretrain_step_size or 1e-3)
        else:
            force = gradient + decay * state.theta
            moments = state.moments._replace(first=momentum * state.moments.first + force)
            change = (recipe.pretrain_step_size or 0.1) * (force + momentum * moments.first)
        return state._replace(theta=state.theta - change, moments=moments), _Info(
            logits.argmax(1) == state.y
        )

    return step


def _cross_entropy(theta: Tensor, problem: Problem, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    with problem.fast():
        logits = problem.model.logits(theta, x)
    logits = logits.to(x.dtype)
    return -label_log_likelihood(logits.log_softmax(-1), y).mean(), logits


def _description(problem: Problem, recipe: Pretraining, rng: Rng) -> dict[str, Any] | None:
    """All that decides the network; None when part of it is code of others, which may change under
    the same name.
    """
    model, augment = problem.model.describe(), problem.augment if recipe.pretrain_augment else None
    if ":" in str(model.get("name", ":")) or not (augment is None or is_dataclass(augment)):
        return None
    return {
        "kind": "pretrained network 1",
        "data": problem.data.fingerprint,
        "model": model,
        "preprocess": problem.preprocess.describe(),
        "augment": None if augment is None else {"name": type(augment).__name__, **asdict(augment)},
        "arithmetic": [str(problem.dtype), problem.precision, problem.device.type],
        "recipe": {name: getattr(recipe, name) for name in Pretraining.__dataclass_fields__},
        "stream": [rng.seed, *rng.path],
    }
