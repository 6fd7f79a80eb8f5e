"""References: made once, cached, saved and loaded, supplied to methods that need one."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from pseudocore import dataset
from pseudocore.assembly import Reduction, Setup
from pseudocore.core.errors import ArtifactError, ConfigError
from pseudocore.core.likelihood import Gaussian
from pseudocore.core.problem import GaussianPrior, Problem
from pseudocore.core.registry import methods
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, NeedsReference
from pseudocore.methods.bayes.vbpc import VBPC
from pseudocore.models.dense import Linear
from pseudocore.store.cache import CacheFolder
from pseudocore.testing import small_problem
from pseudocore.workflows import references
from pseudocore.workflows.reduction import run_reduction

SHORT: dict[str, Any] = {"num_burn": 10, "num_draws": 8, "num_chains": 2, "num_leapfrog": 3}


@pytest.fixture
def problem(tmp_path: Path) -> Problem:
    return replace(small_problem(model=Linear()), cache=CacheFolder(tmp_path / "cache"))


def test_fits_are_independent_and_repeatable(problem: Problem) -> None:
    own = references.reference(problem, "hmc", **SHORT)
    first, second = (fit.thetas for fit in own.fits)
    assert first is not None
    assert second is not None
    assert first.shape == (16, problem.model.num_parameters)
    assert not torch.equal(first, second)
    assert torch.equal(own.thetas, torch.cat([first, second]))
    again = references.reference(replace(problem, cache=None), "hmc", **SHORT)
    assert torch.equal(again.thetas, own.thetas)
    for seed, role in ((1, "measure"), (0, "learn")):
        other = references.reference(problem, "hmc", seed=seed, role=role, **SHORT)  # type: ignore[arg-type]
        assert not torch.equal(other.thetas, own.thetas)


def test_a_reference_is_made_once(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    own = references.reference(problem, "hmc", **SHORT)
    monkeypatch.setattr(references, "_make", None)
    assert len(references.reference(problem, "hmc", num_fits=1, **SHORT).fits) == 1
    again = references.reference(problem, "hmc", **SHORT)
    assert torch.equal(again.thetas, own.thetas)
    assert again.label == own.label
    assert again.diagnostics == own.diagnostics
    other_prior = replace(problem, prior=GaussianPrior(3.0))
    with pytest.raises(TypeError):
        references.reference(other_prior, "hmc", **SHORT)


def test_a_killed_reference_is_resumed_after_its_last_fit(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = references.reference(replace(problem, cache=None), "hmc", **SHORT)
    make, made = references._make, []

    def killed(*given: Any) -> Any:
        made.append(given[-1])
        if len(made) == 2:
            raise KeyboardInterrupt
        return make(*given)

    monkeypatch.setattr(references, "_make", killed)
    with pytest.raises(KeyboardInterrupt):
        references.reference(problem, "hmc", **SHORT)
    resumed = references.reference(problem, "hmc", **SHORT)
    assert made == [0, 1, 1]
    assert torch.equal(resumed.thetas, whole.thetas)
    assert repr((resumed.diagnostics, resumed.warnings)) == repr(
        (whole.diagnostics, whole.warnings)
    )


def test_numbers_of_the_likelihood_and_precision_make_other_references(problem: Problem) -> None:
    data = dataset(torch.randn(8, 2), torch.randn(8), name="numbers")
    numbers = [
        replace(problem, data=data, likelihood=Gaussian(noise=noise), precision=precision)
        for noise, precision in ((1.0, "float32"), (2.0, "float32"), (1.0, "bf16"))
    ]
    about = [
        references._description(one, references._built("hmc", SHORT), 0, "measure")
        for one in numbers
    ]
    assert about[0] not in about[1:]
    assert about[1] != about[2]


def test_predictions_are_those_of_the_draws(problem: Problem) -> None:
    own = references.reference(problem, "hmc", **SHORT)
    raw = problem.data.test.x
    for fit, found in zip(own.fits, own.log_probs(raw), strict=True):
        assert fit.thetas is not None
        each = problem.model.logits(fit.thetas, problem.inputs(raw)).softmax(-1)
        torch.testing.assert_close(found.exp(), each.double().mean(0), rtol=1e-4, atol=1e-6)
    elsewhere = own.log_probs(raw[:5])  # not stored: predicted from the draws
    torch.testing.assert_close(elsewhere[0], own.log_probs(raw)[0][:5], rtol=1e-4, atol=1e-5)


def test_without_draws_there_are_predictions(problem: Problem) -> None:
    own = references.reference(problem, "last-layer-vi", num_steps=2)
    assert own.fits[0].thetas is None
    assert len(own.fits[0].log_probs) == 2
    stored = own.log_probs(problem.data.test.x)[1]
    refitted = own.log_probs(problem.data.test.x[:5])[1]
    torch.testing.assert_close(refitted, stored[:5], rtol=1e-4, atol=1e-5)
    each = own.log_probs(problem.data.train.x)
    mean = torch.stack([one.exp() for one in each]).mean(0)
    torch.testing.assert_close(own.train_log_probs.exp().double(), mean, rtol=1e-4, atol=1e-6)
    with pytest.raises(ConfigError) as error:
        _ = own.thetas
    assert error.value.code == "no-draws"


def test_a_file_holds_all_of_it(problem: Problem, tmp_path: Path) -> None:
    own = references.reference(problem, "hmc", **SHORT)
    path = tmp_path / "reference.safetensors"
    references.save(path, own)
    found = references.load(path, problem)
    assert torch.equal(found.thetas, own.thetas)
    assert found.label == own.label
    assert found.options == own.options
    assert torch.equal(
        found.log_probs(problem.data.test.x)[0], own.log_probs(problem.data.test.x)[0]
    )
    with pytest.raises(ArtifactError) as error:
        references.load(path, replace(problem, prior=GaussianPrior(3.0)))
    assert error.value.code == "other-reference"
    assert error.value.fields["differing"] == ["prior"]
    damaged = bytearray(path.read_bytes())
    damaged[-3] ^= 1
    path.write_bytes(bytes(damaged))
    with pytest.raises(ArtifactError) as error:
        references.load(path, problem)
    assert error.value.code == "damaged-file"


def test_larger_work_gets_a_cheaper_inference(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    num = problem.model.num_parameters - 10  # no multiplication for a bias
    assert references.work_per_pass(problem) == problem.num_train * num
    assert references.affordable(problem) == "hmc"
    monkeypatch.setattr(references, "MAX_WORK", {"hmc": 1.0, "sghmc": 1e9})
    assert references.affordable(problem) == "sghmc"
    monkeypatch.setattr(references, "MAX_WORK", {"hmc": 1.0, "sghmc": 1.0})
    assert references.affordable(problem) == "ensemble"


@dataclass(frozen=True, kw_only=True)
class FirstDraw:
    """Points where the first draw of a reference says so; for the test below."""

    needs_reference: ClassVar[bool] = True

    def select(self, problem: Problem, rng: Rng) -> Coreset:
        assert problem.reference is not None
        index = problem.reference.thetas[0].abs().argsort()[:3] % problem.num_train
        return problem.subset(index.cpu())


def test_a_method_that_needs_a_reference_is_given_one(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    for table, value in (("_entries", None), ("_classes", FirstDraw)):
        monkeypatch.setitem(getattr(methods, table), "first-draw", value)
    monkeypatch.setitem(references.OPTIONS, "hmc", SHORT)
    assert isinstance(FirstDraw(), NeedsReference)
    reduction = Reduction(FirstDraw(), Setup(data="few-digits", model="linear"))
    outcome = run_reduction(reduction, problem)
    expected = references.reference(problem, role="learn")
    assert outcome.coreset.provenance["learned_from"] == expected.label
    index = expected.thetas[0].abs().argsort()[:3] % problem.num_train
    assert torch.equal(outcome.coreset.indices, index)  # type: ignore[arg-type]


def test_a_method_may_name_the_inference_it_learns_from(problem: Problem) -> None:
    method = VBPC(match="posterior")
    given = references.with_reference(problem, method).reference
    assert given is not None
    assert given.label.startswith("last-layer-vi on all 120 training points")
    assert references.with_reference(problem, VBPC()) is problem
