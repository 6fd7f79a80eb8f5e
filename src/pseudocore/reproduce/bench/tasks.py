"""What can be timed, by name: the step of any iterative method, and the parts that steps and
evaluations are made of.

| part | one of it |
|---|---|
| `inner-step` | a training step on the M pseudo-images: L_u in a step of a trajectory method |
| `inner-step-and-back` | the same and back through it (a Hessian-vector product), as in `bpc-w` |
| `image-gradient` | a gradient in the pseudo-images: 2 S of them in a step of `bpc-fkl` |
| `augment` | one augmentation of the pseudo-images |
| `real-batch` | real images looked up, normalised, augmented and passed through, as in `vbpc` |
| `last-layer` | `vbpc`'s posterior from M features, its loss on a batch, and the gradient |
| `experts` | an SGD step on a batch of 256 real images |
| `leapfrog` | a leapfrog step of HMC on the M pseudo-images |
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad

from pseudocore.core.errors import ConfigError
from pseudocore.core.problem import Problem, label_log_likelihood
from pseudocore.core.registry import did_you_mean, methods
from pseudocore.core.rng import Rng
from pseudocore.inference.hmc import HMC
from pseudocore.objectives import last_layer_gaussian as gaussian
from pseudocore.objectives import trajectory, unroll
from pseudocore.objectives.contrast import contrast
from pseudocore.objectives.initial import initial_inputs
from pseudocore.reproduce.bench import workload as workloads
from pseudocore.reproduce.bench.workload import SIZES, Workload
from pseudocore.runtime import Compile
from pseudocore.runtime.draws import Step
from pseudocore.runtime.loop import RepeatedPasses
from pseudocore.runtime.steps import StepRunner
from pseudocore.training.experts import Trainer, Training

NUM_INSIDE = 10
"""Times a part is done in one captured step: alone it would be shorter than the launch of a graph.
"""


class Task(NamedTuple):
    """Something to do again and again."""

    take: Callable[[int], None]
    """Do it, with the draws of this step number."""
    num_inside: int = 1
    """How many of what is reported one call does."""
    note: Callable[[], str] = lambda: ""
    """How it was run, where that differs from what was asked; known afterwards."""


def check_names(names: list[str]) -> None:
    """Refuse names that are neither a method's nor a part's, and selectors."""
    for name in names:
        if name in methods:
            workloads.method_of(name, SIZES["small"])
        elif name not in PARTS:
            known = [*(entry.name for entry in methods if entry.kind != "select"), *PARTS]
            raise ConfigError(
                f"nothing to time is called {name!r}{did_you_mean(name, known)} "
                f"(known: {', '.join(known)})",
                code="unknown-task",
                name=name,
            )


def problem_of(name: str, workload: Workload, device: str) -> Problem:
    """The problem that the method or part of this name works on."""
    if name == "experts":  # eight batches are enough to time one
        workload = replace(workload, num_train=min(workload.num_train, 8 * Training().batch_size))
    problem = workloads.problem_of(name, workload, device)
    if name in PARTS:
        return problem
    return workloads.with_experts(problem, workloads.method_of(name, workload))


def make(name: str, problem: Problem, workload: Workload, compile: Compile) -> Task:
    """The task of this name on a problem made for it."""
    if name in PARTS:
        return PARTS[name](problem, workload, compile)
    method = workloads.method_of(name, workload)
    repeats_passes = isinstance(method, RepeatedPasses)
    runner = StepRunner(
        method.step, problem, compile, method.num_steps, repeats_passes=repeats_passes
    )
    return _repeated(runner, method.init(problem, Rng(0)("init")))


def _repeated(runner: StepRunner, state: Any, *, num_inside: int = 1) -> Task:
    def take(number: int) -> None:
        nonlocal state
        state, _ = runner(state, Rng(0)("step", number))

    return Task(take, num_inside, lambda: runner.note)


def _part(
    problem: Problem, step: Step, state: Any, compile: Compile, num_inside: int = NUM_INSIDE
) -> Task:
    runner = StepRunner(step, problem, compile, repeats_passes=num_inside > 1)
    return _repeated(runner, state, num_inside=num_inside)


class _State(NamedTuple):
    theta: Tensor  # (P,)
    x: Tensor  # network inputs (M, ...)


class _Info(NamedTuple):
    loss: Tensor


Move = Callable[[_State, Rng], _State]


def _on_images(
    make_move: Callable[[Problem, Workload, Tensor], Move], *, num_inside: int = NUM_INSIDE
) -> Callable[[Problem, Workload, Compile], Task]:
    """A part that moves a fresh network or pseudo-images (real ones), given the images' labels."""

    def part(problem: Problem, workload: Workload, compile: Compile) -> Task:
        x, y = initial_inputs(
            problem, [workload.per_class] * problem.num_classes, "real", Rng(0)("images")
        )
        theta = problem.model.init(Rng(0)("theta"), device=problem.device, dtype=problem.dtype)
        move = make_move(problem, workload, y)

        def step(_: Problem, state: _State, rng: Rng) -> tuple[_State, _Info]:
            return move(state, rng), _Info(state.x.new_zeros(()))

        return _part(problem, step, _State(theta, x), compile, num_inside)

    return part


def _inner_step(problem: Problem, workload: Workload, y: Tensor) -> Move:
    energy = trajectory.MeanLoss(problem, y)

    def move(state: _State, rng: Rng) -> _State:
        theta = unroll.descend(
            energy, _unchanged, state.theta, state.x, rng, num_steps=NUM_INSIDE, step_size=1e-4
        )
        return state._replace(theta=theta)

    return move


def _inner_step_and_back(problem: Problem, workload: Workload, y: Tensor) -> Move:
    energy = trajectory.MeanLoss(problem, y)

    def move(state: _State, rng: Rng) -> _State:
        pulled = unroll.differentiate(
            lambda thetas: thetas[-1].square().sum(),
            energy,
            _unchanged,
            state.theta,
            state.x,
            state.x.new_full((), 1e-4),
            rng,
            num_steps=NUM_INSIDE,
        )
        return state._replace(x=state.x - 1e-6 * pulled.x)

    return move


def _image_gradient(problem: Problem, workload: Workload, y: Tensor) -> Move:
    energy = trajectory.MeanLoss(problem, y)

    def move(state: _State, rng: Rng) -> _State:
        near = trajectory.near(state.theta, 0.01, rng, num=NUM_INSIDE // 2)
        gradient, _ = contrast(energy, state.x, ((state.theta, other) for other in near))
        return state._replace(x=state.x - 1e-4 * gradient)

    return move


def _augment(problem: Problem, workload: Workload, y: Tensor) -> Move:
    view = trajectory.view_of(problem)

    def move(state: _State, rng: Rng) -> _State:
        views = torch.stack([view(state.x, rng(number)) for number in range(NUM_INSIDE)])
        return state._replace(x=state.x + 1e-6 * views.mean(0))

    return move


def _real_batch(problem: Problem, workload: Workload, y: Tensor) -> Move:
    size, view = workload.batch_size or 512, trajectory.view_of(problem)

    def move(state: _State, rng: Rng) -> _State:
        index = rng("batch").integers(problem.num_train, size, device=problem.device)
        x, _ = problem.batch(index)
        with problem.fast():
            features = problem.model.features(state.theta, view(x, rng("augment")))
        return state._replace(theta=state.theta + 1e-6 * features.to(x.dtype).mean())

    return move


def _last_layer(problem: Problem, workload: Workload, compile: Compile) -> Task:
    num_classes, h = problem.num_classes, problem.model.num_features
    num, size = workload.per_class * num_classes, workload.batch_size or 512
    to: Any = {"device": problem.device, "dtype": problem.dtype}
    features = Rng(0)("features").normal(num, h, **to)
    real = Rng(0)("real").normal(size, h, **to)
    targets = Rng(0)("targets").normal(num, num_classes, **to)
    y = Rng(0)("y").integers(num_classes, size, device=problem.device)

    def loss(features: Tensor) -> Tensor:
        posterior = gaussian.fit(features, targets, ridge=0.01, prior_variance=0.01)
        log_probs = gaussian.log_probs(*gaussian.predict(posterior, real), 10.0)
        kl = gaussian.kl(posterior).sum() / problem.num_train
        return kl - label_log_likelihood(log_probs, y).mean()

    def step(_: Problem, state: _State, rng: Rng) -> tuple[_State, _Info]:
        x = state.x - 1e-4 * grad(loss)(state.x)
        return state._replace(x=x), _Info(x.new_zeros(()))

    return _part(problem, step, _State(features.new_zeros(1), features), compile, 1)


def _experts(problem: Problem, workload: Workload, compile: Compile) -> Task:
    trainer = Trainer(problem, Training(), 0, compile=compile)
    state = trainer.start([0])

    def take(number: int) -> None:
        nonlocal state
        state, _ = trainer.epoch([0], state, number + 1)

    return Task(take, -(-problem.num_train // Training().batch_size))


def _leapfrog(problem: Problem, workload: Workload, compile: Compile) -> Task:
    hmc = HMC(
        num_chains=1,
        num_leapfrog=NUM_INSIDE,
        step_size=1e-4,
        target_accept=0,
        jitter=0,
        temperature=1,
    )
    plain = replace(problem, augment=None)
    index = torch.cat([members[: workload.per_class] for members in problem.class_indices])
    log_density = hmc.log_density(plain, plain.subset(index), Rng(0))
    theta = problem.model.init(Rng(0)("theta"), num=1, device=problem.device, dtype=problem.dtype)

    def step(_: Problem, state: Any, rng: Rng) -> tuple[Any, Any]:
        return hmc.step(log_density, state, rng)

    return _part(plain, step, hmc.init(log_density, theta, Rng(0)), compile)


def _unchanged(x: Tensor, _: Rng) -> Tensor:
    return x


PARTS: Mapping[str, Callable[[Problem, Workload, Compile], Task]] = {
    "inner-step": _on_images(_inner_step),
    "inner-step-and-back": _on_images(_inner_step_and_back),
    "image-gradient": _on_images(_image_gradient),
    "augment": _on_images(_augment),
    "real-batch": _on_images(_real_batch, num_inside=1),
    "last-layer": _last_layer,
    "experts": _experts,
    "leapfrog": _leapfrog,
}
