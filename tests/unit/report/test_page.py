"""The page as a reader gets it: one sound file with everything in it, whatever the runs lack or
contain.
"""

import base64
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch

from pseudocore.core.errors import ArtifactError, ConfigError, PseudocoreError, RunError
from pseudocore.core.types import Coreset
from pseudocore.report.page import render
from pseudocore.store.run_folder import Run

MakeRun = Callable[..., Run]
ReadPage = Callable[[Path], Any]


def pngs(page: Any) -> list[Any]:
    found = [
        image["src"].split(",", 1)[1]
        for image in page.images
        if image["src"].startswith("data:image/png;base64,")
    ]
    return [
        np.asarray(PIL.Image.open(io.BytesIO(base64.b64decode(data, validate=True))))
        for data in found
    ]


def test_a_page_tells_the_whole_story(
    make_run: MakeRun, read_page: ReadPage, tmp_path: Path
) -> None:
    runs = [make_run("a", seed=0, accuracies=(0.90,)), make_run("b", seed=1, accuracies=(0.94,))]
    runs.append(make_run("c", method="uniform", accuracies=(0.62,), num_logged=0))
    out = render(runs, tmp_path / "report.html")
    page = read_page(out)
    assert out == tmp_path / "report.html"
    assert page.headings[:3] == ["Coresets of digits", "Comparison", "vbpc"]
    assert "3 runs of 2 methods, 3 evaluations" in page.text
    assert page.emphasised[:2] == [".920 ± .028", ".080 ± .028"]  # deviations ± .02: sd = .02 √2
    assert ".620" in page.text
    assert "1 min 15 s" in page.text
    assert "1,234" in page.text
    for command in (
        "pseudocore reduce vbpc digits --seed 1",
        "pseudocore evaluate run --inference hmc",
    ):
        assert command in page.text
    assert "options.per_class" in page.text
    assert "Nothing was logged over steps" in page.text
    assert page.text.count("Seed 1") == 1  # folded under its group


def test_a_page_stands_alone(make_run: MakeRun, read_page: ReadPage, tmp_path: Path) -> None:
    page = read_page(render([make_run()], tmp_path / "report.html"))
    assert page.tags.isdisjoint({"script", "link", "iframe", "object", "base"})
    links = [
        value for name, value in page.attributes if name in ("src", "href", "srcset", "action")
    ]
    assert links
    assert all(value.startswith(("data:image/", "#")) for value in links)
    assert all(image["alt"] for image in page.images)


def test_pictures_are_the_coreset_by_class(
    make_run: MakeRun, read_page: ReadPage, images: Coreset, tmp_path: Path
) -> None:
    page = read_page(
        render([make_run(class_names=["zero", "one", "two"])], tmp_path / "report.html")
    )
    order = [1, 4, 2, 3, 0, 5]
    got = pngs(page)
    assert len(got) == 6
    for pixels, point in zip(got, order, strict=True):
        np.testing.assert_array_equal(pixels, (images.x[point, 0] * 255).round().byte().numpy())
    pictures = [image for image in page.images if image["src"].startswith("data:image/png")]
    assert [image["alt"] for image in pictures] == ["zero", "zero", "one", "one", "two", "two"]
    assert pictures[0]["title"] == "zero · training example 6 · weight 1"


def test_a_strangers_words_are_only_words(
    make_run: MakeRun, read_page: ReadPage, tmp_path: Path
) -> None:
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
    out = render([run, make_run("b")], tmp_path / "report.html")
    page = read_page(out)
    assert "script" not in page.tags
    assert not any(name.startswith("on") for name, _ in page.attributes)
    assert "<script" not in out.read_text(encoding="utf-8")
    assert page.text.count(evil) > 5


def test_a_run_not_evaluated_and_not_finished_says_so(
    make_run: MakeRun, read_page: ReadPage, tmp_path: Path
) -> None:
    run = make_run(
        coreset=None,
        accuracies=(),
        num_logged=0,
        status="diverged",
        reason="x became NaN by step 7",
    )
    page = read_page(render([run], tmp_path / "report.html"))
    for sentence in (
        "None of these runs has been evaluated yet",
        "Not evaluated yet",
        "No coreset has been written yet",
        "Nothing was logged",
        "x became NaN by step 7",
    ):
        assert sentence in page.text
    assert page.images == []


def test_soft_labels_and_learned_numbers_are_shown(
    make_run: MakeRun, read_page: ReadPage, tmp_path: Path
) -> None:
    posterior = {"posterior": {"logit_scale": 11.73125, "ridge": 0.01}}
    soft = Coreset(
        torch.rand(3, 3, 4, 4),
        torch.eye(3) - 1 / 3,
        torch.tensor([1.0, 2.0, 3.5]),
        provenance=posterior,
    )
    page = read_page(render([make_run(coreset=soft)], tmp_path / "report.html"))
    assert any(image["alt"] == "heat map of the soft labels" for image in page.images)
    assert "11.7312" in page.text
    assert "Weights run from 1 to 3.5." in page.text
    assert [pixels.shape for pixels in pngs(page)] == [(4, 4, 3)] * 3


@pytest.mark.parametrize(
    ("num_features", "shown"), [(2, "scatter plot of the 6 points by class"), (16, None)]
)
def test_features_instead_of_images(
    make_run: MakeRun, read_page: ReadPage, tmp_path: Path, num_features: int, shown: str | None
) -> None:
    x = torch.arange(6.0 * num_features).reshape(6, num_features) + 1000
    page = read_page(
        render(
            [make_run(coreset=Coreset(x, torch.arange(6) % 3, torch.ones(6)))],
            tmp_path / "report.html",
        )
    )
    assert pngs(page) == []
    assert (shown in [image["alt"] for image in page.images]) == (shown is not None)
    assert ("have shape (16,)" in page.text) == (num_features == 16)
    assert ("1.08e+03" in page.text) == (
        num_features == 16
    )  # 1000 + 5 · 16, first number of the last point


def test_the_same_runs_give_the_same_bytes(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run("a"), make_run("b", method="uniform")]
    one, two = render(runs, tmp_path / "1.html"), render([*runs, runs[0]], tmp_path / "2.html")
    assert one.read_bytes() == two.read_bytes()


def test_runs_of_one_look_are_told_apart(
    make_run: MakeRun, read_page: ReadPage, tmp_path: Path
) -> None:
    runs = [make_run("a", options={"image_lr": 0.01}), make_run("b", options={"image_lr": 0.003})]
    page = read_page(render(runs, tmp_path / "report.html"))
    assert "2 per class · digits · image_lr=0.003" in page.text


def test_odd_numbers_in_files_do_not_cost_the_page(
    make_run: MakeRun, read_page: ReadPage, tmp_path: Path
) -> None:
    run = make_run(
        "a", seconds="long", num_steps=None, class_names=3, versions=["x"], data_fingerprint=7
    )
    run.log(200, {"loss": float("inf"), "huge": 1e308, "text": 1.0})
    run.log(10**400, {"loss": 1.0})
    for number, diagram in enumerate(
        [None, 3, {"count": None}, {"confidence": [2.0], "accuracy": [0.5], "count": [1]}]
    ):
        run.save_evaluation(
            f"odd-{number}",
            {"inference": "sgld", "per_seed": [{"nll": float("inf")}], "reliability": diagram},
        )
    page = read_page(render([run], tmp_path / "report.html"))
    assert "inf" in page.text
    assert sum("reliability" in image["alt"] for image in page.images) == 1


def test_a_damaged_coreset_is_an_error(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run("a"), make_run("b", method="uniform")]
    file = tmp_path / "b" / "coreset.safetensors"
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(ArtifactError, match=r"coreset\.safetensors is truncated"):
        render(runs, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_no_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least one run"):
        render([], tmp_path / "report.html")


def test_a_page_that_cannot_be_written_is_an_error(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run()
    with pytest.raises(RunError, match="cannot write"):
        render([run], tmp_path / "nowhere" / "report.html")
    (tmp_path / "report.html").write_text("old")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
        )
        with pytest.raises(RunError, match="no space left"):
            render([run], tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text() == "old"
    assert {path.name for path in tmp_path.iterdir()} == {"run", "report.html"}


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_without_the_extra_the_way_to_get_it_is_said(
    make_run: MakeRun, tmp_path: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        PseudocoreError, match=rf'needs {package}.*pip install "pseudocore\[report\]"'
    ):
        render([run], tmp_path / "report.html")
