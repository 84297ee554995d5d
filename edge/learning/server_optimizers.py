"""Optimisers of the coordinator: how the mean client update changes the global model.

The mean update Δ is taken as a descent direction, −Δ standing for the gradient (Reddi et al. 2021,
"Adaptive Federated Optimization", algorithm 2; McMahan et al. 2017 is plain SGD with rate 1). Unlike that
algorithm, Adam here corrects its bias as Kingma and Ba 2015 do, so that the first rounds are not slow.

The optimiser's state is a flat dictionary of arrays, so that it can be stored with the model.

Momentum and Adam move every row in every round, also those without an update. Large tables are therefore gone
through a block of rows at a time: what is computed on the way remains in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from device_profiles.fields import (
    ByKey,
    Fraction,
    NonNegativeFloat,
    PositiveFloat,
    PositiveFraction,
    PositiveInt,
)
from edge.learning.method_settings import MethodSettings
from edge.learning.tables import TableRows

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]
Changes = Mapping[str, Array | TableRows]
"""Mean updates by name, in the shapes of the parameters."""
_BLOCK_NUMBERS: Final = 1 << 17
"""Numbers of a table in a block."""


def _blocks(array: Array, change: Array | TableRows) -> Iterator[tuple[slice, Array]]:
    """Yield blocks of the rows of a table [rows, …], and what ``change``, of the same shape, has there."""
    n = len(array)
    step = max(1, _BLOCK_NUMBERS * n // max(1, array.size))
    for first in range(0, n, step):
        block = slice(first, min(first + step, n))
        if isinstance(change, TableRows):
            yield block, change.part(block.start, block.stop)
        else:
            yield block, change[block]


class ConstantSchedule(MethodSettings):
    """The same learning rate in every round."""

    kind: Literal["constant"] = "constant"

    def factor(self, round_number: int) -> float:
        """Return what the learning rate is multiplied by in ``round_number``, counted from 0."""
        return 1.0


class InverseTimeSchedule(MethodSettings):
    """Rate / (1 + round / half_after): half the rate after that many rounds, a third after twice as many."""

    kind: Literal["inverse-time"]
    half_after: PositiveInt = Field(description="rounds after which the rate has halved")

    def factor(self, round_number: int) -> float:
        """Return what the learning rate is multiplied by in ``round_number``, counted from 0."""
        return 1.0 / (1.0 + round_number / self.half_after)


class StepSchedule(MethodSettings):
    """The rate is multiplied by ``factor_per_step`` every ``every`` rounds."""

    kind: Literal["step"]
    every: PositiveInt = Field(description="rounds from one drop to the next")
    factor_per_step: PositiveFraction = Field(
        default=0.5, description="what each drop multiplies the rate by"
    )

    def factor(self, round_number: int) -> float:
        """Return what the learning rate is multiplied by in ``round_number``, counted from 0."""
        return float(self.factor_per_step ** (round_number // self.every))


class ExponentialSchedule(MethodSettings):
    """The rate is multiplied by ``factor_per_round`` every round."""

    kind: Literal["exponential"]
    factor_per_round: PositiveFraction = Field(description="what each round multiplies the rate by")

    def factor(self, round_number: int) -> float:
        """Return what the learning rate is multiplied by in ``round_number``, counted from 0."""
        return float(self.factor_per_round**round_number)


class CosineSchedule(MethodSettings):
    """Half a cosine from the full rate to ``final`` times it over ``rounds`` rounds, constant afterwards."""

    kind: Literal["cosine"]
    rounds: PositiveInt = Field(description="rounds until the lowest rate")
    final: Fraction = Field(default=0.0, description="the lowest rate as a fraction of the full one")

    def factor(self, round_number: int) -> float:
        """Return what the learning rate is multiplied by in ``round_number``, counted from 0."""
        progress = min(round_number / self.rounds, 1.0)
        return self.final + (1.0 - self.final) * 0.5 * (1.0 + math.cos(math.pi * progress))


Schedule = Annotated[
    ConstantSchedule | InverseTimeSchedule | StepSchedule | ExponentialSchedule | CosineSchedule,
    ByKey("kind"),
    Field(description="how the server learning rate changes"),
]


class SgdSettings(MethodSettings):
    """Plain or heavy-ball SGD: v ← β v + Δ; θ ← θ + η v."""

    kind: Literal["sgd"]
    momentum: Fraction = Field(default=0.0, description="share β of the last step that is kept")

    @model_validator(mode="after")
    def _bounded(self) -> SgdSettings:
        if self.momentum >= 1.0:
            raise ValueError("momentum 100% never forgets; write less than 100%")
        return self

    @property
    def by_rows(self) -> bool:
        """Whether an update of zero changes nothing, so that other rows need not be looked at."""
        return self.momentum == 0.0

    def initial(self, parameters: Arrays) -> dict[str, Array]:
        """Return the optimiser's arrays before the first round."""
        if self.momentum == 0.0:
            return {}
        return {f"velocity/{name}": np.zeros_like(array) for name, array in parameters.items()}

    def apply(
        self,
        parameters: Arrays,
        state: Arrays,
        update: Changes,
        learning_rate: float,
        like: Callable[[Array], Array] = np.empty_like,
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return the parameters and the optimiser's arrays after an update, in arrays that ``like`` makes."""
        new: dict[str, Array] = {}
        velocities: dict[str, Array] = {}
        for name, array in parameters.items():
            new[name] = moved = like(array)
            if self.momentum == 0.0:
                for block, delta in _blocks(array, update[name]):
                    np.add(array[block], learning_rate * delta, out=moved[block])
                continue
            old = state[f"velocity/{name}"]
            velocities[f"velocity/{name}"] = velocity = like(old)
            for block, delta in _blocks(array, update[name]):
                np.add(self.momentum * old[block], delta, out=velocity[block])
                np.add(array[block], learning_rate * velocity[block], out=moved[block])
        return new, velocities


class AdagradSettings(MethodSettings):
    """Adagrad (Duchi et al. 2011): s ← s + Δ²; θ ← θ + η Δ / (√s + ε)."""

    kind: Literal["adagrad"]
    initial_accumulator: NonNegativeFloat = Field(default=0.0, description="s before the first round")
    epsilon: PositiveFloat = Field(default=1e-8, description="keeps the division finite")

    def initial(self, parameters: Arrays) -> dict[str, Array]:
        """Return the optimiser's arrays before the first round."""
        return {
            f"square_sum/{name}": np.full_like(array, self.initial_accumulator)
            for name, array in parameters.items()
        }

    def apply(
        self,
        parameters: Arrays,
        state: Arrays,
        update: Changes,
        learning_rate: float,
        like: Callable[[Array], Array] = np.empty_like,
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return the parameters and the optimiser's arrays after an update, in arrays that ``like`` makes."""
        new: dict[str, Array] = {}
        sums: dict[str, Array] = {}
        for name, array in parameters.items():
            old = state[f"square_sum/{name}"]
            new[name] = moved = like(array)
            sums[f"square_sum/{name}"] = total = like(old)
            for block, delta in _blocks(array, update[name]):
                np.add(old[block], np.square(delta), out=total[block])
                step = learning_rate * delta / (np.sqrt(total[block]) + self.epsilon)
                np.add(array[block], step, out=moved[block])
        return new, sums


class AdamSettings(MethodSettings):
    """Adam (Kingma and Ba 2015, algorithm 1), its bias corrected."""

    kind: Literal["adam"] = "adam"
    beta1: Fraction = Field(default=0.9, description="decay of the mean of updates")
    beta2: Fraction = Field(default=0.999, description="decay of the mean of squared updates")
    epsilon: PositiveFloat = Field(
        default=1e-8, description="added to the root; larger values quieten rarely updated parameters"
    )

    @model_validator(mode="after")
    def _bounded(self) -> AdamSettings:
        if self.beta1 >= 1.0 or self.beta2 >= 1.0:
            raise ValueError("a decay of 100% never forgets; write less than 100%")
        return self

    def initial(self, parameters: Arrays) -> dict[str, Array]:
        """Return the optimiser's arrays before the first round."""
        arrays: dict[str, Array] = {"updates": np.zeros(1, dtype=np.int64)}
        for name, array in parameters.items():
            arrays[f"mean/{name}"] = np.zeros_like(array)
            arrays[f"square_mean/{name}"] = np.zeros_like(array)
        return arrays

    def apply(
        self,
        parameters: Arrays,
        state: Arrays,
        update: Changes,
        learning_rate: float,
        like: Callable[[Array], Array] = np.empty_like,
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return the parameters and the optimiser's arrays after an update, in arrays that ``like`` makes."""
        updates = int(state["updates"][0]) + 1
        correction1 = 1.0 - self.beta1**updates
        correction2 = math.sqrt(1.0 - self.beta2**updates)
        arrays: dict[str, Array] = {"updates": np.array([updates], dtype=np.int64)}
        new: dict[str, Array] = {}
        for name, array in parameters.items():
            old_mean, old_square = state[f"mean/{name}"], state[f"square_mean/{name}"]
            new[name] = moved = like(array)
            arrays[f"mean/{name}"] = mean = like(old_mean)
            arrays[f"square_mean/{name}"] = square = like(old_square)
            for block, delta in _blocks(array, update[name]):
                np.add(self.beta1 * old_mean[block], (1.0 - self.beta1) * delta, out=mean[block])
                np.add(
                    self.beta2 * old_square[block], (1.0 - self.beta2) * np.square(delta), out=square[block]
                )
                step = (learning_rate / correction1) * mean[block]
                step /= np.sqrt(square[block]) / correction2 + self.epsilon
                np.add(array[block], step, out=moved[block])
        return new, arrays


ServerOptimizer = Annotated[
    SgdSettings | AdagradSettings | AdamSettings,
    ByKey("kind"),
    Field(description="server optimiser: sgd, adagrad or adam"),
]
"""How the coordinator applies the mean update; ``kind`` says which."""
