"""The class-incremental protocol: stages cover the classes once, memories keep their classes,
accuracy is of the seen classes.
"""

import pytest
import torch

from pseudocore.api import Reduction
from pseudocore.core.errors import ConfigError
from pseudocore.core.rng import Rng
from pseudocore.core.types import Coreset, Dataset, Examples
from pseudocore.data import digits
from pseudocore.reproduce.continual import continual, join, restrict, split_classes


@pytest.mark.parametrize(("num_classes", "num_stages"), [(10, 5), (10, 3), (100, 5), (7, 2)])
def test_stages_cover_every_class_once(num_classes: int, num_stages: int) -> None:
    stages = split_classes(num_classes, num_stages, Rng(0))
    assert sorted(label for stage in stages for label in stage) == list(range(num_classes))
    sizes = [len(stage) for stage in stages]
    assert len(stages) == num_stages
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 2
    assert stages != split_classes(num_classes, num_stages, Rng(1))


@pytest.mark.parametrize("num_stages", [0, 6])
def test_impossible_stages_are_refused(num_stages: int) -> None:
    with pytest.raises(ConfigError, match="1 to 5 stages"):
        split_classes(10, num_stages, Rng(0))


def test_restriction_keeps_images_and_renumbers_labels() -> None:
    data = digits()
    part = restrict(data, [7, 2])
    for split, whole in ((part.train, data.train), (part.test, data.test)):
        for new, old in ((0, 7), (1, 2)):
            assert torch.equal(split.x[split.y == new], whole.x[whole.y == old])
    assert part.class_names == (data.class_names[7], data.class_names[2])


def test_joined_memories_number_their_classes_on() -> None:
    first = Coreset(torch.zeros(2, 3), torch.tensor([0, 1]), torch.ones(2))
    soft = Coreset(torch.ones(2, 3), torch.tensor([[0.9, -0.1], [-0.4, 0.4]]), torch.ones(2))
    both = join(first, soft, offset=2)
    assert both.y.tolist() == [0, 1, 2, 3]
    assert both.x[:, 0].tolist() == [0, 0, 1, 1]


def _easy() -> Dataset:
    """Six classes, each a corner of feature space: a memory of two points a class suffices."""
    rng = Rng(0)
    y = torch.arange(6).repeat(20)
    x = 8 * torch.nn.functional.one_hot(y, 6).float() + 0.1 * rng.normal(120, 6)
    return Dataset("corners", Examples(x, y), Examples(x + 0.01, y), 6)


def test_an_easy_sequence_is_remembered_and_reproduced() -> None:
    setup = {
        "model": "linear",
        "preprocess": "none",
    }  # standardising would blow up the noise of the classes not yet seen
    reduction = Reduction.from_config(
        {"method": "uniform", "data": "corners", "setup": setup, "options": {"per_class": 2}}
    )
    arguments = {"num_stages": 3, "options": {"num_steps": 60, "step_size": 0.1}, "seeds": 2}
    stages = continual(reduction, _easy(), **arguments)
    assert [(s.seed, s.stage, s.num_classes, s.memory) for s in stages] == [
        (seed, n, 2 * n, 4 * n) for seed in (0, 1) for n in (1, 2, 3)
    ]
    assert all(stage.metrics["accuracy"] == 1.0 for stage in stages)
    assert continual(reduction, _easy(), **arguments) == stages
