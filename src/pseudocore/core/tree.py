"""States as flat dicts: a nested NamedTuple of tensors under dotted names, and back."""

from collections.abc import Mapping
from typing import Any, TypeVar

from torch import Tensor

from pseudocore.core.errors import RunError

S = TypeVar("S")


def flatten(state: Any, prefix: str = "") -> dict[str, Tensor]:
    """Tensors of a nested NamedTuple under dotted names."""
    flat: dict[str, Tensor] = {}
    for name, value in state._asdict().items():
        if isinstance(value, Tensor):
            flat[prefix + name] = value
        else:
            flat |= flatten(value, f"{prefix}{name}.")
    return flat


def unflatten(template: S, tensors: Mapping[str, Tensor]) -> S:
    """The inverse of `flatten`, copied into the structure and devices of `template`."""
    wanted = flatten(template)
    differing = [
        name
        for name in wanted.keys() | tensors.keys()
        if not _agree(wanted.get(name), tensors.get(name))
    ]
    if differing:
        raise RunError(
            f"the checkpoint does not fit this method and problem (it differs in {', '.join(sorted(differing)[:4])}); "
            "resume with the configuration that made it, or start again with --overwrite"
        )

    def rebuild(part: Any, prefix: str) -> Any:
        values = {
            name: tensors[prefix + name].to(value.device, copy=True)
            if isinstance(value, Tensor)
            else rebuild(value, f"{prefix}{name}.")
            for name, value in part._asdict().items()
        }
        return type(part)(**values)

    return rebuild(template, "")  # type: ignore[no-any-return]


def clone(state: S) -> S:
    return unflatten(state, flatten(state))


def _agree(one: Tensor | None, other: Tensor | None) -> bool:
    return (
        one is not None
        and other is not None
        and one.shape == other.shape
        and one.dtype == other.dtype
    )
