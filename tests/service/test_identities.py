"""Active mode over real sockets: who holds identities, and what who lies comes to."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from door_helpers import Records
from service_helpers import HANG_S, SMALL, Silent, loaded_text, rows_of

from coordinator.engine.assembly import Assembly
from coordinator.run.assembling import assemble
from coordinator.run.runner import RunOutcome, run_assembled
from coordinator.scenario.load import LoadedScenario
from coordinator.secure.sums.masked import SeededRoster
from coordinator.service.admission.gate import Gate, local_gate
from coordinator.service.admission.limits import ArrivalLimits
from coordinator.service.admission.token_files import TokenFileError, read_tokens, write_enrolled_line
from coordinator.service.app import Listening, guarded
from coordinator.service.conducting import Company, RealTime
from coordinator.service.identities import add_roster_route, enrol, fetch_roster, sums_with_identities
from coordinator.service.local_devices import LocalDevices
from coordinator.service.local_run import run_here
from edge.core.errors import LocalProtocolError
from edge.crypto.entropy import SystemEntropy
from edge.crypto.keys import Identity
from edge.network.sockets.device_client import Backoff
from edge.secagg.roster import Enrolled, Roster, RosterError
from edge.wire.messages import Model

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "coordinator.cli"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
ACTIVE = SMALL + "secure_aggregation: {mode: active, clip: 1}\n"
ONE_ROUND = ACTIVE.replace("rounds: {count: 3, cohort: 6,", "rounds: {count: 1, cohort: 12, quorum: 60%,")
DEVICES = 12


def identities() -> list[Identity]:
    return [Identity.generate(SystemEntropy()) for _ in range(DEVICES)]


def roster_of(held: list[Identity]) -> Roster:
    return Roster.of(identity.public for identity in held)


# -- as a user does it -------------------------------------------------------------------------------------


def recfleet(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip


@contextlib.contextmanager
def served(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    arguments = ["serve", "scenario.yaml", "--port", "0", "--wait-for", "12", "--quiet", "--out", "out"]
    process = subprocess.Popen(
        [*COMMAND, *arguments, *options],
        cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        said = []
        for line in process.stderr:
            said.append(line)
            if found := re.search(r"listening at (\S+);", line):
                break
        else:
            raise AssertionError("".join(said))
        yield process, found[1]
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def enrolled(tmp_path: Path) -> Path:
    """Return a folder with a scenario in active mode, the enrolment of its devices, and their file."""
    (tmp_path / "scenario.yaml").write_text(ACTIVE)
    done = recfleet(tmp_path, "enroll", "issue", "dir", "--devices", "0-11", "--each", "--identities")
    assert done.returncode == 0, done.stderr
    assert "issued 12 tokens and identities, roster " in done.stderr
    (tmp_path / "fleet").write_text(done.stdout)
    return tmp_path


@pytest.mark.slow
def test_a_run_with_identities_that_were_issued(enrolled: Path) -> None:
    lines = (enrolled / "fleet").read_text().splitlines(keepends=True)
    (enrolled / "some").write_text("".join(lines[:5]))
    (enrolled / "others").write_text("".join(lines[5:]))
    with served(enrolled, "--enrolment", "dir") as (service, url):
        some = subprocess.Popen(
            [*COMMAND, "device", url, "--count", "5", "--token-file", "some", "--no-shape"],
            cwd=enrolled, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        rest = ("--id", "5", "--count", "7", "--token-file", "others", "--no-shape")
        others = recfleet(enrolled, "device", url, *rest)
        printed, errors = some.communicate(timeout=HANG_S)
        service.communicate(timeout=HANG_S)
    assert (others.returncode, others.stderr, some.returncode, errors) == (0, "", 0, "")
    assert sum(int(n) for n in re.findall(r"(\d+) × counted", printed + others.stdout)) == (3 + 3) * 6
    assert service.returncode == 0
    # What a service writes and keeps has no device's secret.
    secrets = re.findall(r"identity\.(\S+)", "".join(lines))
    assert len(set(secrets)) == DEVICES
    kept = b"".join(
        file.read_bytes() for file in [*(enrolled / "dir").iterdir(), *(enrolled / "out").iterdir()]
    )
    assert [one for one in secrets if one.encode() in kept] == []


@pytest.mark.slow
def test_a_coordinator_that_swaps_an_identity_is_noticed_before_anyone_joins(enrolled: Path) -> None:
    with sqlite3.connect(enrolled / "dir" / "enrolment.sqlite3") as store:
        forged = Identity.generate(SystemEntropy()).public
        store.execute("UPDATE roster SET identity = ? WHERE device = 3", (forged,))
    store.close()
    with served(enrolled, "--enrolment", "dir") as (_, url):
        done = recfleet(enrolled, "device", url, "--count", "12", "--token-file", "fleet")
    assert done.returncode == 2
    assert "is not the one that this device was enrolled with" in done.stderr
    assert "goodbye" not in done.stdout


@pytest.mark.slow
def test_a_device_with_the_key_of_another_does_not_take_part(enrolled: Path) -> None:
    text = (enrolled / "fleet").read_text()
    third, fourth = re.findall(r"identity\.(\S+)", text)[3:5]
    (enrolled / "fleet").write_text(text.replace(third, fourth))
    with served(enrolled, "--enrolment", "dir") as (_, url):
        done = recfleet(enrolled, "device", url, "--count", "12", "--token-file", "fleet")
    assert done.returncode == 2
    assert "device 3 has an identity that is not its own on the roster" in done.stderr


@pytest.mark.slow
def test_a_service_without_identities_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "scenario.yaml").write_text(ACTIVE)
    done = recfleet(tmp_path, "serve", "scenario.yaml", "--port", "0")
    assert done.returncode == 2
    assert "secure_aggregation.mode: on the real clock: devices in mode active sign with" in done.stderr
    assert "'recfleet enroll issue DIR --devices 0-11 --each --identities'" in done.stderr
    recfleet(tmp_path, "enroll", "issue", "dir", "--devices", "0-8", "--each", "--identities")
    done = recfleet(tmp_path, "serve", "scenario.yaml", "--port", "0", "--enrolment", "dir")
    assert (done.returncode, "9 devices were issued identities, and the fleet has 12" in done.stderr) == (
        2,
        True,
    )


@pytest.mark.slow
def test_a_service_in_active_mode_and_another_does_not_start(enrolled: Path) -> None:
    phases = """phases:
  - {name: open, rounds: 1, secure_aggregation: {mode: secagg-plus, clip: 1}}
  - {name: active, rounds: 1}
"""
    (enrolled / "scenario.yaml").write_text(ACTIVE.replace("count: 3, ", "") + phases)
    done = recfleet(enrolled, "serve", "scenario.yaml", "--port", "0", "--enrolment", "dir")
    assert done.returncode == 2
    assert "phases[0].secure_aggregation.mode: on the real clock: devices with identities" in done.stderr
    assert done.stderr.count("on the real clock") == 1


@pytest.mark.slow
def test_a_coordinator_cannot_do_without_the_identities_of_devices_that_have_them(enrolled: Path) -> None:
    (enrolled / "scenario.yaml").write_text(SMALL)
    with served(enrolled, "--enrolment", "dir") as (_, url):
        done = recfleet(enrolled, "device", url, "--count", "12", "--token-file", "fleet")
    assert done.returncode == 2
    assert "enrolled with identities, for mode active, and the coordinator's scenario" in done.stderr


@pytest.mark.slow
def test_devices_without_identities_cannot_sign(enrolled: Path) -> None:
    bare = re.sub(r" identity\.\S+ roster\.\S+", "", (enrolled / "fleet").read_text())
    (enrolled / "bare").write_text(bare)
    with served(enrolled, "--enrolment", "dir") as (_, url):
        done = recfleet(enrolled, "device", url, "--token-file", "bare")
    assert done.returncode == 2
    assert "in which devices sign with identities, and those here have none" in done.stderr


@pytest.mark.slow
def test_a_roster_is_made_once_and_of_all(enrolled: Path) -> None:
    again = recfleet(enrolled, "enroll", "issue", "dir", "--devices", "0-11", "--each", "--identities")
    assert (again.returncode, again.stdout) == (2, "")
    assert "there is a roster here" in again.stderr
    # Nothing of it is kept, tokens neither.
    assert recfleet(enrolled, "enroll", "list", "dir").stdout.count("valid") == DEVICES
    for options in (["--devices", "0-11"], ["--devices", "3-11", "--each"]):
        done = recfleet(enrolled, "enroll", "issue", "other", "--identities", *options)
        assert (done.returncode, "write --devices 0-LAST --each" in done.stderr) == (2, True)


# -- in one process ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_that_brings_its_devices_along_makes_identities_that_no_seed_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[Assembly] = []
    real = RealTime.__call__

    def noted(self: RealTime, loaded: LoadedScenario, assembly: Assembly, training: object) -> object:
        used.append(assembly)
        return real(self, loaded, assembly, training)  # type: ignore[arg-type]

    monkeypatch.setattr(RealTime, "__call__", noted)
    loaded = loaded_text(tmp_path, ACTIVE)
    rosters = []
    for name in ("one", "two"):
        outcome = run_here(loaded, target=tmp_path / name, observer=Silent())
        assert [row["outcome"] for row in rows_of(outcome, "rounds")] == ["completed"] * 3
        (sums,) = sums_with_identities(used[-1])
        assert sums.roster is not None
        rosters.append(dict(sums.roster))
    (simulated,) = sums_with_identities(assemble(loaded))
    assert isinstance(simulated.roster, SeededRoster)
    everyone = [identity for roster in (*rosters, simulated.roster) for identity in roster.values()]
    assert len(set(everyone)) == 3 * DEVICES


def test_identities_from_the_seed_are_for_simulations_alone(tmp_path: Path) -> None:
    (sums,) = sums_with_identities(assemble(loaded_text(tmp_path, ACTIVE)))
    with pytest.raises(LocalProtocolError, match="have to be enrolled"):
        sums.round(1, devices_elsewhere=True)
    with pytest.raises(LocalProtocolError, match="have to be enrolled"):
        sums.part_of(0, Model("run", 1, {}), SystemEntropy())


def played(tmp_path: Path, company: Company, routes: Roster) -> RunOutcome:
    loaded = loaded_text(tmp_path, ONE_ROUND)
    gate = local_gate()
    conductor = RealTime(
        wait_for=DEVICES,
        company=company,
        admission=gate,
        routes=lambda app: add_roster_route(app, routes, gate),
    )
    return run_assembled(
        loaded, assemble(loaded), target=tmp_path / "out", observer=Silent(), conductor=conductor
    )


def with_an_impostor(tmp_path: Path, *, coordinator_lies: bool) -> tuple[RunOutcome, LocalDevices]:
    """Run a round in which device 3 signs with a key of its own making; return it, and the other devices.

    A coordinator that lies has that key on its roster, though it sends the right one. So has the impostor:
    its machine would not work otherwise.
    """
    held = identities()
    true = roster_of(held)
    forged = [*held[:3], Identity.generate(SystemEntropy()), *held[4:]]
    honest: list[LocalDevices] = []

    @contextlib.asynccontextmanager
    async def company(url: str, loaded: LoadedScenario, assembly: Assembly) -> AsyncIterator[None]:
        enrol(assembly, roster_of(forged) if coordinator_lies else true, None)
        impostors = assemble(loaded)
        enrol(impostors, roster_of(forged), forged.__getitem__)
        others = [device for device in range(DEVICES) if device != 3]
        devices = LocalDevices(url, others, enrolled=Enrolled(held.__getitem__, true.hash), shaped=False)
        honest.append(devices)
        impostor = LocalDevices(url, [3], known=(loaded, impostors), shaped=False)
        async with asyncio.TaskGroup() as group:
            group.create_task(devices.run())
            group.create_task(impostor.run())
            yield

    return played(tmp_path, company, true), honest[0]


def test_devices_notice_a_coordinator_that_lets_somebody_else_sign(tmp_path: Path) -> None:
    outcome, honest = with_an_impostor(tmp_path, coordinator_lies=True)
    (row,) = rows_of(outcome, "rounds")
    assert (row["outcome"], row["completed"]) == ("abandoned", 0)
    rows = [row for row in rows_of(outcome, "device_rounds") if row["device"] != 3]
    # Each has looked at the list of keys, and shared no secret with anybody on it.
    assert {(row["outcome"], row["stage"], row["reason"]) for row in rows} == {
        ("failed", "advertise-keys", "protocol")
    }
    assert honest.tally.participations == {"abandoned: protocol": DEVICES - 1}


def test_a_device_with_a_foreign_key_is_refused_and_the_others_sum(tmp_path: Path) -> None:
    outcome, honest = with_an_impostor(tmp_path, coordinator_lies=False)
    (row,) = rows_of(outcome, "rounds")
    assert (row["outcome"], row["completed"]) == ("completed", DEVICES - 1)
    (impostor,) = [row for row in rows_of(outcome, "device_rounds") if row["device"] == 3]
    assert (impostor["outcome"], impostor["reason"]) == ("failed", "protocol")
    assert honest.tally.participations == {"counted": DEVICES - 1}


# -- the roster, and how it comes to devices ---------------------------------------------------------------


def test_a_roster_is_bound_by_its_hash() -> None:
    held = identities()
    roster = roster_of(held)
    assert Roster(roster.encoded).hash == roster.hash
    assert [roster[device] for device in roster] == [identity.public for identity in held]
    for stranger in (-1, DEVICES):
        assert roster.get(stranger) is None
    others = [roster_of(held[:-1]), roster_of([held[1], held[0], *held[2:]])]
    assert len({roster.hash, *(other.hash for other in others)}) == 3
    for broken in (b"", roster.encoded[:-1], roster.encoded + held[0].public):
        with pytest.raises(RosterError):
            Roster(broken)


def test_the_roster_is_for_devices_that_may_come_in() -> None:
    held = identities()
    roster = roster_of(held)
    records = Records()
    token = records.issue(0, DEVICES - 1)
    gate = Gate(limits=ArrivalLimits(), enrolments=records, view_token="v" * 40, now_s=lambda: 1.0)  # type: ignore[arg-type]
    once = Backoff(0.0, 0.1, 1.0, 0.1)

    async def story() -> None:
        app = web.Application(middlewares=[guarded(gate)])
        add_roster_route(app, roster, gate)
        async with Listening(app, gate, "127.0.0.1", 0, 5.0) as listening, aiohttp.ClientSession() as http:
            right = Enrolled(held.__getitem__, roster.hash)
            found = await fetch_roster(http, listening.url, 3, token, right, once)
            assert found == roster
            with pytest.raises(RosterError, match="token is not valid there"):
                await fetch_roster(http, listening.url, 3, "recfleet.0.x", right, once)
            with pytest.raises(RosterError, match="token is not valid there"):
                await fetch_roster(http, listening.url, DEVICES, token, right, once)
            with pytest.raises(RosterError, match="is not the one that this device was enrolled with"):
                await fetch_roster(http, listening.url, 3, token, Enrolled(held.__getitem__, bytes(32)), once)
            for query in ("", "?device=-1", "?device=x", "?device=" + "9" * 19):
                async with http.get(f"{listening.url}/v1/roster{query}") as answer:
                    assert answer.status == 400
        async with aiohttp.ClientSession() as http:
            with pytest.raises(RosterError, match="cannot be reached"):
                await fetch_roster(http, listening.url, 3, token, right, once)

    asyncio.run(story())


def test_lines_with_identities_belong_together() -> None:
    held = [bytes([at] * 32) for at in range(2)]
    roster = roster_of([Identity(secret) for secret in held])
    records = Records()
    tokens = [records.issue(at, at) for at in range(2)]
    lines = [write_enrolled_line(at, tokens[at], held[at], roster.hash) for at in range(2)]
    found = read_tokens("\n".join(lines), "file")
    assert found.enrolled is not None
    assert [found.token_of(at) for at in range(2)] == tokens
    assert [found.enrolled.identity_of(at).public for at in range(2)] == list(roster.values())
    assert found.enrolled.roster_hash == roster.hash
    with pytest.raises(TokenFileError, match="file has no token for device 2"):
        found.enrolled.identity_of(2)
    other = write_enrolled_line(1, tokens[1], held[1], bytes(32))
    for text in (f"{lines[0]}\n{other}", f"{lines[0]}\n1 {tokens[1]}"):
        with pytest.raises(TokenFileError, match="file:2: other lines are of another roster, or have none"):
            read_tokens(text, "file")
    for cut in (lines[0][:-1], lines[0].rpartition(" ")[0], lines[0].replace("identity.", "")):
        with pytest.raises(TokenFileError, match="file:1: write") as refused:
            read_tokens(f"{cut}\n", "file")
        assert tokens[0] not in str(refused.value)
