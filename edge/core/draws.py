"""Random settings of one part of a scenario, from a named stream of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from edge.core.rng import stream

T = TypeVar("T")


class Draws:
    """Draws from the stream ``names`` under ``seed``; see :func:`edge.core.rng.stream`."""

    def __init__(self, seed: int, *names: str | int) -> None:
        self._generator = stream(seed, "swarm", *names)

    def chance(self, probability: float) -> bool:
        """Return True with a probability."""
        return bool(self._generator.random() < probability)

    def whole(self, least: int, most: int) -> int:
        """Return a whole number, both ends included."""
        return int(self._generator.integers(least, most + 1))

    def between(self, least: float, most: float) -> float:
        """Return a number of three digits, uniform in its logarithm."""
        return float(f"{least * (most / least) ** self._generator.random():.3g}")

    def percent(self, least: float, most: float) -> str:
        """Return a share between two as a percentage, as :meth:`between` draws it."""
        return f"{self.between(least, most) * 100:.4g}%"

    def seconds(self, least: float, most: float) -> str:
        """Return a duration between two numbers of seconds, as :meth:`between` draws it."""
        return f"{self.between(least, most):.4g} s"

    def one(self, options: Sequence[T]) -> T:
        """Return one of ``options``, all as likely."""
        return options[self.whole(0, len(options) - 1)]

    def weighted(self, options: Mapping[T, float]) -> T:
        """Return one of ``options`` by their weights."""
        point = self._generator.random() * sum(options.values())
        for option, weight in options.items():
            point -= weight
            if point < 0:
                return option
        return option

    def some(self, options: Sequence[T], count: int) -> list[T]:
        """Return ``count`` different ones of ``options``, in their order."""
        chosen = sorted(self._generator.permutation(len(options))[:count].tolist())
        return [options[index] for index in chosen]
