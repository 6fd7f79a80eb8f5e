"""No option without effect: a change of any field of any method, inference or setup changes the
result, given what the field needs.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pseudocore
from pseudocore.assembly import Setup
from pseudocore.core import config
from pseudocore.core.errors import DataError
from pseudocore.core.problem import GaussianPrior
from pseudocore.core.registry import Entry, inferences, methods
from pseudocore.core.types import ModelSpec
from pseudocore.data import DSA
from pseudocore.inference.sgd import SGD
from pseudocore.models.dense import MLP, Linear
from pseudocore.selection import facility
from pseudocore.testing import Effect, InferenceConformance, MethodConformance, few_digits
from pseudocore.testing.methods import bits
from pseudocore.testing.problems import small_coreset

AUGMENTED = {"augment": DSA(strategy="crop_scale")}
TRAINED = {"experts": False}
"""Without experts at hand, a method trains its own."""
SMALL: dict[str, Any] = {
    "num_steps": 3,
    "batch_size": 4,
    "max_age": 2,
    "num_inner_steps": 2,
    "pretrain_epochs": 4,
    "pretrain_optimiser": "sgd",
    "pretrain_step_size": 0.05,
    "pretrain_batch_size": 32,
    "num_chains": 2,
    "num_projections": 300,
    "num_refinements": 2,
    "prior_scale": 1.5,
}
"""Beside the suite's own, for whoever has these fields."""
SMALL_OF = {"sparse-vi": {"num_inner": 1, "num_projections": 50, "per_class": 1}}

FIELDS: dict[str, Effect | str] = {
    "augment_covariance": Effect(problem=AUGMENTED),
    "augment_on": Effect(problem=AUGMENTED),
    "batch_norm": Effect(problem={"norm": "batch"}),
    "damping": Effect(other=10.0),
    "expert_loss": Effect(problem=TRAINED),
    "gradients": Effect({"pretrain_batch_size": 5}),
    "num_experts": Effect(problem=TRAINED),
    "pretrain_augment": Effect(problem=AUGMENTED),
    "pretrain_weight_decay": Effect(other=0.5),
    "redraw_augmentation": Effect(problem=AUGMENTED),
    "strategy": Effect(other="crop"),
    "weight_lr": Effect({"weighting": "learned"}),
}
"""What these fields need, whoever has them."""
NETWORK = {
    name: Effect({"space": "network"}, effect.problem, effect.other)
    for name in SMALL | FIELDS | {"pretrain_momentum": Effect()}
    if name.startswith("pretrain")
    for effect in [FIELDS.get(name, Effect())]
    if isinstance(effect, Effect)
}
POOL = {name: Effect({"num_steps": 6, "max_age": 3}) for name in ("pool_size", "max_age")}
CHAIN = {"step_size": Effect(other=1e-3)}
REFERENCES = {"num_references": Effect(other=2), "length_scale": Effect(other=0.1)}
HILBERT = {"draws": Effect({"weighting": "mass"}, other="reference")}
OF: dict[str, Mapping[str, Effect | str]] = {
    "a-sghmc": CHAIN,
    "bpc-w": {"num_experts": Effect({"image_lr": 1.0, "inner_lr_lr": 0.0}, TRAINED)},
    "datm": {
        "min_start": Effect({"max_start": 3}, other=1),
        "num_experts": Effect({"image_lr": 1.0, "inner_lr_lr": 0.0}, TRAINED),
        "ramp": Effect({"max_start": 4}, other=0.0),
        "skip": Effect(other=0.5),
    },
    "glister": {"step_size": Effect(other=10.0)},
    "glister-val": {"step_size": Effect(other=10.0)},
    "herding": NETWORK,
    "feature-based": NETWORK,
    "giga": HILBERT,
    "graph-cut": NETWORK,
    "log-det": NETWORK | {"noise": Effect({"per_class": 5}, other=20.0)},
    "frank-wolfe": HILBERT,
    "cyclical-sghmc": CHAIN | {"num_cycles": Effect(other=1)},
    "coreset-mcmc": {"weight_lr": Effect()},
    "quasi-newton": {"damping": Effect(other=0.1)},
    "sparse-vi": {
        "damping": Effect(other=0.1),
        "balanced": Effect({"per_class": 2}),
    },
    "fbpc": {
        "also": Effect(problem={"also": True}, other="mlp width=4 depth=1"),
        "num_kept": Effect(other=1),
    },
    "frepo": POOL,
    "hmc": {
        "mass": Effect({"num_burn": 12}),
        "mismatched_momentum": Effect({"momentum_scale": 2.0}),
        "target_accept": Effect({"num_burn": 10, "step_size": 1e-3}),
    },
    "bpc-pcd": {
        "also": Effect(problem={"also": True}, other="mlp width=4 depth=1"),
        "friction": Effect({"chains": "sghmc"}),
        "weight_lr": Effect({"weighting": "learned"}),
    },
    "k-center": NETWORK,
    "kernel-herding": NETWORK | REFERENCES,
    "kernel-thinning": NETWORK | REFERENCES,
    "stein-thinning": NETWORK,
    "kip": {
        "bias_variance": Effect({"kernel": "ntk"}),
        "kernel_depth": Effect({"kernel": "ntk"}),
    },
    "last-layer-vi": {"likelihood": Effect(other="categorical")},
    "laplace": {"num_draws": Effect({"predictive": "mc"})},
    "ld-rr": POOL,
    "lcmat-s": {"num_dimensions": Effect({"rho": 5.0}, other=1), "rho": Effect(other=5.0)},
    "mtt": {"num_experts": Effect({"image_lr": 1.0, "inner_lr_lr": 0.0}, TRAINED)},
    "psvi": {
        "batch_size": Effect({"covariance": "draws"}),
        "num_draws": Effect({"covariance": "draws"}),
        "weight_lr": Effect(),
    },
    "rcig": POOL,
    "sgd": {"num_moments": "predictions stay; evaluate --published reports another number"},
    "sghmc": CHAIN,
    "sgld": CHAIN,
    "swag": {
        "num_collected": Effect({"num_steps": 8}, other=2),
        "rank": Effect({"num_steps": 8}, other=2),
        "weight_decay": Effect({"regulariser": "decay"}, other=0.5),
    },
    "vbpc": POOL,
}
"""What fields of one method or inference need."""


MODELS: dict[str, ModelSpec] = {
    "coreset-mcmc": MLP(width=4, depth=1),
    "frank-wolfe": MLP(width=4, depth=1),
    "giga": MLP(width=4, depth=1),
    "psvi": Linear(),
    "quasi-newton": MLP(width=2, depth=1),
    "sparse-vi": MLP(width=2, depth=1),
}
"""Networks other than the suite's: what needs logistic regression, or a small last layer."""


def suite_of(entry: Entry) -> Any:
    base = MethodConformance if entry.name in methods else InferenceConformance
    made = {base.registry.noun: entry.make, "effects": {**FIELDS, **OF.get(entry.name, {})}}
    names = {option.name for option in config.options(entry.make)}
    small = {name: value for name, value in SMALL.items() if name in names}
    small |= SMALL_OF.get(entry.name, {})
    model = MODELS.get(entry.name)
    return type(entry.name, (base,), {**made, "options": small, "model": model})


every_entry = pytest.mark.parametrize(
    "entry", [pytest.param(entry, id=entry.name) for entry in (*methods, *inferences)]
)


@every_entry
@pytest.mark.filterwarnings("ignore:.*labels are noisy:UserWarning")  # a network of one epoch
def test_of_a_method_or_inference(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facility, "ENTRIES", 8**2)  # larger groups are subsampled unless `exact`
    suite_of(entry)().test_every_option_has_an_effect()


def test_moments_of_sgd_change_the_published_metrics() -> None:
    run = pseudocore.reduce("uniform", few_digits(), per_class=1, model="mlp", width=4)
    one, other = (
        pseudocore.evaluate(
            run, inference=SGD(num_steps=4, num_moments=num), seeds=1, published=True
        )
        for num in (None, 4)
    )
    assert one.metrics != other.metrics


SETUP: dict[str, tuple[str, dict[str, Any], Any]] = {
    "data": ("uniform", {"model": "linear"}, "moons"),
    "target": ("uniform", {"model": "linear", "data": "table.csv", "target": "y"}, "z"),
    "drop": ("uniform", {"model": "linear", "data": "table.csv", "target": "y"}, "z"),
    "missing": ("uniform", {"model": "linear", "data": "gaps.csv", "target": "y"}, "impute"),
    "labels": ("uniform", {"model": "linear", "data": "x.npy", "labels": "y.npy"}, "z.npy"),
    "features": ("uniform", {"model": "linear"}, "backbone:tanh"),
    "feature_weights": ("uniform", {"model": "linear", "features": "backbone:tanh"}, "tanh.pt"),
    "resize": ("uniform", {}, 4),
    "model": ("dm", {}, "convnet-wide"),
    "width": ("dm", {}, 8),
    "depth": ("dm", {}, 1),
    "norm": ("dm", {}, "none"),
    "init": ("dm", {}, "he"),
    "preprocess": ("dm", {}, "none"),
    "augment": ("dm", {}, "crop"),
    "siamese": ("dm", {"augment": "crop"}, False),
    "prior": ("psvi", {"model": "linear"}, "isotropic"),
    "prior_scale": ("psvi", {"model": "linear"}, 0.5),
    "task": ("uniform", {"data": "table.csv", "target": "z"}, "regression"),
    "target_noise": (
        "psvi",
        {"data": "table.csv", "target": "z", "task": "regression", "model": "linear"},
        0.5,
    ),
    "experts": ("bpc-rkl", {"max_start": 1, "num_experts": 1, "num_draws": 2}, "EXPERTS"),
}
"""A method that shows the effect of a field of the setup, what it needs, and another value."""


BACKBONE = """
from torch import nn
def tanh(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.Tanh())
"""


@pytest.mark.parametrize("field", SETUP)
def test_of_the_setup(field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{i},{i % 2},{i % 4}\n" for i in range(20))
    Path("table.csv").write_text(f"x,y,z\n{rows}")
    Path("gaps.csv").write_text(f"x,y,z\n{rows},0,1\n")
    for file, array in {"x": np.eye(20), "y": np.arange(20) % 2, "z": np.arange(20) % 4}.items():
        np.save(f"{file}.npy", array)
    Path("backbone.py").write_text(BACKBONE)
    monkeypatch.syspath_prepend(tmp_path)
    weights = torch.linspace(-0.1, 0.1, 192).view(3, 64)
    torch.save({"1.weight": weights, "1.bias": torch.zeros(3)}, "tanh.pt")
    name, needed, other = SETUP[field]
    wide = {} if "model" in needed else {"width": 4}
    given = {"per_class": 1, "num_steps": 2, "data": few_digits(), **wide, **needed}
    if name == "uniform":
        del given["num_steps"]
    if field == "experts":
        pseudocore.train_experts(few_digits(), out=other, num=2, epochs=2, **wide)

    def outcome(options: Mapping[str, Any]) -> Any:
        try:
            return bits(pseudocore.reduce(name, **options).coreset)
        except DataError as error:
            return error.code

    one, two = outcome(given), outcome({**given, field: other})
    assert isinstance(two, type(one)) or (field, one) == ("missing", "missing-values")
    assert one != two


def test_every_field_of_the_setup_is_tested() -> None:
    """All but the precision: a CPU always computes in float32."""
    assert {option.name for option in config.options(Setup)} == {*SETUP, "precision"}


PRIOR = {
    "ensemble": {"regulariser": "prior"},
    "last-layer-vi": "its Gaussian over the last layer has a scale of its own, prior_variance",
    "sgd": {"regulariser": "prior"},
}
"""What an inference needs to follow the problem's prior, or why it does not."""


@pytest.mark.parametrize("entry", [pytest.param(entry, id=entry.name) for entry in inferences])
def test_the_prior_of_the_problem_counts(entry: Entry) -> None:
    needed = PRIOR.get(entry.name, {})
    suite, found = suite_of(entry)(), list[Any]()
    options = {} if isinstance(needed, str) else needed
    free = {"prior_scale": None} if "prior_scale" in suite.names() else {}
    for prior in (GaussianPrior(2.0), GaussianPrior(1.0), GaussianPrior(2.0, "isotropic")):
        problem = replace(suite.problem(), prior=prior)
        found.append(suite.predict(problem, small_coreset(problem), **free, **options))
    for other in found[1:]:
        assert torch.equal(found[0], other) == isinstance(needed, str)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_precision_counts_on_a_gpu(precision: str) -> None:
    one, two = (
        pseudocore.reduce("dm", few_digits(), per_class=1, num_steps=2, precision=precision)
        for precision in ("float32", precision)
    )
    assert bits(one.coreset) != bits(two.coreset)
