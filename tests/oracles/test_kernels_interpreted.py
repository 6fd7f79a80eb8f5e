"""The first block's kernels on a CPU, in Triton's interpreter: `pip install triton` to run this.

On a GPU `test_norm_pool_gpu.py` has the same comparison at every precision.
"""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="triton is not among what make test installs: 200 MB")

COMPARE = """
import json
import torch
import torch.nn.functional as F
from pseudocore.models._triton.first_block import first_block

torch.manual_seed(0)
errors = []
for images, padding, channels in (((2, 3, 8, 8), 1, 16), ((2, 1, 8, 8), 3, 32)):
    x = (torch.randn(*images) + 0.7).contiguous(memory_format=torch.channels_last)
    inputs = [x, torch.randn(channels, images[1], 3, 3) / 3, *torch.randn(2, channels)]
    found = [one.clone().requires_grad_() for one in inputs]
    exact = [one.double().requires_grad_() for one in inputs]
    x, kernel, weight, bias = exact
    normed = F.group_norm(F.conv2d(x, kernel, padding=padding), channels, weight, bias)
    theirs, ours = F.avg_pool2d(normed.relu(), 2), first_block(*found, padding, 1e-5)
    slope = torch.randn_like(ours)
    ours.backward(slope)
    theirs.backward(slope.double())
    pairs = [(ours, theirs), *((one.grad, other.grad) for one, other in zip(found, exact))]
    errors += [float((one - other).norm() / other.norm()) for one, other in pairs]
print(json.dumps(errors))
"""


def test_the_first_block_is_torchs_layers_and_their_gradients() -> None:
    result = subprocess.run(
        [sys.executable, "-c", COMPARE],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    errors = json.loads(result.stdout)
    assert len(errors) == 10
    assert max(errors) < 1e-5
