"""The same steps as one would write them in a script: a module with its parameters in place,
`torch.autograd.grad`, Python around it.

Only the draws, the augmentation and the data are the library's: no flat vector, no functional call,
no recomputation, no graph. `pseudocore bench` times them next to the library on any machine, and
`tests/unit/test_bench.py` holds both to the same images.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.reproduce.bench import workload as workloads
from pseudocore.reproduce.bench.tasks import Task
from pseudocore.reproduce.bench.workload import Workload
from pseudocore.training.experts import Training


def exists(name: str, workload: Workload) -> bool:
    """Whether there is a plain step: of these methods and parts, for their published network."""
    known = name in GRADIENTS or name == "experts"
    return known and workload.model in (None, "convnet3") and workload.norm != "batch"


def make(name: str, problem: Problem, workload: Workload) -> Task:
    """The plain step of the method or part of this name, where it `exists`."""
    if name == "experts":
        return _training(problem)
    method, network = workloads.method_of(name, workload), PlainNetwork(problem)
    state = method.init(problem, Rng(0)("init"))
    images = state.images if name == "bpc-w" else state
    x, velocity = images.x, images.velocity

    def take(number: int) -> None:
        nonlocal x, velocity
        now = Now(problem, network, x, images.y, Rng(0)("step", number))
        x, velocity = step(name, method, now, velocity)

    return Task(take)


def step(name: str, method: Any, now: "Now", velocity: Tensor) -> tuple[Tensor, Tensor]:
    """Images and their velocity after one step of a trajectory method, from the draws that its own
    step would make.
    """
    velocity = method.image_momentum * velocity + GRADIENTS[name](method, now)
    return now.x - method.image_lr * velocity, velocity


class PlainNetwork:
    """The problem's network as a plain module."""

    def __init__(self, problem: Problem) -> None:
        options = problem.model.describe()
        channels, side = problem.data.shape[0], problem.data.shape[1]
        width = options["width"]
        layers: list[nn.Module] = []
        for block in range(options["depth"]):
            padding = 3 if side == 28 and block == 0 else 1
            layers.append(nn.Conv2d(channels, width, 3, padding=padding))
            if options["norm"] == "instance":
                layers.append(nn.GroupNorm(width, width))
            layers += [nn.ReLU(), nn.AvgPool2d(2)]
            channels, side = width, (side + 2 * padding - 2) // 2
        layers += [nn.Flatten(), nn.Linear(channels * side * side, problem.num_classes)]
        self.module = nn.Sequential(*layers).to(problem.device, problem.dtype)
        self.parameters = list(self.module.parameters())
        self.fast = problem.fast

    def split(self, theta: Tensor) -> list[Tensor]:
        """A flat vector in the shapes of the parameters."""
        parts = torch.split(theta, [parameter.numel() for parameter in self.parameters])
        return [
            part.view_as(parameter) for part, parameter in zip(parts, self.parameters, strict=True)
        ]

    def load(self, theta: Tensor) -> None:
        with torch.no_grad():
            for parameter, part in zip(self.parameters, self.split(theta), strict=True):
                parameter.copy_(part)

    def theta(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.parameters).detach()

    def loss(self, x: Tensor, y: Tensor, theta: Tensor | None = None) -> Tensor:
        """With the parameters in place, or with a flat vector that can be differentiated."""
        with self.fast():
            if theta is None:
                logits = self.module(x)
            else:
                names = [name for name, _ in self.module.named_parameters()]
                parameters = dict(zip(names, self.split(theta), strict=True))
                logits = torch.func.functional_call(self.module, parameters, (x,))
        return F.cross_entropy(logits.to(x.dtype), y)


class Now(NamedTuple):
    """What a plain step works on."""

    problem: Problem
    network: PlainNetwork
    x: Tensor
    y: Tensor
    rng: Rng

    def expert(self, method: Any, horizon: int) -> Tensor:
        stride = max(1, horizon)
        path: Tensor = method.expert_path(self.problem, self.rng, horizon=horizon, stride=stride)
        return path

    def augmented(self, x: Tensor, *names: str | int) -> Tensor:
        augment = self.problem.augment
        return x if augment is None else augment(x, self.rng(*names))

    def train(self, theta: Tensor, num_steps: int, step_size: float, noise: float = 0.0) -> Tensor:
        """SGD on the images from theta, in place."""
        network = self.network
        network.load(theta)
        for number in range(num_steps):
            loss = network.loss(self.augmented(self.x, "inner", "view", number), self.y)
            gradient = torch.autograd.grad(loss, network.parameters)
            with torch.no_grad():
                for parameter, slope in zip(network.parameters, gradient, strict=True):
                    parameter.sub_(slope, alpha=step_size)
            if noise > 0:
                drawn = self._normal(theta, "inner", "noise", number)
                network.load(network.theta() + noise * drawn)
        return network.theta()

    def near(self, theta: Tensor, noise: float, name: str, num: int) -> Iterator[Tensor]:
        for number in range(num):
            yield theta + noise * self._normal(theta, name, number)

    def contrast(self, pairs: Iterable[tuple[Tensor, Tensor]], num: int) -> Tensor:
        """Gradient in the images of the mean loss under the first of each pair less that under the
        second, one backward a side.
        """
        x = self.x.detach().requires_grad_()
        total = torch.zeros_like(x)
        for positive, negative in pairs:
            for sign, theta in ((1, positive), (-1, negative)):
                self.network.load(theta)
                loss = self.network.loss(self.augmented(x, "view"), self.y)
                total += sign * torch.autograd.grad(loss, x)[0]
        return total / num

    def _normal(self, like: Tensor, *names: str | int) -> Tensor:
        return self.rng(*names).normal(len(like), device=like.device, dtype=like.dtype)


def _forward_kl(method: Any, now: Now) -> Tensor:
    start, expert = now.expert(method, method.horizon)
    student = now.train(start, method.num_inner_steps, method.inner_lr)
    positive = now.near(expert, method.expert_noise, "near-expert", method.num_draws)
    negative = now.near(student, method.noise, "near-student", method.num_draws)
    return now.contrast(zip(positive, negative, strict=True), method.num_draws)


def _contrastive_divergence(method: Any, now: Now) -> Tensor:
    start, expert = now.expert(method, method.horizon)
    noise = method.noise(now.problem.num_train)
    student = now.train(start, method.num_inner_steps, method.langevin_step / 2, noise)
    return now.contrast([(expert, student)], 1)


def _wasserstein(method: Any, now: Now) -> Tensor:
    """All inner steps in one graph, as published; the gradient of the step size, which ours learns,
    is part of the cost of both.
    """
    start, expert = now.expert(method, method.horizon)
    x = now.x.detach().requires_grad_()
    step_size = x.new_full((), method.inner_lr).requires_grad_()
    theta = start.detach().requires_grad_()
    for number in range(method.num_inner_steps):
        loss = now.network.loss(now.augmented(x, "inner", "view", number), now.y, theta)
        (slope,) = torch.autograd.grad(loss, theta, create_graph=True)
        theta = theta - step_size * slope
    loss = (theta - expert).square().sum() / (start - expert).square().sum()
    gradient: Tensor = torch.autograd.grad(loss, (x, step_size))[0]
    return gradient


def _reverse_kl(method: Any, now: Now) -> Tensor:
    problem, network = now.problem, now.network
    (start,) = now.expert(method, 0)
    student = now.train(start, method.num_inner_steps, method.inner_lr)
    index = now.rng("batch").integers(problem.num_train, method.batch_size, device=problem.device)
    real, labels = problem.batch(index)
    real, x = now.augmented(real, "view"), now.x.detach().requires_grad_()
    excess, slopes = [], []
    for theta in now.near(student, method.noise, "near-student", method.num_draws):
        network.load(theta)
        with torch.no_grad():
            on_real = network.loss(real, labels)
        on_images = network.loss(now.augmented(x, "view"), now.y)
        slopes.append(-len(x) * torch.autograd.grad(on_images, x)[0])
        excess.append(on_images.detach() - on_real)
    centred = torch.stack(excess) - torch.stack(excess).mean()
    products = [factor * slope for factor, slope in zip(centred, slopes, strict=True)]
    return -torch.stack(products).mean(0)


def _training(problem: Problem) -> Task:
    """SGD on shuffled batches, an epoch a time."""
    training, network, num = Training(), PlainNetwork(problem), problem.num_train
    optimiser = torch.optim.SGD(network.parameters, lr=training.lr)

    def take(number: int) -> None:
        rng = Rng(0)("experts", 0, "epoch", number + 1)
        order = rng("order").permutation(num, device=problem.device)
        for place, index in enumerate(torch.split(order, training.batch_size)):
            x, y = problem.batch(index)
            x = x if problem.augment is None else problem.augment(x, rng("augment", place))
            optimiser.zero_grad()
            network.loss(x, y).backward()  # type: ignore[no-untyped-call]
            optimiser.step()

    return Task(take, -(-num // training.batch_size))


GRADIENTS: Mapping[str, Callable[[Any, Now], Tensor]] = {
    "bpc-fkl": _forward_kl,
    "bpc-rkl": _reverse_kl,
    "bpc-w": _wasserstein,
    "bpc-cd": _contrastive_divergence,
}
"""Gradients in the images, of the methods that have a plain step."""
