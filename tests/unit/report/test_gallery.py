"""Which points of a coreset are shown, and what is said about the others."""

import pytest
import torch

from pseudocore.core.types import Coreset
from pseudocore.report.gallery import MAX_SHOWN, show


def pictures(labels: list[int], values: torch.Tensor | None = None) -> Coreset:
    x = torch.full((len(labels), 1, 2, 2), 0.5) if values is None else values
    return Coreset(x, torch.tensor(labels), torch.ones(len(labels)))


@pytest.mark.parametrize(
    ("labels", "names", "shown", "notes"),
    [
        (
            [label for label in range(10) for _ in range(50)],
            [],
            {str(label): 10 for label in range(10)},
            ["Showing 100 of 500 points, at most 10 of a class."],
        ),
        (
            list(range(250)),
            [],
            {str(label): 1 for label in range(MAX_SHOWN)},
            ["Showing 100 of 250 points, at most 1 of a class."],
        ),
        ([1, 0, 1], ["no", "yes"], {"no": 1, "yes": 2}, []),
        ([-1, 0, 7], ["zero"], {"-1": 1, "zero": 1, "7": 1}, []),
    ],
    ids=["large", "many classes", "small", "labels without a name"],
)
def test_pictures_are_shown_evenly_by_class(
    labels: list[int], names: list[str], shown: dict[str, int], notes: list[str]
) -> None:
    got = show(pictures(labels), names)
    assert {name: len(own) for name, own in got.pictures.items()} == shown
    assert got.notes == notes
    assert got.is_tiles == (set(shown.values()) == {1})


def test_pixels_out_of_range_are_counted() -> None:
    values = torch.tensor([[-1.0, 0.5], [0.5, 2.0]]).reshape(1, 1, 2, 2)
    assert show(pictures([0], values), []).notes == [
        "50.0% of the pixel values lie outside [0, 1] and are shown as black or white."
    ]


@pytest.mark.parametrize("shape", [(12, 4, 2, 2), (12, 3), (12, 5, 5)])
def test_points_that_are_no_pictures_become_numbers(shape: tuple[int, ...]) -> None:
    x = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    got = show(Coreset(x, torch.arange(12) % 2, torch.ones(12)), [])
    assert got.pictures == {}
    assert got.numbers is not None
    assert {len(row) for row in got.numbers.rows} == {len(got.numbers.head)}
    assert [row[0] for row in got.numbers.rows] == ["0"] * 5 + ["1"] * 5 + ["…"]
    assert got.numbers.rows[1][1] == f"{float(x.flatten(1)[2, 0]):.3g}"
    assert (got.numbers.head[-1] == "…") == (x[0].numel() > 8)


def test_stored_bytes_are_shown_as_they_are() -> None:
    def source(x: torch.Tensor) -> str:
        return show(pictures([0], x), []).pictures["0"][0].source

    grey = source(torch.full((1, 1, 2, 2), 128, dtype=torch.uint8))
    assert grey == source(torch.full((1, 1, 2, 2), 128 / 255))
    assert grey != source(torch.full((1, 1, 2, 2), 255, dtype=torch.uint8))
