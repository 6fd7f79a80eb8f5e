"""The same steps as one would write them in a script: a module with its parameters in place,
`torch.autograd.grad`, Python around it.

Nothing of ours but the draws, the augmentation and the data: no flat vector, no functional call, no
recomputation, no graph. They are what `pseudocore bench` puts beside the library on any machine,
and `tests/unit/test_bench.py` holds both to the same images.
"""

from collections.abc import Callable, Iterator, Mapping
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
    """Whether there is a plain step: of these methods and parts, for the network they were
    published with.
    """
    return name in PLAIN and workload.model in (None, "convnet3") and workload.norm != "batch"


def make(name: str, problem: Problem, workload: Workload) -> Task:
    """The plain step of the method or part of this name, where it `exists`."""
    if name == "experts":
        return _training(problem)
    method = workloads.method_of(name, workload)
    state, network = method.init(problem, Rng(0)("init")), _Network(problem)
    images = getattr(state, "images", state)
    x, velocity = images.x, images.velocity

    def take(number: int) -> None:
        nonlocal x, velocity
        x, velocity = step(
            name, method, problem, network, x, images.y, velocity, Rng(0)("step", number)
        )

    return Task(take)


def step(
    name: str,
    method: Any,
    problem: Problem,
    network: "_Network",
    x: Tensor,
    y: Tensor,
    velocity: Tensor,
    rng: Rng,
) -> tuple[Tensor, Tensor]:
    """Images and their velocity after one step of a trajectory method, from the draws that its own
    step would make.
    """
    gradient = PLAIN[name](method, _Step(problem, network, x, y, rng))
    velocity = method.image_momentum * velocity + gradient
    return x - method.image_lr * velocity, velocity


class _Network:
    """The problem's network as a plain module."""

    def __init__(self, problem: Problem) -> None:
        of = problem.model.describe()
        channels, side = problem.data.shape[0], problem.data.shape[1]
        layers: list[nn.Module] = []
        for block in range(of["depth"]):
            padding = 3 if side == 28 and block == 0 else 1
            layers.append(nn.Conv2d(channels, of["width"], 3, padding=padding))
            layers += [nn.GroupNorm(of["width"], of["width"])] if of["norm"] == "instance" else []
            layers += [nn.ReLU(), nn.AvgPool2d(2)]
            channels, side = of["width"], (side + 2 * padding - 2) // 2
        layers += [nn.Flatten(), nn.Linear(channels * side * side, problem.num_classes)]
        self.module = nn.Sequential(*layers).to(problem.device, problem.dtype)
        self.parameters = list(self.module.parameters())
        self.fast = problem.fast

    def load(self, theta: Tensor) -> None:
        parts = torch.split(theta, [parameter.numel() for parameter in self.parameters])
        with torch.no_grad():
            for parameter, part in zip(self.parameters, parts, strict=True):
                parameter.copy_(part.view_as(parameter))

    def loss(self, x: Tensor, y: Tensor, parameters: Mapping[str, Tensor] | None = None) -> Tensor:
        with self.fast():
            logits = (
                torch.func.functional_call(self.module, dict(parameters), (x,))
                if parameters
                else self.module(x)
            )
        return F.cross_entropy(logits.to(x.dtype), y)


class _Step(NamedTuple):
    """What the plain steps have in common."""

    problem: Problem
    network: _Network
    x: Tensor
    y: Tensor
    rng: Rng

    def expert(self, method: Any, horizon: int) -> Tensor:
        path: Tensor = method.expert_path(
            self.problem, self.rng, horizon=horizon, stride=max(1, horizon)
        )
        return path

    def seen(self, x: Tensor, *names: str | int) -> Tensor:
        augment = self.problem.augment
        return x if augment is None else augment(x, self.rng(*names))

    def train(self, theta: Tensor, num_steps: int, step_size: float, noise: float = 0.0) -> Tensor:
        """SGD on the images from theta, in place."""
        self.network.load(theta)
        for number in range(num_steps):
            loss = self.network.loss(self.seen(self.x, "inner", "view", number), self.y)
            gradient = torch.autograd.grad(loss, self.network.parameters)
            with torch.no_grad():
                for parameter, slope in zip(self.network.parameters, gradient, strict=True):
                    parameter.sub_(slope, alpha=step_size)
            if noise > 0:
                drawn = self.rng("inner", "noise", number).normal(
                    len(theta), device=theta.device, dtype=theta.dtype
                )
                self.network.load(self.theta() + noise * drawn)
        return self.theta()

    def theta(self) -> Tensor:
        return torch.nn.utils.parameters_to_vector(self.network.parameters).detach()

    def near(self, theta: Tensor, noise: float, name: str, num: int) -> Iterator[Tensor]:
        for number in range(num):
            yield theta + noise * self.rng(name, number).normal(
                len(theta), device=theta.device, dtype=theta.dtype
            )

    def contrast(
        self, pairs: list[tuple[Tensor, Tensor]] | Iterator[tuple[Tensor, Tensor]], num: int
    ) -> Tensor:
        """Gradient in the images of the mean loss under the first of each pair less that under the
        second, one backward a side.
        """
        x = self.x.detach().requires_grad_()
        total = torch.zeros_like(x)
        for positive, negative in pairs:
            for sign, theta in ((1, positive), (-1, negative)):
                self.network.load(theta)
                (slope,) = torch.autograd.grad(self.network.loss(self.seen(x, "view"), self.y), x)
                total += sign * slope
        return total / num


def _forward_kl(method: Any, now: _Step) -> Tensor:
    start, expert = now.expert(method, method.horizon)
    student = now.train(start, method.num_inner_steps, method.inner_lr)
    positive = now.near(expert, method.expert_noise, "near-expert", method.num_draws)
    negative = now.near(student, method.noise, "near-student", method.num_draws)
    return now.contrast(zip(positive, negative, strict=True), method.num_draws)


def _contrastive_divergence(method: Any, now: _Step) -> Tensor:
    start, expert = now.expert(method, method.horizon)
    student = now.train(
        start,
        method.num_inner_steps,
        method.langevin_step / 2,
        method.noise_scale * method.langevin_step**0.5,
    )
    return now.contrast([(expert, student)], 1)


def _wasserstein(method: Any, now: _Step) -> Tensor:
    """All inner steps in one graph, as published; the step size is learned by ours and its gradient
    part of the cost of both.
    """
    start, expert = now.expert(method, method.horizon)
    x, step_size = (
        now.x.detach().requires_grad_(),
        now.x.new_full((), method.inner_lr).requires_grad_(),
    )
    names = [name for name, _ in now.network.module.named_parameters()]
    sizes = [parameter.numel() for parameter in now.network.parameters]
    theta = start.detach().requires_grad_()
    for number in range(method.num_inner_steps):
        pieces = [
            part.view_as(like)
            for part, like in zip(torch.split(theta, sizes), now.network.parameters, strict=True)
        ]
        loss = now.network.loss(
            now.seen(x, "inner", "view", number), now.y, dict(zip(names, pieces, strict=True))
        )
        (slope,) = torch.autograd.grad(loss, theta, create_graph=True)
        theta = theta - step_size * slope
    loss = (theta - expert).square().sum() / (start - expert).square().sum()
    gradient: Tensor = torch.autograd.grad(loss, (x, step_size))[0]
    return gradient


def _reverse_kl(method: Any, now: _Step) -> Tensor:
    (start,) = now.expert(method, 0)
    student, problem = now.train(start, method.num_inner_steps, method.inner_lr), now.problem
    real, labels = problem.batch(
        now.rng("batch").integers(problem.num_train, method.batch_size, device=problem.device)
    )
    real, x = now.seen(real, "view"), now.x.detach().requires_grad_()
    excess, slopes = [], []
    for theta in now.near(student, method.noise, "near-student", method.num_draws):
        now.network.load(theta)
        with torch.no_grad():
            on_real = now.network.loss(real, labels)
        on_images = now.network.loss(now.seen(x, "view"), now.y)
        slopes.append(-len(x) * torch.autograd.grad(on_images, x)[0])
        excess.append(on_images.detach() - on_real)
    centred = torch.stack(excess) - torch.stack(excess).mean()
    return -torch.stack(
        [factor * slope for factor, slope in zip(centred, slopes, strict=True)]
    ).mean(0)


def _training(problem: Problem) -> Task:
    """SGD on shuffled batches, an epoch a time."""
    training, network, data = Training(), _Network(problem), problem.num_train
    optimiser = torch.optim.SGD(network.parameters, lr=training.lr)

    def take(number: int) -> None:
        rng = Rng(0)("experts", 0, "epoch", number + 1)
        order = rng("order").permutation(data, device=problem.device)
        for place, index in enumerate(torch.split(order, training.batch_size)):
            x, y = problem.batch(index)
            x = x if problem.augment is None else problem.augment(x, rng("augment", place))
            optimiser.zero_grad()
            network.loss(x, y).backward()  # type: ignore[no-untyped-call]
            optimiser.step()

    return Task(take, -(-data // training.batch_size))


PLAIN: Mapping[str, Callable[..., Any]] = {
    "bpc-fkl": _forward_kl,
    "bpc-rkl": _reverse_kl,
    "bpc-w": _wasserstein,
    "bpc-cd": _contrastive_divergence,
    "experts": _training,
}
"""What has a plain step beside it. The rest is put beside its own eager step."""
