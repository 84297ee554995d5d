"""A mapping that cannot change: hashable, picklable and ordered, for fields of frozen profiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

V = TypeVar("V")


class FrozenMap(Mapping[str, V], Generic[V]):
    """An immutable mapping from str to V that keeps the order it was given.

    ``types.MappingProxyType`` would do, were it not that it can neither be pickled (profiles travel to worker
    processes) nor hashed. Two maps are equal when they hold the same items, whatever the order.
    """

    __slots__ = ("_items",)
    _items: dict[str, V]

    def __init__(self, items: Mapping[str, V]) -> None:
        object.__setattr__(self, "_items", dict(items))

    def __getitem__(self, key: str) -> V:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return f"FrozenMap({self._items!r})"

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a FrozenMap cannot change; build a new one to set {name!r}")

    def __reduce__(self) -> tuple[type[FrozenMap[V]], tuple[dict[str, V]]]:
        return type(self), (dict(self._items),)
