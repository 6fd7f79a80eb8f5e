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

from pseudocore.testing import MethodConformance, check_method

ROOT = Path(__file__).resolve().parents[2]


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S)


def test_the_iterative_method_of_the_page_passes_under_pytest(tmp_path: Path) -> None:
    method, test = blocks("docs/plugins.md")
    (tmp_path / "mmd.py").write_text(method)
    (tmp_path / "test_mmd.py").write_text(test)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mmd.py"]
    path = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
    assert re.search(r"^2\d passed", result.stdout, re.MULTILINE), result.stdout


def test_it_is_short_and_knows_nothing_of_compiling() -> None:
    method = blocks("docs/plugins.md")[0]
    body = method[method.index("@methods.register") :].splitlines()
    code = [line for line in body if line.strip() and not line.lstrip().startswith('"""')]
    assert len(code) <= 40
    assert not re.search(r"runtime|compil|captur|kernels|cuda|hasattr", method)


def test_the_selector_of_the_page_passes_without_pytest(
    imported: Callable[..., ModuleType],
) -> None:
    check_method(imported(blocks("CONTRIBUTING.md")[0]).FarthestFirst)


FAULTS = {
    "same_seed_same_bits": (
        'rng("batch").integers(problem.num_train, self.batch_size, device=problem.device)',
        "torch.randint(problem.num_train, (self.batch_size,))",
    ),
    "another_seed_another_coreset": ("rng: Rng)", "rng: Rng, seed: Rng = Rng(0))"),
    "a_step_can_be_captured": ("self.batch_size,", "self.batch_size + int(rng.path[-1]) % 2,"),
    "it_resumes_bit_identically_at_every_step": (
        "return MMDState(state.x + velocity, state.y, velocity)",
        "self.__dict__['n'] = self.__dict__.get('n', 0) + 1\n"
        "        return MMDState(state.x + velocity / self.n, state.y, velocity)",
    ),
    "every_step_logs_finite_numbers": ("MMDInfo(loss)", "MMDInfo(loss / 0)"),
    "budget_and_class_balance": ("[: self.per_class]", "[: self.per_class + 1]"),
    "the_problem_is_left_as_it_was": (
        "return MMDState(x, y, torch.zeros_like(x))",
        "problem.data.train.x[0] += 1\n        return MMDState(x, y, torch.zeros_like(x))",
    ),
    "float64": ("len(state.y), dtype=state.x.dtype", "len(state.y)"),
    "it_is_a_value": ("frozen=True, ", ""),
    "every_option_has_a_help": ('    """Points per class."""\n', ""),
    "every_option_has_an_effect": ("lr: Positive", "unused: Positive = 1\n    lr: Positive"),
    "no_option_hides_another": ("lr: Positive", "width: Count = 1\n    lr: Positive"),
    "it_is_documented": ("(Gretton et al. 2012, ", "("),
}
"""What to replace in the page's method, and by what, by the check that must notice."""


@pytest.mark.parametrize("check", FAULTS)
def test_the_suite_notices(check: str, imported: Callable[..., ModuleType]) -> None:
    right, wrong = FAULTS[check]
    code = blocks("docs/plugins.md")[0]
    assert right in code
    code = code.replace(right, wrong)
    if check == "another_seed_another_coreset":
        code = code.replace("rng(label)", "seed(label)").replace('rng("batch")', 'seed("batch")')
    fields: dict[str, Any] = {"method": imported(code).MMD}
    suite = type("Check", (MethodConformance,), fields)()
    with pytest.raises((AssertionError, AttributeError, TypeError)):
        getattr(suite, f"test_{check}")()
