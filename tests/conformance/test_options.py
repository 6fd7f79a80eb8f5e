"""No option without effect: a change of any field of any method, inference or setup changes the
result, given what the field needs.
"""

from collections.abc import Mapping
from typing import Any

import pytest

from pseudocore.core import config
from pseudocore.core.registry import Entry, inferences, methods
from pseudocore.data import DSA
from pseudocore.models.dense import Linear
from pseudocore.selection import facility
from pseudocore.testing import Effect, InferenceConformance, MethodConformance

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
    "temperature": 0.1,
    "prior_scale": 8.0,
}
"""Beside the suite's own, for whoever has these fields."""

FIELDS: dict[str, Effect | str] = {
    "augment_on": Effect(problem=AUGMENTED),
    "batch_norm": Effect(problem={"norm": "batch"}),
    "damping": Effect(other=10.0),
    "expert_loss": Effect(problem=TRAINED),
    "num_experts": Effect(problem=TRAINED),
    "pretrain_augment": Effect(problem=AUGMENTED),
    "pretrain_weight_decay": Effect(other=0.5),
    "strategy": Effect(other="crop"),
}
"""What these fields need, whoever has them."""
NETWORK = {
    name: Effect({"features": "network"}, effect.problem, effect.other)
    for name in SMALL | FIELDS | {"pretrain_momentum": Effect()}
    if name.startswith("pretrain")
    for effect in [FIELDS.get(name, Effect())]
    if isinstance(effect, Effect)
}
CHAIN = {"step_size": Effect(other=1e-3)}
OF: dict[str, Mapping[str, Effect | str]] = {
    "a-sghmc": CHAIN,
    "bpc-w": {"num_experts": Effect({"image_lr": 1.0, "inner_lr_lr": 0.0}, TRAINED)},
    "glister": {"step_size": Effect(other=10.0)},
    "glister-val": {"step_size": Effect(other=10.0)},
    "herding": NETWORK,
    "hmc": {
        "mismatched_momentum": Effect({"momentum_scale": 2.0}),
        "target_accept": Effect({"num_burn": 10}),
    },
    "k-center": NETWORK,
    "kip": {
        "bias_variance": Effect({"kernel": "ntk"}),
        "kernel_depth": Effect({"kernel": "ntk"}),
    },
    "laplace": {"num_draws": Effect({"predictive": "mc"})},
    "lcmat-s": {"rho": Effect(other=5.0)},
    "mtt": {"num_experts": Effect({"image_lr": 1.0, "inner_lr_lr": 0.0}, TRAINED)},
    "psvi": {
        "batch_size": Effect({"covariance": "draws"}),
        "num_draws": Effect({"covariance": "draws"}),
    },
    "sgd": {"num_moments": "it is a number for evaluate --published, tested below"},
    "sghmc": CHAIN,
    "sgld": CHAIN,
}
"""What fields of one method or inference need."""


def suite_of(entry: Entry) -> Any:
    base = MethodConformance if entry.name in methods else InferenceConformance
    made = {base.registry.noun: entry.make, "effects": {**FIELDS, **OF.get(entry.name, {})}}
    names = {option.name for option in config.options(entry.make)}
    small = {name: value for name, value in SMALL.items() if name in names}
    model = Linear() if entry.name == "psvi" else None
    return type(entry.name, (base,), {**made, "options": small, "model": model})


every_entry = pytest.mark.parametrize(
    "entry", [pytest.param(entry, id=entry.name) for entry in (*methods, *inferences)]
)


@every_entry
def test_of_methods_and_inferences(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facility, "ENTRIES", 8**2)
    suite_of(entry)().test_every_option_has_an_effect()
