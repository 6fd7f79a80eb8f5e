"""The pages tell the truth: their code runs, their links lead somewhere, and they name every method
and preset there is.
"""

import importlib.util
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import pseudocore
from pseudocore.api import Reduction
from pseudocore.assembly import presets
from pseudocore.cli.main import main
from pseudocore.core import config
from pseudocore.core.registry import inferences, methods, models
from pseudocore.inference.hmc import HMC
from pseudocore.reproduce import records
from pseudocore.testing import few_digits
from pseudocore.workflows import references

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")

pytestmark = pytest.mark.usefixtures("own_world")
every_page = pytest.mark.parametrize(
    "page", [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in PAGES]
)
every_preset = pytest.mark.parametrize("name", presets.available())


def blocks(page: str, language: str) -> list[str]:
    """The fenced code of one language on a page, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S)


@pytest.fixture
def short_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    short = {"num_chains": 2, "num_burn": 4, "num_draws": 4, "num_leapfrog": 2}
    monkeypatch.setitem(references.OPTIONS, "hmc", short)
    for name, value in short.items():
        monkeypatch.setitem(HMC.__init__.__kwdefaults__, name, value)


@pytest.mark.usefixtures("short_chains")
@pytest.mark.filterwarnings("ignore::UserWarning")  # such chains have not mixed
def test_the_readme_example_runs(own_world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("README.md", "python")
    quick, num = re.subn(r"num_steps=\d+", "num_steps=5", code)
    assert num == 1
    digits = few_digits()
    given = dict(zip(("x", "y"), (part.numpy() for part in digits.train), strict=True))
    exec(compile(quick, "README.md", "exec"), {**given, "x_test": digits.test.x.numpy()})
    assert "tensor([[" in capsys.readouterr().out
    assert len(pseudocore.load("mine.safetensors")) == 50


@pytest.mark.usefixtures("short_chains")
def test_the_readme_commands_run(own_world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shell = "".join(blocks("README.md", "sh"))
    lines = [line for line in shell.splitlines() if line.startswith("pseudocore ")]
    verbs = {shlex.split(line)[1] for line in lines}
    assert verbs == {"reduce", "evaluate", "fidelity", "compare", "report"}
    for line in lines:
        with pytest.raises(SystemExit) as stop:
            main(shlex.split(re.sub(r"--num-steps \d+", "--num-steps 3", line))[1:])
        assert not stop.value.code, (line, capsys.readouterr().err)
    assert (own_world / "report.html").is_file()


def test_the_examples_of_inference_run(own_world: Path) -> None:
    pseudocore.reduce("uniform", "digits", per_class=1, model="convnet-wide", width=4, out="RUN")
    code = "\n".join(blocks("docs/inference.md", "python"))
    short = "num_draws=4, num_burn=2, num_leapfrog=2"
    quick = code.replace("num_chains=4", f"num_chains=4, {short}").replace("HMC()", f"HMC({short})")
    assert quick.count(short) == 2
    exec(compile(quick, "docs/inference.md", "exec"), {"__name__": "__main__"})
    assert len(list((own_world / "draws").iterdir())) >= 4


def test_the_example_of_the_home_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("docs/index.md", "python")
    exec(compile(code.replace("=50", "=5"), "docs/index.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.count("tensor([") == 2


def test_the_worked_example_is_a_method(imported: Callable[..., ModuleType]) -> None:
    example, oracle = blocks("CONTRIBUTING.md", "python")
    module = imported(example)
    assert methods["farthest-first"].make is module.FarthestFirst
    imported(oracle, "test_of_it").test_the_covering_radius_is_at_most_twice_the_best()
    with pytest.raises(SystemExit) as stop:
        main(["reduce", "farthest-first", "digits", "--ipc", "2", "--out", "run"])
    assert not stop.value.code
    assert len(pseudocore.load("run")) == 20


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    targets = [target for target in LINK.findall(prose) if not re.match(r"https?://|#", target)]
    files = {target: (page.parent / target.partition("#")[0]).resolve() for target in targets}
    generated = {(ROOT / "docs" / name).resolve() for name in generated_pages()}
    broken = [name for name, file in files.items() if not file.exists() and file not in generated]
    assert broken == []


def test_every_page_has_its_place_in_the_navigation() -> None:
    """Of mkdocs.yml: pages of docs/, of the root, and those that are generated."""
    listed = re.findall(r":\s(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    written = [page.relative_to(ROOT / "docs").as_posix() for page in PAGES if page.parent != ROOT]
    rooted = [
        page.name.lower() for page in PAGES if page.parent == ROOT and page != ROOT / "README.md"
    ]
    assert sorted(listed) == sorted({*written, *rooted, *generated_pages()})


@cache
def generated_pages() -> dict[str, str]:
    return dict(reference_pages().all_pages())


def reference_pages() -> ModuleType:
    """docs/reference_pages.py, which writes pages from the code."""
    spec = importlib.util.spec_from_file_location(
        "reference_pages", ROOT / "docs/reference_pages.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_methods_page_is_that_of_the_code() -> None:
    """Every method and inference, with its summary and paper."""
    page = (ROOT / "docs" / "methods.md").read_text()
    assert page == reference_pages().methods_page(), "run: python docs/reference_pages.py"
    described = {"".join(re.findall("`(.*)`", row[0])): row for row in _rows("docs/methods.md")}
    for entry in (*methods, *inferences):
        for word in (entry.summary, entry.paper):
            assert word in described.get(entry.name, []), entry.name


@pytest.mark.parametrize("verb", ["evaluate", "reduce", "size", "data"])
def test_the_reference_of_a_verb_has_its_flags(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    page = generated_pages()[f"reference/cli/{verb}.md"]
    with pytest.raises(SystemExit):
        main(
            [*{"reduce": ["reduce", "full"], "data": ["data", "info"]}.get(verb, [verb]), "--help"]
        )
    flags = set(re.findall(r"(?<=[ │])--[a-z][a-z-]+", capsys.readouterr().out))
    own = {f"--{option.name}".replace("_", "-") for option in config.options(methods["full"].make)}
    missing = [flag for flag in flags if f"`{flag}" not in page and f", {flag}" not in page]
    assert {"--json", "--device"} & flags
    assert [flag for flag in missing if verb != "reduce" or flag not in own] == []


@pytest.mark.parametrize("name", ["vbpc", "dsa", "craig"])
def test_the_reference_of_a_method_has_its_fields(name: str) -> None:
    page = generated_pages()[f"reference/cli/{methods[name].kind}.md"]
    section = page.partition(f"## {name}\n")[2].partition("\n## ")[0]
    for option in config.options(methods[name].make):
        assert re.search(rf"`(--ipc, )?--{option.name.replace('_', '-')}\b", section), option.name
        assert option.help[:40] in section


def _rows(page: str) -> list[list[str]]:
    return _table_rows((ROOT / page).read_text())


def _table_rows(text: str) -> list[list[str]]:
    lines = text.splitlines()
    rows = [line.strip("|").split(" | ") for line in lines if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows]


def test_the_readme_has_the_numbers_of_the_records() -> None:
    """The headline table: means over seeds of what benchmarks/pcd.py kept."""
    record = records.read(ROOT / "benchmarks/results/pcd.jsonl")["digits-tanh-32"]
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    for cell in record["cells"]:
        found.setdefault((str(cell["key"]["per_class"]), cell["key"]["method"]), []).append(cell)
    full = record["reference"]["tanh-32"]
    floor = {"kl": full["floor_kl"], "tv": full["floor_tv"], "accuracy": full["accuracy"]}
    found["all", "the same inference, fitted twice"] = [floor]
    rows = [row for row in _rows("README.md") if (row[0], row[1]) in found]
    assert len(rows) == 7
    for per_class, method, *shown in rows:
        for name, text in zip(("kl", "tv", "accuracy"), shown, strict=True):
            number = text.strip("*")
            values = [cell[name] for cell in found[per_class, method]]
            half = 0.5 * 10.0 ** -len(number.partition(".")[2])
            assert abs(sum(values) / len(values) - float(number)) <= 1.01 * half, (method, name)


def test_the_readme_counts_the_printed_numbers() -> None:
    page = _table_rows(
        "".join(
            text for name, text in generated_pages().items() if name.startswith("reproduction/")
        )
    )
    # cell, metric, printed, ours, Δ, their protocol
    compared = [row for row in page if len(row) == 9 and row[1].endswith(("↑", "↓"))]
    filled = [row for row in compared if row[2] not in {"–", ""} and row[3]]
    assert f"{len(filled)} of the 603 numbers" in (ROOT / "README.md").read_text()


def test_the_reproduction_page_is_that_of_the_stored_results() -> None:
    page = (ROOT / "docs" / "reproduction.md").read_text()
    assert page == generated_pages()["reproduction.md"], "run: python docs/reference_pages.py"


def test_no_page_is_longer_than_2500_words() -> None:
    """What is generated for the site alone, and logs, may be."""
    long = {
        page.name: num
        for page in PAGES
        if page.name != "CHANGELOG.md" and (num := len(page.read_text().split())) > 2500
    }
    assert long == {}


def test_every_inference_and_model_is_named_on_some_page() -> None:
    words = "\n".join(page.read_text() for page in PAGES)
    names = [*inferences.names(), *models.names()]
    assert [name for name in names if f"`{name}`" not in words] == []


def test_the_vbpc_page_has_every_setting() -> None:
    page = (ROOT / "docs" / "vbpc.md").read_text()
    for name in ("vbpc", "frepo"):
        fields = [option.name for option in config.options(methods[name].make)]
        assert [field for field in fields if f"`{field}`" not in page] == []


@pytest.mark.parametrize(
    "name", ["dc", "dsa", "dm", "idm", "ncfm", "datm", "rcig", "lcmat-c", "cafe", "bpc-pcd"]
)
def test_the_pages_of_methods_name_every_setting_and_its_default(name: str) -> None:
    told: dict[str, str] = {}
    rows = [
        row for row in _rows(f"docs/{'dc' if name == 'dsa' else name}.md") if row[0].startswith("`")
    ]
    for fields, defaults, *_ in (row for row in reversed(rows) if len(row) == 3):
        fields, _, of = fields.partition("(")  # a flag, or the one method whose row it is
        if (of := of.strip("`) ")) in methods and of != name:
            continue
        names = [word.strip("`, ") for word in fields.split(",")]
        told |= zip(names, defaults.split(", ") if len(names) > 1 else [defaults], strict=False)
    for option in config.options(methods[name].make):
        value = option.default
        if value is None:  # the help says what then
            assert option.name in told, option.name
            continue
        if not isinstance(value, str):
            value = f"{value:,}".removeprefix("0").removesuffix(".0") or "0"
        assert told.get(option.name) == value, option.name


@every_preset
def test_a_preset_builds(name: str) -> None:
    reduction = Reduction.from_config(presets.read(name))
    assert Reduction.from_config(reduction.to_config()) == reduction
    assert reduction.evaluate is not None
    assert reduction.evaluate["inference"] in inferences
    assert presets.find(name).cell


def test_the_examples_of_data_run(own_world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = "\n".join(blocks("docs/data.md", "python"))
    exec(compile(code, "docs/data.md", "exec"), {"__name__": "__main__"})
    assert "20 of 100 examples are held out" in capsys.readouterr().out


def test_the_example_of_distilled_sets_runs(
    own_world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = blocks("docs/distilled-sets.md", "python")
    exec(compile(code, "docs/distilled-sets.md", "exec"), {"__name__": "__main__"})
    assert "label-robust score" in capsys.readouterr().out


@pytest.mark.parametrize(
    "page",
    [
        "tutorials/images",
        "tutorials/tabular",
        "how-to/choose-a-method",
        "how-to/choose-a-budget",
        "how-to/your-own-network",
        "how-to/keep-and-share",
        "concepts/coresets",
        "concepts/temperatures",
    ],
)
def test_the_guides_run(page: str, own_world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With few draws and steps."""
    few = {"num_chains": 1, "num_burn": 2, "num_draws": 4, "num_leapfrog": 2}
    monkeypatch.setitem(references.OPTIONS, "hmc", few)
    code = "\n".join(blocks(f"docs/{page}.md", "python"))
    quick = re.sub(r"(num_(?:steps|draws|burn|leapfrog|chains)\"?[=:] ?)\d+", r"\g<1>4", code)
    quick = quick.replace('methods=["herding", "psvi"],', 'methods=["herding"],')
    quick = quick.replace("budgets=[1, 2, 5]", "budgets=[1]")
    exec(compile(quick, page, "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("name", ["arrays", "images", "tabular"])
def test_the_notebooks_are_the_tutorials(name: str) -> None:
    """As `examples/notebooks/make.py` wrote them: the same Python, every cell run, small outputs."""
    text = (ROOT / "examples" / "notebooks" / f"{name}.ipynb").read_text()
    notebook = json.loads(text)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    source = ["".join(cell["source"]) for cell in code]
    wanted = [block.strip() for block in blocks(f"docs/tutorials/{name}.md", "python")]
    assert source == wanted, "run: python examples/notebooks/make.py"
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert any(cell["outputs"] for cell in code)
    assert (notebook["nbformat"], len(text) < 30_000) == (4, True)


@pytest.mark.slow
def test_the_site_builds_without_warnings() -> None:
    pytest.importorskip("zensical", reason="the site needs pip install 'pseudocore[docs]'")
    pytest.importorskip("mkdocstrings", reason="the site needs pip install 'pseudocore[docs]'")
    pytest.importorskip("latex2mathml", reason="the site needs pip install 'pseudocore[docs]'")
    built = subprocess.run(
        [sys.executable, "docs/build.py"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    pages = list((ROOT / "build" / "site").rglob("*.html"))
    assert len(pages) > 60
    for page in pages:
        text = page.read_text()
        fetched = re.findall(r"""<(?:script|img|link)\b[^>]*\b(?:src|href)="(https?:[^"]+)""", text)
        assert fetched == [], page
        assert "arithmatex" not in text, f"an equation of {page.name} is left as TeX"
