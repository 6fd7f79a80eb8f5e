"""The shipped suite on every registered method: one class each; `test_options.py` has the check
of options.
"""

from typing import get_args

from pseudocore.core import config
from pseudocore.core.registry import methods
from pseudocore.core.types import LearnsTotalWeight
from pseudocore.models.dense import MLP, Linear
from pseudocore.testing import MethodConformance

ATTRIBUTES = {
    "coreset-mcmc": {"model": MLP(width=4, depth=1), "options": {"weight_lr": 0.3}},
    "full": {"deterministic": True},
    "frank-wolfe": {"model": MLP(width=4, depth=1), "options": {"num_projections": 300}},
    "giga": {"model": MLP(width=4, depth=1), "options": {"num_projections": 300}},
    "herding": {"deterministic": True},
    "feature-based": {"deterministic": True},
    "graph-cut": {"deterministic": True},
    "log-det": {"deterministic": True},
    "kernel-herding": {"deterministic": True},
    "stein-thinning": {"deterministic": True},
    "k-center": {"deterministic": True},
    "quasi-newton": {
        "model": MLP(width=2, depth=1),
        "options": {"num_projections": 50, "num_refinements": 2},
    },
    "sparse-vi": {
        "model": MLP(width=2, depth=1),
        "options": {"num_projections": 50, "num_inner": 1, "per_class": 1},
    },
    "psvi": {"model": Linear(), "options": {"num_steps": 4}},
}
"""What leaves nothing to chance, what works under logistic regression alone, and small networks for
what factors the covariance of a last layer.
"""

LEFT_OUT = {"test_every_option_has_an_effect": None}

for entry in methods:
    name = f"Test{entry.make.__name__}"
    fields = {"method": entry.make, **ATTRIBUTES.get(entry.name, {}), **LEFT_OUT}
    globals()[name] = type(name, (MethodConformance,), fields)


def test_every_method_says_what_it_targets_and_whether_it_finds_weights() -> None:
    """In its registration, which the list of methods reads, and by its fields."""
    for entry in methods:
        assert entry.targets, entry.name
        fields = {option.name: option for option in config.options(entry.make)}
        found = "no"
        if isinstance(entry.make(), LearnsTotalWeight):
            found = "yes"
        elif "weighting" in fields:
            kinds = config.alternatives(fields["weighting"].type)
            choices = {choice for kind in kinds for choice in get_args(kind)}
            of_its_own = fields["weighting"].default not in ("mass", "ones")
            found = "yes" if of_its_own else "option" if "learned" in choices else "no"
        assert entry.weights == found, entry.name
