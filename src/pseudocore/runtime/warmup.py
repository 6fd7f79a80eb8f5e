"""A GPU's libraries, loaded while the data are read.

torch loads cuDNN, cuBLAS and each kernel when it is first called, over half a second in all, for
which the first step would wait.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
import torch.nn.functional as F


def import_ahead() -> None:
    """Import what torch imports at the first gradient, which takes seconds."""
    import torch._dynamo  # noqa: F401


@contextmanager
def warming_up(device: torch.device, *, reduced: bool = False) -> Iterator[None]:
    """On a GPU, pass through a small network in another thread meanwhile; in bfloat16 if
    `reduced`.
    """
    if device.type != "cuda":
        yield
        return
    thread = threading.Thread(target=_try_to_pass_through, args=(device, reduced), daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def pass_through(device: torch.device, reduced: bool) -> None:
    """Through a convolutional network of the usual size and back twice."""
    at: Any = {"device": device, "requires_grad": True}
    y = torch.zeros(64, dtype=torch.int64, device=device)
    x = torch.zeros(64, 3, 32, 32, **at).contiguous(memory_format=torch.channels_last)
    weights = [torch.zeros(128, channels, 3, 3, **at) for channels in (3, 128, 128)]
    head = torch.zeros(128 * 16, 10, **at)
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=reduced):
        hidden = x
        for weight in weights:
            hidden = F.avg_pool2d(F.group_norm(F.conv2d(hidden, weight, padding=1), 128).relu(), 2)
        logits = hidden.flatten(1) @ head
    loss = F.cross_entropy(logits.float(), y)
    gradient = torch.autograd.grad(loss, [*weights, head], create_graph=True)
    torch.autograd.grad(torch.stack([part.square().sum() for part in gradient]).sum(), x)


def _try_to_pass_through(device: torch.device, reduced: bool) -> None:
    with suppress(torch.OutOfMemoryError):  # the first step will report it
        pass_through(device, reduced)
