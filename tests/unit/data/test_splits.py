"""The split covers everything once, keeps proportions and depends on nothing but its arguments."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pseudocore.core.errors import ConfigError
from pseudocore.data import split


@given(
    st.lists(st.integers(0, 4), min_size=2, max_size=60), st.floats(0.05, 0.95), st.integers(0, 3)
)
def test_split_is_a_partition_in_proportion(labels: list[int], fraction: float, seed: int) -> None:
    y = torch.tensor(labels)
    train, test = split(y, fraction, seed)
    assert sorted(train.tolist() + test.tolist()) == list(range(len(labels)))
    for label in set(labels):
        total, held_out = labels.count(label), int((y[test] == label).sum())
        assert held_out <= total - 1
        assert abs(held_out - fraction * total) < 1 or held_out == total - 1


def test_total_is_exact_where_rounding_each_class_would_not_be() -> None:
    y = torch.arange(10).repeat_interleave(
        7
    )  # 1.4 of each class: rounding gives 10, a fifth of 70 is 14
    assert len(split(y, 0.2)[1]) == 14


def test_split_is_a_function_of_the_seed_alone() -> None:
    y = torch.arange(3).repeat(40)
    first = split(y, 0.25, 1)[1]
    torch.manual_seed(5)
    torch.rand(3)
    assert torch.equal(first, split(y, 0.25, 1)[1])
    assert not torch.equal(first, split(y, 0.25, 2)[1])


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5, float("nan")])
def test_impossible_fraction_is_refused(fraction: float) -> None:
    with pytest.raises(ConfigError, match="between 0 and 1"):
        split(torch.tensor([0, 1]), fraction)
