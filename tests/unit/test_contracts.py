"""Coresets that carry their contract: inference where the data do not exist, and sentences for what
is done otherwise.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pseudocore
from pseudocore import api
from pseudocore.core.errors import ArtifactError, ConfigError, DataError, PseudocoreError
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, Dataset
from pseudocore.store.coreset_file import load_coreset, save_coreset, write_tensors

QUICK: dict[str, Any] = {
    "psvi": {"num_steps": 3},
    "vbpc": {"num_steps": 3, "batch_size": 16, "pool_size": 2},
    "bpc-fkl": {"num_steps": 2, "num_experts": 1, "max_start": 1, "horizon": 1, "num_draws": 2},
}
OPTIONS: dict[str, Any] = {
    "psvi": {"num_draws": 3, "num_burn": 2},
    "vbpc": {"num_steps": 3},
    "bpc-fkl": {"num_draws": 3, "num_burn": 2},
}
ASSUMED = {"psvi": "hmc", "vbpc": "last-layer-vi", "bpc-fkl": "hmc"}

ELSEWHERE = """
import json, sys
import torch
import pseudocore
from pseudocore.core.rng import Rng

found = {}
for method, options in json.loads(sys.argv[1]).items():
    posterior = pseudocore.infer(pseudocore.load(f"{method}/coreset.safetensors"), **options)
    x = Rng(1).normal(4, 3)
    found[method] = posterior.predict(x).probs.tolist()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def own_data() -> Dataset:
    """Two classes of three features that no data source knows."""
    x, y = Rng(0).normal(40, 3), torch.arange(40) % 2
    x = 5 + x + 2 * y[:, None]
    return pseudocore.dataset(x, y, name="mine", class_names=("low", "high"))


@pytest.fixture(scope="module")
def pictures() -> Dataset:
    x = Rng(0).integers(256, 60, 3, 6, 6).to(torch.uint8)
    return pseudocore.dataset(x, torch.arange(60) % 3, name="pictures")


@pytest.fixture(scope="module")
def runs(own_data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run of each method, in folders beside each other."""
    root = tmp_path_factory.mktemp("runs")
    return {
        "root": root,
        **{
            method: pseudocore.reduce(
                method, own_data, model="linear", per_class=2, out=root / method, **options
            )
            for method, options in QUICK.items()
        },
    }


def test_inference_where_the_data_do_not_exist(runs: dict[str, Any], tmp_path: Path) -> None:
    """In another process, in folders that hold coresets alone, each by its own inference."""
    for method in QUICK:
        (tmp_path / method).mkdir()
        content = (runs["root"] / method / "coreset.safetensors").read_bytes()
        (tmp_path / method / "coreset.safetensors").write_bytes(content)
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, json.dumps(OPTIONS)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(pseudocore.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=True,
    )
    found, x = json.loads(done.stdout), Rng(1).normal(4, 3)
    for method, options in OPTIONS.items():
        contract = load_coreset(tmp_path / method).contract
        assert contract is not None
        assert contract.inference["inference"] == ASSUMED[method]
        here = api.infer(runs[method], ASSUMED[method], **options)
        assert here.problem.has_data
        assert torch.equal(torch.tensor(found[method]), here.predict(x).probs)


def test_inference_from_memory(runs: dict[str, Any], own_data: Dataset) -> None:
    coreset = runs["vbpc"].coreset
    posterior = pseudocore.infer(coreset, num_steps=3)
    assert not posterior.problem.has_data
    assert (posterior.problem.num_train, posterior.problem.num_classes) == (32, 2)
    assert posterior.warnings == []
    x = own_data.test.x
    assert torch.equal(posterior(x), pseudocore.infer(coreset, data=own_data, num_steps=3)(x))
    for ask in (
        lambda: posterior.problem.subset(torch.arange(2)),
        lambda: posterior.problem.dataset,
        lambda: posterior.problem.class_indices,
    ):
        with pytest.raises(DataError) as caught:
            ask()
        assert caught.value.code == "no-data"


def test_what_the_contract_says(runs: dict[str, Any], own_data: Dataset) -> None:
    contract = runs["psvi"].coreset.contract
    assert contract.to_table() == {
        "data": {
            "name": "mine", "shape": [3], "dtype": "float32", "num_classes": 2, "num_train": 32,
            "class_names": ["low", "high"], "fingerprint": own_data.fingerprint,
        },
        "model": {"model": "linear"},
        "preprocess": {"kind": "standard", "num_features": 3},
        "prior": contract.prior,
        "inference": {"inference": "hmc"},
        "temperature": 1.0,
        "likelihood": "categorical",
        "total_weight": pytest.approx(float(runs["psvi"].coreset.weight.sum())),
    }  # fmt: skip
    assert runs["vbpc"].coreset.contract.likelihood == "gaussian"
    assert torch.equal(contract.constants["mean"], own_data.train.x.double().mean(0).float())


@pytest.mark.parametrize("preprocess", ["none", "standard", "zca"])
def test_preprocessing_comes_with_the_points(
    pictures: Dataset, preprocess: str, tmp_path: Path
) -> None:
    run = pseudocore.reduce(
        "uniform",
        pictures,
        per_class=1,
        model="linear",
        preprocess=preprocess,
        out=tmp_path / "run",
    )
    problem = api.build_problem(load_coreset(tmp_path / "run"), needs_data=False)
    x = pictures.test.x
    assert torch.equal(problem.inputs(x), run.problem.inputs(x))
    back = problem.pixels(problem.inputs(x))
    assert torch.allclose(back, run.problem.as_pixels(x), atol=1e-5)
    # other preprocessing must be fitted, which takes data
    other = "zca" if preprocess == "standard" else "standard"
    assert api.build_problem(run.coreset, pictures, preprocess=other).preprocess is not None
    with pytest.raises(DataError) as caught:
        api.build_problem(run.coreset, needs_data=False, preprocess=other)
    assert caught.value.code == "no-data"


def test_scores_use_the_constants_of_the_contract(pictures: Dataset) -> None:
    """Not those of whatever data the coreset is tested on."""
    run = pseudocore.reduce("uniform", pictures, per_class=1, model="linear")
    darker = replace(pictures, train=pictures.train._replace(x=pictures.train.x // 3))
    problem = api.build_problem(run.coreset, darker)
    assert torch.equal(problem.inputs(pictures.test.x), run.problem.inputs(pictures.test.x))


def test_a_network_of_ones_own_must_be_given_again(own_data: Dataset, tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    run = pseudocore.reduce("uniform", own_data, per_class=2, model=net, out=tmp_path / "run")
    x = own_data.test.x
    with pytest.raises(ConfigError, match="if you trust it, give it yourself") as caught:
        pseudocore.infer(tmp_path / "run", num_steps=2)
    assert caught.value.code == "custom-model"
    alone = pseudocore.infer(tmp_path / "run", model=net, num_steps=2)
    assert torch.equal(alone(x), pseudocore.infer(run, num_steps=2)(x))


def test_files_without_a_contract_still_load(runs: dict[str, Any], tmp_path: Path) -> None:
    coreset = replace(runs["vbpc"].coreset, contract=None)
    save_coreset(tmp_path / "old.safetensors", coreset)
    old = load_coreset(tmp_path / "old.safetensors")
    assert old.contract is None
    with pytest.raises(DataError, match="unknown data set 'mine'"):
        pseudocore.infer(old)


# --- a stranger's file


def with_contract(path: Path, coreset: Coreset, table: Any, **tensors: Tensor) -> Path:
    """A coreset file whose contract is any JSON, under a right digest."""
    points = {"x": coreset.x, "y": coreset.y, "weight": coreset.weight}
    header = {"provenance": dict(coreset.provenance), "contract": table}
    write_tensors(path, {**points, **tensors}, kind="coreset", header=header)
    return path


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("inference", {"inference": "os:system"}),
        ("inference", {"inference": 5}),
        ("inference", {"inference": "sgd", "num_steps": "many"}),
        ("inference", "hmc"),
        ("model", {"model": "os:system"}),
        ("model", {"model": ["mlp"]}),
        ("model", {"model": "mlp", "width": "wide"}),
        ("preprocess", {"kind": "os:system"}),
        ("preprocess", {"kind": "zca"}),
        ("preprocess", {}),
        ("prior", {"scale": -1.0}),
        ("prior", {"scale": "large"}),
        ("likelihood", 3),
        ("data", {}),
    ],
)
def test_a_strangers_contract_is_refused_in_a_sentence(
    runs: dict[str, Any], tmp_path: Path, name: str, value: Any
) -> None:
    coreset = runs["vbpc"].coreset
    table = {**coreset.contract.to_table(), name: value}
    constants = {f"preprocess.{key}": one for key, one in coreset.contract.constants.items()}
    path = with_contract(tmp_path / "strange.safetensors", coreset, table, **constants)
    with pytest.raises(PseudocoreError) as caught:
        pseudocore.infer(path)
    assert len(str(caught.value)) > 20


def test_a_contract_for_other_shapes_is_refused(runs: dict[str, Any], tmp_path: Path) -> None:
    coreset = runs["vbpc"].coreset
    table = coreset.contract.to_table()
    table["data"]["shape"] = [4]
    constants = {
        f"preprocess.{key}": torch.cat([one, one[:1]])
        for key, one in coreset.contract.constants.items()
    }
    path = with_contract(tmp_path / "strange.safetensors", coreset, table, **constants)
    with pytest.raises(DataError) as caught:
        pseudocore.infer(path)
    assert caught.value.code == "coreset-shape"
    with pytest.raises(ArtifactError) as refused:
        pseudocore.infer(with_contract(path, coreset, table))
    assert refused.value.code == "invalid-contract"


# --- what is done otherwise


def test_another_inference_than_assumed_is_said(runs: dict[str, Any], own_data: Dataset) -> None:
    psvi, vbpc = runs["psvi"].coreset, runs["vbpc"].coreset
    psvi = psvi.with_provenance(mode_shift=0.1)  # as if it had converged
    hmc: dict[str, Any] = {"num_draws": 8, "num_burn": 2}
    (sentence,) = pseudocore.infer(psvi, "last-layer-vi", num_steps=1).notes
    assert sentence == (
        "psvi made these points for inference by hmc, with a categorical likelihood; this is by"
        " last-layer-vi"
    )
    assert pseudocore.infer(psvi, **hmc).notes == []
    assert pseudocore.infer(psvi, "hmc", prior="fan-in", prior_scale=2.0, **hmc).notes == []
    assert pseudocore.infer(psvi, "sghmc", num_draws=8).notes == []  # of the same posterior
    (sentence,) = pseudocore.infer(psvi, temperature=0.1, prior_scale=5.0, **hmc).warnings[:1]
    assert sentence == (
        "psvi made these points for the posterior under the fan-in prior of scale 2 at temperature"
        " 1; this is the one under the fan-in prior of scale 5 at temperature 0.1"
    )
    (sentence,) = pseudocore.infer(psvi, data=own_data, select="scale", **hmc).notes
    assert sentence.endswith("this is the one selected on training data (select = 'scale')")
    with pytest.raises(DataError) as caught:
        pseudocore.infer(psvi, select="scale", **hmc)
    assert caught.value.code == "no-data"
    assert pseudocore.infer(vbpc, "last-layer-vi", num_steps=1).notes == []
    assert "with a gaussian likelihood" in pseudocore.infer(vbpc, "sgd", num_steps=1).notes[0]
    uniform = pseudocore.reduce("uniform", "digits", per_class=1)
    assert pseudocore.infer(uniform, "sgd", num_steps=1).notes == []
