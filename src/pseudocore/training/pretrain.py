r"""A network trained on the whole training set, whose features, predictions and last-layer
gradients selectors use.

Epochs of mini-batches in a random order, by Adam or by SGD with Nesterov momentum and weight decay,

$$ f = \nabla_\theta \mathcal L_B + \delta\theta, \qquad v \leftarrow \mu v + f, \qquad \theta
\leftarrow \theta - \eta\,(f + \mu v) . $$

Training also counts how often each example was forgotten: right when last visited, wrong at this
visit (Toneva et al. 2019). The network is a function of (data, model, recipe, seed); a problem with
a cache keeps it there, so that any number of selectors train it once.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor

from pseudocore.core.config import Count, Fraction, NonNegative, Range
from pseudocore.core.errors import ConfigError, DataError
from pseudocore.core.problem import Problem, label_log_likelihood
from pseudocore.core.rng import Rng
from pseudocore.runtime import autodiff
from pseudocore.runtime.profiling import stage
from pseudocore.runtime.reporting import report
from pseudocore.selection.last_layer_gradients import DIVERGED, LastLayer
from pseudocore.training.loop import Optimiser, TrainingLoop, TrainingState, epoch_of_one
from pseudocore.training.optimisers import adam, decayed, sgd, start

Space = Literal["inputs", "network"]
Statistics = Mapping[str, Tensor] | None

BATCH = 512
"""Examples per forward pass, and behind the statistics of batch norm."""


@dataclass(frozen=True, kw_only=True)
class Pretraining:
    """How the network that a selector uses is trained."""

    pretrain_epochs: Count = 10
    """Epochs of training the network that the selection is based on."""
    pretrain_optimiser: Literal["adam", "sgd"] = "adam"
    """Optimiser of that training; sgd has Nesterov momentum."""
    pretrain_step_size: Annotated[float | None, Range(above=0)] = None
    """Step size of that training. Defaults to .001 for adam and .1 for sgd."""
    pretrain_momentum: Fraction = 0.9
    """Momentum of sgd in that training."""
    pretrain_weight_decay: NonNegative = 5e-4
    """Weight decay of sgd in that training."""
    pretrain_batch_size: Count = 128
    """Examples per step of that training."""
    pretrain_augment: bool = True
    """Whether that training sees augmented images, where the setup augments them."""


@dataclass(frozen=True, kw_only=True)
class FeatureNetwork(Pretraining):
    """As `Pretraining`, with how gradients of the network are taken."""

    batch_norm: Literal["data", "class"] = "data"
    """Batch norm where gradients are taken: with statistics of data of all classes; or as in
    training, on batches of one class alone.
    """
    gradients: Literal["examples", "batches"] = "examples"
    """Gradients of the loss of each example, or as its part of the mean loss of a batch of its
    class: those of a small last batch are then the larger.
    """


class Network(NamedTuple):
    """A trained network and its training history."""

    theta: Tensor  # (parameters,)
    forgotten: Tensor
    """Times each example was forgotten, (n,); one more than there were epochs if never right."""


class PretrainInfo(NamedTuple):
    right: Tensor  # whether each example of the batch was predicted right before the step, (batch,)


def pretrained(problem: Problem, recipe: Pretraining, rng: Rng) -> Network:
    """The network of this recipe and stream: from the cache, else trained and cached."""
    description: Any = _description(problem, recipe, rng)
    if description is None or (cache := problem.cache) is None:
        return pretrain(problem, recipe, rng)
    with cache.lock(description):
        kept = cache.load(description)
        if kept is not None and kept.keys() == set(Network._fields):
            return Network(**{name: value.to(problem.device) for name, value in kept.items()})
        network = pretrain(problem, recipe, rng)
        cache.save(description, network._asdict())
        return network


def pretrain(problem: Problem, recipe: Pretraining, rng: Rng) -> Network:
    """Train a fresh network, on augmented images where problem and recipe say so.

    Raises DataError when it diverges.
    """
    augment = problem.augment if recipe.pretrain_augment else None

    def loss(theta: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        with problem.fast():
            logits = problem.model.logits(theta, x)
        logits = logits.to(x.dtype)
        return -label_log_likelihood(logits.log_softmax(-1), y).mean(), logits

    def gradient(theta: Tensor, points: Tensor, rng: Rng) -> tuple[Tensor, PretrainInfo]:
        x, y = problem.batch(points)
        x = x if augment is None else augment(x, rng)
        found, logits = autodiff.grad(loss, has_aux=True)(theta, x, y)
        return found, PretrainInfo(logits.argmax(1) == y)

    with stage("pretrain", problem.device):
        theta = problem.model.init(rng("theta"), device=problem.device, dtype=problem.dtype)
        moments, optimiser = _optimiser(recipe, theta)
        state = TrainingState(theta, moments, torch.arange(0))
        loop, history = TrainingLoop(gradient, optimiser, problem), _History(problem)
        per_epoch = math.ceil(problem.num_train / recipe.pretrain_batch_size)
        done, total = 0, recipe.pretrain_epochs * per_epoch
        for epoch in range(recipe.pretrain_epochs):
            before = state
            batches = epoch_of_one(problem, rng("epoch", epoch), recipe.pretrain_batch_size)
            for state, info in loop.steps(before, batches):
                history.visit(state.points, info.right)
                done += 1
                report("training a network to look through", done, total)
        if not state.theta.isfinite().all():
            raise DataError(DIVERGED, code="diverged")
        return Network(state.theta.clone(), history.forgotten(recipe.pretrain_epochs))


def extract_last_layer(problem: Problem, recipe: Pretraining, rng: Rng) -> LastLayer:
    """The last layer of the network of this recipe on all training points."""
    theta = pretrained(problem, recipe, rng("pretrain")).theta
    if not isinstance(recipe, FeatureNetwork):
        return last_layer(problem, theta, rng("statistics"))
    if recipe.batch_norm == "class":
        layer = last_layer_by_class(problem, theta, recipe.pretrain_batch_size)
    else:
        layer = last_layer(problem, theta, rng("statistics"))
    if recipe.gradients == "batches":
        scale = _shares_of_batches(problem, recipe.pretrain_batch_size)
        return layer._replace(scale=scale.to(layer.features))
    return layer


def _shares_of_batches(problem: Problem, size: int) -> Tensor:
    """What an example counts in the mean loss of its batch of consecutive examples of its class,
    in units of that in a full batch, (n,).
    """
    shares = torch.empty(problem.num_train)
    for members in problem.class_indices:
        for batch in torch.split(members, size):
            shares[batch] = size / len(batch)
    return shares


def last_layer(problem: Problem, theta: Tensor, rng: Rng, index: Tensor | None = None) -> LastLayer:
    """Features and log-probabilities of training points; batch norm as on one random batch.

    `index` defaults to all points.
    """
    x, _ = problem.batch(rng.permutation(problem.num_train)[:BATCH])
    statistics = problem.model.statistics(theta, x) or None
    index = torch.arange(problem.num_train) if index is None else index
    return _last_layer(problem, theta, index, torch.split(index, BATCH), statistics)


def last_layer_by_class(problem: Problem, theta: Tensor, size: int) -> LastLayer:
    """As `last_layer` of all points, but batch norm as in training on batches of `size` consecutive
    examples of one class.
    """
    order = problem.data.train.y.argsort(stable=True)
    classes = torch.split(order, problem.data.class_counts.tolist())
    batches = [batch for members in classes for batch in torch.split(members, size)]
    layer = _last_layer(problem, theta, order, batches, None)
    return layer.at(order.argsort().to(problem.device))


def _last_layer(
    problem: Problem,
    theta: Tensor,
    index: Tensor,
    batches: Sequence[Tensor],
    statistics: Statistics,
) -> LastLayer:
    """The last layer on training points, which `batches` splits."""
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
    problem: Problem, kind: Space, recipe: Pretraining, rng: Rng
) -> Callable[[Tensor], Tensor]:
    """From training indices (n,) to features (n, d): flattened network inputs, or the features of
    the network of this recipe. In a regression the target is one more input.
    """
    if problem.task == "regression":
        if kind == "network":
            raise ConfigError(
                "space = 'network' is of a network trained on classes, and the targets of"
                f" {problem.data.name!r} are numbers; leave it out",
                code="wrong-task",
                task=problem.task,
            )
        return lambda index: torch.cat([part.flatten(1) for part in problem.batch(index)], 1)
    if kind == "inputs":
        return lambda index: problem.batch(index)[0].flatten(1)
    theta = pretrained(problem, recipe, rng("pretrain")).theta
    return lambda index: last_layer(problem, theta, rng("statistics"), index).features


class _History:
    """How often each example went from right to wrong between visits."""

    def __init__(self, problem: Problem) -> None:
        never = torch.zeros(problem.num_train, dtype=torch.bool, device=problem.device)
        self.before, self.ever = never, never.clone()
        self.count = torch.zeros_like(never, dtype=torch.int64)

    def visit(self, index: Tensor, right: Tensor) -> None:
        self.count[index] += self.before[index] & ~right
        self.ever[index] |= right
        self.before[index] = right

    def forgotten(self, num_epochs: int) -> Tensor:
        return self.count.masked_fill(~self.ever, num_epochs + 1)


def _optimiser(recipe: Pretraining, theta: Tensor) -> tuple[Any, Optimiser]:
    """The moments to begin with, and the optimiser."""
    if recipe.pretrain_optimiser == "adam":
        step_size = recipe.pretrain_step_size or 1e-3
        return start(theta), lambda gradient, moments, _: adam(gradient, moments, step_size)
    momentum, step_size = recipe.pretrain_momentum, recipe.pretrain_step_size or 0.1

    def nesterov(gradient: Tensor, velocity: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
        force = decayed(gradient, theta, recipe.pretrain_weight_decay)
        return sgd(force, velocity, step_size, momentum=momentum, nesterov=True)

    return torch.zeros_like(theta), nesterov


def _description(problem: Problem, recipe: Pretraining, rng: Rng) -> dict[str, Any] | None:
    """All that decides the network; None when part of it is code of others, which may change under
    the same name.
    """
    model, augment = problem.model.describe(), problem.augment if recipe.pretrain_augment else None
    if ":" in str(model.get("name", ":")) or not (augment is None or is_dataclass(augment)):
        return None
    return {
        "kind": "network",
        "data": problem.data.fingerprint,
        "model": model,
        "preprocess": problem.preprocess.describe(),
        "augment": None if augment is None else {"name": type(augment).__name__, **asdict(augment)},
        "arithmetic": [str(problem.dtype), problem.precision, problem.device.type],
        "recipe": {name: getattr(recipe, name) for name in Pretraining.__dataclass_fields__},
        "stream": [rng.seed, *rng.path],
    }
