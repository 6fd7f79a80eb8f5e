"""The ready-made coresets: read, used where no data are, and as their cards say."""

from pathlib import Path
from typing import Any

import pytest
import torch

import pseudocore

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "coresets"
FILES = sorted(FOLDER.glob("*.safetensors"))
FEW: dict[str, dict[str, Any]] = {
    "hmc": {"num_draws": 3, "num_burn": 2, "num_leapfrog": 2, "num_chains": 1},
    "last-layer-vi": {"num_steps": 2},
}


def test_there_are_some() -> None:
    assert len(FILES) >= 4
    assert sum(file.stat().st_size for file in FILES) < 200_000


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_ready_made_coreset_can_be_used(file: Path) -> None:
    coreset = pseudocore.load(file)
    assert coreset.contract is not None
    assert float(coreset.weight.sum()) == pytest.approx(coreset.contract.total_weight)
    measured = coreset.provenance["fidelity"]
    assert 0 <= measured["fidelity_kl"] < 1
    card = file.with_suffix(".md").read_text(encoding="utf-8")
    assert f"{measured['fidelity_kl']:.6g}" in card
    assert f'pseudocore.load("{file.name}")' in card
    name = measured["inference"]
    prediction = pseudocore.infer(coreset, name, **FEW[name]).predict(coreset.x[:4])
    torch.testing.assert_close(prediction.probs.sum(-1), torch.ones(len(prediction.probs)))
