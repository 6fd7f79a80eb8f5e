"""`torch.compile`, and what it raises."""

from collections.abc import Callable
from typing import Any

import torch

INDIVISIBLE: list[Callable[..., Any]] = []
"""Functions with their own derivative. Left to itself the compiler looks inside and differentiates
anew, by additions in no fixed order.
"""


def region(function: Callable[..., Any]) -> Callable[..., Any]:
    """A pure function of tensors, compiled."""
    # torch would keep to channels last, which matrix units read, in simpler functions only
    return _compiled(function, {"force_layout_optimization": torch.cuda.is_available()})


def step(function: Callable[..., Any]) -> Callable[..., Any]:
    """A whole step, compiled."""
    return _compiled(function, None)


def forget() -> None:
    """Drop what was compiled before: it counts against a limit and is not used again."""
    torch.compiler.reset()


def failures() -> tuple[type[Exception], ...]:
    """The errors of compiling, for an `except` clause; they take seconds to import."""
    import torch._dynamo.exc as dynamo
    import torch._inductor.exc as inductor

    special = dynamo.FailOnRecompileLimitHit, inductor.OperatorIssue, inductor.CppCompileError
    return dynamo.TorchDynamoException, *special


def _compiled(function: Callable[..., Any], options: Any) -> Callable[..., Any]:
    for one in INDIVISIBLE:
        torch.compiler.allow_in_graph(one)  # type: ignore[no-untyped-call]
    return torch.compile(function, fullgraph=True, dynamic=False, options=options)
