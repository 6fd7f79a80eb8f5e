"""The conformance suite, for authors of methods and inferences in this package or another.

```python
from pseudocore.testing import MethodConformance


class TestMine(MethodConformance):
    method = Mine
```

`check_method(Mine)` and `check_inference(Mine)` run the same checks without pytest. The small
problems and recorders that the checks use are here too. `docs/plugins.md` is the guide.
"""

from pseudocore.testing.inferences import InferenceConformance, check_inference
from pseudocore.testing.methods import MethodConformance, check_method
from pseudocore.testing.options import Effect
from pseudocore.testing.problems import (
    MemoryCheckpoints,
    few_digits,
    small_coreset,
    small_problem,
)
from pseudocore.testing.suite import emulate_capture

__all__ = [
    "Effect",
    "InferenceConformance",
    "MemoryCheckpoints",
    "MethodConformance",
    "check_inference",
    "check_method",
    "emulate_capture",
    "few_digits",
    "small_coreset",
    "small_problem",
]
