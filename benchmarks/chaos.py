"""A service under attack while its devices are killed: what was tried, what was lost, what got in.

    python benchmarks/chaos.py                    10 rounds, some minutes
    python benchmarks/chaos.py --rounds 3 --idle 200

`recfleet serve` runs a scenario with secure aggregation and enrolment tokens. 30 % of the processes with
devices are killed in every round and started again. The connections of one process become half open.
Meanwhile strangers, thieves and bad devices try what is in the table that is printed (chaos_attacks.py).

Lost is a participation that a device was told counts and that is in no sum, or the other way round for
the devices that were there all the time; and a round that is missing, there twice, or neither completed
nor abandoned by name. What got in is a connection that should have been refused or ended and was not, and
a device that is in a sum without being one of the honest ones. Either makes the exit code 1.
"""

import argparse
import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from chaos_attacks import STRANGER, Attackers
from chaos_proxy import Proxy
from chaos_wire import Ledger
from service_process import ENVIRONMENT, metrics, recfleet, serving

from coordinator.results.tables.reader import RunTables, open_run
from edge.core.vocabulary import FIRST_EVALUATION

HERE = Path(__file__).parent
PROCESSES, DEVICES_EACH, BAD = 10, 6, 8
HONEST = PROCESSES * DEVICES_EACH
KILLED_SHARE = 0.3
STEADY, HALF_OPEN = 0, 1
"""Processes that are not killed: one whose connections pass a tap, and one whose become half open."""
IDLE_S = 8.0
SCENARIO = f"""
format: 2
title: chaos
seed: 7
data: {{source: synthetic-ratings, users: {HONEST + BAD}, items: 60, ratings_per_user: 10}}
fleet: {{mix: global_android_2024}}
connection:
  sockets:
    join_timeout: 5 s
    heartbeat: 2 s
    idle_timeout: {IDLE_S} s
    computing_timeout: 20 s
    resume_window: 10 s
learning: {{algorithm: fedrecon, factors: 4, learning_rate: 0.05, upload: dense}}
secure_aggregation:
  mode: secagg-plus
  clip: 1
  dropout: 0.4
  stage_deadlines: {{share_keys: 4 s, masked_input: 4 s, unmask: 4 s}}
rounds: {{count: ROUNDS, cohort: 40, over_select: 150%, quorum: 20, deadline: 6 s, interval: 2 s}}
evaluation: {{every: 5}}
"""


@dataclass
class Fleet:
    """The processes with the honest devices; a supervisor starts again what was killed."""

    folder: Path
    urls: dict[int, str]
    """Where each process finds the service."""
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    killed: int = 0

    def start(self, number: int) -> None:
        """Start a process."""
        files = self.folder / "tokens", self.folder / f"journal-{number}"
        arguments = [self.urls[number], str(number * DEVICES_EACH), str(DEVICES_EACH), *map(str, files)]
        with open(self.folder / f"devices-{number}.err", "ab") as errors:
            self.processes[number] = subprocess.Popen(
                [sys.executable, str(HERE / "chaos_devices.py"), *arguments],
                env=ENVIRONMENT, cwd=self.folder, stderr=errors,
            )  # fmt: skip

    def kill(self, number: int) -> None:
        """Kill a process with all of its devices, as kill −9 does, and start it again."""
        self.processes[number].send_signal(signal.SIGKILL)
        self.processes[number].wait()
        self.killed += 1
        self.start(number)

    async def strike(self, chance: random.Random, within_s: float) -> None:
        """Kill 30 % of all processes at some moment of a round."""
        await asyncio.sleep(chance.uniform(0.0, within_s))
        killable = [number for number in self.processes if number not in (STEADY, HALF_OPEN)]
        for number in chance.sample(killable, round(KILLED_SHARE * PROCESSES)):
            self.kill(number)

    def check(self) -> None:
        """Give up if a process has failed by itself: nobody else would ever do its part."""
        for number, process in self.processes.items():
            if process.poll():
                errors = (self.folder / f"devices-{number}.err").read_text()
                raise SystemExit(
                    f"the devices of process {number} ended with {process.returncode}:\n{errors}"
                )

    def end(self) -> None:
        """End what still runs."""
        for process in self.processes.values():
            process.kill()
            process.wait()


@dataclass
class Found:
    """What the tables of the run and the journals of the devices say."""

    completed: int = 0
    abandoned: Counter[str] = field(default_factory=Counter)
    counted: int = 0
    told: int = 0
    lost: list[str] = field(default_factory=list)
    intruders: list[str] = field(default_factory=list)


def evaluations_as_rounds(run: RunTables) -> list[dict]:
    """Return the rows of devices that measured the model, by the numbers under which they were asked."""
    rows = run.read("device_evaluations").to_pylist()
    return [{**row, "round": FIRST_EVALUATION + row["round"]} for row in rows]


def judge(
    rounds: list[dict], device_rounds: list[dict], told: list[tuple[int, int, str]], wanted: int
) -> Found:
    """Compare the tables with what the devices were told.

    Parameters
    ----------
    rounds, device_rounds : rows of these tables.
    told : round, device, and whether it was "counted", of every participation that a device saw the end of.
    wanted : rounds that there should be.
    """
    found = Found()
    numbers = [row["round"] for row in rounds]
    if numbers != list(range(1, wanted + 1)):
        found.lost.append(f"the rounds are {numbers}, not 1 to {wanted}")
    summed = Counter((row["round"], row["device"]) for row in device_rounds if row["outcome"] == "completed")
    per_round = Counter(number for number, _ in summed.elements())
    for row in rounds:
        number = row["round"]
        if row["outcome"] == "completed":
            found.completed += 1
            if row["completed"] != per_round[number]:
                found.lost.append(f"round {number} took {row['completed']} and has {per_round[number]}")
        elif row["reason"] in (None, "none"):
            found.lost.append(f"round {number} is {row['outcome']} without a reason")
        else:
            found.abandoned[row["reason"]] += 1
            if per_round[number]:
                found.lost.append(f"round {number} is abandoned and has {per_round[number]} completed")
    counted = Counter((number, device) for number, device, how in told if how == "counted")
    found.counted, found.told = summed.total(), counted.total()
    twice = sorted({part for tally in (summed, counted) for part, times in tally.items() if times > 1})
    found.lost += [f"device {device} counted twice in round {number}" for number, device in twice]
    found.lost += [
        f"device {device} was told that round {number} counts, and it does not"
        for number, device in sorted(counted.keys() - summed.keys())
    ]
    steady = range(STEADY * DEVICES_EACH, (STEADY + 1) * DEVICES_EACH)
    found.lost += [
        f"device {device} was there all the time and was not told that round {number} counts"
        for number, device in sorted(summed.keys() - counted.keys())
        if device in steady
    ]
    found.intruders += [
        f"device {device} is in the sum of round {number}"
        for number, device in sorted(summed)
        if device >= HONEST
    ]
    return found


def read_journals(folder: Path) -> list[tuple[int, int, str]]:
    """Return what the devices have written down."""
    lines = [line.split() for file in folder.glob("journal-*") for line in file.read_text().splitlines()]
    return [(int(number), int(device), how) for number, device, how in lines]


async def conduct(folder: Path, url: str, address: tuple[str, int], wanted: argparse.Namespace) -> dict:
    """Attack the service until its process has ended; return what was done."""
    chance = random.Random(wanted.seed)
    tokens = dict(line.split() for line in (folder / "tokens").read_text().splitlines())
    dead = {what: (folder / what).read_text().strip() for what in ("expired", "revoked")}
    connector = aiohttp.TCPConnector(limit=0, force_close=True, local_addr=(STRANGER, 0))
    frozen = 0
    async with (
        Proxy(*address) as tap,
        Proxy(*address) as brittle,
        aiohttp.ClientSession(connector=connector) as hostile,
        aiohttp.ClientSession() as watching,
    ):
        urls = dict.fromkeys(range(PROCESSES), url) | {STEADY: tap.url, HALF_OPEN: brittle.url}
        fleet = Fleet(folder, urls)
        attackers = Attackers(
            address=address,
            tokens={int(device): token for device, token in tokens.items()},
            dead_tokens=dead,
            victims=list(range(STEADY * DEVICES_EACH, (STEADY + 1) * DEVICES_EACH)),
            bad=list(range(HONEST, HONEST + BAD)),
            tap=tap,
            idle_s=IDLE_S,
            patience_s=60.0,
            chance=random.Random(f"{wanted.seed}/attacks"),
            http=hostile,
        )
        tasks: list[asyncio.Task] = []
        try:
            for number in range(PROCESSES):
                fleet.start(number)
            seen, begun_s, took_s = 0.0, 0.0, 2.0
            while True:
                try:
                    now = (await metrics(watching, url))["recfleet_round"]
                except (OSError, aiohttp.ClientError):
                    break  # the run is over
                if now > seen:
                    if seen == 0:
                        stories = [*(attackers.run() for _ in range(3)), attackers.slow_loris(20)]
                        stories.append(attackers.idle_flood(wanted.idle))
                        tasks += map(asyncio.create_task, stories)
                    else:
                        took_s = time.monotonic() - begun_s
                    seen, begun_s = now, time.monotonic()
                    tasks.append(asyncio.create_task(fleet.strike(chance, 0.7 * took_s)))
                    if seen % 2 == 0:
                        frozen += brittle.freeze()
                fleet.check()
                for task in tasks:
                    if task.done():
                        task.result()
                await asyncio.sleep(0.05)
            # Whoever was there all the time has been told that the run is over.
            steady = fleet.processes[STEADY]
            async with asyncio.timeout(60.0):
                while steady.poll() is None:
                    await asyncio.sleep(0.05)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            fleet.end()
    return {
        "ledger": attackers.ledger,
        "killed": fleet.killed,
        "frozen": frozen,
        "steady": steady.returncode,
    }


def prepare(folder: Path) -> None:
    """Issue the tokens, as a user would."""
    enrolled = str(folder / "enrolled")
    devices = f"0-{HONEST + BAD - 1}"
    (folder / "tokens").write_text(
        recfleet(folder, "enroll", "issue", enrolled, "--devices", devices, "--each")
    )
    victim = str(STEADY * DEVICES_EACH)
    for what, lifetime in (("expired", "1 ms"), ("revoked", "1 d")):
        arguments = ("enroll", "issue", enrolled, "--devices", victim, "--expires", lifetime)
        token = recfleet(folder, *arguments).strip()
        (folder / what).write_text(token)
    recfleet(folder, "enroll", "revoke", enrolled, token.split(".")[1])


def table(done: dict, found: Found) -> Iterator[str]:
    """Yield the lines of the table."""
    ledger: Ledger = done["ledger"]
    heading = ("tried", "times", "got in", "how it went")
    rows = [
        ("kill −9 of a process with devices", done["killed"], 0, "started again"),
        ("half-open connections", done["frozen"], 0, "came back, or replaced"),
    ]
    rows += [
        (
            name,
            ledger.tried[name],
            ledger.in_[name],
            ", ".join(f"{n} × {how}" for how, n in answers.most_common()),
        )
        for name, answers in sorted(ledger.answers.items())
    ]
    yield "{:<42} {:>6} {:>6}  {}".format(*heading)
    for row in rows:
        yield "{:<42} {:>6} {:>6}  {}".format(*row)
    yield ""
    yield f"rounds: {found.completed} completed, {found.abandoned.total()} abandoned {dict(found.abandoned)}"
    untold = found.counted - found.told
    yield f"participations in sums: {found.counted}; devices were told of {found.told}, and not of {untold}"
    yield f"lost: {len(found.lost)}; got in: {sum(ledger.in_.values()) + len(found.intruders)}"
    yield from found.lost + found.intruders


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--idle", type=int, default=2500, help="idle connections from each of two addresses")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="empty folder for the run and the logs")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = wanted.keep or Path(temporary)
        prepare(folder)
        scenario = SCENARIO.replace("ROUNDS", str(wanted.rounds))
        options = ("--enrolment", "enrolled", "--wait-for", str(HONEST))
        with serving(folder, scenario, *options) as service:
            done = asyncio.run(conduct(folder, service.url, service.address, wanted))
            code = service.process.wait(60)
        run: RunTables = open_run(folder / "run")
        found = judge(
            run.read("rounds").to_pylist(),
            [*run.read("device_rounds").to_pylist(), *evaluations_as_rounds(run)],
            read_journals(folder),
            wanted.rounds,
        )
        complaints = (folder / "serve.err").read_text()
        if code or "Traceback" in complaints:
            found.lost.append(f"the service ended with {code}:\n{complaints}")
        if done["steady"]:
            found.lost.append("the devices that were there all the time did not end well")
    for line in table(done, found):
        print(line)
    return 1 if found.lost or found.intruders or done["ledger"].in_.total() else 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        raise SystemExit(main())
