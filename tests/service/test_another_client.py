"""A client that is not ours, written from docs/protocol.md, takes part beside our devices."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from service_helpers import Silent, loaded_text, rows_of

from coordinator.engine.assembly import Assembly
from coordinator.run.assembling import assemble
from coordinator.run.runner import run_assembled
from coordinator.scenario.load import LoadedScenario
from coordinator.service.conducting import RealTime
from coordinator.service.local_devices import LocalDevices

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"
SCENARIO = """
format: 2
seed: 1
data: {source: synthetic-regression, clients: 4, samples_per_client: 20, features: 3, noise: 0.1}
fleet: {devices: {minipc_n100: 100%}, networks: {wifi_enterprise: 100%}}
learning: {algorithm: linear-regression, local: {method: gradient-steps, steps: 1, learning_rate: 0.1}}
rounds: {count: 3, cohort: 4, deadline: 30 s, interval: 0.1 s}
"""


def test_the_client_of_the_page_completes_rounds(tmp_path: Path) -> None:
    pytest.importorskip("websockets", reason="the client of docs/protocol.md needs it")
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    script = tmp_path / "client.py"
    script.write_text(program, encoding="utf-8")
    said: list[str] = []

    @asynccontextmanager
    async def company(url: str, loaded: LoadedScenario, assembly: Assembly) -> AsyncIterator[None]:
        ours = LocalDevices(url, range(3), shaped=False, known=(loaded, assembly))
        theirs = await asyncio.create_subprocess_exec(
            sys.executable, script, url, "3", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(ours.run())
            yield
            output, errors = await theirs.communicate()
            said.extend((output + errors).decode().splitlines())

    loaded = loaded_text(tmp_path, SCENARIO)
    conductor = RealTime(wait_for=4, company=company)
    outcome = run_assembled(
        loaded, assemble(loaded), target=tmp_path / "run", observer=Silent(), conductor=conductor
    )
    assert said == [*(f"round {number} counted" for number in (1, 2, 3)), "goodbye: the run is over"]
    for row in rows_of(outcome, "rounds"):
        assert (row["outcome"], row["completed"]) == ("completed", 4)
    mine = [row for row in rows_of(outcome, "device_rounds") if row["device"] == 3]
    assert [(row["outcome"], row["examples"]) for row in mine] == [("completed", 2)] * 3
