"""Sheets, published numbers, cells, recipes, results and their rendering; what runs them is tested
through the command line.
"""

import dataclasses
import hashlib
import json
import math
import re
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from pseudocore.assembly import Reduction, presets
from pseudocore.assembly.presets import EvaluationProtocol
from pseudocore.core.config import FORMER_NAMES
from pseudocore.core.errors import ArtifactError, ConfigError
from pseudocore.core.registry import methods
from pseudocore.evaluation.tables import Estimate
from pseudocore.reproduce import pages, records, render
from pseudocore.reproduce.cells import DIGITS, Cell, cells, matching, table_names, varied
from pseudocore.reproduce.planning import make_plan
from pseudocore.reproduce.published import printed
from pseudocore.reproduce.recipes import FORMER, Missing, Recipe, changed, find_recipe
from pseudocore.reproduce.results import (
    FAILED,
    FINISHED,
    SCHEMA,
    Result,
    former_options,
    keep,
    settings,
    stored,
)
from pseudocore.reproduce.running import pooled
from pseudocore.store.folders import hardware

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"


def cell(table: str, name: str) -> Cell:
    (found,) = matching(cells(table), name)
    return found


def recipe(table: str, name: str) -> Recipe:
    found = find_recipe(cell(table, name))
    assert isinstance(found, Recipe), found
    return found


def measured(mean: float, sd: float = 0.01, **more: float) -> dict[str, Any]:
    scores = {name: {"mean": value, "sd": sd} for name, value in {"accuracy": mean, **more}.items()}
    return {"inference": "sgd", "metrics": scores}


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


# --- sheets


def as_before(found: Any) -> Any:
    """Under the names, and without the options, that were usual when the sheets were written."""
    if not isinstance(found, dict):
        return found
    if found.get("inference") in FORMER:
        table = found.get("options", found)
        written = former_options(found["inference"], {})
        kept = {k: v for k, v in table.items() if k != "select" and written.get(k) != v}
        return {**found, "options": kept} if "options" in found else kept
    renamed = {new: old for old, new in FORMER_NAMES.items()}
    return {
        renamed.get(name, name): as_before(value)
        for name, value in found.items()
        if name != "weighting"
    }


def test_the_sheets_say_what_the_files_before_them_said() -> None:
    """The digest is of the 239 files and their comment headers, by the code that read those."""
    found = {}
    for name in presets.available():
        protocols = {key: one._asdict() for key, one in presets.find(name).protocols.items()}
        found[name] = {"tables": presets.read(name), "protocols": protocols}
    assert len(found) == 239
    assert (
        digest(as_before(found))
        == "36c9e4bc7e2b1891c13975006372036f6827a68518337432278dfcf8bfb22a69"
    )


def test_the_cells_run_as_before_the_sheets() -> None:
    """The digest is of the recipes of all printed cells, by the code that borrowed settings."""
    found: dict[str, Any] = {}
    for table in table_names():
        for one in cells(table) if table != DIGITS else ():
            known = find_recipe(one)
            found[f"{table}/{one.name}"] = None
            if isinstance(known, Recipe):
                protocols = {key: one._asdict() for key, one in known.protocols.items()}
                found[f"{table}/{one.name}"] = {
                    "preset": known.preset,
                    "table": known.tables,
                    "protocols": protocols,
                    "experts": known.experts,
                }
    assert (
        digest(as_before(found))
        == "30ec3d09669836934f1afa6bfad553dbd3037fcc30bca7ac9990130fd81d6c2b"
    )


def test_a_preset_has_a_cell_and_protocols() -> None:
    preset = presets.find("kim2022/cifar10-ipc10-bpc-fkl-aug")
    assert preset.cell.startswith("Table 1: HMC (+Aug) accuracy .4252 ± .0091")
    assert preset.result
    assert preset.experts.startswith("20, trained by this setup")
    assert preset.seeds == 3
    assert list(preset.protocols) == ["true", "published", "a-sghmc"]
    assert preset.protocols["true"] == EvaluationProtocol("hmc", dict(FORMER["hmc"]))
    lcmat = presets.find("lcmat2023/cifar10-ipc50-lcmat-s").protocols["true"]
    assert lcmat.options["num_moments"] == 20
    assert (lcmat.setup, lcmat.published) == ({"augment": "crop+flip"}, True)


def test_every_shared_table_is_used() -> None:
    for paper in {name.partition("/")[0] for name in presets.available()}:
        names = presets.sheet(paper)["cells"]
        for shared in presets.sheet(paper)["shared"]:
            for pattern in shared["for"].split():
                assert any(fnmatchcase(one, pattern) for one in names), (paper, pattern)


def test_a_preset_that_is_unknown() -> None:
    with pytest.raises(ConfigError, match="did you mean 'vbpc2025/cifar10-ipc1'") as caught:
        presets.read("vbpc2025/cifar10-ipc1o")
    assert caught.value.code == "unknown-preset"


# --- published numbers


def test_the_published_numbers_are_all_there() -> None:
    found = printed()
    assert Counter(one.table_name for one in found) == {
        "kim2022-1": 74, "kim2022-5": 16, "kim2022-6": 24, "kim2022-7": 16, "tiwary2023-1": 193,
        "tiwary2023-3": 12, "tiwary2023-4": 9, "lcmat2023-1": 164, "lcmat2023-2": 48,
        "lcmat2023-4": 21, "lcmat2023-5": 24, "vbpc2025": 2,
    }  # fmt: skip
    assert {one.metric for one in found} == {"accuracy", "nll", "ece", "brier"}
    assert all(0 < one.mean < (1 if one.metric != "nll" else 10) for one in found)
    assert all(one.sd is not None and 0 <= one.sd < 0.5 for one in found if one.paper != "vbpc2025")
    assert all(one.caveat and one.source for one in found)
    assert len({one[:2] + one[4:10] for one in found}) == len(found)


@pytest.mark.parametrize(
    ("table", "name", "metric", "expected"),
    [
        ("kim2022-1", "cifar10-ipc1-bpc-fkl-hmc", "accuracy", (0.3354, 0.0066, 10)),
        ("kim2022-1", "cifar10-ipc1-bpc-fkl-a-sghmc-aug", "nll", (2.1426, 0.0343, 10)),
        ("tiwary2023-1", "cifar10-ipc10-bpc-cd-sgd", "accuracy", (0.5639, 0.007, 5)),
        ("tiwary2023-4", "*row-focal-col-ce-sgd", "accuracy", (0.3779, 0.0012, None)),
        ("lcmat2023-1", "cifar10-0.1pc-lcmat-s-sgd", "accuracy", (0.2387, 0.011, 5)),
        ("lcmat2023-4", "cifar10-ipc10-dm-sgd", "accuracy", (0.5447, 0.005, 3)),
        ("vbpc2025", "cifar10-ipc10-vbpc-last-layer-vi", "accuracy", (0.698, None, None)),
    ],
)
def test_numbers_are_those_of_the_papers(
    table: str, name: str, metric: str, expected: tuple[float, float | None, int | None]
) -> None:
    one = cell(table, name).printed[metric]
    assert (one.mean, one.sd, one.num_seeds) == expected


# --- cells


def test_every_number_is_in_one_cell_and_every_cell_has_a_plain_name() -> None:
    numbers = [
        one for table in table_names() for cell in cells(table) for one in cell.printed.values()
    ]
    assert sorted(numbers, key=repr) == sorted(printed(), key=repr)
    for table in table_names():
        names = [cell.name for cell in cells(table)]
        assert len(set(names)) == len(names)
        assert all(re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name) for name in names)


def test_our_own_table_has_every_method_at_every_budget() -> None:
    found = {(one.method, one.budget) for one in cells(DIGITS)}
    budgeted = [entry.name for entry in methods if entry.name != "full"]
    assert found == {(name, f"ipc{budget}") for name in budgeted for budget in (1, 5, 10)} | {
        ("full", "full")
    }


def test_cells_by_pattern() -> None:
    with pytest.raises(ConfigError, match="did you mean 'kim2022-1'") as caught:
        cells("kim2022-11")
    assert caught.value.code == "unknown-table"
    table = cells("kim2022-6")
    with pytest.raises(ConfigError, match="did you mean 'cifar10-ipc10-herding-hmc'") as caught:
        matching(table, "cifar10-ipc10-herdin-hmc")
    assert caught.value.fields["pattern"] == "cifar10-ipc10-herdin-hmc"
    for patterns in (["*-[hk]*-hmc"], ["*-k-center-*", "*-herding-*"]):
        assert [one.method for one in matching(table, *patterns)] == ["herding", "k-center"]
    with pytest.raises(ConfigError, match="-none-"):
        matching(table, "*-herding-*", "*-none-*")


# --- recipes


@pytest.mark.parametrize("table", table_names())
def test_every_recipe_can_be_built(table: str) -> None:
    found = [find_recipe(one) for one in cells(table)]
    for one in found:
        if isinstance(one, Recipe):
            Reduction.from_config(one.tables)
            assert one.protocols
        else:
            assert one.reason
    assert sum(isinstance(one, Recipe) for one in found) >= len(found) / 2


def test_both_protocols_of_kim_are_those_of_its_table_3() -> None:
    """HMC and A-SGHMC at 10 per class; λ = 1.5 as 1/√(2λ)."""
    hmc = recipe("kim2022-1", "cifar10-ipc10-bpc-w-hmc")
    assert hmc.preset == "kim2022/cifar10-ipc10-bpc-w"
    assert hmc.protocols["true"] == EvaluationProtocol("hmc", dict(FORMER["hmc"]))
    theirs = hmc.protocols["published"]
    assert theirs.published
    assert theirs.options["prior_scale"] == pytest.approx(1 / math.sqrt(3), abs=1e-3)
    assert theirs.options.items() >= {"num_draws": 50, "num_leapfrog": 5, "step_size": 0.01}.items()
    altered = recipe("kim2022-1", "cifar10-ipc10-bpc-w-a-sghmc-aug")
    # one coreset, made once
    assert altered.tables == recipe("kim2022-1", "cifar10-ipc10-bpc-w-hmc-aug").tables
    assert {one.inference for one in altered.protocols.values()} == {"a-sghmc"}
    assert altered.protocols["published"].options["temperature"] == 0.01
    augment = {"augment": "color_crop_cutout_flip_scale_rotate"}
    assert all(one.setup == augment for one in altered.protocols.values())


@pytest.mark.parametrize(
    ("table", "name", "preset"),
    [
        ("lcmat2023-4", "cifar10-ipc50-uniform-sgd", "lcmat2023/cifar10-ipc50-dm"),
        ("lcmat2023-1", "cifar10-1pc-uniform-sgd", "lcmat2023/cifar10-ipc50-lcmat-s"),
        ("lcmat2023-2", "cifar100-5pc-craig-sgd-vgg16", "lcmat2023/cifar100-ipc25-lcmat-s"),
        ("tiwary2023-1", "mnist-ipc10-forgetting-sgd", "tiwary2023/mnist-ipc10-herding"),
        ("tiwary2023-4", "*row-ce-col-ce*", "tiwary2023/cifar10-ipc10-bpc-cd"),
        ("kim2022-1", "cifar10-ipc1-uniform-a-sghmc-aug", "kim2022/cifar10-ipc1-bpc-fkl-aug"),
    ],
)
def test_a_cell_takes_the_settings_that_its_sheet_names(table: str, name: str, preset: str) -> None:
    assert recipe(table, name).preset == preset


def test_a_borrowing_selector_keeps_its_own_options_and_network() -> None:
    found = recipe("lcmat2023-2", "cifar100-5pc-craig-sgd-vgg16")
    assert (found.tables["method"], found.tables["options"]["per_class"]) == ("craig", 25)
    assert "rho" not in found.tables["options"]
    assert (found.protocols["true"].setup["model"], found.protocols["true"].published) == (
        "vgg16",
        True,
    )


@pytest.mark.parametrize(
    ("table", "name", "reason"),
    [
        ("tiwary2023-1", "mnist-ipc1-cafe-dsa-sgd", "there is no method 'cafe+dsa'"),
        ("kim2022-1", "cifar10-full-full-sghmc", "the whole training set"),
        ("kim2022-7", "imagenette-ipc1-bpc-fkl-hmc", "no preset kim2022/imagenette-ipc1-bpc-fkl"),
    ],
)
def test_a_cell_that_cannot_be_run_says_why(table: str, name: str, reason: str) -> None:
    found = find_recipe(cell(table, name))
    assert isinstance(found, Missing)
    assert reason in found.reason


def test_changes_reach_options_setup_and_inference_where_they_exist() -> None:
    changes = {"num_steps": 7, "setup.width": 4, "evaluate.num_steps": 9}
    vbpc = changed(recipe("digits", "ipc1-vbpc"), changes)
    assert (vbpc.tables["options"]["num_steps"], vbpc.tables["setup"]["width"]) == (7, 4)
    assert {one.options["num_steps"] for one in vbpc.protocols.values()} == {9}
    assert vbpc.changes == changes
    psvi = changed(recipe("digits", "ipc1-psvi"), changes)  # a linear network has no width
    assert "width" not in psvi.tables["setup"]
    uniform = changed(recipe("digits", "ipc1-uniform"), changes)
    assert set(uniform.changes) == {"setup.width", "evaluate.num_steps"}
    for name in ("num_steps", "evaluate.num_steps"):
        with pytest.raises(ConfigError, match="num_steps = 0 must be at least 1"):
            changed(recipe("digits", "ipc1-vbpc"), {name: 0})
    with pytest.raises(ConfigError, match="did you mean 'num_steps'") as caught:
        make_plan(cells("digits"), Path("none"), seeds=1, changes={"num_step": 3})
    assert caught.value.fields["option"] == "num_step"


# --- plans


def test_the_cost_is_what_the_preset_says() -> None:
    one = cell("vbpc2025", "cifar10-ipc10-vbpc-last-layer-vi")
    (planned,) = make_plan([one], Path("none"), seeds=3)
    assert planned.estimate.startswith("its preset says 112 s of distillation")
    assert planned.seconds is None  # it was never run here


def test_a_cell_that_was_never_run_costs_what_bench_says(tmp_path: Path) -> None:
    rows = [{"name": "dm", "ours": {"ms": 5.0}}, {"name": "dsa", "ours": {"ms": 7.0}}]
    mine = {"hardware": hardware(), "workload": {"shape": "cifar"}, "rows": rows}
    slow = [{"name": "dm", "ours": {"ms": 9.0}}]
    for name, record in {
        "a": mine,
        "b": {**mine, "hardware": "another machine", "rows": slow},
        "c": {**mine, "workload": {"shape": "digits"}, "rows": slow},
        "d": {"what": "not a benchmark"},
    }.items():
        records.put(tmp_path / "bench.jsonl", {"name": name, **record})
    estimates = {
        name: make_plan([cell("lcmat2023-4", f"cifar10-ipc10-{name}-sgd")], tmp_path, seeds=3)[0]
        for name in ("dm", "uniform")
    }
    assert estimates["dm"].estimate == "about 100 s of steps by bench"  # 20,000 of them
    assert estimates["uniform"].estimate == "cost unknown"


# --- results


def a_result(one: Cell, evaluations: dict[str, Any], **changes: Any) -> Result:
    found = find_recipe(one)
    assert isinstance(found, Recipe)
    made = settings(found, 3, ())
    about = Result(one.table, one.name, found.preset, made, FINISHED, "", evaluations, 1, 4)
    return dataclasses.replace(about, **changes)


def edit(path: Path, **changes: Any) -> None:
    (record,) = map(json.loads, path.read_text().splitlines())
    path.write_text(json.dumps({**record, **changes}) + "\n")


HERDING = cell("kim2022-6", "cifar10-ipc10-herding-hmc")


def test_a_result_is_read_back_as_it_was_and_known_as_done(tmp_path: Path) -> None:
    result = a_result(HERDING, {"true": measured(0.3)})
    keep(tmp_path, result)
    assert stored(tmp_path, [HERDING]) == {HERDING.name: result}
    assert make_plan([HERDING], tmp_path, seeds=3)[0].done
    others: list[tuple[dict[str, Any], str]] = [
        ({"seeds": 4}, "seeds was 3, is 4"),
        ({"seeds": 3, "severities": (1,)}, "severities was [], is [1]"),
        (
            {"seeds": 3, "changes": {"evaluate.num_leapfrog": 2}},
            "published.num_leapfrog was 5, is 2",
        ),
        (
            {"seeds": 3, "changes": {"setup.precision": "bf16"}},
            "setup.precision was tf32, is bf16",
        ),
    ]
    for other, moved in others:
        (planned,) = make_plan([HERDING], tmp_path, **other)
        assert (planned.done, planned.moved) == (False, moved)
    keep(tmp_path, dataclasses.replace(result, status=FAILED, reason="diverged"))
    (planned,) = make_plan([HERDING], tmp_path, seeds=3)
    assert (planned.done, planned.moved) == (False, "it failed")


def test_results_are_lines_sorted_by_cell_and_others_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "kim2022-6.jsonl"
    path.write_text('{"name":  "zz", "spacing": "kept"}\n')
    for name in ("cifar10-ipc10-k-center-hmc", "cifar10-ipc10-herding-hmc"):
        keep(tmp_path, a_result(cell("kim2022-6", name), {"true": measured(0.3)}))
    names = [records.name_of(json.loads(line)) for line in path.read_text().splitlines()]
    assert names == ["cifar10-ipc10-herding-hmc", "cifar10-ipc10-k-center-hmc", "zz"]
    assert '{"name":  "zz", "spacing": "kept"}' in path.read_text()


def test_more_seeds_and_corruptions_than_asked_for_are_an_answer(tmp_path: Path) -> None:
    made = settings(recipe("kim2022-6", HERDING.name), 5, (1, 3))
    keep(tmp_path, a_result(HERDING, {"true": measured(0.3)}, settings=made))
    for seeds, severities, done in [
        (5, (1, 3), True),
        (3, (), True),
        (5, (3,), True),
        (6, (3,), False),
        (3, (2, 3), False),
    ]:
        (planned,) = make_plan([HERDING], tmp_path, seeds=seeds, severities=severities)
        assert planned.done == done
    for edited in ({"seeds": "5"}, {"severities": 3}, {"severities": [[1]]}):
        keep(tmp_path, a_result(HERDING, {"true": measured(0.3)}, settings={**made, **edited}))
        assert not make_plan([HERDING], tmp_path, seeds=3, severities=(3,))[0].done


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"schema": SCHEMA + 1}, "unknown-schema"),
        ({"kind": "other"}, "foreign-result"),
        ({"surprise": 1}, "damaged"),
    ],
)
def test_a_foreign_line_is_refused(tmp_path: Path, change: dict[str, Any], code: str) -> None:
    keep(tmp_path, a_result(HERDING, {"true": measured(0.3)}))
    edit(tmp_path / "kim2022-6.jsonl", **change)
    with pytest.raises(ArtifactError) as caught:
        stored(tmp_path, [HERDING])
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("change", "entry"),
    [
        ({"settings": 3}, "settings"),
        ({"settings": {"config": [1]}}, "settings.config"),
        ({"status": None}, "status"),
        ({"seconds": "long"}, "seconds"),
        ({"num": 0}, "num"),
        ({"changes": []}, "changes"),
        ({"cost": {"reduce": 3}}, "cost.reduce"),
        ({"evaluations": {}}, "evaluations.true"),
        ({"evaluations": {"true": {}}}, "evaluations.true"),
        (
            {"evaluations": {"true": {"inference": "sgd", "metrics": {"accuracy": 0.3}}}},
            "evaluations.true",
        ),
        (
            {
                "evaluations": {
                    "true": {"inference": "sgd", "metrics": {"nll": {"mean": "high", "sd": None}}}
                }
            },
            "evaluations.true",
        ),
    ],
)
def test_an_edited_result_is_refused(tmp_path: Path, change: dict[str, Any], entry: str) -> None:
    keep(tmp_path, a_result(HERDING, {"true": measured(0.3)}))
    edit(tmp_path / "kim2022-6.jsonl", **change)
    for read in (
        lambda: make_plan([HERDING], tmp_path, seeds=3),
        lambda: render.render_all(tmp_path),
    ):
        with pytest.raises(ArtifactError) as caught:
            read()
        assert (caught.value.code, caught.value.fields["entry"]) == ("damaged", entry)


@pytest.mark.parametrize("text", ["no JSON\n", "3\n"])
def test_a_damaged_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "kim2022-6.jsonl").write_text(text)
    with pytest.raises(ArtifactError, match=r"kim2022-6\.jsonl is damaged"):
        stored(tmp_path, [HERDING])


def test_results_in_the_earlier_layout_are_refused_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "kim2022-6").mkdir()
    (tmp_path / "kim2022-6" / "any.json").write_text("{}")
    with pytest.raises(ArtifactError, match="jq -c") as caught:
        stored(tmp_path, [HERDING])
    assert caught.value.code == "earlier-layout"


STORED = {
    "bench": "13488ca7823178bf",
    "cold": "5e6ed0e03a5e44dc",
    "continual": "64c7e36f9e20653f",
    "inference": "03982a9622758449",
    "kim2022": "4ff0aacc45e31ce9",
    "kim2022-1": "ca3b5e163c96abb2",
    "kim2022-5": "498a4541db75ff30",
    "kim2022-6": "0830ded7e5b3d60d",
    "lcmat-c": "e59eb474bc5be5e7",
    "lcmat2023-1": "9b47232067a6ddf5",
    "lcmat2023-4": "a267e520fdcf4741",
    "leapfrog": "d206ca483fe9af87",
    "psvi": "41603faca37dece5",
    "tiwary2023": "a9c11aabc6fe5ed4",
    "tiwary2023-1": "8f725b1242753473",
    "tiwary2023-4": "b485c3dfa106f402",
    "vbpc2025": "0b7984311db4b8fd",
}
"""Digests of the files that held one record each, before they were joined. A measurement made since
changes its table's: take that entry out.
"""


@pytest.mark.parametrize("name", STORED)
def test_the_stored_records_are_those_of_the_files_before(name: str) -> None:
    digest = hashlib.sha256()
    for line in (RESULTS / f"{name}.jsonl").read_text().splitlines():
        record = json.loads(line)
        record.pop("name", None)
        digest.update(json.dumps(record, sort_keys=True).encode() + b"\n")
    assert digest.hexdigest().startswith(STORED[name])


# --- rendering


def test_a_difference_is_in_standard_errors_of_both_means() -> None:
    theirs = printed()[0]._replace(mean=0.48, sd=0.03, num_seeds=9)  # standard error .01, as ours
    ours = Estimate(0.5, 0.02)
    assert render.difference(ours, 4, theirs) == pytest.approx(0.02 / math.sqrt(2e-4))
    single = theirs._replace(num_seeds=None)
    assert render.difference(ours, 4, single) == pytest.approx(0.02 / math.sqrt(1e-4 + 9e-4))
    unknown = theirs._replace(sd=None)
    assert render.difference(Estimate(0.47, 0.02), 4, unknown) == pytest.approx(-1)
    assert render.difference(Estimate(0.5, None), 4, unknown) is None
    assert render.difference(Estimate(math.inf, 0.1), 4, theirs) is None


def page(table: str, out: Path) -> str:
    return pages.to_markdown(render.render_table(table, out))


def rows(text: str, name: str) -> list[list[str]]:
    return [
        [word.strip() for word in line.split("|")[1:-1]]
        for line in text.splitlines()
        if line.startswith(f"| {name} |")
    ]


def test_both_protocols_stand_beside_the_printed_number(tmp_path: Path) -> None:
    one = cell("kim2022-6", "cifar10-ipc10-bpc-fkl-hmc")
    theirs = one.printed["accuracy"]
    honest = measured(0.2, nll=2.2, ece=0.1, brier=0.9)
    faulty = measured(theirs.mean, nll=1.9, published_nll=1.75)
    keep(tmp_path, a_result(one, {"true": honest, "published": faulty}, changes={"num_steps": 7}))
    text = page("kim2022-6", tmp_path)
    accuracy, nll, *_ = rows(text, one.name)
    se = math.sqrt(0.01**2 / 4 + (theirs.sd or 0) ** 2 / 10)
    assert accuracy[3:5] == [".200 ± .010", f"{(0.2 - theirs.mean) / se:+.1f}"]
    assert accuracy[6:] == ["+0.0", "4", "num_steps = 7"]
    assert (nll[3], nll[5]) == ("2.200 ± .010", "1.750 ± .010")  # the metric, too, as they take it
    assert "1 of 6 cells are filled" in text
    assert rows(text, HERDING.name)[0][-1] == "not run yet"
    assert "ECE batch by batch" in text


def test_the_best_epoch_stands_for_the_protocol_of_lcmat(tmp_path: Path) -> None:
    one = cell("lcmat2023-1", "cifar10-1pc-craig-sgd")
    keep(tmp_path, a_result(one, {"true": measured(0.31, published_accuracy=0.33)}))
    (row,) = [row for row in rows(page("lcmat2023-1", tmp_path), one.name) if "accuracy ↑" in row]
    assert (row[3], row[5]) == (".310 ± .010", ".330 ± .010")


DM = cell("lcmat2023-4", "cifar10-ipc10-dm-sgd")


def test_settings_that_the_preset_has_changed_since_are_remarked(tmp_path: Path) -> None:
    result = a_result(DM, {"true": measured(0.5)})
    config: Any = result.settings["config"]
    protocol: Any = result.settings["ways"]["true"]
    old = {
        "config": {**config, "options": {**config["options"], "num_steps": 3}},
        "ways": {"true": {**protocol, "options": {**protocol["options"], "cutmix": 0.25}}},
    }
    keep(tmp_path, dataclasses.replace(result, settings={**result.settings, **old}))
    assert (
        "| num_steps = 3, where the preset now has 20000; "
        "evaluate.cutmix = 0.25, where the preset now has 0.5 |"
    ) in page("lcmat2023-4", tmp_path)


def test_a_change_that_the_preset_has_taken_over_needs_no_remark(tmp_path: Path) -> None:
    result = a_result(DM, {"true": measured(0.5)})
    now: Any = result.settings["config"]
    changes = {
        "num_steps": 7,
        "image_lr": now["options"]["image_lr"],
        "setup.model": now["setup"]["model"],
        "evaluate.cutmix": 0.5,
    }
    for note, remarks in (("", "num_steps = 7"), ("in haste", "num_steps = 7; in haste")):
        keep(tmp_path, dataclasses.replace(result, changes=changes, note=note))
        assert f"| {remarks} |" in page("lcmat2023-4", tmp_path)


def test_a_failure_is_said_and_escaped_in_both_formats(tmp_path: Path) -> None:
    keep(tmp_path, a_result(DM, {}, status=FAILED, reason="dm diverged: x | y"))
    blocks = render.render_table("lcmat2023-4", tmp_path)
    assert "failed: dm diverged: x \\| y |" in pages.to_markdown(blocks)
    words = pages.Paragraph("<script> & `code` *is* [here](a.md)")
    text = pages.to_html([*blocks, words], title="<t>")
    assert "<title>&lt;t&gt;</title>" in text
    assert '&lt;script&gt; &amp; <code>code</code> <em>is</em> <a href="a.md">here</a>' in text
    assert "<td>failed: dm diverged: x | y</td>" in text


def test_a_number_is_compared_by_the_published_protocol() -> None:
    """In standard errors of both means, over the printed numbers of a stored cell."""
    rows = {row.cell.name: row for row in render.table_rows("kim2022-1", RESULTS)}
    (accuracy, _) = render.compared(rows["cifar10-ipc1-bpc-w-hmc"])
    assert (accuracy.metric, accuracy.printed) == ("accuracy", 0.3435)
    assert round(accuracy.ours, 3) == 0.351  # .417 by honest inference
    assert accuracy.gap == pytest.approx(0.5, abs=0.06)
    unfilled = next(row for row in rows.values() if row.filled is None)
    assert render.compared(unfilled) == []


def test_evaluations_of_several_coresets_are_pooled() -> None:
    """A selector's cell: scores of all its selections, and their warnings."""

    def of(seed: int, accuracy: float, **more: Any) -> dict[str, Any]:
        scores = [{"seed": seed, "accuracy": accuracy}]
        return {"inference": "hmc", "per_seed": scores, "cost": {}, **more}

    chosen = [{"seed": 0, "temperature": 0.1}, {"seed": 1, "temperature": 1.0}]
    fog = [{"fog": {"3": 0.25}}, {"fog": {"3": 0.75}}]
    first = of(0, 0.25, chosen=chosen[:1], corruptions=fog[0])
    second = of(1, 0.75, chosen=chosen[1:], corruptions=fog[1], warnings=["w"])
    found = pooled([first, second])
    assert found["metrics"]["accuracy"]["mean"] == 0.5
    assert [one["seed"] for one in found["per_seed"]] == [0, 1]
    assert (found["chosen"], found["warnings"]) == (chosen, ["w"])
    assert found["corruptions"] == {"fog": {"3": 0.5}}
    assert not {"chosen", "corruptions"} & pooled([of(0, 0.5)]).keys()


def test_a_variant_is_what_the_authors_code_does_otherwise(tmp_path: Path) -> None:
    name = "kim2022/cifar10-ipc10-bpc-w-aug"
    assert presets.variants(name) == ("authors",)
    usual, other = presets.find(name), presets.find(f"{name}@authors")
    assert other.tables["options"] == {**usual.tables["options"], "inner_lr": 0.03}
    assert usual.tables["options"]["inner_lr"] == 0.01
    assert other.protocols["a-sghmc"].options["prior"] == "unsquared"
    assert usual.protocols["a-sghmc"].options["prior"] == "isotropic"
    assert presets.read(f"{name}@authors") == dict(other.tables)
    with pytest.raises(ConfigError, match="unknown preset"):
        presets.read(f"{name}@authos")
    found = cells("lcmat2023-1")
    wanted = {"glister": {"step_size": 0.0}, "least-confidence": {"of": "logits"}}
    wanted |= {method: {"gradients": "batches"} for method in ("lcmat-s", "adacore")}
    for method, options in wanted.items():
        (one,) = varied(matching(found, f"cifar10-1pc-{method}-sgd"), "authors")
        recipe = find_recipe(one)
        assert isinstance(recipe, Recipe)
        assert options.items() <= recipe.tables["options"].items()
        Reduction.from_config(recipe.tables)
    (herding,) = varied(matching(found, "cifar10-1pc-herding-sgd"), "authors")
    assert isinstance(find_recipe(herding), Missing)
    (digits,) = varied(matching(cells(DIGITS), "ipc1-lcmat-s"), "authors")
    assert find_recipe(digits) == Missing("the table of the digits has no variant 'authors'")
    (one,) = varied(matching(cells("kim2022-1"), "cifar10-ipc10-bpc-w-hmc"), "authors")
    run = Result(
        one.table, one.name, name, {}, FINISHED, evaluations={"true": measured(0.4)}, num=3
    )
    keep(tmp_path, run)
    page = pages.to_markdown(render.render_table("kim2022-1", tmp_path))
    assert "Variant `authors`" in page
    assert "| cifar10-ipc10-bpc-w-hmc@authors |" in page
    assert "0 of" in page  # it fills no cell of the table itself
