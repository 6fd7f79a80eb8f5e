"""The shipped suite on every registered inference: one class each; `test_options.py` has the check
of options.
"""

from pseudocore.core.registry import inferences
from pseudocore.testing import InferenceConformance

LEFT_OUT = {"test_every_option_has_an_effect": None}

for entry in inferences:
    name = f"Test{entry.make.__name__}"
    globals()[name] = type(name, (InferenceConformance,), {"inference": entry.make, **LEFT_OUT})
