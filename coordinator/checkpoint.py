"""What a coordinator has kept when it comes back after a crash."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from edge.learning.base import Array, OptimizerState, State

_STATE = "state/"
_OPTIMIZER = "optimizer/"
_APPLIED = "applied"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The model after the last round that was applied, as bytes that nothing else shares."""

    content: bytes

    @classmethod
    def of(cls, state: State, optimizer_state: OptimizerState, applied: int) -> Checkpoint:
        """Return the checkpoint of a model after ``applied`` rounds."""
        named: dict[str, Array] = {_APPLIED: np.array(applied)}
        for prefix, arrays in ((_STATE, state), (_OPTIMIZER, optimizer_state)):
            named.update((prefix + name, array) for name, array in arrays.items())
        file = io.BytesIO()
        np.savez(file, **named)  # type: ignore[arg-type]  # names are never those of its own arguments
        return cls(file.getvalue())

    def restore(self) -> tuple[State, OptimizerState, int]:
        """Return what was kept: the model, the state of its optimizer, and how many rounds were applied."""
        with np.load(io.BytesIO(self.content), allow_pickle=False) as file:
            named: Mapping[str, Array] = {name: file[name] for name in file.files}
        found = {
            prefix: {name.removeprefix(prefix): a for name, a in named.items() if name.startswith(prefix)}
            for prefix in (_STATE, _OPTIMIZER)
        }
        return found[_STATE], found[_OPTIMIZER], int(named[_APPLIED])
