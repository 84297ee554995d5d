"""Runs scenarios over real sockets on loopback, in one process."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coordinator.results.tables.reader import open_run
from coordinator.run.assembling import assemble
from coordinator.run.runner import RunOutcome, run_assembled
from coordinator.scenario.load import LoadedScenario, load
from coordinator.service.conducting import RealTime
from coordinator.service.local_run import along
from edge.clock.real import RealClockLoop

HANG_S = 600.0
"""Nothing here takes so long, however slow the host, unless it hangs."""

IDEAL_PROFILES = Path(__file__).parents[1] / "runs" / "ideal_profiles.yaml"

SMALL = f"""
format: 2
title: small
seed: 3
data: {{source: synthetic-ratings, users: 12, items: 40, ratings_per_user: 8}}
fleet: {{devices: {{ideal_device: 100%}}, networks: {{ideal_wire: 100%}}, profiles: [{IDEAL_PROFILES}]}}
connection: {{tls: false, keep_alive: true}}
learning: {{algorithm: fedrecon, factors: 4, learning_rate: 0.05, upload: dense}}
rounds: {{count: 3, cohort: 6, deadline: 60 s, interval: 0.2 s}}
evaluation: {{every: 2}}
"""
"""The pause between rounds is longer than a receipt takes: nobody is busy when devices are drawn."""


def skip(seconds: float) -> None:
    """Move the clock of the running loop ahead by hand: what is due by then is due now, on any host."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, RealClockLoop)
    loop._origin_s -= seconds * loop._stretch


class Silent:
    """Observes nothing."""

    def on_start(self, name: str, rounds: int | None) -> None:
        """Ignore the start."""

    def on_round(self, summary: Any) -> None:
        """Ignore the round."""

    def on_evaluation(self, round_number: int, values: Sequence[Any]) -> None:
        """Ignore the evaluation."""

    def on_end(self, status: str) -> None:
        """Ignore the end."""


def loaded_text(folder: Path, text: str, overrides: Sequence[str] = ()) -> LoadedScenario:
    """Load the scenario in ``text`` from a file below ``folder``."""
    file = folder / "scenario.yaml"
    file.write_text(text)
    return load(file, overrides)


def run_real(loaded: LoadedScenario, target: Path, *, shaped: bool = False, **how: Any) -> RunOutcome:
    """Run a scenario over sockets, with all of its devices in this process."""
    assembly = assemble(loaded)
    conductor = RealTime(wait_for=assembly.fleet.n, company=along(shaped=shaped), **how)
    return run_assembled(loaded, assembly, target=target, observer=Silent(), conductor=conductor)


def run_virtual(loaded: LoadedScenario, target: Path) -> RunOutcome:
    """Simulate a scenario."""
    return run_assembled(loaded, assemble(loaded), target=target, observer=Silent())


def rows_of(outcome: RunOutcome, table: str) -> list[dict[str, Any]]:
    """Return the rows of a table."""
    rows: list[dict[str, Any]] = open_run(outcome.directory).read(table).to_pylist()
    return rows


def payloads(outcome: RunOutcome) -> dict[tuple[int, int, str, str], int]:
    """Return the payload bytes of every device, by round, device, stage and direction."""
    found: defaultdict[tuple[int, int, str, str], int] = defaultdict(int)
    for row in rows_of(outcome, "events"):
        if row["direction"] != "none":
            found[row["round"], row["device"], row["stage"], row["direction"]] += row["payload_bytes"]
    return dict(found)
