"""The centre and scale of a fan-in prior, parameter by parameter."""

import pytest
import torch

from pseudocore.models.convnet import ConvNet
from pseudocore.models.dense import MLP


@pytest.mark.parametrize("init", ["torch", "lecun", "he", "flax"])
def test_a_convolutional_network(init: str) -> None:
    """Two blocks of 4 channels on 3×8×8: fan-in 27, then 36; norms around 1 and 0; a head on 4·2·2
    features.
    """
    model = ConvNet(width=4, depth=2, norm="instance", init=init).build((3, 8, 8), 5)  # type: ignore[arg-type]
    centre, scale = model.layer_scale(dtype=torch.float64)
    parts = [
        (4 * 27 + 4, 0, 27**-0.5),
        (4, 1, 1),
        (4, 0, 1),
        (4 * 36 + 4, 0, 36**-0.5),
        (4, 1, 1),
        (4, 0, 1),
        (5 * 16 + 5, 0, 16**-0.5),
    ]
    assert torch.equal(
        centre, torch.cat([torch.full((num,), c, dtype=torch.float64) for num, c, _ in parts])
    )
    assert torch.allclose(
        scale,
        torch.cat([torch.full((num,), s, dtype=torch.float64) for num, _, s in parts]),
        rtol=1e-6,
    )


def test_type_and_length() -> None:
    model = MLP(width=3, depth=1).build((2,), 2)
    centre, scale = model.layer_scale()
    assert centre.dtype == scale.dtype == torch.float32
    assert centre.shape == scale.shape == (model.num_parameters,)
