"""What the results of evaluating have in common: a mapping of plain values, ready for JSON."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any


class Result(Mapping[str, Any]):
    """A result that is read by attribute, or as the mapping that `to_dict` gives."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""

    def __getitem__(self, name: str) -> Any:
        return self.to_dict()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_dict())

    def __len__(self) -> int:
        return len(self.to_dict())
