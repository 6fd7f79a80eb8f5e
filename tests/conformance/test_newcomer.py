"""A newcomer's method: one file that registers itself passes the shipped suite, and the suite
notices what is wrong with a method.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pseudocore.testing import MethodConformance

ROOT = Path(__file__).resolve().parents[2]


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S)


@pytest.mark.parametrize("name", ["mmd", "farthest_first"])
def test_the_method_of_the_page_passes_the_suite(name: str, tmp_path: Path) -> None:
    """As its author would run it: two files, and nothing else."""
    test = blocks("docs/plugins.md")[1]
    if name == "farthest_first":
        test = test.replace("mmd", name).replace("MMD", "FarthestFirst")
    page = "docs/plugins.md" if name == "mmd" else "CONTRIBUTING.md"
    (tmp_path / f"{name}.py").write_text(blocks(page)[0])
    (tmp_path / f"test_{name}.py").write_text(test)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"test_{name}.py"]
    path = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
    assert re.search(r"^1\d passed", result.stdout, re.MULTILINE), result.stdout


def test_the_iterative_one_is_short_and_knows_nothing_of_compiling() -> None:
    method = blocks("docs/plugins.md")[0]
    body = method[method.index("@methods.register") :].splitlines()
    code = [line for line in body if line.strip() and not line.lstrip().startswith('"""')]
    assert len(code) <= 40
    assert not re.search(r"runtime|compil|captur|kernels|cuda|hasattr", method)


RESULT = "return MMDState(state.x + velocity, state.y, velocity), MMDInfo(loss)"
START = "return MMDState(x, y, torch.zeros_like(x))"
COUNT = "self.__dict__['n'] = self.__dict__.get('n', 0) + 1\n        "
FAULTS = [
    ("same_seed_same_bits", "self.lr * gradient", "self.lr * torch.randn(()) * gradient"),
    ("same_seed_same_bits", "rng(", "Rng(0)("),  # whatever the seed
    ("a_step_can_be_captured", "self.batch_size,", "self.batch_size + int(rng.path[-1]) % 2,"),
    (
        "it_logs_and_resumes_bit_identically_at_every_step",
        RESULT,
        COUNT + RESULT.replace("velocity,", "velocity / self.n,", 1),
    ),
    ("it_logs_and_resumes_bit_identically_at_every_step", "(loss)", "(loss / 0)"),
    ("budget_and_class_balance", "[: self.per_class]", "[: self.per_class + 1]"),
    ("the_problem_is_left_as_it_was", START, f"problem.data.train.x[0] += 1\n        {START}"),
    ("float64_and_norms", "to(state.x.dtype)", "float()"),
    ("weights_stand_for_the_training_set", "mass(y, ", "0.9 * mass(y, "),
    (
        "weights_stand_for_the_training_set",
        "mass(y, problem.data.class_counts)",
        "torch.ones(len(y))",
    ),
    ("it_is_a_value", "frozen=True, ", ""),
    ("every_option_has_a_name_and_a_help_of_its_own", '    """Points per class."""\n', ""),
    ("every_option_has_a_name_and_a_help_of_its_own", "lr:", "width: Count = 1\n    lr:"),
    ("every_option_has_an_effect", "lr:", "unused: Positive = 1\n    lr:"),
    ("it_is_documented", "(Gretton et al. 2012, ", "("),
]
"""A check, and what it must notice: a part of the page's method and what stands in its place."""


@pytest.mark.parametrize(("check", "right", "wrong"), FAULTS)
def test_the_suite_notices(
    check: str, right: str, wrong: str, imported: Callable[..., ModuleType]
) -> None:
    code = blocks("docs/plugins.md")[0]
    assert right in code
    fields: dict[str, Any] = {"method": imported(code.replace(right, wrong)).MMD}
    suite = type("Check", (MethodConformance,), fields)()
    with pytest.raises((AssertionError, AttributeError, TypeError)):
        getattr(suite, f"test_{check}")()
