"""`pseudocore.fidelity`: the distance of a coreset's predictions from those of all data."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import pseudocore
from pseudocore.core.errors import ArtifactError, ConfigError
from pseudocore.core.types import Coreset, Dataset, Examples
from pseudocore.testing import few_digits
from pseudocore.workflows import references

SHORT: dict[str, Any] = {"num_burn": 30, "num_draws": 20, "num_chains": 2, "num_leapfrog": 8}
LINEAR = {"model": "linear"}


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(references.OPTIONS, "hmc", SHORT)


@pytest.fixture(scope="module")
def data() -> Dataset:
    return few_digits()


@pytest.fixture(scope="module")
def few(data: Dataset) -> Coreset:
    run = pseudocore.reduce("uniform", data, model="linear", per_class=1, weighting="mass")
    return run.coreset


def fidelity(coreset: Coreset, data: Dataset, **options: Any) -> pseudocore.Fidelity:
    given = {"inference": "hmc", "model": "linear", **SHORT, **options}
    return pseudocore.fidelity(coreset, data, **given)


def test_full_data_are_at_the_floor_and_a_few_points_are_not(data: Dataset, few: Coreset) -> None:
    """Fits of the same posterior with other seeds: pairs of a reference's fit and its own are as
    far apart as two of the reference's."""
    full = pseudocore.reduce("full", data, model="linear").coreset
    own, other = fidelity(full, data, seeds=3), fidelity(few, data)
    assert own.kl == pytest.approx(own.floor_kl, rel=0.3)
    assert own.tv == pytest.approx(own.floor_tv, rel=0.2)
    assert other.floor_kl == pytest.approx(own.floor_kl)  # the reference is the same
    assert other.kl > 3 * own.kl
    assert other.tv > 2 * own.tv
    ranks = [own.metrics[f"fidelity_{name}entropy_correlation"]["mean"] for name in ("", "floor_")]
    assert ranks[0] == pytest.approx(ranks[1], abs=0.1)
    low, high = own.intervals["nll_gap"]
    assert low < own.metrics["fidelity_nll_gap"]["mean"] < high
    assert "2 × 40 draws" in own.reference
    assert own.floor_of == "fits"


def test_as_a_mapping_a_table_and_a_flat_object(data: Dataset, few: Coreset) -> None:
    found = fidelity(few, data, seeds=1)
    assert found["reference"] == found.reference
    assert set(found) == set(found.to_dict())
    assert "on" not in found
    flat = found.flat()
    names = ("kl", "reverse_kl", "tv", "agreement", "floor_kl", "floor_tv", "nll_gap_low")
    assert all(math.isfinite(flat[f"fidelity_{name}"]) for name in names)
    lines = found.table().splitlines()
    assert lines[0].startswith("KL to full ↓")
    assert "floor" in lines[0]
    assert f"{found.kl:.4f}".lstrip("0") in lines[0]
    assert "Fidelity(hmc on few-digits: KL" in repr(found)
    summary = found.summary()
    assert summary["on"] == "test"
    assert summary["fidelity_kl"] == found.kl


def test_by_default_the_same_inference_on_all_data(data: Dataset, few: Coreset) -> None:
    options = {"num_steps": 3, "logit_scale": 4.0}
    own = pseudocore.fidelity(few, data, model="linear", inference="last-layer-vi", **options)
    assert own.reference.startswith("last-layer-vi on all 120 training points")
    assert own.against is None
    against = pseudocore.fidelity(
        few, data, model="linear", inference="last-layer-vi", reference="hmc", **options
    )
    assert against.reference.startswith("hmc on all 120")
    assert against.against == "hmc"
    assert against.kl != own.kl
    assert few.contract is not None
    contract = replace(few.contract, inference={"inference": "last-layer-vi", **options})
    stored = replace(few, contract=contract)
    assert pseudocore.fidelity(stored, data, model="linear").kl == own.kl


def test_inputs_to_compare_on(data: Dataset, few: Coreset) -> None:
    assert few.indices is not None
    on_test = fidelity(few, data, seeds=1)
    held_out = fidelity(few, data, on="held-out", seeds=1)
    assert held_out.num_inputs == data.train.x.shape[0] - len(few)
    assert held_out.on == "held-out"
    corrupted = fidelity(few, data, on="corrupted", seeds=1)
    assert corrupted.num_inputs == 15 * len(data.test.y)
    assert len({on_test.kl, held_out.kl, corrupted.kl}) == 3
    noise = torch.randint(0, 255, (30, *data.shape), dtype=torch.uint8)
    shape = Examples(noise, torch.arange(30) % 10)
    other = Dataset("noise", data.train, shape, 10)
    elsewhere = fidelity(few, data, on=other, seeds=1)
    assert elsewhere.on == "noise"
    assert "fidelity_nll_gap" not in elsewhere.metrics  # its labels are others
    with pytest.raises(ConfigError) as error:
        fidelity(few, data, on="train", seeds=1)
    assert error.value.code == "unknown-inputs"


def test_a_reference_is_given_by_file_or_object(
    data: Dataset, few: Coreset, tmp_path: Path
) -> None:
    kept: list[Any] = []
    made = fidelity(few, data, seeds=1, on_reference=kept.append)
    path = tmp_path / "full.safetensors"
    references.save(path, kept[0])
    assert fidelity(few, data, seeds=1, reference=path).kl == made.kl
    assert fidelity(few, data, seeds=1, reference=kept[0]).kl == made.kl
    half = replace(kept[0], fits=kept[0].fits[:1])
    alone = fidelity(few, data, seeds=1, reference=half)
    assert alone.floor_of == "halves"
    assert alone.floor_kl > 0
    with pytest.raises(ArtifactError) as error:
        fidelity(few, data, seeds=1, reference=path, model="mlp")
    assert error.value.code == "other-reference"


def test_evaluations_carry_it(data: Dataset, few: Coreset) -> None:
    found = pseudocore.evaluate(
        few, data, model="linear", inference="hmc", seeds=2, fidelity=True, **SHORT
    )
    alone = fidelity(few, data)
    assert found.metrics["fidelity_kl"]["mean"] == pytest.approx(alone.kl)
    assert found.metrics["fidelity_floor_tv"]["mean"] == pytest.approx(alone.floor_tv)
    assert found.reference == alone.reference
    without = pseudocore.evaluate(few, data, model="linear", inference="hmc", seeds=1, **SHORT)
    assert "fidelity_kl" not in without.metrics
    assert without.reference is None
