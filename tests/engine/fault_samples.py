"""Faults, fleets and plans of rounds for tests of who is struck, and by what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from coordinator.engine.facts import FleetNames
from coordinator.scenario.faults_section import Fault, fault_section
from coordinator.simulation.faults.base import FaultKind, Setting, Strike
from coordinator.simulation.faults.striking import victims
from edge.core.vocabulary import Stage, label
from edge.device.round_faults import RoundFaults
from edge.device.simulated import CohortPlan

Ids = npt.NDArray[np.int64]


class Everybody:
    """A fleet of ``n`` devices: classes and networks alternate, regions come in thirds."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.names = FleetNames(("phone", "tablet"), ("wifi", "cell"), ("region-0", "region-1", "region-2"))
        numbers = np.arange(n)
        self.device_class = (numbers % 2).astype(np.uint8)
        self.network = (numbers // 2 % 2).astype(np.uint8)
        self.region = (numbers * 3 // max(n, 1)).astype(np.uint8)
        self.drained: list[tuple[list[int], float, float]] = []

    def drain(self, ids: Ids, level: float, now_s: float) -> npt.NDArray[np.float64]:
        """Note who is drained; what is left at a level of 100% lasts 100 s."""
        self.drained.append((ids.tolist(), level, now_s))
        return np.full(len(ids), 100.0 * level)

    def memory_fits(self, ids: Ids, memory_bytes: Ids, factor: float) -> npt.NDArray[np.bool_]:
        """Every device has 1000 bytes."""
        return np.asarray(memory_bytes <= 1000 * factor)


def plan_of(n: int) -> CohortPlan:
    """Return the plan of a round in which nothing happens to any of ``n`` devices."""
    return CohortPlan(
        reachable=np.ones(n, np.bool_),
        failed_connects=np.zeros(n, np.int64),
        computes=np.ones(n, np.bool_),
        obstacle=np.zeros(n, np.int8),
        shortage=np.zeros(n, np.int8),
        compute_s=np.ones(n),
        drop_stage=np.full(n, -1, np.int8),
        drop_fraction=np.zeros(n),
        leaves_s=np.full(n, np.inf),
        bare=np.zeros(n, np.bool_),
        crypto=[],
        shielded=[],
    )


def fault(
    name: str = "storm", at: Stage | None = Stage.MASKED_INPUT, share: str = "100%", **more: Any
) -> Fault:
    """Return a fault; it lets devices vanish unless ``more`` says what else happens."""
    written: dict[str, Any] = {"name": name, "on": {"fraction": share}}
    if at is not None:
        written["at_stage"] = label(at)
    if not any(isinstance(value, dict) and key != "on" for key, value in more.items()):
        written["vanish"] = {}
    return fault_section().model_validate({**written, **more})


def setting_of(
    plan: CohortPlan,
    ids: Ids,
    *,
    seed: int = 1,
    number: int = 1,
    now_s: float = 0.0,
    memory_bytes: int = 500,
    fleet: Everybody | None = None,
) -> Setting:
    """Return a round of the devices ``ids``."""
    return Setting(
        seed=seed,
        fleet=Everybody(int(ids.max(initial=0)) + 1) if fleet is None else fleet,
        ids=ids,
        round_number=number,
        now_s=now_s,
        plan=plan,
        memory_bytes=np.full(len(ids), memory_bytes, np.int64),
    )


def strike(faults: Sequence[Fault], plan: CohortPlan, ids: Ids, **more: Any) -> RoundFaults:
    """Let faults strike a round of the devices ``ids``; return what that means for them."""
    setting = setting_of(plan, ids, **more)
    found = RoundFaults()
    for number, one in enumerate(faults):
        kind = one.kind
        assert isinstance(kind, FaultKind)
        kind.strike(Strike(one, number, setting, victims(one, setting), found))
    return found
