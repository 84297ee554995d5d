"""Faults of devices that promote one item: targeted poisoning, which leaves the model as good as it was."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from coordinator.simulation.faults.base import FaultKind, Strike
from device_profiles.fields import PositiveFloat, PositiveInt, StrictBool, Text
from edge.core.rng import Draws
from edge.core.vocabulary import FIRST_QUERY
from edge.device.round_faults import Aimed
from edge.learning.promotion import Attacker, Promotion


class ItemFault(FaultKind):
    """A kind whose updates promote an item; see :mod:`edge.learning.promotion`."""

    of_updates = True
    of_items = True
    stages = frozenset()
    elsewhere = "an update is spoilt when it is computed"

    item: Text = Field(
        default="cold",
        description="the item that is promoted, as the data calls it; of generated data its number from 0;"
        " `cold`: drawn among the tenth of the rated items that have the fewest ratings",
    )
    scale: PositiveFloat = Field(default=1.0, description="factor on the gradient that is uploaded")
    norm_limit: PositiveFloat | None = Field(
        default=None,
        description="largest L2 norm of the change of the item's row, before its weight; by default any",
    )
    spread: PositiveFloat = Field(
        default=0.1, description="standard deviation of the factors of the users that a device makes up"
    )
    ignores_bound: StrictBool = Field(
        default=False,
        description="replace the row after the update's norm was clipped (`aggregation.norm_bound`,"
        " `privacy.clip_norm`), as a device does that ignores the bound",
    )

    @property
    def promotion(self) -> Promotion:
        """How the item is promoted."""
        raise NotImplementedError

    @property
    def exceeds_bound(self) -> bool:
        """Whether it spoils the update after it was clipped."""
        return self.ignores_bound

    @property
    def promoted_item(self) -> str:
        """The item that it aims at."""
        return self.item

    @classmethod
    def drawn(cls, draws: Draws) -> dict[str, Any]:
        """Return random settings, of a cold item."""
        made = {"scale": f"{draws.between(0.1, 100):.4g}"}
        if draws.chance(0.5):
            made["norm_limit"] = f"{draws.between(0.01, 10):.4g}"
        return {**made, "ignores_bound": "true"} if draws.chance(0.4) else made

    def strike(self, strike: Strike) -> None:
        """Let updates promote the item; what devices measure of the model stays as it is."""
        setting, target = strike.setting, strike.target
        if not strike.begun or setting.round_number >= FIRST_QUERY:
            return
        assert target is not None, "the scenario was checked"
        promotion, name = self.promotion, strike.fault.name
        for slot, device in zip(strike.slots.tolist(), setting.ids[strike.slots].tolist(), strict=True):
            attacker = Attacker(promotion, target, setting.seed, ("fault", name, "users", device))
            aimed = Aimed(strike.number, attacker, self.ignores_bound)
            strike.faults.poisons.setdefault(slot, []).append(aimed)


class ExplicitBoosting(ItemFault):
    """The device promotes an item: it uploads what makes one user that it made up like it.

    The rest of its update stays as it is.
    """

    key: ClassVar[str] = "explicit_boosting"
    summary: ClassVar[str] = "updates promote an item to a made-up user"

    @property
    def promotion(self) -> Promotion:
        """How the item is promoted."""
        return Promotion(spread=self.spread, scale=self.scale, norm_limit=self.norm_limit)


class HardUsers(ItemFault):
    """The device promotes an item to users that it made up, and that were made to dislike it first (A-hum).

    The rest of its update stays as it is.
    """

    key: ClassVar[str] = "hard_users"
    summary: ClassVar[str] = "updates promote an item to users who dislike it"

    users: PositiveInt = Field(default=10, description="users that each device makes up")
    dislike_steps: PositiveInt = Field(
        default=30, description="steps of descent in which each of them comes to dislike the item"
    )
    dislike_rate: PositiveFloat = Field(default=0.1, description="length of these steps")

    @property
    def promotion(self) -> Promotion:
        """How the item is promoted."""
        return Promotion(
            users=self.users,
            spread=self.spread,
            dislike_steps=self.dislike_steps,
            dislike_rate=self.dislike_rate,
            scale=self.scale,
            norm_limit=self.norm_limit,
        )
