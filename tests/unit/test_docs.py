"""The pages tell the truth: their code runs, their links lead somewhere, and they name every method
and preset there is.
"""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import pseudocore
from pseudocore import presets
from pseudocore.api import Reduction
from pseudocore.cli.main import main
from pseudocore.core.registry import inferences, methods, models

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")

every_page = pytest.mark.parametrize(
    "page", [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in PAGES]
)
every_preset = pytest.mark.parametrize("name", presets.available())


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working folder and user folder, and one thread."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PSEUDOCORE_DATA", raising=False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield tmp_path
    torch.set_num_threads(threads)


def blocks(page: str, language: str) -> list[str]:
    """The fenced code of one language on a page, in order."""
    return re.findall(
        rf"^```{language}\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL
    )


def imported(code: str, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A block as the file it would be saved as: field docs are read from a class's source."""
    path = folder / f"{name}.py"
    path.write_text(code)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


# --- code
# -------------------------------------------------------------------------------------------------------------


def test_the_readme_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("README.md", "python")
    quick, num = re.subn(r"num_steps=\d+", "num_steps=5", code)
    assert num == 3
    exec(compile(quick, "README.md", "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert re.search(r"^uniform accuracy \d\.\d{3} ± ", printed, re.MULTILINE)
    assert re.search(r"^vbpc accuracy \d\.\d{3} ± ", printed, re.MULTILINE)
    assert "tensor([[" in printed


def test_the_readme_commands_run(own_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (40, 8, 8), dtype=np.uint8), np.arange(40) % 4
    np.savez("mine.npz", train_x=x, train_y=y, test_x=x[:20], test_y=y[:20])
    lines = [
        line
        for block in blocks("README.md", "sh")
        for line in block.splitlines()
        if line.startswith("pseudocore ")
    ]
    assert {shlex.split(line)[1] for line in lines} == {
        "methods",
        "data",
        "reduce",
        "evaluate",
        "compare",
        "report",
        "export",
    }
    for line in lines:
        with pytest.raises(SystemExit) as stop:
            main(shlex.split(re.sub(r"--num-steps \d+", "--num-steps 3", line))[1:])
        assert not stop.value.code, (line, capsys.readouterr().err)
    assert (own_folder / "report.html").is_file()
    assert len(list((own_folder / "pictures").glob("*.png"))) == 10


def test_the_examples_of_inference_run(own_folder: Path) -> None:
    pseudocore.reduce("uniform", "digits", per_class=1, model="convnet-wide", width=4, out="RUN")
    code = "\n".join(blocks("docs/inference.md", "python"))
    short = "num_draws=4, num_burn=2, num_leapfrog=2"
    quick = code.replace("num_chains=4", f"num_chains=4, {short}").replace("HMC()", f"HMC({short})")
    assert quick.count(short) == 2
    exec(compile(quick, "docs/inference.md", "exec"), {"__name__": "__main__"})
    assert len(list((own_folder / "draws").iterdir())) >= 4


def test_the_worked_example_is_a_method(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "_entries", dict(methods._entries))
    example, oracle = blocks("CONTRIBUTING.md", "python")
    module = imported(example, "farthest_first_of_the_docs", own_folder, monkeypatch)
    assert methods["farthest-first"].make is module.FarthestFirst
    imported(
        oracle, "test_of_the_docs", own_folder, monkeypatch
    ).test_the_covering_radius_is_at_most_twice_the_best()
    with pytest.raises(SystemExit) as stop:
        main(["reduce", "farthest-first", "digits", "--ipc", "2", "--out", "run"])
    assert not stop.value.code
    assert len(pseudocore.load("run")) == 20


def test_the_worked_example_passes_the_conformance_tests(own_folder: Path) -> None:
    """As `make test` would run them with the file in its place: the method enters as a plugin
    before they are collected.
    """
    (own_folder / "farthest_first_of_the_docs.py").write_text(
        blocks("CONTRIBUTING.md", "python")[0]
    )
    suite = ROOT / "tests" / "conformance" / "test_methods.py"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "farthest_first_of_the_docs",
        "-p",
        "no:cacheprovider",
        str(suite),
        "-k",
        "farthest-first",
    ]
    path = os.pathsep.join([str(own_folder), str(ROOT / "src")])
    result = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stdout
    assert re.search(r"^\d\d passed", result.stdout, re.MULTILINE), result.stdout


# --- words
# ------------------------------------------------------------------------------------------------------------


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    targets = [target for target in LINK.findall(prose) if not re.match(r"https?://|#", target)]
    missing = [
        target for target in targets if not (page.parent / target.partition("#")[0]).exists()
    ]
    assert missing == []


def test_every_page_is_in_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / target).resolve() for target in LINK.findall(index.read_text())}
    assert [page for page in PAGES if page not in linked and page != index] == []


def test_the_readme_describes_every_method() -> None:
    """Name, kind and summary, in one row of a table."""
    rows = [
        row.split("|")
        for row in (ROOT / "README.md").read_text().splitlines()
        if row.startswith("| `")
    ]
    described = {cells[1].strip().strip("`"): " ".join(cells[2:]) for cells in rows}
    for entry in methods:
        assert entry.name in described, (
            f"add a line about {entry.name!r} to the methods table of the README"
        )
        assert entry.kind in described[entry.name]
        assert entry.summary in described[entry.name]
        assert entry.paper in described[entry.name]


def _rows(page: str) -> list[list[str]]:
    lines = (ROOT / page).read_text().splitlines()
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in lines
        if line.startswith("| ")
    ]


def test_the_readme_has_the_numbers_of_the_reproduction_page() -> None:
    """Which a test compares with the stored results."""
    page = _rows("docs/reproduction.md")
    compared = [
        row for row in page if len(row) == 9 and row[1].endswith(("↑", "↓"))
    ]  # cell, metric, printed, ours, Δ, their protocol
    accuracies = [(row[0], row[3], row[5], row[2]) for row in compared if row[1] == "accuracy ↑"]
    likelihoods = [
        (row[0], row[4]) for row in page if row[2] == "true"
    ]  # cell, inference, protocol, accuracy, NLL
    shown = [row for row in _rows("README.md") if len(row) == 7 and row[0].isdecimal()]
    assert len(shown) >= 5
    for per_class, method, inference, accuracy, nll, published, printed in shown:
        cell = f"cifar10-ipc{per_class}-{method}-{inference}"
        assert (cell, accuracy, published or "–", printed or "–") in accuracies
        assert (cell, nll) in likelihoods
    filled = [row for row in compared if row[2] not in {"–", ""} and row[3]]
    assert f"{len(filled)} of the 603 numbers" in (ROOT / "README.md").read_text()


def test_every_inference_and_model_is_named_on_some_page() -> None:
    words = "\n".join(page.read_text() for page in PAGES)
    assert [entry.name for entry in (*inferences, *models) if f"`{entry.name}`" not in words] == []


def test_the_vbpc_page_has_every_setting() -> None:
    page = (ROOT / "docs" / "vbpc.md").read_text()
    fields = {
        field for name in ("vbpc", "frepo") for field in methods[name].make.__dataclass_fields__
    }
    assert [field for field in sorted(fields) if f"`{field}`" not in page] == []


# --- presets
# ----------------------------------------------------------------------------------------------------------


@every_preset
def test_a_preset_builds(name: str) -> None:
    reduction = Reduction.from_config(presets.read(name))
    assert Reduction.from_config(reduction.to_config()) == reduction
    assert reduction.evaluate is not None
    assert reduction.evaluate["inference"] in inferences
    assert presets.find(name).cell
