"""Devices that all come at once."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from coordinator.scenario.faults_section import STAGE_OF_LABEL
from coordinator.simulation.faults.base import SENDING, FaultKind, Strike
from device_profiles.fields import PositiveSeconds
from edge.core.draws import Draws
from edge.core.vocabulary import Stage
from edge.device.round_faults import Gathering


class FlashCrowd(FaultKind):
    """The devices all send at one instant: their answers to the invitation, or what `at_stage` asks for.

    Whoever is ready before that instant waits for it. After the answers every model leaves at once, over the
    coordinator's own link.
    """

    key = "flash_crowd"
    summary = "devices all come at once"
    stages = SENDING
    of_rounds = True
    elsewhere = "devices send nothing at it"

    after: PositiveSeconds = Field(description="the instant, counted from the beginning of the round")

    @classmethod
    def drawn(cls, draws: Draws) -> dict[str, Any]:
        """Return random settings."""
        return {"after": draws.seconds(0.1, 60)}

    def strike(self, strike: Strike) -> None:
        """Let the devices wait for each other."""
        if not strike.begun:
            return
        fault = strike.fault
        stage = Stage.INVITE if fault.at_stage is None else STAGE_OF_LABEL[fault.at_stage]
        gathering = Gathering(strike.number, stage, strike.setting.now_s + self.after)
        for slot in strike.slots.tolist():
            strike.faults.gatherings.setdefault(slot, []).append(gathering)
