"""What can be timed, by name: the step of any iterative method, and the parts that steps and
evaluations are made of.

| part | one of it |
|---|---|
| `inner-step` | a training step on the M pseudo-images: L_u of them in a step of a trajectory method |
| `inner-step-and-back` | the same with the way back through it (a Hessian-vector product), as in `bpc-w` |
| `image-gradient` | a gradient in the pseudo-images: 2 S of them in a step of `bpc-fkl` |
| `augment` | one augmentation of the pseudo-images |
| `real-batch` | a batch of real images looked up, normalised, augmented and passed through the network, as in `vbpc` |
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
from pseudocore.reproduce.bench.workload import Workload
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
    """Do it, with the draws of step number so and so."""
    num_inside: int = 1
    """What is reported is the cost of this part of it."""
    note: Callable[[], str] = lambda: ""
    """How it was run, where that differs from what was asked; known afterwards."""


def check_names(names: list[str]) -> None:
    """Refuse names that are neither a method's nor a part's, and selectors."""
    for name in names:
        if name in methods:
            workloads.method_of(name, workloads.SMALL)
        elif name not in PARTS:
            known = [*(entry.name for entry in methods if hasattr(entry.make, "step")), *PARTS]
            raise ConfigError(
                f"nothing to time is called {name!r}{did_you_mean(name, known)} (there are {', '.join(known)})"
            )


def problem_of(name: str, workload: Workload, device: str) -> Problem:
    """What the method or part of this name works on."""
    if name == "experts":  # eight batches are enough to time one
        workload = replace(workload, num_train=min(workload.num_train, 8 * Training().batch_size))
    problem = workloads.problem_of(name, workload, device)
    return (
        problem
        if name in PARTS
        else workloads.with_experts(problem, workloads.method_of(name, workload))
    )


def make(name: str, problem: Problem, workload: Workload, compile: Compile) -> Task:
    """The task of this name on a problem made for it."""
    if name in PARTS:
        return PARTS[name](problem, workload, compile)
    method = workloads.method_of(name, workload)
    state, repeats_passes = (
        method.init(problem, Rng(0)("init")),
        isinstance(method, RepeatedPasses),
    )
    return _stepping(
        problem,
        method.step,
        state,
        compile,
        num_steps=method.num_steps,
        repeats_passes=repeats_passes,
    )


def _stepping(
    problem: Problem,
    step: Step,
    state: Any,
    compile: Compile,
    *,
    num_inside: int = 1,
    num_steps: int = 0,
    repeats_passes: bool | None = None,
) -> Task:
    """Steps from `state`, which repeat passes if they do one thing several times."""
    repeats_passes = num_inside > 1 if repeats_passes is None else repeats_passes
    stepper, rng = (
        StepRunner(step, problem, compile, num_steps, repeats_passes=repeats_passes),
        Rng(0),
    )

    def take(number: int) -> None:
        nonlocal state
        state, _ = stepper(state, rng("step", number))

    return Task(take, num_inside, lambda: stepper.note)


class _Held(NamedTuple):
    theta: Tensor  # (P,)
    x: Tensor  # network inputs (M, ...)


class _Info(NamedTuple):
    loss: Tensor


Act = Callable[[_Held, Rng], _Held]


def _on_images(
    problem: Problem,
    workload: Workload,
    act: Callable[[Tensor], Act],
    compile: Compile,
    num_inside: int,
) -> Task:
    """`act`, made for the labels of the pseudo-images, on a fresh network and real images as
    pseudo-images.
    """
    x, y = initial_inputs(problem, workload.per_class, "real", Rng(0)("images"))
    theta = problem.model.init(Rng(0)("theta"), device=problem.device, dtype=problem.dtype)
    move = act(y)
    return _stepping(
        problem,
        lambda _, held, rng: (move(held, rng), _Info(held.x.new_zeros(()))),
        _Held(theta, x),
        compile,
        num_inside=num_inside,
    )


def _inner_step(problem: Problem, workload: Workload, compile: Compile) -> Task:
    def act(y: Tensor) -> Act:
        energy = trajectory.energy_on(problem, y)
        return lambda held, rng: held._replace(
            theta=unroll.descend(
                energy, _as_it_is, held.theta, held.x, rng, num_steps=NUM_INSIDE, step_size=1e-4
            )
        )

    return _on_images(problem, workload, act, compile, NUM_INSIDE)


def _and_back(problem: Problem, workload: Workload, compile: Compile) -> Task:
    def act(y: Tensor) -> Act:
        energy = trajectory.energy_on(problem, y)

        def move(held: _Held, rng: Rng) -> _Held:
            pulled = unroll.differentiate(
                lambda thetas: thetas[-1].square().sum(), energy, _as_it_is, held.theta, held.x, held.x.new_full((), 1e-4), rng,
                num_steps=NUM_INSIDE,
            )  # fmt: skip
            return held._replace(x=held.x - 1e-6 * pulled.x)

        return move

    return _on_images(problem, workload, act, compile, NUM_INSIDE)


def _image_gradient(problem: Problem, workload: Workload, compile: Compile) -> Task:
    def act(y: Tensor) -> Act:
        energy = trajectory.energy_on(problem, y)

        def move(held: _Held, rng: Rng) -> _Held:
            near = trajectory.near(held.theta, 0.01, rng, num=NUM_INSIDE // 2)
            gradient, _ = contrast(energy, held.x, ((held.theta, other) for other in near))
            return held._replace(x=held.x - 1e-4 * gradient)

        return move

    return _on_images(problem, workload, act, compile, NUM_INSIDE)


def _augment(problem: Problem, workload: Workload, compile: Compile) -> Task:
    view = trajectory.view_of(problem)

    def act(_: Tensor) -> Act:
        def move(held: _Held, rng: Rng) -> _Held:
            seen = torch.stack([view(held.x, rng(number)) for number in range(NUM_INSIDE)])
            return held._replace(x=held.x + 1e-6 * seen.mean(0))

        return move

    return _on_images(problem, workload, act, compile, NUM_INSIDE)


def _real_batch(problem: Problem, workload: Workload, compile: Compile) -> Task:
    size, view = workload.batch_size or 512, trajectory.view_of(problem)

    def act(_: Tensor) -> Act:
        def move(held: _Held, rng: Rng) -> _Held:
            x, _ = problem.batch(
                rng("batch").integers(problem.num_train, size, device=problem.device)
            )
            with problem.fast():
                features = problem.model.features(held.theta, view(x, rng("augment")))
            return held._replace(theta=held.theta + 1e-6 * features.to(x.dtype).mean())

        return move

    return _on_images(problem, workload, act, compile, 1)


def _last_layer(problem: Problem, workload: Workload, compile: Compile) -> Task:
    num, h, num_classes, size = (
        workload.per_class * problem.num_classes,
        problem.model.num_features,
        problem.num_classes,
        512,
    )
    like: Any = {"device": problem.device, "dtype": problem.dtype}
    features, real = (
        Rng(0)("features").normal(num, h, **like),
        Rng(0)("real").normal(workload.batch_size or size, h, **like),
    )
    targets = Rng(0)("targets").normal(num, num_classes, **like)
    y = Rng(0)("y").integers(num_classes, len(real), device=problem.device)

    def loss(features: Tensor) -> Tensor:
        posterior = gaussian.fit(features, targets, ridge=0.01, prior_variance=0.01)
        log_probs = gaussian.log_probs(*gaussian.predict(posterior, real), 10.0)
        return (
            gaussian.kl(posterior).sum() / problem.num_train
            - label_log_likelihood(log_probs, y).mean()
        )

    def step(_: Problem, held: _Held, rng: Rng) -> tuple[_Held, _Info]:
        return held._replace(x=held.x - 1e-4 * grad(loss)(held.x)), _Info(held.x.new_zeros(()))

    return _stepping(problem, step, _Held(features.new_zeros(1), features), compile)


def _experts(problem: Problem, workload: Workload, compile: Compile) -> Task:
    trainer = Trainer(problem, Training(), 0, compile=compile)
    state, num = trainer.start([0]), -(-problem.num_train // Training().batch_size)

    def take(number: int) -> None:
        nonlocal state
        state, _ = trainer.epoch([0], state, number + 1)

    return Task(take, num)


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
    state = hmc.init(log_density, theta, Rng(0))
    return _stepping(
        plain,
        lambda _, state, rng: hmc.step(log_density, state, rng),
        state,
        compile,
        num_inside=NUM_INSIDE,
    )


def _as_it_is(x: Tensor, _: Rng) -> Tensor:
    return x


PARTS: Mapping[str, Callable[[Problem, Workload, Compile], Task]] = {
    "inner-step": _inner_step,
    "inner-step-and-back": _and_back,
    "image-gradient": _image_gradient,
    "augment": _augment,
    "real-batch": _real_batch,
    "last-layer": _last_layer,
    "experts": _experts,
    "leapfrog": _leapfrog,
}
