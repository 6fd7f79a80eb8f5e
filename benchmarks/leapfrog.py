"""Leapfrog steps per second of our HMC against a plain eager loop of the same maths, and of four
chains against one.

    PYTHONPATH=src python benchmarks/leapfrog.py --out results      on a GPU: ConvNet-3, 100 points
    PYTHONPATH=src python benchmarks/leapfrog.py --width 16 --proposals 2     on a CPU, in seconds

Ours is `inference.hmc` (one captured graph a proposal on a GPU); the plain loop is an `nn.Module`
with its parameters in place, `torch.autograd.grad`, and Python around it. Both compute one gradient
a leapfrog step. `same_draws` is the largest difference of their thetas after one proposal from the
same theta and momentum, relative to the distance travelled. Several chains go through the network
side by side inside the graph. Inputs are noise: speed does not depend on what is seen.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from cells import made_here
from torch import Tensor

from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, Dataset, Examples
from pseudocore.data import preprocessing as whiten
from pseudocore.inference import density
from pseudocore.inference.hmc import HMC
from pseudocore.models.convnet import ConvNet
from pseudocore.reproduce import records
from pseudocore.reproduce.bench.baseline import PlainNetwork
from pseudocore.runtime.profiling import wait
from pseudocore.runtime.steps import StepRunner

STEP_SIZE, PRIOR_SCALE = 1e-4, 1.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--width", type=int, default=128)
    add("--points", type=int, default=100)
    add("--leapfrog", type=int, default=10, help="steps a proposal")
    add("--proposals", type=int, default=30, help="proposals timed")
    add("--chains", type=int, nargs="+", default=[1, 4])
    add("--precision", choices=["float32", "tf32"], default="float32")
    add("--compile", choices=["auto", "on", "off"], default="auto", help="how ours is run")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--commit", default="unknown")
    add("--out", type=Path, help="folder of records")
    arguments = parser.parse_args()
    if arguments.device == "cuda":
        tf32 = arguments.precision == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    problem, coreset = make(arguments)
    plain = Plain(coreset, problem)
    rows = [timed_plain(plain, problem, arguments)]
    rows += [timed_ours(problem, coreset, num, arguments) for num in arguments.chains]
    made = made_here(arguments.commit)
    record = {
        "name": f"{arguments.device}-{arguments.precision}-{arguments.compile}-{made['date']}",
        "settings": {name: value for name, value in vars(arguments).items() if name != "out"},
        "same_draws": same_draws(plain, problem, coreset, arguments.leapfrog),
        "rows": rows,
        **made,
    }
    show(record)
    if arguments.out is not None:
        records.put(arguments.out / "leapfrog.jsonl", record)


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
    """The same log-posterior and leapfrog as one would write them in a script."""

    def __init__(self, coreset: Coreset, problem: Problem) -> None:
        self.network = PlainNetwork(problem)
        self.parameters = self.network.parameters
        self.x, self.y = problem.inputs(coreset.x), coreset.y.to(problem.device)
        self.here: list[Tensor] = []
        """The gradient where the last trajectory ended, which is where the next one begins."""

    def load(self, theta: Tensor) -> None:
        self.network.load(theta)
        self.here = self.gradient()

    def gradient(self) -> list[Tensor]:
        loss = F.cross_entropy(self.network.module(self.x), self.y, reduction="sum")
        norm = sum(parameter.square().sum() for parameter in self.parameters)
        loss = loss + norm / (2 * PRIOR_SCALE**2)
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
        momentum = [torch.randn_like(parameter) for parameter in plain.parameters]
        plain.trajectory(momentum, arguments.leapfrog)

    return row("plain eager loop", 1, propose, problem, arguments)


def timed_ours(
    problem: Problem, coreset: Coreset, num_chains: int, arguments: argparse.Namespace
) -> dict[str, Any]:
    hmc, log_density, state = chains(problem, coreset, num_chains, arguments.leapfrog)

    def step(_: Problem, state: Any, rng: Rng) -> tuple[Any, Any]:
        return hmc.step(log_density, state, rng)

    runner = StepRunner(step, problem, arguments.compile, repeats_passes=True)

    def propose(number: int) -> None:
        nonlocal state
        state, _ = runner(state, Rng(0)("step", number))

    return {**row("ours", num_chains, propose, problem, arguments), "note": runner.note}


def chains(
    problem: Problem, coreset: Coreset, num_chains: int, num_leapfrog: int
) -> tuple[HMC, Any, Any]:
    """HMC, its log-density and its first state."""
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
    return hmc, log_density, hmc.init(log_density, theta, Rng(0))


def same_draws(plain: Plain, problem: Problem, coreset: Coreset, num_leapfrog: int) -> float:
    """Largest difference after one proposal from the same theta and momentum, over the largest
    change of any parameter.
    """
    hmc, log_density, state = chains(problem, coreset, 1, num_leapfrog)
    after, info = hmc.step(log_density, state, Rng(1))
    assert bool(info.accepted.all()), "the proposal was rejected, so there is nothing to compare"
    momentum = Rng(1)("momentum").normal(*state.theta.shape, device=problem.device)[0]
    plain.load(state.theta[0].clone())
    parts = [part.clone() for part in plain.network.split(momentum)]
    plain.trajectory(parts, num_leapfrog)
    travelled = (after.theta[0] - state.theta[0]).abs().max()
    return float((plain.network.theta() - after.theta[0]).abs().max() / travelled)


def row(
    name: str,
    num_chains: int,
    propose: Callable[[int], None],
    problem: Problem,
    arguments: argparse.Namespace,
) -> dict[str, Any]:
    for number in range(6):  # warm-up and capture
        propose(number)
    wait(problem.device)
    began = time.perf_counter()
    for number in range(6, 6 + arguments.proposals):
        propose(number)
    wait(problem.device)
    seconds = (time.perf_counter() - began) / (arguments.proposals * arguments.leapfrog)
    return {
        "name": name,
        "chains": num_chains,
        "ms_per_leapfrog": 1000 * seconds,
        "steps_per_second": 1 / seconds,
    }


def show(record: dict[str, Any]) -> None:
    plain, one = record["rows"][0], next(row for row in record["rows"] if row["name"] == "ours")
    print(f"{'':<20} chains  ms/step   steps/s  chain-steps vs plain  cost vs one chain")
    for entry in record["rows"]:
        ms, rate, num = (entry[key] for key in ("ms_per_leapfrog", "steps_per_second", "chains"))
        against, cost = rate * num / plain["steps_per_second"], ms / one["ms_per_leapfrog"]
        print(
            f"{entry['name']:<20} {num:6d} {ms:8.3f} {rate:9.1f} {against:20.2f} {cost:17.2f}",
            entry.get("note", ""),
        )
    print(f"same draws to {record['same_draws']:.1e} of the distance travelled")


if __name__ == "__main__":
    main()
