"""`torch.compile`, and what it raises."""

from collections.abc import Callable
from typing import Any

import torch

indivisible: list[Callable[..., Any]] = []
"""Functions with their own derivative. Left to itself the compiler looks inside and differentiates
anew, by additions in no fixed order.
"""


def region(function: Callable[..., Any]) -> Callable[..., Any]:
    """A pure function of tensors, compiled with the layout that matrix units read."""
    # torch would keep to channels last in simpler functions only
    options: Any = {"force_layout_optimization": torch.cuda.is_available()}
    return _compiled(function, options=options)


def step(function: Callable[..., Any]) -> Callable[..., Any]:
    """A whole step, compiled."""
    return _compiled(function)


def forget() -> None:
    """Drop what was compiled before: it counts against a limit and is not used again."""
    torch.compiler.reset()


def failures() -> tuple[type[Exception], ...]:
    """The errors of compiling, for an `except` clause; they take seconds to import."""
    import torch._dynamo.exc as dynamo
    import torch._inductor.exc as inductor

    # not all of them derive from the first
    return (
        dynamo.TorchDynamoException,
        dynamo.FailOnRecompileLimitHit,
        inductor.OperatorIssue,
        inductor.CppCompileError,
    )


def _compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    for one in indivisible:
        torch.compiler.allow_in_graph(one)  # type: ignore[no-untyped-call]
    return torch.compile(function, fullgraph=True, dynamic=False, **options)
