"""The shipped suite on every registered method: one class each."""

from pseudocore.core.registry import methods
from pseudocore.models.dense import Linear
from pseudocore.testing import MethodConformance

ATTRIBUTES = {
    "full": {"deterministic": True},
    "herding": {"deterministic": True},
    "k-center": {"deterministic": True},
    "psvi": {"model": Linear(), "options": {"num_steps": 4}},
}
"""What leaves nothing to chance, and what works under logistic regression alone."""

for entry in methods:
    name = f"Test{entry.make.__name__}"
    fields = {"method": entry.make, **ATTRIBUTES.get(entry.name, {})}
    globals()[name] = type(name, (MethodConformance,), fields)
