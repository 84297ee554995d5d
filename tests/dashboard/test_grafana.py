"""The Grafana dashboard: what its queries name exists, and a real Prometheus answers each of them."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from dashboard_helpers import STORMY, watched

from coordinator.service.admission.gate import local_gate
from coordinator.service.app import Listening, guarded
from coordinator.service.dashboard.live_state import LiveState
from coordinator.service.dashboard.routes import Dashboard
from coordinator.service.metrics import exposition
from edge.core.vocabulary import Reason, label

FILE = Path(__file__).resolve().parents[2] / "docs" / "grafana" / "recfleet.json"
VARIABLES = {"$job": ".*", "$instance": ".*", "$__rate_interval": "1m"}
LIMIT_S = 300


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def queries() -> Iterator[tuple[str, str]]:
    """Yield the title of the panel and the expression of each query, with values for the variables."""
    for panel in panels():
        for target in panel["targets"]:
            expression = target["expr"]
            for name, value in VARIABLES.items():
                expression = expression.replace(name, value)
            yield panel["title"], expression


def state_with_everything(folder: Path) -> LiveState:
    """Return the state of a service in which everything has happened that is counted."""
    state = LiveState()
    watched(folder, STORMY, state)
    state.sessions.used = True
    for device in range(4):
        state.joined(device, again=False)
    state.joined(3, again=True)
    state.disconnected(2, "reset")
    state.left(1, Reason.GARBAGE, "")
    state.refused(9, "192.0.2.7", "device 9 has joined already")
    state.tables.suspended[label(Reason.GARBAGE)] += 1
    state.handled(0.002)
    return state


def test_no_variable_is_left_and_every_panel_says_what_it_shows() -> None:
    assert [text for _, text in queries() if "$" in text] == []
    shown = panels()
    assert len({panel["id"] for panel in shown}) == len(shown)
    assert [panel["title"] for panel in shown if not panel["description"] or not panel["targets"]] == []
    places = [
        {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        for at in (panel["gridPos"] for panel in shown)
    ]
    assert not any(one & other for one, other in itertools.combinations(places, 2))
    assert max(x for place in places for x, _ in place) < 24


def test_the_queries_name_every_metric_and_no_other_and_labels_that_these_have(tmp_path: Path) -> None:
    text = exposition(state_with_everything(tmp_path))[0].decode()
    exposed = set(re.findall(r"^(recfleet_\w+)[{ ]", text, re.MULTILINE))
    used = {name for _, query in queries() for name in re.findall(r"recfleet_\w+", query)}
    assert used <= exposed
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in exposed}
    assert families == {re.sub(r"_(bucket|sum|count)$", "", name) for name in used}
    labels = set(re.findall(r'[{,](\w+)="', text)) | {"job", "instance"}
    for _, query in queries():
        matched = set(re.findall(r'(\w+)=~?"', query))
        grouped = {
            name.strip() for names in re.findall(r"by \(([^)]*)\)", query) for name in names.split(",")
        }
        assert matched | grouped <= labels, query


CONFIGURATION = """\
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: recfleet
    static_configs: [{{targets: ['{target}']}}]
"""


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("promtool") is None or shutil.which("prometheus") is None,
    reason="needs prometheus and promtool: apt-get install prometheus",
)
def test_a_real_prometheus_answers_every_query(tmp_path: Path, unused_tcp_port: int) -> None:
    state = state_with_everything(tmp_path)

    async def said(*command: str, text: str | None = None) -> str:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        output, _ = await process.communicate(None if text is None else text.encode())
        assert process.returncode == 0, f"{command}: {output.decode()}"
        return output.decode()

    async def main() -> dict[str, str]:
        app, gate = web.Application(), local_gate()
        app.middlewares.append(guarded(gate))
        Dashboard(state).add_to(app)
        async with asyncio.timeout(LIMIT_S), Listening(app, gate, "127.0.0.1", 0, 60.0) as listening:
            await said("promtool", "check", "metrics", text=exposition(state)[0].decode())
            configuration = tmp_path / "prometheus.yml"
            configuration.write_text(CONFIGURATION.format(target=listening.url.removeprefix("http://")))
            await said("promtool", "check", "config", str(configuration))
            address = f"127.0.0.1:{unused_tcp_port}"
            prometheus = await asyncio.create_subprocess_exec(
                "prometheus", f"--config.file={configuration}", f"--storage.tsdb.path={tmp_path / 'data'}",
                f"--web.listen-address={address}", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            try:
                ask = ("promtool", "query", "instant", f"http://{address}")
                # A rate needs two samples.
                while True:
                    asking = await asyncio.create_subprocess_exec(
                        *ask, "count_over_time(recfleet_round[1m]) >= 2",
                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                    )  # fmt: skip
                    output, _ = await asking.communicate()
                    assert prometheus.returncode is None, "prometheus has ended"
                    if asking.returncode == 0 and output.strip():
                        break
                    await asyncio.sleep(0.2)
                return {query: await said(*ask, query) for _, query in queries()}
            finally:
                if prometheus.returncode is None:
                    prometheus.terminate()
                await prometheus.wait()

    answers = asyncio.run(main())
    assert [query for query, answer in answers.items() if "=>" not in answer] == []
