"""A stranger's first minutes: the wheel in an empty environment, the demo, Python on their own
arrays, and the report in a browser.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import pseudocore

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/tutorials/arrays.md")
"""Whose Python a stranger types, with the arrays x, y, x_test and y_test at hand."""
SCRIPT = """
import re, sys, warnings
from pathlib import Path

import numpy as np

import pseudocore
from pseudocore.cli import demo, main
from pseudocore.inference.hmc import HMC
from pseudocore.workflows import references

assert Path(pseudocore.__file__).is_relative_to(sys.prefix), pseudocore.__file__
demo.SETUP = {**demo.SETUP, "width": 4}
demo.LEARNED = {"num_steps": 2, "batch_size": 16}
demo.EVALUATE = {"inference": "last-layer-vi", "num_steps": 2}
demo.SEEDS = 1
try:
    main.main(["demo", "--out", "demo"])
except SystemExit as stop:
    assert not stop.code, stop.code

rng = np.random.default_rng(0)
y, y_test = rng.integers(3, size=60), rng.integers(3, size=30)
x = rng.normal(size=(60, 4)).astype("float32") + y[:, None]
x_test = rng.normal(size=(30, 4)).astype("float32") + y_test[:, None]
short = {"num_chains": 2, "num_burn": 4, "num_draws": 4, "num_leapfrog": 2}
HMC.__init__.__kwdefaults__.update(short)
references.OPTIONS["hmc"] = short
warnings.simplefilter("ignore", UserWarning)  # such chains have not mixed
for page in sys.argv[1:]:
    code = "\\n".join(re.findall(r"^```python\\n(.*?)^```$", Path(page).read_text(), re.M | re.S))
    quick = re.sub(r"\\b(num_(?:steps|draws|burn|leapfrog|chains))=\\d+", r"\\1=2", code)
    exec(compile(quick, page, "exec"), {"x": x, "y": y, "x_test": x_test, "y_test": y_test})
"""
CHROMIUM = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--hide-scrollbars",
]
MEASURE = """<script>addEventListener("load", () => {
  const wide = document.documentElement.scrollWidth > innerWidth;
  const broken = [...document.images].filter(i => !i.naturalWidth).length;
  const scrolled = [...document.querySelectorAll(".scroll")].filter(
    box => box.scrollWidth > box.clientWidth + 1 && !box.closest("details")).length;
  document.body.dataset.found = [wide, broken, scrolled, document.images.length].join(" ");
})</script>"""


def test_a_stranger_gets_from_the_wheel_to_the_report(
    own_world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = wheel_in_an_empty_environment(own_world, monkeypatch)
    version = _run(python.with_name("pseudocore"), "--version")
    assert pseudocore.__version__ in version
    printed = _run(python, "-W", "error", "-c", SCRIPT, *(str(ROOT / page) for page in PAGES))
    assert re.search(r"digits +1 +vbpc", printed), printed
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("all but the report in a browser: there is no chromium")
    page = (own_world / "demo" / "report.html").read_text(encoding="utf-8")
    assert len(page) < 1_500_000
    policy = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    (own_world / "measured.html").write_text(policy.replace("</body>", MEASURE + "</body>"))
    for width in (1200, 500):  # a window is at least 500 wide
        wide, broken, scrolled, images = _opened(browser, own_world / "measured.html", width)
        assert (wide, broken) == ("false", "0"), width
        assert int(images) > 50
        assert scrolled == "0" or width < 1200, "metrics are pushed off the screen"


def test_the_citation_is_of_this_version() -> None:
    assert f"\nversion: {pseudocore.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def wheel_in_an_empty_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its interpreter; what pseudocore needs is found where these tests found it."""
    pytest.importorskip("hatchling", reason="a wheel needs pip install hatchling")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    wheels, env = folder / "wheels", folder / "env"
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels), cwd=ROOT)
    (wheel,) = wheels.iterdir()
    _run(sys.executable, "-m", "venv", "--without-pip", str(env))
    python = env / "bin" / "python"
    _run(sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps",
         "--no-index", str(wheel))  # fmt: skip
    (own,) = env.glob("lib/python*/site-packages")
    own.joinpath("shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def _run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=os.environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def _opened(browser: str, page: Path, width: int) -> list[str]:
    """What MEASURE found in a window of that width."""
    own = f"--user-data-dir={page.parent / f'browser-{width}'}"
    dom = _run(browser, *CHROMIUM, own, f"--window-size={width},900", "--dump-dom", page.as_uri())
    found = re.search(r'data-found="([^"]+)"', dom)
    assert found is not None, dom[-500:]
    return found[1].split()
