"""Leapfrog steps per second of our HMC against a plain eager loop of the same maths, and of four
chains against one.

    PYTHONPATH=src python benchmarks/leapfrog.py --out leapfrog.json          on a GPU: ConvNet-3,
    100 points of 3×32×32 PYTHONPATH=src python benchmarks/leapfrog.py --width 16 --proposals 2
    on a CPU, in seconds

Ours is `inference.hmc` through `core.compile` (one captured graph a proposal on a GPU); the plain
loop is an `nn.Module` with its parameters in place, `torch.autograd.grad`, and Python around it.
Both compute one gradient a leapfrog step. `same_draws` is the largest difference of their thetas
after one proposal from the same theta and momentum, relative to the distance travelled. Several
chains go through the network side by side inside the graph. Inputs are noise: speed does not depend
on what is seen.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, Dataset, Examples
from pseudocore.data import preprocessing as whiten
from pseudocore.inference import density
from pseudocore.inference.hmc import HMC
from pseudocore.models.convnet import ConvNet
from pseudocore.runtime.steps import StepRunner
from pseudocore.store.folders import hardware, versions

STEP_SIZE, PRIOR_SCALE = 1e-4, 1.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--points", type=int, default=100)
    parser.add_argument("--leapfrog", type=int, default=10, help="steps a proposal")
    parser.add_argument("--proposals", type=int, default=30, help="proposals timed")
    parser.add_argument("--chains", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--precision", choices=["float32", "tf32"], default="float32")
    parser.add_argument(
        "--compile",
        choices=["auto", "on", "off"],
        default="auto",
        help="how ours is run, as in core.compile",
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = (
            arguments.precision == "tf32"
        )
    problem, coreset = make(arguments)
    plain = Plain(arguments.width, coreset, problem)
    rows = [timed_plain(plain, problem, arguments)]
    for num_chains in arguments.chains:
        rows.append(timed_ours(problem, coreset, num_chains, arguments))
    record = {
        "settings": {name: value for name, value in vars(arguments).items() if name != "out"},
        "same_draws": same_draws(plain, problem, coreset, arguments.leapfrog),
        "rows": rows,
        "hardware": hardware(),
        "versions": versions(),
    }
    show(record)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(record, indent=1))


def make(arguments: argparse.Namespace) -> tuple[Problem, Coreset]:
    """Noise of CIFAR's shape, ten classes, all of it the coreset."""
    x = Rng(0)("x").integers(256, arguments.points, 3, 32, 32).to(torch.uint8)
    y = torch.arange(arguments.points) % 10
    data = Dataset("noise", Examples(x, y), Examples(x[:10], y[:10]), 10)
    device = torch.device(arguments.device)
    model = ConvNet(width=arguments.width).build(data.shape, data.num_classes)
    problem = Problem(data, model, whiten.make("standard", data, device=device), device=device)
    return problem, Coreset(x.float() / 255, y, torch.ones(arguments.points))


class Plain:
    """The same log-posterior and leapfrog as one would write them in a script: no flat vector, no
    functional call, no graph.
    """

    def __init__(self, width: int, coreset: Coreset, problem: Problem) -> None:
        layers: list[nn.Module] = []
        for inputs in (3, width, width):
            layers += [
                nn.Conv2d(inputs, width, 3, padding=1),
                nn.GroupNorm(width, width),
                nn.ReLU(),
                nn.AvgPool2d(2),
            ]
        self.module = nn.Sequential(*layers, nn.Flatten(), nn.Linear(width * 16, 10)).to(
            problem.device
        )
        self.parameters = list(self.module.parameters())
        self.x, self.y = problem.inputs(coreset.x), coreset.y.to(problem.device)
        self.here: list[Tensor] = []
        """The gradient where the last trajectory ended, which is where the next one begins."""

    def load(self, theta: Tensor) -> None:
        torch.nn.utils.vector_to_parameters(theta, self.parameters)
        self.here = self.gradient()

    def gradient(self) -> list[Tensor]:
        loss = F.cross_entropy(self.module(self.x), self.y, reduction="sum")
        loss = loss + sum(parameter.square().sum() for parameter in self.parameters) / (
            2 * PRIOR_SCALE**2
        )
        return [-part for part in torch.autograd.grad(loss, self.parameters)]

    def trajectory(self, momentum: list[Tensor], num_steps: int) -> None:
        gradient = self.here
        with torch.no_grad():
            for r, g in zip(momentum, gradient, strict=True):
                r += STEP_SIZE / 2 * g
        for number in range(num_steps):
            with torch.no_grad():
                for parameter, r in zip(self.parameters, momentum, strict=True):
                    parameter += STEP_SIZE * r
            gradient = self.gradient()
            with torch.no_grad():
                for r, g in zip(momentum, gradient, strict=True):
                    r += (STEP_SIZE if number + 1 < num_steps else STEP_SIZE / 2) * g
        self.here = gradient


def timed_plain(plain: Plain, problem: Problem, arguments: argparse.Namespace) -> dict[str, Any]:
    plain.load(problem.model.init(Rng(0), device=problem.device))

    def propose(_: int) -> None:
        plain.trajectory(
            [torch.randn_like(parameter) for parameter in plain.parameters], arguments.leapfrog
        )

    return row("plain eager loop", 1, propose, problem, arguments)


def timed_ours(
    problem: Problem, coreset: Coreset, num_chains: int, arguments: argparse.Namespace
) -> dict[str, Any]:
    step_once, state = stepper(problem, coreset, num_chains, arguments.leapfrog, arguments.compile)
    rng = Rng(0)

    def propose(number: int) -> None:
        nonlocal state
        state, _ = step_once(state, rng("step", number))

    result = row("ours", num_chains, propose, problem, arguments)
    return {**result, "note": step_once.note}


def stepper(
    problem: Problem, coreset: Coreset, num_chains: int, num_leapfrog: int, compile: Any = "auto"
) -> tuple[StepRunner, Any]:
    hmc = HMC(
        num_chains=num_chains,
        num_leapfrog=num_leapfrog,
        step_size=STEP_SIZE,
        target_accept=0,
        jitter=0,
        temperature=1,
    )
    prior = density.log_prior(problem, "isotropic", PRIOR_SCALE, len(coreset))
    log_density = density.exact(problem, coreset, prior, Rng(0))
    theta = problem.model.init(Rng(0), num=num_chains, device=problem.device)
    state = hmc.init(log_density, theta, Rng(0))
    return StepRunner(
        lambda _, state, rng: hmc.step(log_density, state, rng),
        problem,
        compile,
        repeats_passes=True,
    ), state


def same_draws(plain: Plain, problem: Problem, coreset: Coreset, num_leapfrog: int) -> float:
    """Largest difference after one proposal from the same theta and momentum, over the largest
    change of any parameter.
    """
    _, state = stepper(problem, coreset, 1, num_leapfrog)
    hmc = HMC(
        num_chains=1,
        num_leapfrog=num_leapfrog,
        step_size=STEP_SIZE,
        target_accept=0,
        jitter=0,
        temperature=1,
    )
    prior = density.log_prior(problem, "isotropic", PRIOR_SCALE, len(coreset))
    after, info = hmc.step(density.exact(problem, coreset, prior, Rng(0)), state, Rng(1))
    assert bool(info.accepted.all()), "the proposal was rejected, so there is nothing to compare"
    momentum = Rng(1)("momentum").normal(*state.theta.shape, device=problem.device)[0]
    plain.load(state.theta[0].clone())
    sizes = [parameter.numel() for parameter in plain.parameters]
    parts = [
        part.view_as(parameter).clone()
        for part, parameter in zip(momentum.split(sizes), plain.parameters, strict=True)
    ]
    plain.trajectory(parts, num_leapfrog)
    theirs = torch.nn.utils.parameters_to_vector(plain.parameters).detach()
    return float(
        (theirs - after.theta[0]).abs().max() / (after.theta[0] - state.theta[0]).abs().max()
    )


def row(
    name: str,
    num_chains: int,
    propose: Callable[[int], None],
    problem: Problem,
    arguments: argparse.Namespace,
) -> dict[str, Any]:
    for number in range(6):  # warm-up and capture
        propose(number)
    wait(problem)
    began = time.perf_counter()
    for number in range(6, 6 + arguments.proposals):
        propose(number)
    wait(problem)
    seconds = (time.perf_counter() - began) / (arguments.proposals * arguments.leapfrog)
    return {
        "name": name,
        "chains": num_chains,
        "ms_per_leapfrog": 1000 * seconds,
        "steps_per_second": 1 / seconds,
    }


def wait(problem: Problem) -> None:
    if problem.device.type == "cuda":
        torch.cuda.synchronize()


def show(record: dict[str, Any]) -> None:
    plain, one = record["rows"][0], next(row for row in record["rows"] if row["name"] == "ours")
    print(f"{'':<20} chains  ms/step   steps/s  chain-steps vs plain  cost vs one chain")
    for entry in record["rows"]:
        against = f"{entry['steps_per_second'] * entry['chains'] / plain['steps_per_second']:20.2f}"
        cost = f"{entry['ms_per_leapfrog'] / one['ms_per_leapfrog']:17.2f}"
        print(
            f"{entry['name']:<20} {entry['chains']:6d} {entry['ms_per_leapfrog']:8.3f} {entry['steps_per_second']:9.1f} {against} {cost}"
        )
    print(
        f"same draws to {record['same_draws']:.1e} of the distance travelled; {record['hardware']}, torch {record['versions']['torch']}"
    )
    for note in {entry.get("note") for entry in record["rows"]} - {None, ""}:
        print(note)


if __name__ == "__main__":
    main()
