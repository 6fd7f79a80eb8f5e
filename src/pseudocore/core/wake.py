"""A GPU's libraries, woken while the data are read.

torch loads cuDNN, cuBLAS and each kernel when it is first called, over half a second in all, for which the first step would wait.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
import torch.nn.functional as F

__all__ = ["pass_through", "waking"]


@contextmanager
def waking(device: torch.device) -> Iterator[None]:
    """Do what is inside; on a GPU a small network is passed through meanwhile, and whoever goes on finds it done."""
    if device.type != "cuda":
        yield
        return
    beside = threading.Thread(target=_unless_it_fails, args=(device,), daemon=True)
    beside.start()
    try:
        yield
    finally:
        beside.join()


def pass_through(device: torch.device) -> None:
    """Through a convolutional network of the usual size and back twice, in float32 and in bfloat16."""
    y = torch.zeros(64, dtype=torch.int64, device=device)
    for reduced in (False, True):
        x = torch.zeros(64, 3, 32, 32, device=device).contiguous(memory_format=torch.channels_last).requires_grad_()
        weights = [torch.zeros(128, channels, 3, 3, device=device, requires_grad=True) for channels in (3, 128, 128)]
        head = torch.zeros(128 * 16, 10, device=device, requires_grad=True)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=reduced):
            hidden = x
            for weight in weights:
                hidden = F.avg_pool2d(F.group_norm(F.conv2d(hidden, weight, padding=1), 128).relu(), 2)
            logits = hidden.flatten(1) @ head
        gradient = torch.autograd.grad(F.cross_entropy(logits.float(), y), [*weights, head], create_graph=True)
        torch.autograd.grad(torch.stack([part.square().sum() for part in gradient]).sum(), x)


def _unless_it_fails(device: torch.device) -> None:
    with suppress(RuntimeError):  # no memory, say: the first step will tell
        pass_through(device)
