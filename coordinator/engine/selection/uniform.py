"""Every device as likely as any other; what McMahan et al. 2017 (FedAvg, algorithm 1) ask for."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from coordinator.engine.selection.base import Ids, Policy, PolicySettings


class RandomSettings(PolicySettings):
    """Any device, there or not, each as likely as any other: the coordinator invites blindly."""

    even: ClassVar[bool] = True
    available_only: ClassVar[bool] = False

    policy: Literal["random"]


class Random(Policy):
    """Draws without repetition, among all devices."""

    Settings = RandomSettings

    def draw(self, wanted: int, round_number: int, attempt: int, now_s: float) -> Ids:
        """Return up to ``wanted`` devices; see :class:`~coordinator.engine.selection.base.Policy`."""
        return self.pool.sample(wanted, self.generator(round_number, attempt), now_s)


class AvailabilityAwareSettings(PolicySettings):
    """Any device that is available, each as likely as any other: devices check in."""

    policy: Literal["availability-aware"] = Field(
        default="availability-aware", description="availability-aware: any device that is available"
    )


class AvailabilityAware(Policy):
    """Draws without repetition, among those that are available."""

    Settings = AvailabilityAwareSettings

    draw = Random.draw
