"""The last of what happened in a run, each with why: of a log without end, the tail."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Final

KEPT: Final = 200
"""Entries that are kept; how many there were in all is counted."""
_MOST_CHARACTERS: Final = 200
"""Of what a peer may have written."""


@dataclass(frozen=True, slots=True)
class Happening:
    """An entry.

    Attributes
    ----------
    number : counted from 1 over the whole run.
    version : of the state that it came with.
    kind : ``drop``, ``round``, ``join``, ``resume``, ``disconnect``, ``leave``, ``refusal`` or
        ``suspension``.
    reason : why, in a few words.
    round_number, device, stage : where that is known.
    note : what else is known.
    """

    number: int
    version: int
    kind: str
    reason: str
    round_number: int | None
    device: int | None
    stage: str | None
    note: str

    def record(self) -> dict[str, Any]:
        """Return it as a mapping of JSON types."""
        return {
            "number": self.number,
            "kind": self.kind,
            "reason": self.reason,
            "round": self.round_number,
            "device": self.device,
            "stage": self.stage,
            "note": self.note,
        }


class Happenings:
    """The last entries, and how many there were."""

    def __init__(self) -> None:
        self.total = 0
        self._kept: deque[Happening] = deque(maxlen=KEPT)

    def add(
        self,
        version: int,
        kind: str,
        reason: str,
        *,
        round_number: int | None = None,
        device: int | None = None,
        stage: str | None = None,
        note: str = "",
    ) -> None:
        """Append an entry; the oldest goes if there are too many."""
        self.total += 1
        self._kept.append(
            Happening(
                self.total,
                version,
                kind,
                reason[:_MOST_CHARACTERS],
                round_number,
                device,
                stage,
                note[:_MOST_CHARACTERS],
            )
        )

    def skip(self, number: int) -> None:
        """Count entries that are not worth making: as many come after them as are kept."""
        self.total += number

    def since(self, version: int) -> list[dict[str, Any]]:
        """Return the entries that came after a version, the oldest first."""
        return [one.record() for one in self._kept if one.version > version]
