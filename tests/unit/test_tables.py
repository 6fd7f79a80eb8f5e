"""Published numbers, cells, recipes, results and their rendering; what runs them is tested through
the command line.
"""

import dataclasses
import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pseudocore import presets
from pseudocore.assembly import Reduction
from pseudocore.core.errors import ArtifactError, ConfigError
from pseudocore.core.registry import methods
from pseudocore.evaluation.tables import Estimate
from pseudocore.reproduce import digits as own
from pseudocore.reproduce import pages, render
from pseudocore.reproduce.cells import Cell, cells, matching, table_names
from pseudocore.reproduce.planning import make_plan
from pseudocore.reproduce.protocols import A_SGHMC, LAUNCH, PUBLISHED, Way, read_header
from pseudocore.reproduce.published import Printed, printed
from pseudocore.reproduce.recipes import Missing, Recipe, changed, find_recipe
from pseudocore.reproduce.results import FAILED, FINISHED, SCHEMA, Result, keep, settings, stored
from pseudocore.reproduce.running import _pooled
from pseudocore.store.files import write_json
from pseudocore.store.folders import hardware

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"


def cell(table: str, name: str) -> Cell:
    (found,) = matching(cells(table, presets.available()), name)
    return found


def recipe(table: str, name: str) -> Recipe:
    found = find_recipe(cell(table, name), presets.available())
    assert isinstance(found, Recipe), found
    return found


def measured(mean: float, sd: float = 0.01, **more: float) -> dict[str, Any]:
    scores = {name: {"mean": value, "sd": sd} for name, value in {"accuracy": mean, **more}.items()}
    return {"inference": "sgd", "metrics": scores}


# --- published numbers
# ------------------------------------------------------------------------------------------------


def test_the_published_numbers_are_all_there() -> None:
    found = printed()
    counts = Counter((one.paper, one.table) for one in found)
    assert counts == {
        ("kim2022", "1"): 74, ("kim2022", "5"): 16, ("kim2022", "6"): 24, ("kim2022", "7"): 16, ("tiwary2023", "1"): 193,
        ("tiwary2023", "3"): 12, ("tiwary2023", "4"): 9, ("lcmat2023", "1"): 164, ("lcmat2023", "2"): 48, ("lcmat2023", "4"): 21,
        ("lcmat2023", "5"): 24, ("vbpc2025", "summary"): 2}  # fmt: skip
    assert {one.metric for one in found} == {"accuracy", "nll", "ece", "brier"}
    assert all(0 < one.mean < (1 if one.metric != "nll" else 10) for one in found)
    assert all(one.sd is not None and 0 <= one.sd < 0.5 for one in found if one.paper != "vbpc2025")
    assert all(one.caveat and one.source for one in found)
    assert len({one[:2] + one[4:10] for one in found}) == len(found)


@pytest.mark.parametrize(
    ("table", "name", "metric", "mean", "sd", "num_seeds"),
    [
        ("kim2022-1", "cifar10-ipc1-bpc-fkl-hmc", "accuracy", 0.3354, 0.0066, 10),
        ("kim2022-1", "cifar10-ipc1-bpc-fkl-a-sghmc-aug", "nll", 2.1426, 0.0343, 10),
        ("tiwary2023-1", "cifar10-ipc10-bpc-cd-sgd", "accuracy", 0.5639, 0.007, 5),
        (
            "tiwary2023-4",
            "cifar10-ipc10-bpc-cd-row-focal-col-ce-sgd",
            "accuracy",
            0.3779,
            0.0012,
            None,
        ),
        ("lcmat2023-1", "cifar10-0.1pc-lcmat-s-sgd", "accuracy", 0.2387, 0.011, 5),
        ("lcmat2023-4", "cifar10-ipc10-dm-sgd", "accuracy", 0.5447, 0.005, 3),
        ("vbpc2025", "cifar10-ipc10-vbpc-last-layer-vi", "accuracy", 0.698, None, None),
    ],
)
def test_numbers_are_those_of_the_papers(
    table: str, name: str, metric: str, mean: float, sd: float | None, num_seeds: int | None
) -> None:
    one = cell(table, name).printed[metric]
    assert (one.mean, one.sd, one.num_seeds) == (mean, sd, num_seeds)


# --- cells
# ------------------------------------------------------------------------------------------------------------


def test_every_number_is_in_one_cell_and_every_cell_can_name_a_file() -> None:
    numbers = [
        one for table in table_names() for cell in cells(table) for one in cell.printed.values()
    ]
    assert sorted(numbers, key=repr) == sorted(printed(), key=repr)
    for table in table_names():
        names = [cell.name for cell in cells(table, presets.available())]
        assert len(set(names)) == len(names)
        assert all(re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name) for name in names)


def test_our_own_table_has_every_method_at_every_budget() -> None:
    found = {(one.method, one.budget) for one in cells(own.NAME)}
    with_budget = [entry.name for entry in methods if entry.name != "full"]
    assert found == {(name, f"ipc{budget}") for name in with_budget for budget in (1, 5, 10)} | {
        ("full", "full")
    }


def test_unknown_names_are_answered_with_near_ones() -> None:
    with pytest.raises(ConfigError, match="unknown table 'kim2022-11'; did you mean 'kim2022-1'"):
        cells("kim2022-11")
    with pytest.raises(
        ConfigError,
        match=r"no cell of kim2022-6 fits 'cifar10-ipc10-herdin-hmc'; did you mean 'cifar10-ipc10-herding-hmc'",
    ):
        matching(cells("kim2022-6"), "cifar10-ipc10-herdin-hmc")
    assert [one.method for one in matching(cells("kim2022-6"), "*-[hk]*-hmc")] == [
        "herding",
        "k-center",
    ]
    assert [one.method for one in matching(cells("kim2022-6"), "*-k-center-*", "*-herding-*")] == [
        "herding",
        "k-center",
    ]
    with pytest.raises(ConfigError, match="-none-"):
        matching(cells("kim2022-6"), "*-herding-*", "*-none-*")


# --- recipes
# ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", table_names())
def test_every_recipe_can_be_built(table: str) -> None:
    found = [find_recipe(one, presets.available()) for one in cells(table, presets.available())]
    for one in found:
        if isinstance(one, Recipe):
            Reduction.from_config(one.table)
            assert one.ways
        else:
            assert one.reason
    assert sum(isinstance(one, Recipe) for one in found) >= len(found) / 2


def test_both_protocols_of_kim_are_those_of_its_table_3() -> None:
    """HMC and A-SGHMC at 10 per class; λ = 1.5 as 1/√(2λ)."""
    hmc = recipe("kim2022-1", "cifar10-ipc10-bpc-w-hmc")
    assert hmc.preset == "kim2022/cifar10-ipc10-bpc-w"
    assert hmc.ways["true"] == Way("hmc", {})
    theirs = hmc.ways["published"]
    assert theirs.published
    assert theirs.options["prior_scale"] == pytest.approx(1 / math.sqrt(3), abs=1e-3)
    wanted = {
        "num_draws": 50,
        "num_burn": 50,
        "num_leapfrog": 5,
        "step_size": 0.01,
        "momentum_scale": 0.1,
        "flip_kinetic": True,
    }
    assert wanted.items() <= theirs.options.items()
    altered = recipe("kim2022-1", "cifar10-ipc10-bpc-w-a-sghmc-aug")
    assert altered.preset == "kim2022/cifar10-ipc10-bpc-w-aug"
    assert (
        altered.table == recipe("kim2022-1", "cifar10-ipc10-bpc-w-hmc-aug").table
    )  # one coreset, made once
    assert {way.inference for way in altered.ways.values()} == {"a-sghmc"}
    assert {
        "num_inner": 5,
        "friction": 0.1,
        "step_size": 0.01,
        "temperature": 0.01,
    }.items() <= altered.ways["published"].options.items()
    assert all(
        way.setup == {"augment": "color_crop_cutout_flip_scale_rotate"}
        for way in altered.ways.values()
    )


def test_a_selector_borrows_from_a_method_of_its_own_table() -> None:
    """Table 4 is of condensation; the selection of Table 1 has the same budget and network, but
    another evaluation.
    """
    found = recipe("lcmat2023-4", "cifar10-ipc50-uniform-sgd")
    assert (found.preset, found.table["method"]) == ("lcmat2023/cifar10-ipc50-dm", "uniform")
    assert found.ways["true"].options["cutmix"] == 0.5
    assert (
        recipe("lcmat2023-1", "cifar10-1pc-uniform-sgd").preset == "lcmat2023/cifar10-ipc50-lcmat-s"
    )


def test_a_selector_without_a_preset_takes_the_settings_of_another_method() -> None:
    found = recipe("lcmat2023-2", "cifar100-5pc-craig-sgd-vgg16")
    assert found.preset == "lcmat2023/cifar100-ipc25-lcmat-s"
    assert found.table["method"] == "craig"
    assert found.table["options"]["per_class"] == 25
    assert "rho" not in found.table["options"]
    assert found.ways["true"].setup["model"] == "vgg16"
    assert found.ways["true"].published
    assert (
        recipe("tiwary2023-1", "mnist-ipc10-forgetting-sgd").table["setup"]["model"] == "convnet3"
    )
    assert (
        recipe("kim2022-1", "cifar10-ipc1-uniform-a-sghmc-aug")
        .ways["published"]
        .options["temperature"]
        == 0.01
    )


def test_the_cost_is_what_the_preset_says() -> None:
    (planned,) = make_plan(
        [cell("vbpc2025", "cifar10-ipc10-vbpc-last-layer-vi")],
        presets.available(),
        Path("none"),
        seeds=3,
    )
    assert re.match(r"its preset says \d+ s of distillation", planned.estimate)
    assert planned.seconds is None  # here it was never run


def test_a_cell_that_was_never_run_costs_what_bench_says(tmp_path: Path) -> None:
    one = cell("lcmat2023-4", "cifar10-ipc10-dm-sgd")
    rows = [{"name": "dm", "ours": {"ms": 5.0}}, {"name": "dsa", "ours": {"ms": 7.0}}]
    mine = {"hardware": hardware(), "workload": {"shape": "cifar"}, "rows": rows}
    (tmp_path / "bench").mkdir()
    for name, document in {
        "a": mine,
        "b": {**mine, "hardware": "another machine", "rows": [{"name": "dm", "ours": {"ms": 9.0}}]},
        "c": {
            **mine,
            "workload": {"shape": "digits"},
            "rows": [{"name": "dm", "ours": {"ms": 1.0}}],
        },
        "d": {**mine, "rows": [{"name": "dm"}]},
        "e": {**mine, "rows": 3},
    }.items():
        write_json(tmp_path / "bench" / f"{name}.json", document)
    (tmp_path / "bench" / "f.json").write_text("no JSON")
    (planned,) = make_plan([one], presets.available(), tmp_path, seeds=3)
    assert planned.estimate == "about 100 s of steps by bench"  # 20,000 of them
    (selected,) = make_plan(
        [cell("lcmat2023-4", "cifar10-ipc10-uniform-sgd")], presets.available(), tmp_path, seeds=3
    )
    assert selected.estimate == "cost unknown"


def test_the_losses_of_table_4_are_in_its_presets() -> None:
    found = recipe("tiwary2023-4", "*row-margin-col-focal*")
    assert (found.table["options"]["expert_loss"], found.table["options"]["energy"]) == (
        "multi-margin",
        "focal",
    )
    assert recipe("tiwary2023-4", "*row-ce-col-ce*").preset == "tiwary2023/cifar10-ipc10-bpc-cd"


@pytest.mark.parametrize(
    ("table", "name", "reason"),
    [
        ("tiwary2023-1", "mnist-ipc1-cafe-dsa-sgd", "there is no method 'cafe+dsa'"),
        ("kim2022-1", "cifar10-full-full-sghmc", "the whole training set"),
        ("kim2022-7", "imagenette-ipc1-bpc-fkl-hmc", "no preset kim2022/imagenette-ipc1-bpc-fkl"),
    ],
)
def test_a_cell_that_cannot_be_run_says_why(table: str, name: str, reason: str) -> None:
    found = find_recipe(cell(table, name), presets.available())
    assert isinstance(found, Missing)
    assert reason in found.reason


def test_changes_reach_options_setup_and_inference_where_they_exist() -> None:
    changes = {"num_steps": 7, "setup.width": 4, "evaluate.num_steps": 9}
    vbpc = changed(recipe("digits", "ipc1-vbpc"), changes)
    assert (vbpc.table["options"]["num_steps"], vbpc.table["setup"]["width"]) == (7, 4)
    assert {way.options["num_steps"] for way in vbpc.ways.values()} == {9}
    assert vbpc.changes == changes
    psvi = changed(recipe("digits", "ipc1-psvi"), changes)  # a linear network has no width
    assert "width" not in psvi.table["setup"]
    assert changed(recipe("digits", "ipc1-uniform"), changes).changes == {
        "setup.width": 4,
        "evaluate.num_steps": 9,
    }
    with pytest.raises(ConfigError, match="num_steps = 0 must be at least 1"):
        changed(recipe("digits", "ipc1-vbpc"), {"num_steps": 0})
    with pytest.raises(ConfigError, match="evaluate by sgd: num_steps = 0 must be at least 1"):
        changed(recipe("digits", "ipc1-vbpc"), {"evaluate.num_steps": 0})
    with pytest.raises(
        ConfigError, match="no cell here has an option 'num_step'; did you mean 'num_steps'"
    ):
        make_plan(
            matching(cells("digits"), "ipc1-*"),
            presets.available(),
            Path("none"),
            seeds=1,
            changes={"num_step": 3},
        )


HEADER = """# VBPC.
# Result and cost: accuracy .5; 12 s of distillation, one H200.
# Launch: pseudocore reduce vbpc --out runs/x
#         pseudocore evaluate runs/x --seeds 3 --augment flip --no-siamese
# Published protocol: pseudocore evaluate runs/x --published --inference hmc
#         --num-draws 5 --flip-kinetic
# A-SGHMC: pseudocore evaluate runs/x --inference a-sghmc --step-size 0.5

method = "vbpc"
"""


def test_a_header_is_read_as_the_command_line_would() -> None:
    found = read_header(HEADER, {"inference": "sgd", "num_steps": 4}, preset="mine")
    assert found.cost == "12 s of distillation, one H200"
    assert found.ways == {
        LAUNCH: Way("sgd", {"num_steps": 4}, {"augment": "flip", "siamese": False}),
        PUBLISHED: Way("hmc", {"num_draws": 5, "flip_kinetic": True}, {}, published=True),
        A_SGHMC: Way("a-sghmc", {"step_size": 0.5}),
    }


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("--num-draws", "--num-drawn", "has --num-drawn, which evaluate by hmc"),
        ("--seeds 3", "3", "has the word '3' where a flag"),
    ],
)
def test_a_header_with_a_mistake_is_refused(old: str, new: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_header(HEADER.replace(old, new), {"inference": "sgd"}, preset="mine")


# --- results
# ----------------------------------------------------------------------------------------------------------


def a_result(one: Cell, evaluations: dict[str, Any], **changes: Any) -> Result:
    found = find_recipe(one, presets.available())
    assert isinstance(found, Recipe)
    about = Result(
        one.table, one.name, found.preset, settings(found, 3, ()), FINISHED, "", evaluations, 1, 4
    )
    return dataclasses.replace(about, **changes)


def test_a_result_is_read_back_as_it_was_and_known_as_done(tmp_path: Path) -> None:
    one = cell("kim2022-6", "cifar10-ipc10-herding-hmc")
    result = a_result(one, {"true": measured(0.3)})
    path = keep(tmp_path, result)
    assert path == tmp_path / "kim2022-6" / "cifar10-ipc10-herding-hmc.json"
    assert stored(tmp_path, [one], {}) == {one.name: result}
    (planned,) = make_plan([one], presets.available(), tmp_path, seeds=3)
    assert planned.done
    others: list[tuple[dict[str, Any], str]] = [
        ({"seeds": 4}, "seeds was 3, is 4"), ({"seeds": 3, "severities": (1,)}, "severities was [], is [1]"),
        ({"seeds": 3, "changes": {"evaluate.num_leapfrog": 2}}, "published.num_leapfrog was 5, is 2"),
        ({"seeds": 3, "changes": {"setup.precision": "bf16"}}, "setup.precision was tf32, is bf16"),
    ]  # fmt: skip
    for other, moved in others:
        (planned,) = make_plan([one], presets.available(), tmp_path, **other)
        assert (planned.done, planned.moved) == (False, moved)
    keep(tmp_path, dataclasses.replace(result, status=FAILED, reason="diverged"))
    (planned,) = make_plan([one], presets.available(), tmp_path, seeds=3)
    assert (planned.done, planned.moved) == (False, "it failed")


def test_more_seeds_and_corruptions_than_asked_for_are_an_answer(tmp_path: Path) -> None:
    one = cell("kim2022-6", "cifar10-ipc10-herding-hmc")
    found = find_recipe(one, presets.available())
    assert isinstance(found, Recipe)
    keep(tmp_path, a_result(one, {"true": measured(0.3)}, settings=settings(found, 5, (1, 3))))
    asked: list[tuple[int, tuple[int, ...]]] = [
        (5, (1, 3)),
        (3, ()),
        (5, (3,)),
        (6, (3,)),
        (3, (2, 3)),
    ]
    plans = [
        make_plan([one], presets.available(), tmp_path, seeds=seeds, severities=severities)
        for seeds, severities in asked
    ]
    assert [planned.done for (planned,) in plans] == [True, True, True, False, False]
    for edited in ({"seeds": "5"}, {"severities": 3}, {"severities": [[1]]}):
        keep(
            tmp_path,
            a_result(
                one, {"true": measured(0.3)}, settings={**settings(found, 5, (1, 3)), **edited}
            ),
        )
        (planned,) = make_plan([one], presets.available(), tmp_path, seeds=3, severities=(3,))
        assert not planned.done


@pytest.mark.parametrize(
    ("change", "words"),
    [({"schema": SCHEMA + 1}, f"is of schema {SCHEMA + 1}, and this pseudocore reads {SCHEMA}"), ({"kind": "other"}, "is not a result of"),
     ({"surprise": 1}, "is damaged: its entries are not those")],
)  # fmt: skip
def test_a_foreign_file_is_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    one = cell("kim2022-6", "cifar10-ipc10-herding-hmc")
    path = keep(tmp_path, a_result(one, {"true": measured(0.3)}))
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ArtifactError, match=words):
        stored(tmp_path, [one], {})


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
                    "true": {
                        "inference": "sgd",
                        "metrics": {"accuracy": {"mean": "high", "sd": None}},
                    }
                }
            },
            "evaluations.true",
        ),
    ],
)
def test_an_edited_result_is_refused_in_a_sentence(
    tmp_path: Path, change: dict[str, Any], entry: str
) -> None:
    one = cell("kim2022-6", "cifar10-ipc10-herding-hmc")
    path = keep(tmp_path, a_result(one, {"true": measured(0.3)}))
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    for read in (
        lambda: make_plan([one], presets.available(), tmp_path, seeds=3),
        lambda: render.render_all(tmp_path, presets.available()),
    ):
        with pytest.raises(
            ArtifactError,
            match=rf"herding-hmc\.json is damaged: its entry {entry} is not what belongs there",
        ):
            read()


@pytest.mark.parametrize(
    "change",
    [
        {"seconds": 3},
        {"changes": {}},
        {"evaluations": {"published": 1}},
        {"evaluations": 7},
        {"commit": 3},
    ],
)
def test_an_edited_result_of_the_trajectories_benchmark_is_refused_in_a_sentence(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    (tmp_path / "kim2022-1").mkdir()
    document = of_trajectories(
        recipe("kim2022-1", "cifar10-ipc10-bpc-fkl-hmc"), {"mh-correct": 0.4, "published": 0.3}
    )
    (tmp_path / "kim2022-1" / "any.json").write_text(json.dumps(document | change))
    with pytest.raises(ArtifactError, match=r"any\.json is damaged"):
        render.render_table("kim2022-1", tmp_path, presets.available())


def test_results_of_the_preset_benchmark_are_read(tmp_path: Path) -> None:
    found = cells("vbpc2025", presets.available())
    recipes = {
        one.name: recipe
        for one in found
        if isinstance(recipe := find_recipe(one, presets.available()), Recipe)
    }
    (tmp_path / "vbpc2025").mkdir()
    text = (RESULTS / "vbpc2025" / "vbpc2025-fashion-mnist-ipc1.json").read_text()
    (tmp_path / "vbpc2025" / "any.json").write_text(text)
    result, kept = (
        stored(tmp_path, found, recipes)["fashion-mnist-ipc1-vbpc-last-layer-vi"],
        json.loads(text),
    )
    assert result.evaluations["true"]["metrics"] == kept["evaluation"]["metrics"]
    assert (result.num, result.hardware, result.commit) == (5, kept["hardware"], kept["commit"])


# --- rendering
# --------------------------------------------------------------------------------------------------------


def of_trajectories(made_by: Recipe, ways: dict[str, float]) -> dict[str, Any]:
    return {
        "preset": made_by.preset, "changes": {"setup": {"precision": "bf16"}, "options": {"num_steps": 7}}, "config": {},
        "status": "finished", "seconds": {"reduction": 5.0, "published": 2.0}, "peak_memory_mib": 100, "caveat": "why",
        "evaluations": {way: measured(mean) | {"seeds": 3, "inference": "sgd" if "own" in way else "hmc"} for way, mean in ways.items()},
        "date": "2026-11-16", "commit": "abc", "hardware": "a machine", "versions": {},
    }  # fmt: skip


def test_results_of_the_trajectories_benchmark_are_read(tmp_path: Path) -> None:
    """A table made by a protocol with known faults shows it beside ours; one that was not shows the
    preset's own inference.
    """
    found = {}
    for table, name in (
        ("kim2022-1", "cifar10-ipc10-bpc-fkl-hmc"),
        ("tiwary2023-1", "cifar10-ipc10-bpc-cd-sgd"),
    ):
        made_by = recipe(table, name)
        ways = {"mh-correct": 0.4, "published": 0.3} | (
            {"preset's own": 0.2} if table != "kim2022-1" else {}
        )
        document = of_trajectories(made_by, ways)
        (tmp_path / table).mkdir()
        (tmp_path / table / "any.json").write_text(json.dumps(document))
        found[table] = stored(tmp_path, [cell(table, name)], {name: made_by})[name]
    kim, tiwary = found["kim2022-1"], found["tiwary2023-1"]
    assert {way: one["metrics"]["accuracy"]["mean"] for way, one in kim.evaluations.items()} == {
        "true": 0.4,
        "published": 0.3,
    }
    assert {way: one["metrics"]["accuracy"]["mean"] for way, one in tiwary.evaluations.items()} == {
        "true": 0.2
    }
    assert (kim.num, kim.num_coresets, kim.seconds, kim.note) == (3, 1, 7.0, "why")
    assert kim.changes == {"setup.precision": "bf16", "num_steps": 7}
    again = stored(
        tmp_path,
        cells("kim2022-6"),
        {"cifar10-ipc10-bpc-fkl-hmc": recipe("kim2022-6", "cifar10-ipc10-bpc-fkl-hmc")},
    )
    assert (
        again["cifar10-ipc10-bpc-fkl-hmc"].table == "kim2022-6"
    )  # another table of the paper prints it too
    elsewhere = {
        name: recipe("tiwary2023-3", name)
        for name in ("cifar10-ipc10-bpc-cd-sgd-convnet3", "cifar10-ipc10-bpc-cd-sgd-resnet18")
    }
    assert list(stored(tmp_path, cells("tiwary2023-3"), elsewhere)) == [
        "cifar10-ipc10-bpc-cd-sgd-convnet3"
    ]  # it was not evaluated there


def test_a_difference_is_in_standard_errors_of_both_means() -> None:
    theirs = printed()[0]._replace(
        mean=0.48, sd=0.03, num_seeds=9
    )  # standard error .01, as is ours
    assert render.difference(Estimate(0.5, 0.02), 4, theirs) == pytest.approx(
        0.02 / math.sqrt(2e-4)
    )
    assert render.difference(
        Estimate(0.5, 0.02), 4, theirs._replace(num_seeds=None)
    ) == pytest.approx(0.02 / math.sqrt(1e-4 + 9e-4))
    assert render.difference(Estimate(0.47, 0.02), 4, theirs._replace(sd=None)) == pytest.approx(-1)
    assert render.difference(Estimate(0.5, None), 4, theirs._replace(sd=None)) is None
    assert render.difference(Estimate(math.inf, 0.1), 4, theirs) is None


def rows(text: str, name: str) -> list[list[str]]:
    return [
        [word.strip() for word in line.split("|")[1:-1]]
        for line in text.splitlines()
        if line.startswith(f"| {name} |")
    ]


def test_both_protocols_stand_beside_the_printed_number(tmp_path: Path) -> None:
    one = cell("kim2022-6", "cifar10-ipc10-bpc-fkl-hmc")
    theirs: Printed = one.printed["accuracy"]
    honest, faulty = (
        measured(0.2, nll=2.2, ece=0.1, brier=0.9),
        measured(theirs.mean, nll=1.9, published_nll=1.75),
    )
    keep(tmp_path, a_result(one, {"true": honest, "published": faulty}, changes={"num_steps": 7}))
    text = pages.to_markdown(render.render_table("kim2022-6", tmp_path, presets.available()))
    accuracy, nll, *_ = rows(text, one.name)
    se = math.sqrt(0.01**2 / 4 + (theirs.sd or 0) ** 2 / 10)
    assert accuracy[3:5] == [".200 ± .010", f"{(0.2 - theirs.mean) / se:+.1f}"]
    assert accuracy[6] == "+0.0"
    assert accuracy[7:] == ["4", "num_steps = 7"]
    assert (nll[3], nll[5]) == ("2.200 ± .010", "1.750 ± .010")  # the metric, too, as they take it
    assert "1 of 6 cells are filled" in text
    assert rows(text, "cifar10-ipc10-herding-hmc")[0][-1] == "not run yet"
    assert "ECE batch by batch" in text


def test_the_best_epoch_stands_for_the_protocol_of_lcmat(tmp_path: Path) -> None:
    one = cell("lcmat2023-1", "cifar10-1pc-craig-sgd")
    keep(tmp_path, a_result(one, {"true": measured(0.31, published_accuracy=0.33)}))
    ((*_, ours, _, best, _, _, _),) = [
        row
        for row in rows(
            pages.to_markdown(render.render_table("lcmat2023-1", tmp_path, presets.available())),
            one.name,
        )
        if row[1] == "accuracy ↑"
    ]
    assert (ours, best) == (".310 ± .010", ".330 ± .010")


def test_an_evaluation_that_has_moved_on_is_said(tmp_path: Path) -> None:
    result = a_result(cell("lcmat2023-4", "cifar10-ipc10-dm-sgd"), {"true": measured(0.5)})
    way: Any = result.settings["ways"]["true"]
    old = {
        **way,
        "options": {**way["options"], "cutmix": 0.25},
        "setup": {**way["setup"], "augment": "flip"},
    }
    keep(tmp_path, dataclasses.replace(result, settings={**result.settings, "ways": {"true": old}}))
    text = pages.to_markdown(render.render_table("lcmat2023-4", tmp_path, presets.available()))
    moved = {"cutmix": (0.25, 0.5), "augment": ("flip", "flip+color+crop_scale_rotate")}
    said = "; ".join(
        f"evaluate.{name} = {then}, where the preset now has {now}"
        for name, (then, now) in moved.items()
    )
    assert f"| {said} |" in text


def test_a_change_that_the_preset_has_taken_over_needs_no_remark(tmp_path: Path) -> None:
    result = a_result(cell("lcmat2023-4", "cifar10-ipc10-dm-sgd"), {"true": measured(0.5)})
    now: Any = result.settings["config"]
    changes = {
        "num_steps": 7,
        "image_lr": now["options"]["image_lr"],
        "setup.model": now["setup"]["model"],
        "evaluate.cutmix": 0.5,
    }
    for note, remarks in (("", "num_steps = 7"), ("in haste", "num_steps = 7; in haste")):
        keep(tmp_path, dataclasses.replace(result, changes=changes, note=note))
        assert f"| {remarks} |" in pages.to_markdown(
            render.render_table("lcmat2023-4", tmp_path, presets.available())
        )


def test_failures_and_stale_settings_are_said(tmp_path: Path) -> None:
    failed, stale = (
        cell("tiwary2023-4", "*row-ce-col-ce*"),
        cell("tiwary2023-4", "*row-ce-col-focal*"),
    )
    keep(tmp_path, a_result(failed, {}, status=FAILED, reason="bpc-cd diverged: x | y"))
    result = a_result(stale, {"true": measured(0.5)})
    config: Any = result.settings["config"]
    old = {
        **config,
        "options": {**config["options"], "num_steps": 3},
        "setup": {**config["setup"], "augment": "crop_flip"},
    }
    keep(tmp_path, dataclasses.replace(result, settings={**result.settings, "config": old}))
    blocks = render.render_table("tiwary2023-4", tmp_path, presets.available())
    text = pages.to_markdown(blocks)
    assert "failed: bpc-cd diverged: x \\| y |" in text
    assert "num_steps = 3, where the preset now has 5000" in text
    assert (
        f"setup.augment = crop_flip, where the preset now has {config['setup']['augment']}" in text
    )
    page = pages.to_html([*blocks, pages.Words("<script> & `code` *is* [here](a.md)")], title="<t>")
    assert "<title>&lt;t&gt;</title>" in page
    assert '&lt;script&gt; &amp; <code>code</code> <em>is</em> <a href="a.md">here</a>' in page
    assert "<td>failed: bpc-cd diverged: x | y</td>" in page


def test_the_reproduction_page_is_that_of_the_stored_results() -> None:
    page = ROOT / "docs" / "reproduction.md"
    wanted = pages.to_markdown(render.render_all(RESULTS, presets.available()))
    assert page.read_text(encoding="utf-8") == wanted, (
        "run: pseudocore table --render --page docs/reproduction.md"
    )


def test_evaluations_of_several_coresets_are_pooled() -> None:
    """A selector's cell: scores of all its choices, and what every one of them had to say."""

    def of(seed: int, accuracy: float, **more: Any) -> dict[str, Any]:
        return {
            "inference": "hmc",
            "per_seed": [{"seed": seed, "accuracy": accuracy}],
            "cost": {},
            **more,
        }

    pooled = _pooled(
        [
            of(0, 0.25, chosen=[{"seed": 0, "temperature": 0.1}]),
            of(1, 0.75, chosen=[{"seed": 1, "temperature": 1.0}], warnings=["w"]),
        ]
    )
    assert pooled["metrics"]["accuracy"]["mean"] == 0.5
    assert [one["seed"] for one in pooled["per_seed"]] == [0, 1]
    assert pooled["chosen"] == [{"seed": 0, "temperature": 0.1}, {"seed": 1, "temperature": 1.0}]
    assert pooled["warnings"] == ["w"]
    assert not {"chosen", "corruptions"} & _pooled([of(0, 0.5)]).keys()
    blurred = _pooled(
        [of(0, 0.5, corruptions={"fog": {"3": 0.25}}), of(1, 0.5, corruptions={"fog": {"3": 0.75}})]
    )
    assert blurred["corruptions"] == {"fog": {"3": 0.5}}
