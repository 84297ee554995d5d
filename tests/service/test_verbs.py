"""``serve``, ``device`` and ``run --clock real`` as a user calls them, in processes of their own."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from service_helpers import HANG_S, SMALL

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
COMMAND = (sys.executable, "-W", "error", "-m", "coordinator.cli")


def recfleet(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Serve, and give the process and its URL once it listens."""
    (folder / "scenario.yaml").write_text(SMALL)
    with subprocess.Popen(
        [*COMMAND, "serve", "scenario.yaml", "--port", "0", "--out", "served", *arguments],
        cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        try:
            for line in process.stderr:
                found = re.search(r"listening at (\S+);", line)
                if found:
                    yield process, found[1]
                    return
            pytest.fail("the service ended before it listened")
        finally:
            if process.poll() is None:
                process.kill()


@pytest.mark.slow
def test_devices_of_other_processes_join_a_service(tmp_path: Path) -> None:
    with serving(tmp_path, "--wait-for", "12") as (process, url):
        fleet = subprocess.Popen(
            [*COMMAND, "device", url, "--id", "0", "--count", "9", "--no-shape"],
            cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        few = recfleet(tmp_path, "device", url, "--id", "9", "--count", "3", "--no-shape")
        output, errors = fleet.communicate(timeout=HANG_S)
        printed, problems = process.communicate(timeout=HANG_S)
    assert (few.returncode, few.stderr, fleet.returncode, errors) == (0, "", 0, "")
    assert "3 of 3 devices: goodbye (the run is over)" in few.stdout
    assert "9 of 9 devices: goodbye (the run is over)" in output
    counted = sum(int(n) for n in re.findall(r"(\d+) × counted", few.stdout + output))
    assert counted == 3 * 6 + 3 * 6  # in three rounds, and in the evaluations of three models
    assert process.returncode == 0, problems
    assert "real time" in printed
    assert json.loads((tmp_path / "served" / "manifest.json").read_text())["clock"] == "real"


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ((), "this process reads no ratings; its 12 devices bring theirs"),
        (("--with-data",), "this process has read the data of all 12 devices"),
    ],
)
@pytest.mark.few(1)
def test_a_service_says_whether_it_has_the_data_of_its_devices(
    tmp_path: Path, option: tuple[str, ...], said: str
) -> None:
    with serving(tmp_path, *option) as (process, _):
        assert process.stderr is not None
        assert said in next(line for line in process.stderr if line.startswith("note: "))


@pytest.mark.slow
def test_a_service_that_is_stopped_says_goodbye_and_leaves_a_readable_run(tmp_path: Path) -> None:
    with serving(tmp_path, "--wait-for", "12") as (process, url):
        fleet = subprocess.Popen(
            [*COMMAND, "device", url, "--count", "2"],
            cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        joined = 0
        # One connection for all requests: new ones would soon come faster than --arrivals-per-s-per-address.
        asked = http.client.HTTPConnection(url.removeprefix("http://"), timeout=HANG_S)
        while joined < 2:
            assert fleet.poll() is None
            asked.request("GET", "/readyz")
            joined = json.load(asked.getresponse())["devices"]
        asked.close()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=HANG_S)
        output, errors = fleet.communicate(timeout=HANG_S)
    assert process.returncode == 4
    assert (fleet.returncode, errors) == (0, "")
    assert "2 of 2 devices: goodbye (the run was stopped)" in output
    manifest = json.loads((tmp_path / "served.partial" / "manifest.json").read_text())
    assert manifest["status"] == "interrupted"


@pytest.mark.slow
def test_a_run_brings_its_devices_along(tmp_path: Path) -> None:
    (tmp_path / "scenario.yaml").write_text(SMALL)
    done = recfleet(tmp_path, "run", "scenario.yaml", "--clock", "real", "--out", "here")
    assert done.returncode == 0, done.stderr
    assert "3 completed, 0 abandoned" in done.stdout
    assert "simulated" not in done.stdout + done.stderr
    assert "profiles' power over measured times" in done.stdout
    report = (tmp_path / "here" / "report.html").read_text(encoding="utf-8")
    assert "real: every time is measured" in report
    # The scenario has no description: whatever the report says of simulation would be of its own making.
    assert re.findall(r"simulat(?!ed_s\")", report.lower()) == []
    with gzip.open(tmp_path / "here" / "trace.json.gz") as trace:
        assert json.load(trace)["otherData"] == {"clock": "measured time since the start of the run"}


@pytest.mark.slow
def test_a_model_that_diverges_fails_a_run_and_a_service(tmp_path: Path) -> None:
    fast = ("--set", "learning.learning_rate=1e4")
    (tmp_path / "scenario.yaml").write_text(SMALL)
    done = recfleet(tmp_path, "run", "scenario.yaml", "--clock", "real", "--out", "here", *fast)
    with serving(tmp_path, "--wait-for", "12", *fast) as (process, url):
        fleet = recfleet(tmp_path, "device", url, "--count", "12", "--no-shape")
        printed, _ = process.communicate(timeout=HANG_S)
    assert (done.returncode, process.returncode, fleet.returncode) == (3, 3, 0)
    for said, folder in ((done.stdout, "here"), (printed, "served")):
        assert "run diverged" in said
        assert json.loads((tmp_path / folder / "manifest.json").read_text())["status"] == "diverged"


@pytest.mark.slow
def test_what_only_a_simulation_has_is_refused_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "scenario.yaml").write_text(SMALL)
    modelled = "secure_aggregation={mode: secagg, clip: 1, crypto: modelled}"
    done = recfleet(tmp_path, "run", "scenario.yaml", "--clock", "real", "--set", modelled)
    assert done.returncode == 2
    assert "secure_aggregation.crypto: on the real clock: modelled cryptography" in done.stderr


@pytest.mark.slow
def test_nobody_is_waited_for_who_cannot_come(tmp_path: Path) -> None:
    (tmp_path / "scenario.yaml").write_text(SMALL)
    done = recfleet(tmp_path, "serve", "scenario.yaml", "--wait-for", "13")
    assert (done.returncode, "there are 12 devices in all" in done.stderr) == (2, True)


@pytest.mark.slow
def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    (tmp_path / "scenario.yaml").write_text(SMALL)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = recfleet(tmp_path, "serve", "scenario.yaml", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 2
    assert "Address already in use; write another --port, or 0" in done.stderr
    assert "traceback" not in done.stderr


@pytest.mark.slow
def test_a_device_that_is_not_of_the_fleet(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, url):
        done = recfleet(tmp_path, "device", url, "--id", "12")
    assert done.returncode == 2
    assert "device 12 is not let in: there is no device 12; there are 0 to 11" in done.stderr


@pytest.mark.few(1)
@pytest.mark.parametrize("url", ["nowhere", "ftp://127.0.0.1", "http://", "127.0.0.1:8080"])
def test_what_is_no_address_of_a_coordinator(tmp_path: Path, url: str) -> None:
    done = recfleet(tmp_path, "device", url)
    assert done.returncode == 2
    assert "is no address of a coordinator; write http://host:port" in done.stderr
