"""Pictures against pillow, the outside referee."""

import io

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pseudocore.core.errors import ConfigError, DataError
from pseudocore.store.export import encode_png, to_uint8


@given(
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    colour=st.booleans(),
    seed=st.integers(0, 9),
)
@settings(max_examples=40, deadline=None)
def test_pillow_reads_what_was_encoded(height: int, width: int, colour: bool, seed: int) -> None:
    shape = (height, width, 3) if colour else (height, width)
    image = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    with Image.open(io.BytesIO(encode_png(image))) as picture:
        picture.load()  # checks the sums of every chunk
        assert picture.mode == ("RGB" if colour else "L")
        assert np.array_equal(np.asarray(picture), image)


def test_a_transposed_view_is_encoded_as_it_looks() -> None:
    image = (
        np.arange(24, dtype=np.uint8).reshape(3, 2, 4).transpose(1, 2, 0)
    )  # (2, 4, 3), not contiguous
    with Image.open(io.BytesIO(encode_png(image))) as picture:
        assert np.array_equal(np.asarray(picture), image)


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((2, 2)),
        np.zeros((2, 2, 4), np.uint8),
        np.zeros(4, np.uint8),
        np.zeros((0, 3), np.uint8),
        np.zeros((1, 2, 2, 3), np.uint8),
    ],
)
def test_what_is_no_picture_is_refused(image: np.ndarray) -> None:
    with pytest.raises(DataError, match="a picture must be uint8"):
        encode_png(image)


def test_every_grey_level_survives_and_the_rest_is_clipped() -> None:
    levels = torch.arange(256, dtype=torch.uint8)
    assert np.array_equal(
        to_uint8((levels.float() / 255).reshape(1, 1, 16, 16)).reshape(-1), levels.numpy()
    )
    assert to_uint8(
        torch.tensor([-3.0, 1.5, 0.5 / 255 + 1e-4, 0.5 / 255 - 1e-4]).reshape(1, 1, 1, 4)
    ).tolist() == [[[0, 255, 1, 0]]]


def test_channels_go_last() -> None:
    x = torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(0)).double().requires_grad_()
    pictures = to_uint8(x)
    assert pictures.shape == (2, 4, 5, 3)
    assert pictures[1, 2, 3, 0] == round(x[1, 0, 2, 3].item() * 255)
    assert to_uint8(torch.zeros(2, 1, 4, 5, dtype=torch.bfloat16)).shape == (2, 4, 5)


@pytest.mark.parametrize("shape", [(2, 3), (2, 2, 4, 4), (3, 4, 4)])
def test_points_that_are_no_images_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="1 or 3 channels"):
        to_uint8(torch.zeros(shape))
