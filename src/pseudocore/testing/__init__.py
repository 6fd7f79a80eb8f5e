"""The conformance suite, for authors of methods and inferences in this package or another.

```python
from pseudocore.testing import MethodConformance


class TestMine(MethodConformance):
    method = Mine
```

The small problems that the checks use are here too. `docs/plugins.md` is the guide.
"""

from pseudocore.testing.inferences import InferenceConformance
from pseudocore.testing.methods import MethodConformance
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
    "emulate_capture",
    "few_digits",
    "small_coreset",
    "small_problem",
]
