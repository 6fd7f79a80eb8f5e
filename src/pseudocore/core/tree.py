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
    """The inverse of `flatten`: copies, in the structure and on the devices of `template`."""
    kinds, given = _kinds(flatten(template)), _kinds(tensors)
    differing = sorted(
        name for name in kinds.keys() | given.keys() if kinds.get(name) != given.get(name)
    )
    if differing:
        raise RunError(
            f"the checkpoint does not fit this method and problem (it differs in "
            f"{', '.join(differing[:4])}); resume with the configuration that made it, or start "
            "again with --overwrite",
            code="checkpoint-mismatch",
            differing=differing,
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


def _kinds(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: (value.shape, value.dtype) for name, value in tensors.items()}
