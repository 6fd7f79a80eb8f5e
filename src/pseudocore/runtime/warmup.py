"""A GPU's libraries, woken while the data are read.

torch loads cuDNN, cuBLAS and each kernel when it is first called, over half a second in all, for
which the first step would wait.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
import torch.nn.functional as F


@contextmanager
def waking(device: torch.device, *, reduced: bool = False) -> Iterator[None]:
    """Do what is inside; on a GPU a small network is passed through meanwhile, in bfloat16 if
    `reduced`, and is done afterwards.
    """
    if device.type != "cuda":
        yield
        return
    beside = threading.Thread(target=_if_there_is_room, args=(device, reduced), daemon=True)
    beside.start()
    try:
        yield
    finally:
        beside.join()


def pass_through(device: torch.device, reduced: bool) -> None:
    """Through a convolutional network of the usual size and back twice."""
    y = torch.zeros(64, dtype=torch.int64, device=device)
    x = (
        torch.zeros(64, 3, 32, 32, device=device)
        .contiguous(memory_format=torch.channels_last)
        .requires_grad_()
    )
    weights = [
        torch.zeros(128, channels, 3, 3, device=device, requires_grad=True)
        for channels in (3, 128, 128)
    ]
    head = torch.zeros(128 * 16, 10, device=device, requires_grad=True)
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=reduced):
        hidden = x
        for weight in weights:
            hidden = F.avg_pool2d(F.group_norm(F.conv2d(hidden, weight, padding=1), 128).relu(), 2)
        logits = hidden.flatten(1) @ head
    gradient = torch.autograd.grad(
        F.cross_entropy(logits.float(), y), [*weights, head], create_graph=True
    )
    torch.autograd.grad(torch.stack([part.square().sum() for part in gradient]).sum(), x)


def _if_there_is_room(device: torch.device, reduced: bool) -> None:
    with suppress(torch.OutOfMemoryError):  # the first step will tell, and in its own words
        pass_through(device, reduced)
