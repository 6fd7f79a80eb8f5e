"""The page as a reader gets it: one sound file with everything in it, whatever the runs lack or
contain.
"""

import base64
import hashlib
import io
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch

from pseudocore.core.contract import Contract, DataSpec
from pseudocore.core.errors import ArtifactError, PseudocoreError, RunError
from pseudocore.core.types import Coreset
from pseudocore.report.page import render
from pseudocore.store.run_folder import Run

MakeRun = Callable[..., Run]
Page = Callable[..., Any]


def pngs(page: Any) -> list[Any]:
    prefix = "data:image/png;base64,"
    sources = [image["src"] for image in page.images if image["src"].startswith(prefix)]
    files = [base64.b64decode(source.removeprefix(prefix), validate=True) for source in sources]
    return [np.asarray(PIL.Image.open(io.BytesIO(file))) for file in files]


def test_a_page_shows_everything(make_run: MakeRun, page: Page) -> None:
    runs = [make_run("a", seed=0, accuracies=(0.90,)), make_run("b", seed=1, accuracies=(0.94,))]
    got = page(*runs, make_run("c", method="uniform", accuracies=(0.62,), num_logged=0))
    assert got.headings[:2] == ["Coresets of digits", "Comparison"]
    assert got.headings[2:4] == ["digits, 2 per class, side by side", "vbpc"]
    assert got.emphasised[:2] == [".920 ± .028", ".080 ± .028"]  # deviations ± .02: sd = .02 √2
    for text in (
        "3 runs of 2 methods, 3 evaluations",
        ".620",
        "1 min 15 s",
        "1,234",
        "pseudocore reduce vbpc digits --seed 1",
        "pseudocore evaluate run --inference hmc",
        "options.per_class",
        "Nothing was logged over steps",
    ):
        assert text in got.text
    assert got.text.count("Seed 1") == 1  # folded under its group


def test_a_page_stands_alone(make_run: MakeRun, page: Page) -> None:
    got = page(make_run())
    assert got.tags.isdisjoint({"link", "iframe", "object", "base"})
    links = [value for name, value in got.attributes if name in ("src", "href", "srcset", "action")]
    assert links
    assert all(value.startswith(("data:image/", "#")) for value in links)
    assert all(image["alt"] for image in got.images)


def test_a_browser_runs_the_one_script_of_the_page(make_run: MakeRun, tmp_path: Path) -> None:
    text = render([make_run()], tmp_path / "report.html").read_text(encoding="utf-8")
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'"
        in text
    )
    assert text.count("<script") == 1


def test_a_page_opens_with_what_it_says(make_run: MakeRun, page: Page) -> None:
    images = torch.rand(6, 1, 8, 8)
    contract = contract_of(num_train=87)
    few = Coreset(images, torch.arange(6) % 3, torch.ones(6), contract=contract)
    runs = [
        make_run("a", coreset=few, accuracies=(0.75,)),
        make_run("b", method="uniform", coreset=few, accuracies=(0.5,)),
        make_run("c", method="full", accuracies=(0.9,)),
    ]
    entry = {"accuracy": 0.75, "fidelity_kl": 0.0131, "fidelity_floor_kl": 0.002}
    for run, kl in zip(runs[:2], (0.0131, 0.5), strict=True):
        one = run.evaluations()["hmc-0"]
        one["per_seed"] = [one["per_seed"][0] | entry | {"fidelity_kl": kl}]
        run.save_evaluation("hmc-0", one)
    got = page(*runs)
    assert (
        "6 points (vbpc, 2 per class) keep .750 of .900 accuracy; predictions differ from "
        "full-data inference by .0131 nats (floor .0020); 14 times smaller." in got.text
    )
    assert "digits, 2 per class, side by side" in got.text


def test_budgets_in_all_are_told_apart(make_run: MakeRun, page: Page) -> None:
    runs = []
    for name, method, num in (("a", "vbpc", 2), ("b", "vbpc", 4), ("c", "uniform", 4)):
        few = Coreset(torch.rand(num, 3), torch.arange(num) % 2, torch.ones(num))
        options = {"per_class": None, "points": num}
        runs.append(make_run(name, method, few, options=options, accuracies=(0.1 * num,)))
    text = page(*runs).text
    assert "2 points (vbpc) reach .200 accuracy." in text
    assert "4 points (vbpc) reach .400 accuracy." in text


def contract_of(num_train: int) -> Contract:
    spec = DataSpec("digits", (1, 8, 8), torch.float32, 3, num_train)
    return Contract(
        data=spec,
        model={},
        preprocess={"kind": "none"},
        prior={"kind": "isotropic", "scale": 1.0},
        total_weight=float(num_train),
    )


def test_long_variants_are_collapsed(make_run: MakeRun, page: Page) -> None:
    """So that they cannot push metrics off the screen."""
    options = {f"setting_{number}": number for number in range(6)}
    got = page(make_run("a", options=options), make_run("b"))
    assert ("class", "variant") in got.attributes
    assert "setting_5=5" in got.text


def test_pictures_are_the_coreset_by_class(make_run: MakeRun, page: Page, images: Coreset) -> None:
    got = page(make_run(class_names=["zero", "one", "two"]))
    for pixels, point in zip(pngs(got), [1, 4, 2, 3, 0, 5], strict=True):
        np.testing.assert_array_equal(pixels, (images.x[point, 0] * 255).round().byte().numpy())
    pictures = [image for image in got.images if image["src"].startswith("data:image/png")]
    assert [image["alt"] for image in pictures] == ["zero", "zero", "one", "one", "two", "two"]
    assert pictures[0]["title"] == "zero · training example 6 · weight 1"


def test_a_strangers_words_are_only_words(make_run: MakeRun, page: Page, tmp_path: Path) -> None:
    evil = '<script>alert("1")</script>'
    run = make_run(
        method=evil,
        options={"note": evil, "$\\frac{$": "$\\frac{$"},
        command=f"pseudocore {evil}",
        status="diverged",
        reason=evil,
        class_names=[evil, '" onerror="alert(1)', "\ud800 $\\bad{$ \x00"],
        hardware=evil,
        versions={evil: evil},
    )
    run.save_evaluation("x", {"inference": evil, "per_seed": [{evil: 0.5}]})
    got = page(run, make_run("b"))
    assert not any(name.startswith("on") for name, _ in got.attributes)
    assert (tmp_path / "report.html").read_text(encoding="utf-8").count("<script") == 1  # ours
    assert got.text.count(evil) > 5


def test_a_run_not_evaluated_and_not_finished_says_so(make_run: MakeRun, page: Page) -> None:
    reason = "x became NaN by step 7"
    nothing: dict[str, Any] = {"coreset": None, "accuracies": (), "num_logged": 0}
    got = page(make_run(**nothing, status="diverged", reason=reason))
    for sentence in (
        "None of these runs has been evaluated yet",
        "Not evaluated yet",
        "No coreset has been written yet",
        "Nothing was logged",
        reason,
    ):
        assert sentence in got.text
    assert got.images == []


def test_soft_labels_and_learned_numbers_are_shown(make_run: MakeRun, page: Page) -> None:
    soft = Coreset(
        torch.rand(3, 3, 4, 4),
        torch.eye(3) - 1 / 3,
        torch.tensor([1.0, 2.0, 3.5]),
        provenance={"posterior": {"logit_scale": 11.73125, "ridge": 0.01}},
    )
    got = page(make_run(coreset=soft))
    assert any(image["alt"] == "heat map of the soft labels" for image in got.images)
    assert "11.7312" in got.text
    assert "Weights run from 1 to 3.5." in got.text
    assert [pixels.shape for pixels in pngs(got)] == [(4, 4, 3)] * 3


@pytest.mark.parametrize(
    ("num_features", "shown"), [(2, "scatter plot of the 6 points by class"), (16, None)]
)
def test_features_instead_of_images(
    make_run: MakeRun, page: Page, num_features: int, shown: str | None
) -> None:
    x = torch.arange(6.0 * num_features).reshape(6, num_features) + 1000
    got = page(make_run(coreset=Coreset(x, torch.arange(6) % 3, torch.ones(6))))
    assert pngs(got) == []
    assert (shown in [image["alt"] for image in got.images]) == (shown is not None)
    assert ("have shape (16,)" in got.text) == (num_features == 16)
    last_point = "1.08e+03"  # its first number is 1000 + 5 · 16
    assert (last_point in got.text) == (num_features == 16)


def test_the_same_runs_give_the_same_bytes(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run("a"), make_run("b", method="uniform")]
    one, two = render(runs, tmp_path / "1.html"), render([*runs, runs[0]], tmp_path / "2.html")
    assert one.read_bytes() == two.read_bytes()


def test_runs_that_look_alike_are_told_apart(make_run: MakeRun, page: Page) -> None:
    got = page(*(make_run(f"{lr}", options={"image_lr": lr}) for lr in (0.01, 0.003)))
    assert "2 per class · digits · image_lr=0.003" in got.text


def test_odd_numbers_in_files_do_not_cost_the_page(make_run: MakeRun, page: Page) -> None:
    run = make_run(data_fingerprint=7, class_names=3, versions=["x"])
    run.log(200, {"loss": float("inf"), "huge": 1e308, "text": 1.0})
    run.log(10**400, {"loss": 1.0})
    evaluation = {"inference": "sgld", "per_seed": [{"nll": float("inf")}], "reliability": None}
    run.save_evaluation("odd", evaluation)
    got = page(run)
    assert "inf" in got.text
    assert sum("reliability" in image["alt"] for image in got.images) == 1


def test_chains_are_described_by_their_worst_seed(
    make_run: MakeRun, page: Page, evaluation: Callable[..., dict[str, Any]]
) -> None:
    seeds = [
        {"predictions": {"rhat": rhat, "ess_bulk": ess}, "accept": accept}
        for rhat, ess, accept in ((1.25, 40.0, 0.75), (1.5, 20.0, 0.5))
    ]
    run = make_run(accuracies=())
    run.save_evaluation("x", evaluation(0.5, diagnostics="a stranger's word"))
    assert "R-hat" not in page(run).text
    run.save_evaluation("x", evaluation(0.5, diagnostics=[*seeds, 3]))
    for fact in ("R-hat of predictions 1.5", "ESS of predictions 20", "acceptance 0.5"):
        assert fact in page(run).text


def test_a_damaged_coreset_is_an_error(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run("a"), make_run("b", method="uniform")]
    file = tmp_path / "b" / "coreset.safetensors"
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(ArtifactError, match=r"coreset\.safetensors"):
        render(runs, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_a_page_that_cannot_be_written_is_an_error(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run()
    with pytest.raises(RunError, match="cannot write"):
        render([run], tmp_path / "nowhere" / "report.html")
    (tmp_path / "report.html").write_text("old")
    full = OSError(28, "No space left on device")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(full))
        with pytest.raises(RunError, match="no space left"):
            render([run], tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text() == "old"
    assert {path.name for path in tmp_path.iterdir()} == {"run", "report.html"}


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_without_the_extra_the_error_names_it(
    make_run: MakeRun, tmp_path: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(PseudocoreError) as error:
        render([run], tmp_path / "report.html")
    assert (error.value.code, error.value.fields["package"]) == ("missing-package", package)


def test_no_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PseudocoreError) as error:
        render([], tmp_path / "report.html")
    assert error.value.code == "missing-run"
