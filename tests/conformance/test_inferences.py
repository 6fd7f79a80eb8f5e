"""The shipped suite on every registered inference: one class each."""

from pseudocore.core.registry import inferences
from pseudocore.testing import InferenceConformance

for entry in inferences:
    name = f"Test{entry.make.__name__}"
    globals()[name] = type(name, (InferenceConformance,), {"inference": entry.make})
