"""Coresets of the features of a frozen network: time and distance from full-data inference.

`python benchmarks/frozen_features.py fashion-mnist.npz --commit HASH --out benchmarks/results`

The first 20,000 training images (without a file, digits of the package, shifted and noisy) go once through a ResNet-18 with random weights (7×7 stem, 512
features; every call of the network is counted). On the features a linear network is reduced at 1, 5
and 20 points per class, of all ten classes or of two: upper-body clothes against the rest. Distances
are to full-data inference by last-layer-vi; `laplace_tv` and `laplace_kl` are those between Laplace's
approximations of the head's posterior, 256 draws each, which is what psvi works on. The methods' own
defaults but for `STEPS`; nothing is tuned.
"""

import argparse
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cells import made_here
from torch import Tensor, nn
from torch.nn.functional import interpolate

import pseudocore as pc
from pseudocore.core.errors import PseudocoreError
from pseudocore.data import digits
from pseudocore.evaluation.metrics import spreads
from pseudocore.inference.posterior import average
from pseudocore.objectives import factored_softmax, small_models, softmax_mode
from pseudocore.objectives.factored_softmax import FactoredGaussian
from pseudocore.objectives.small_models import Softmax
from pseudocore.reproduce import records

NUM_TRAIN, NUM_TEST = 20_000, 2_000
UPPER_BODY = (0, 2, 3, 4, 6)
STEPS = {"vbpc": 500, "psvi": 500}
NUM_DRAWS = 256
SCORES = ("accuracy", "nll", "fidelity_kl", "fidelity_tv", "fidelity_agreement")


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.skip: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.skip = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        return (self.body(x) + self.skip(x)).relu()


class ResNet18(nn.Module):
    """Without its last layer; counts the images it sees."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        widths, inputs = (64, 128, 256, 512), 64
        self.stem = nn.Sequential(
            nn.Conv2d(channels, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )  # fmt: skip
        blocks = []
        for place, width in enumerate(widths):
            blocks += [Block(inputs, width, 1 if place == 0 else 2), Block(width, width, 1)]
            inputs = width
        self.blocks = nn.Sequential(*blocks)
        self.num_seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.num_seen += len(x)
        out: Tensor = self.blocks(self.stem(x)).mean((2, 3))
        return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("data", type=Path, nargs="?", help="images; left out, 20,000 shifted and noisy digits")
    add("--out", type=Path, required=True, help="folder of records")
    add("--commit", required=True)
    add("--seeds", type=int, default=2)
    add("--per-class", type=int, nargs="+", default=[1, 5, 20])
    add("--methods", nargs="+", default=["uniform", "vbpc", "psvi"])
    add("--tasks", nargs="+", default=["10 classes", "2 classes"])
    add("--psvi-steps", type=int, default=500)
    add("--no-laplace", action="store_true", help="leave laplace_tv and laplace_kl out")
    arguments = parser.parse_args()
    path = arguments.out / "frozen_features.jsonl"
    x, y, xt, yt = images(arguments.data)
    network = ResNet18(1)
    tasks = {
        "10 classes": (y, yt),
        "2 classes": (np.isin(y, UPPER_BODY) * 1, np.isin(yt, UPPER_BODY) * 1),
    }
    prefix = "digits, " if arguments.data is None else ""
    STEPS["psvi"] = arguments.psvi_steps
    origin = "digits" if arguments.data is None else "fashion"
    for task in arguments.tasks:
        labels, test_labels = tasks[task]
        data = pc.dataset(x, labels, test=(xt, test_labels), name=f"{origin}, {task}")
        heads = Heads(not arguments.no_laplace)
        for per_class in arguments.per_class:
            for method in arguments.methods:
                row = measured(data, network, method, per_class, arguments.seeds, heads)
                row = {
                    "name": f"{prefix}{task}/{method}/{per_class}",
                    **row,
                    "seen": network.num_seen,
                }
                row |= {**made_here(arguments.commit), "command": shlex.join(sys.argv)}
                print(row["name"], row.get("metrics", row.get("refused")), flush=True)
                records.put(path, row)


def images(path: Path | None) -> tuple[np.ndarray, ...]:
    """Training images and labels, then those to test on."""
    if path is not None:
        with np.load(path) as arrays:
            x, y = arrays["train_x"][:NUM_TRAIN], arrays["train_y"][:NUM_TRAIN].astype(np.int64)
            xt, yt = arrays["test_x"][:NUM_TEST], arrays["test_y"][:NUM_TEST].astype(np.int64)
            return x, y, xt, yt
    parts, rng = digits(), np.random.default_rng(0)
    found = []
    for examples, num in ((parts.train, NUM_TRAIN), (parts.test, NUM_TEST)):
        which = torch.from_numpy(rng.integers(0, len(examples.y), num))
        large = interpolate(examples.x[which].float(), size=20, mode="bilinear")[:, 0].numpy()
        canvas = 25 * rng.standard_normal((num, 28, 28))
        for image, digit, (down, right) in zip(
            canvas, large, rng.integers(0, 9, (num, 2)), strict=True
        ):
            image[down : down + 20, right : right + 20] += digit
        found += [canvas.clip(0, 255).astype(np.uint8)[:, None], examples.y[which].numpy()]
    return tuple(found)


class Heads:
    """Laplace's approximations of a head's posterior; that of all data is made once."""

    def __init__(self, is_asked: bool) -> None:
        self.is_asked, self.full = is_asked, torch.empty(0)

    def distances(self, run: Any) -> dict[str, float]:
        """Between predictions of the coreset's and of all data's, on test inputs."""
        if not self.is_asked:
            return {}
        problem, coreset = run.problem, run.coreset
        model = Softmax(num_classes=problem.num_classes, prior=float(problem.prior_moments()[1][0]))
        if not len(self.full):
            x, y = problem.batch(torch.arange(problem.num_train))
            theta = softmax_mode.mode(model, x.double(), y)
            precision = model.curvature(theta, x.double(), y, x.new_ones(len(y)).double())
            precision.diagonal().add_(model.prior**-2)
            noise = torch.randn(len(theta), NUM_DRAWS, generator=torch.Generator().manual_seed(0))
            root = torch.linalg.cholesky(precision).mT
            apart = torch.linalg.solve_triangular(root, noise.to(theta), upper=True)
            self.full = self._predicted(problem, theta + apart.mT)
            del precision, root
        x, y = problem.inputs(coreset.x).double(), problem.targets(coreset.targets)
        y = y.double() if y.is_floating_point() else y
        weight = coreset.weight.to(x)
        own = factored_softmax.posterior(model, x, y, weight, num_newton=30)
        found = self._predicted(problem, drawn(own, NUM_DRAWS))
        gap = (self.full.exp() * (self.full - found)).sum(1).mean()
        variation = (self.full.exp() - found.exp()).abs().sum(1).mean() / 2
        return {"laplace_tv": float(variation), "laplace_kl": float(gap)}

    def _predicted(self, problem: Any, thetas: Tensor) -> Tensor:
        x = small_models.with_one(problem.inputs(problem.data.test.x).double())
        heads = thetas.view(len(thetas), problem.num_classes, -1)
        return average((x @ head.mT).log_softmax(1) for head in heads)[0].cpu()


def drawn(q: FactoredGaussian, num: int) -> Tensor:
    """(num, p) draws: Σ times what has covariance Σ⁻¹, of points and prior."""
    generator = torch.Generator().manual_seed(1)
    of_points = torch.randn(num, *q.roots.shape[:2], generator=generator).to(q.mean)
    of_prior = torch.randn(num, len(q.mean), generator=generator).to(q.mean) / q.variance**0.5
    along = torch.einsum("mca,sma,mh->sch", q.roots, of_points, q.inputs).flatten(1)
    return q.mean + torch.stack([q.times(one) for one in along + of_prior])


def measured(
    data: pc.Dataset, network: nn.Module, method: str, per_class: int, seeds: int, heads: Heads
) -> dict[str, Any]:
    """Scores of coresets by several seeds, or why there are none."""
    found, seconds = [], []
    options = {"num_steps": STEPS[method]} if method in STEPS else {}
    for seed in range(seeds):
        began = time.monotonic()
        try:
            run = pc.reduce(
                method, data, features=network, model="linear", per_class=per_class, seed=seed,
                **options,
            )  # fmt: skip
        except PseudocoreError as error:
            return {"method": method, "per_class": per_class, "refused": str(error)}
        seconds.append(round(time.monotonic() - began, 2))
        scores = pc.evaluate(
            run, inference="last-layer-vi", seeds=1, first_seed=seed, fidelity=True
        )
        own = {name: scores.metrics[name]["mean"] for name in SCORES}
        found.append({**own, **heads.distances(run)})
    return {
        "method": method,
        "per_class": per_class,
        "num_train": len(data.train.y),
        "seeds": seeds,
        "steps": STEPS.get(method),
        "seconds": seconds,
        "metrics": spreads(found),
    }


if __name__ == "__main__":
    main()
