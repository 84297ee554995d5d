"""Crashes of the coordinator: how long it is away, their rows, and the checkpoint on its disk."""

from __future__ import annotations

import asyncio
import io
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from coordinator.engine.backend import Clock
from coordinator.engine.facts import FaultStrike
from coordinator.engine.run_files import write_atomically
from coordinator.scenario.schema import ScenarioSettings
from edge.learning.base import OptimizerState, State
from edge.learning.updates import Array

CHECKPOINT: Final = "checkpoint.npz"
"""The file in the directory of a run whose coordinator may crash."""
_STATE = "state/"
_OPTIMIZER = "optimizer/"
_APPLIED = "applied"


class Crashes:
    """The crashes of one run.

    Parameters
    ----------
    scenario : whose faults they are.
    """

    def __init__(self, scenario: ScenarioSettings) -> None:
        self._scenario = scenario
        self._down_until_s = -math.inf
        self._strikes: dict[int, list[FaultStrike]] = {}
        """By the round that was under way, or was next."""

    def note(self, fault: int, number: int, now_s: float, down_s: float) -> None:
        """Record that ``fault`` has the coordinator crash in round ``number``, or before it."""
        self._down_until_s = max(self._down_until_s, now_s + down_s)
        section = self._scenario.faults[fault]
        strike = FaultStrike(section.name, section.key, None, None, now_s, now_s, 1)
        self._strikes.setdefault(number, []).append(strike)

    async def until_up(self, loop: Clock) -> None:
        """Wait until the coordinator is back."""
        while loop.now_s < self._down_until_s:
            await asyncio.sleep(self._down_until_s - loop.now_s)

    def of_round(self, number: int) -> list[FaultStrike]:
        """Return the crashes of round ``number``, and keep them no longer."""
        return self._strikes.pop(number, [])

    def untold(self) -> list[tuple[int, list[FaultStrike]]]:
        """Return the crashes that no row has yet, each with its round."""
        return sorted(self._strikes.items())


class Checkpoint:
    """The model after the last round that was applied, in a file that is whole at any moment.

    Parameters
    ----------
    path : where it lies; what is there is kept until something is saved.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def save(self, state: State, optimizer_state: OptimizerState, applied: int) -> None:
        """Keep a model after ``applied`` rounds in place of what was kept before."""
        named: dict[str, Array] = {_APPLIED: np.array(applied)}
        for prefix, arrays in ((_STATE, state), (_OPTIMIZER, optimizer_state)):
            named.update((prefix + name, array) for name, array in arrays.items())
        write_atomically(self._path, npz_bytes(named))

    def restore(self) -> tuple[State, OptimizerState, int]:
        """Return what was kept: the model, the state of its optimizer, and how many rounds were applied."""
        with np.load(self._path, allow_pickle=False) as file:
            named = {name: file[name] for name in file.files}
        found = {
            prefix: {name.removeprefix(prefix): a for name, a in named.items() if name.startswith(prefix)}
            for prefix in (_STATE, _OPTIMIZER)
        }
        return found[_STATE], found[_OPTIMIZER], int(named[_APPLIED])


def npz_bytes(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Return the bytes of an ``.npz`` file that ``numpy.load`` reads; names sorted, no time of day in it."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(arrays):
            one = io.BytesIO()
            np.lib.format.write_array(one, np.asarray(arrays[name], order="C"), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0)), one.getvalue())
    return whole.getvalue()
