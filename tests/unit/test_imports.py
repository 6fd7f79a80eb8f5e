"""What importing the package asks for: nothing optional, nothing that only POSIX has."""

import os
import subprocess
import sys

EVERYTHING = """
import importlib, pkgutil, sys
import pseudocore
for module in pkgutil.walk_packages(pseudocore.__path__, "pseudocore."):
    if not any(part in module.name for part in ("._triton", ".__main__", ".estimators.")):
        importlib.import_module(module.name)
"""
"""But kernels, and estimators, which inherit from scikit-learn's and are imported on first use."""
POSIX_ONLY = ("fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty")
OPTIONAL = (
    "IPython", "PIL", "arviz", "datasets", "huggingface_hub", "jinja2", "matplotlib", "mlflow",
    "open_clip", "pandas", "polars", "pyarrow", "pydantic", "ray", "scipy", "sklearn", "submitit",
    "tensorboard", "timm", "torchmetrics", "torchvision", "wandb", "xarray",
)  # fmt: skip
POSIX_SIGNALS = ("SIGHUP", "SIGXCPU", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGKILL", "SIGPIPE")
POSIX_FUNCTIONS = ("fork", "getuid", "getpgid", "killpg", "geteuid", "mkfifo", "sched_getaffinity")


def run(code: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert result.returncode == 0, result.stderr
    return result


def test_no_module_imports_an_optional_package() -> None:
    """Nor does reducing, inferring and evaluating."""
    code = f"""{EVERYTHING}
made = pseudocore.reduce("uniform", "moons", per_class=1, model="linear")
pseudocore.evaluate(made, seeds=1)
print(sorted(set({OPTIONAL!r}) & set(sys.modules)))
"""
    assert run(code).stdout.strip() == "[]"


def test_everything_imports_and_runs_without_posix() -> None:
    """As on Windows: its modules, signals and functions of `os` are not there."""
    code = f"""
import os, signal, sys, tempfile
import torch, filelock, rich.console, cyclopts  # which have ways of their own on Windows
sys.modules.update(dict.fromkeys({POSIX_ONLY!r}))  # importing one is an ImportError
for name in {POSIX_SIGNALS!r}:
    delattr(signal, name)
for name in {POSIX_FUNCTIONS!r}:
    delattr(os, name)
{EVERYTHING}
from pseudocore.cli.main import _run
os.chdir(tempfile.mkdtemp())
code = _run(["reduce", "uniform", "moons", "--out", "run", "--ipc", "1", "--model", "linear"])
code += _run(["evaluate", "run", "--seeds", "1"]) + _run(["export", "run", "points.csv"])
print(code, _run(["bench", "--device", "cpu"]))
"""
    result = run(code)
    assert result.stdout.splitlines()[-1] == "0 2"
    assert "bench measures memory in forked processes" in result.stderr
