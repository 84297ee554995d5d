"""What a device remembers: a coordinator that lies, by the public protocol, gets no round answered twice."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import queue
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from door_helpers import play, until
from lying_coordinator import RUN, LyingCoordinator, lying, meeting
from service_helpers import loaded_text

from coordinator.cli.entry import execute
from coordinator.engine.assembly import Assembly
from coordinator.run.assembling import assemble
from coordinator.scenario.load import LoadedScenario
from coordinator.secure.sums.masked import MaskedSums
from coordinator.service.answer_store import Answered, AnswerStore, AnswerStoreError
from coordinator.service.identities import enrol_all_here
from coordinator.service.local_devices import (
    EpsilonLimitError,
    LocalDevices,
    RunMismatchError,
    ScenarioMismatchError,
)
from edge.core.vocabulary import FIRST_EVALUATION, Reason
from edge.wire.messages import Arrays, Invite, Model

ROOT = Path(__file__).resolve().parents[2]
DEVICES = 12
SCENARIO = """
format: 2
seed: 1
data: {source: synthetic-regression, clients: 12, samples_per_client: 20, features: 3, noise: 0.1}
fleet: {devices: {minipc_n100: 100%}, networks: {wifi_enterprise: 100%}}
learning: {algorithm: linear-regression, local: {method: gradient-steps, steps: 1, learning_rate: 0.1}}
rounds: {count: 3, cohort: 12, deadline: 30 s}
"""
SECAGG = "secure_aggregation: {mode: secagg, clip: 64, bits: 64}\n"
ACTIVE = "secure_aggregation: {mode: active, clip: 64, bits: 64}\n"
RATINGS = """
format: 2
seed: 1
data: {source: synthetic-ratings, users: 12, items: 40, ratings_per_user: 8}
fleet: {devices: {minipc_n100: 100%}, networks: {wifi_enterprise: 100%}}
learning: {algorithm: fedrecon, factors: 4, learning_rate: 0.05, upload: dense, weighting: uniform}
rounds: {count: 9, cohort: 12, deadline: 30 s}
"""
NOISE = "privacy: {mechanism: local-gaussian, clip_norm: 1, noise_multiplier: 4}\n"
TIERS = """
privacy:
  mechanism: personal-gaussian
  clip_norm: 1
  tiers: [{name: all, noise_multiplier: 4}]
"""
ONCE = Reason.ALREADY_ANSWERED
ALL = range(DEVICES)
ELEVEN = range(1, DEVICES)


def known_of(folder: Path, text: str) -> tuple[LoadedScenario, Assembly]:
    loaded = loaded_text(folder, text)
    assembly = assemble(loaded)
    enrol_all_here(assembly)
    return loaded, assembly


def model_of(assembly: Assembly, number: int, run_id: str = RUN) -> Model:
    algorithm = assembly.workload.algorithm
    return Model(run_id, number, dict(algorithm.broadcast(algorithm.initial_state(1))))


def update_of(assembly: Assembly, device: int) -> Arrays:
    """Return what a device reports of the first model, weighted."""
    state = assembly.workload.algorithm.initial_state(1)
    (update,) = assembly.workload.training(state, 1)(np.array([device]))()
    return update.arrays


# -- two sums that differ by one device --------------------------------------------------------------------


async def summed(
    liar: LyingCoordinator, assembly: Assembly, number: int, devices: list[int]
) -> dict[str, np.ndarray]:
    """Take devices that have accepted through a round; return the sum that the coordinator has."""
    model, sums = model_of(assembly, number), assembly.secure_sums[""]
    if isinstance(sums, MaskedSums):
        result = await liar.secure_sum(sums, model, devices)
        scale = sums.config.quantizers["weights"].scale
        length = next(part.length for part in sums.config.parts if part.name == "weights")
        return {"weights": sums.config.ring.to_signed(result.total)[:length] / scale}
    reports = [await liar.report(device, model) for device in devices]
    await liar.acknowledge(number, devices)
    return {"weights": np.sum([report.arrays["weights"] for report in reports], axis=0)}


@pytest.mark.parametrize("way", ["", SECAGG, ACTIVE], ids=["clear", "secagg", "active"])
def test_a_round_cannot_be_had_again_with_one_device_less(tmp_path: Path, way: str) -> None:
    """Round 1 with twelve devices, then with eleven: the difference would be the update of the twelfth.

    The limit that remains is shown as well: another round, with the same model, gives it.
    """
    loaded, assembly = known_of(tmp_path, SCENARIO + way)

    async def story() -> None:
        async with lying(loaded) as liar, meeting(liar, ALL, (loaded, assembly)) as ours:
            assert await liar.invite(1, ALL) == dict.fromkeys(ALL, Reason.NONE)
            whole = await summed(liar, assembly, 1, list(ALL))
            await until(lambda: ours.tally.participations["counted"] == DEVICES)
            assert await liar.invite(1, ELEVEN) == dict.fromkeys(ELEVEN, ONCE)
            assert await liar.invite(2, ELEVEN) == dict.fromkeys(ELEVEN, Reason.NONE)
            rest = await summed(liar, assembly, 2, list(ELEVEN))
            difference = whole["weights"] - rest["weights"]
            np.testing.assert_allclose(difference, update_of(assembly, 0)["weights"], atol=1e-4)

    play(story())


def test_noise_is_not_averaged_away_by_invitations_to_one_round(tmp_path: Path) -> None:
    """While a device waits for its receipt, it takes another invitation for a duplicate, and says nothing."""
    loaded, assembly = known_of(tmp_path, RATINGS + NOISE)

    async def story() -> None:
        async with lying(loaded) as liar, meeting(liar, [0], (loaded, assembly)) as ours:
            assert await liar.invite(1, [0]) == {0: Reason.NONE}
            await liar.report(0, model_of(assembly, 1))
            for _ in range(100):
                await liar.tell(0, Invite(RUN, 1, "a task", 60.0, 1000))
            await liar.acknowledge(1, [0])
            await until(lambda: ours.tally.participations["counted"] == 1)
            assert liar.sessions[0].heard.empty()
            for _ in range(100):
                assert await liar.invite(1, [0]) == {0: ONCE}
                await liar.tell(0, model_of(assembly, 1))
            assert await liar.invite(2, [0]) == {0: Reason.NONE}
            assert liar.sessions[0].heard.empty()

    play(story())


def test_rounds_only_ever_rise_whatever_task_they_name(tmp_path: Path) -> None:
    loaded, assembly = known_of(tmp_path, SCENARIO)

    async def story() -> None:
        async with lying(loaded) as liar, meeting(liar, [0], (loaded, assembly)):
            assert await liar.invite(2, [0], task="a task") == {0: Reason.NONE}
            assert await liar.invite(1, [0]) == {0: ONCE}
            assert await liar.invite(2, [0], task="another task") == {0: ONCE}
            assert await liar.invite(3, [0], run_id="another0") == {0: Reason.STALE}
            assert await liar.invite(3, [0]) == {0: Reason.NONE}
            assert await liar.invite(0, [0]) == {0: ONCE}

    play(story())


def test_no_more_rounds_than_the_scenario_has(tmp_path: Path) -> None:
    loaded, assembly = known_of(tmp_path, SCENARIO)

    async def story() -> None:
        async with lying(loaded) as liar, meeting(liar, [0, 1], (loaded, assembly)) as ours:
            for number in (1, 5, 2**40):
                assert await liar.invite(number, [0]) == {0: Reason.NONE}
            assert await liar.invite(2**40 + 1, [0, 1]) == {0: Reason.BUDGET_SPENT, 1: Reason.NONE}
            assert ours.spent() is None
        assert ours.tally.participations["declined: budget_spent"] == 1

    play(story())


@pytest.mark.parametrize("noise", [NOISE, TIERS], ids=["local", "personal"])
def test_a_device_keeps_its_own_epsilon_whether_or_not_receipts_come(tmp_path: Path, noise: str) -> None:
    """z = 4 and replace-one: μ = 2/4 a report, so √k/2 after k; by Balle and Wang's Theorem 8 at δ = 1e-5."""
    loaded, assembly = known_of(tmp_path, RATINGS + noise)

    async def story() -> None:
        async with lying(loaded) as liar, meeting(liar, [0], (loaded, assembly), max_epsilon=3.3) as ours:
            assert ours.spent() == (0.0, 0)
            for number, epsilon in ((1, EPSILONS[1]), (2, EPSILONS[2])):
                assert await liar.invite(number, [0]) == {0: Reason.NONE}
                await liar.report(0, model_of(assembly, number))
                spent = ours.spent()
                assert spent is not None
                assert spent == (pytest.approx(epsilon, rel=1e-6), number)
            for number in (3, 4):  # the third would make it EPSILONS[3]
                assert await liar.invite(number, [0]) == {0: Reason.BUDGET_SPENT}

    play(story())


def delta_of(epsilon: float, mu: float) -> float:
    def phi(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2))

    return phi(mu / 2 - epsilon / mu) - math.exp(epsilon) * phi(-mu / 2 - epsilon / mu)


def epsilon_of(mu: float) -> float:
    low, high = 0.0, 100.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle, mu) > 1e-5 else (low, middle)
    return high


EPSILONS = {k: epsilon_of(math.sqrt(k) / 2) for k in (1, 2, 3)}


def test_a_limit_of_epsilon_needs_noise_of_the_devices_own(tmp_path: Path) -> None:
    loaded, assembly = known_of(tmp_path, SCENARIO)

    async def story() -> None:
        async with lying(loaded) as liar:
            devices = LocalDevices(liar.url, [0], known=(loaded, assembly), max_epsilon=1.0)
            with pytest.raises(EpsilonLimitError, match="add no noise of their own"):
                await devices.run()

    play(story())


# -- processes that end ------------------------------------------------------------------------------------


def test_a_device_that_is_started_again_remembers(tmp_path: Path) -> None:
    loaded, assembly = known_of(tmp_path, SCENARIO)
    memory = tmp_path / "memory"

    async def story() -> None:
        async with lying(loaded) as liar:
            async with meeting(liar, ALL, (loaded, assembly), memory=memory):
                assert await liar.invite(2, ALL) == dict.fromkeys(ALL, Reason.NONE)
            async with meeting(liar, ALL, (loaded, assembly), memory=memory):
                assert await liar.invite(1, ALL) == dict.fromkeys(ALL, ONCE)
                assert await liar.invite(2, ALL) == dict.fromkeys(ALL, ONCE)
                assert await liar.invite(3, ALL) == dict.fromkeys(ALL, Reason.NONE)
        # Another run of the coordinator, and another coordinator with a run of the same name.
        async with lying(loaded, "other-01") as liar, meeting(liar, [0], (loaded, assembly), memory=memory):
            assert await liar.invite(1, [0]) == {0: Reason.NONE}
        async with lying(loaded) as liar, meeting(liar, [0], (loaded, assembly), memory=memory):
            assert await liar.invite(1, [0]) == {0: Reason.NONE}

    play(story())
    files = sorted(memory.iterdir())
    assert [file.suffix for file in files] == [".answered"] * 3
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert memory.stat().st_mode & 0o777 == 0o700


def test_a_coordinator_that_comes_back_with_another_run_is_left(tmp_path: Path) -> None:
    loaded, assembly = known_of(tmp_path, SCENARIO)

    async def story() -> None:
        async with lying(loaded) as liar:
            life = asyncio.create_task(LocalDevices(liar.url, [0], known=(loaded, assembly)).run())
            await liar.until(lambda: 0 in liar.sessions)
            liar.run_id = "other-01"
            await liar.sessions[0].socket.close()
            with pytest.raises(RunMismatchError, match="another run, other-01 in place of A-lie_01"):
                await life

    play(story())


def test_a_run_keeps_its_scenario_across_restarts(tmp_path: Path) -> None:
    """With less noise in the rounds that are left, more ε would be spent than is counted."""
    noisy = loaded_text(tmp_path, RATINGS + NOISE).hash
    quiet = loaded_text(tmp_path, RATINGS + NOISE.replace("multiplier: 4", "multiplier: 0.1")).hash
    AnswerStore(tmp_path / "memory", "http://host:1", RUN, noisy)
    with pytest.raises(AnswerStoreError, match="sends another scenario for its run A-lie_01 than before"):
        AnswerStore(tmp_path / "memory", "http://host:1", RUN, quiet)


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from coordinator.service.answer_store import AnswerStore
from coordinator.engine.run_files import write_atomically

folder, dies_at = Path(sys.argv[1]), int(sys.argv[2])
steps = 0

def dying(module, name):
    real = getattr(module, name)
    def step(*arguments, **named):
        global steps
        for after in (False, True):
            steps += 1
            if steps == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            if not after:
                result = real(*arguments, **named)
        return result
    setattr(module, name, step)

for module, name in ((os, "open"), (os, "fdopen"), (os, "fsync"), (Path, "replace"), (os, "close")):
    dying(module, name)

async def main():
    store = AnswerStore(folder, "http://127.0.0.1:1", "a-run_01", "0" * 64)
    loop = asyncio.get_running_loop()
    for number in (1, 2):
        reasons = await asyncio.gather(*(store.claim(device, number, 9) for device in range(3)))
        os.write(1, f"{number} {[int(reason) for reason in reasons]}\\n".encode())

asyncio.run(main())
print("steps", steps)
"""


def killed_at(folder: Path, step: int) -> tuple[int, list[str]]:
    """Claim two rounds for three devices in a process that is killed at a step; 0 for at none."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(folder), str(step)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout.splitlines()


def check_after_kill(folder: Path, answered: list[str]) -> None:
    """What was said to be answered is refused; another round is there for all devices or for none."""
    assert {line.partition(" ")[2] for line in answered} <= {"[0, 0, 0]"}
    store = AnswerStore(folder, "http://127.0.0.1:1", "a-run_01", "0" * 64)
    rows = {store.answered(device) for device in range(3)}
    (row,) = rows
    assert len(answered) <= row.last_round <= len(answered) + 1
    assert row.rounds == row.last_round

    async def again() -> list[Reason]:
        return [await store.claim(device, max(row.last_round, 1), 9) for device in range(3)]

    expected = ONCE if row.last_round else Reason.NONE
    assert asyncio.run(again()) == [expected] * 3


def test_a_kill_at_any_step_forgets_no_answer(tmp_path: Path) -> None:
    """A few of the steps; the slow test has them all."""
    code, said = killed_at(tmp_path / "whole", 0)
    assert (code, said[:2]) == (0, ["1 [0, 0, 0]", "2 [0, 0, 0]"])
    steps = int(said[2].split()[1])
    for step in range(steps // 3, steps, steps // 3):
        folder = tmp_path / str(step)
        code, said = killed_at(folder, step)
        assert code == -signal.SIGKILL
        check_after_kill(folder, said)


@pytest.mark.slow
def test_a_kill_at_each_step_forgets_no_answer(tmp_path: Path) -> None:
    steps = int(killed_at(tmp_path / "whole", 0)[1][2].split()[1])
    for step in range(1, steps + 1):
        folder = tmp_path / str(step)
        code, said = killed_at(folder, step)
        assert code == -signal.SIGKILL
        check_after_kill(folder, said)


@pytest.mark.few(1)
@pytest.mark.parametrize("reports", [True, False], ids=["before its receipt", "once it has accepted"])
def test_a_device_that_is_killed_refuses_the_round_when_it_is_back(tmp_path: Path, reports: bool) -> None:
    loaded, assembly = known_of(tmp_path, SCENARIO)
    memory = tmp_path / "memory"
    command = [sys.executable, "-m", "coordinator.cli", "device", "--no-shape", "--memory", str(memory)]

    async def story() -> None:
        async with lying(loaded) as liar:
            process = await asyncio.create_subprocess_exec(
                *command, liar.url, env={**os.environ, "PYTHONPATH": str(ROOT)}
            )
            await liar.until(lambda: 0 in liar.sessions)
            assert await liar.invite(2, [0]) == {0: Reason.NONE}
            if reports:
                await liar.report(0, model_of(assembly, 2))
            process.kill()
            assert await process.wait() == -signal.SIGKILL
            liar.sessions.clear()
            async with meeting(liar, [0], (loaded, assembly), memory=memory):
                assert await liar.invite(2, [0]) == {0: ONCE}
                assert await liar.invite(1, [0]) == {0: ONCE}
                assert await liar.invite(3, [0]) == {0: Reason.NONE}

    play(story())


def test_the_verb_keeps_to_the_epsilon_of_its_owner_and_says_what_was_spent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded, assembly = known_of(tmp_path, RATINGS + NOISE)
    urls: queue.Queue[str] = queue.Queue()

    async def story() -> dict[int, Reason]:
        async with lying(loaded) as liar:
            urls.put(liar.url)
            await liar.until(lambda: 0 in liar.sessions)
            for number in (1, 2):
                assert await liar.invite(number, [0]) == {0: Reason.NONE}
                await liar.report(0, model_of(assembly, number))
            last = await liar.invite(3, [0])
            await liar.say_goodbye("enough")
        return last

    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(asyncio.run, story())
        limits = ["--max-epsilon", "3.3", "--memory", str(tmp_path / "memory")]
        assert execute(["device", urls.get(), "--no-shape", *limits]) == 0
        assert told.result() == {0: Reason.BUDGET_SPENT}
    printed = capsys.readouterr().out
    assert "1 × declined: budget_spent" in printed
    assert f", replace-one: {EPSILONS[2]:.3g} at most, after 2 rounds" in printed
    assert len(list((tmp_path / "memory").iterdir())) == 1


# -- the file ----------------------------------------------------------------------------------------------


def store_in(folder: Path, url: str = "http://host:1", run: str = "a-run_01", rows: int = 2) -> AnswerStore:
    store = AnswerStore(folder, url, run, "0" * 64)

    async def fill() -> None:
        for device in range(rows):
            assert await store.claim(device, 7 + device, 9) is Reason.NONE

    asyncio.run(fill())
    return store


def damages() -> Iterator[tuple[str, Callable[[Path], object]]]:
    def truncated(share: float) -> Callable[[Path], object]:
        return lambda file: file.write_bytes(file.read_bytes()[: int(file.stat().st_size * share)])

    def flipped(share: float) -> Callable[[Path], object]:
        def flip(file: Path) -> None:
            data = bytearray(file.read_bytes())
            data[int(len(data) * share)] ^= 1
            file.write_bytes(data)

        return flip

    for share in (0.0, 0.3, 0.7, 0.99):
        yield f"truncated to {share}", truncated(share)
        yield f"a bit at {share}", flipped(share)
    yield "appended to", lambda file: file.write_bytes(file.read_bytes() + b"device 3 last 1 rounds 1\n")
    yield "a line less", lambda file: file.write_bytes(re.sub(rb"device 1 .*\n", b"", file.read_bytes()))
    yield "garbage", lambda file: file.write_bytes(b"\xff" * 300)
    yield "a directory", lambda file: (file.unlink(), file.mkdir())
    yield "a dangling link", lambda file: (file.unlink(), file.symlink_to("nowhere"))


@pytest.mark.parametrize(("what", "damage"), list(damages()), ids=[what for what, _ in damages()])
def test_a_damaged_file_is_refused_by_name(
    tmp_path: Path, what: str, damage: Callable[[Path], object]
) -> None:
    file = store_in(tmp_path).file
    assert file is not None
    damage(file)
    with pytest.raises(AnswerStoreError, match=rf"{file.name}: is damaged .*have answered is not known"):
        AnswerStore(tmp_path, "http://host:1", "a-run_01", "0" * 64)


def test_the_file_of_another_run_is_not_taken_for_this_one(tmp_path: Path) -> None:
    theirs, ours = store_in(tmp_path, run="other-01").file, store_in(tmp_path).file
    assert theirs is not None
    assert ours is not None
    theirs.replace(ours)
    with pytest.raises(AnswerStoreError, match="is of another coordinator, run or version"):
        AnswerStore(tmp_path, "http://host:1", "a-run_01", "0" * 64)


def test_a_file_that_goes_missing_while_devices_are_there_ends_them(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    assert store.file is not None
    store.file.unlink()
    with pytest.raises(AnswerStoreError, match="it is gone"):
        asyncio.run(store.claim(5, 1, 9))
    loaded, assembly = known_of(tmp_path, SCENARIO)
    memory = tmp_path / "memory"

    async def story() -> None:
        async with lying(loaded) as liar:
            devices = LocalDevices(liar.url, [0], known=(loaded, assembly), memory=memory)
            life = asyncio.create_task(devices.run())
            await liar.until(lambda: 0 in liar.sessions)
            await until(lambda: len(list(memory.glob("*.answered"))) == 1)
            for file in memory.iterdir():
                file.unlink()
            await liar.tell(0, Invite(RUN, 1, "a task", 60.0, 1000))
            with pytest.raises(AnswerStoreError, match="it is gone"):
                await life

    play(story())


def test_what_cannot_be_written_is_not_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_in(tmp_path)
    assert store.file is not None
    before = store.file.read_bytes()

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        with pytest.raises(AnswerStoreError, match=r"cannot be written \(No space left.*answer nothing"):
            asyncio.run(store.claim(5, 1, 9))
    assert store.file.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == [store.file.name]
    assert store.answered(5) == Answered()
    assert asyncio.run(store.claim(5, 1, 9)) is Reason.NONE


def test_devices_meet_a_damaged_file_at_the_welcome(tmp_path: Path) -> None:
    loaded, assembly = known_of(tmp_path, SCENARIO)
    memory = tmp_path / "memory"

    async def story() -> None:
        async with lying(loaded) as liar:
            async with meeting(liar, [0], (loaded, assembly), memory=memory):
                assert await liar.invite(1, [0]) == {0: Reason.NONE}
            (file,) = memory.iterdir()
            file.write_bytes(file.read_bytes()[:-1])
            devices = LocalDevices(liar.url, [0], known=(loaded, assembly), memory=memory)
            with pytest.raises(AnswerStoreError, match=f"{file.name}: is damaged"):
                await devices.run()

    play(story())


def test_two_processes_share_a_folder(tmp_path: Path) -> None:
    one, other = (AnswerStore(tmp_path, "http://host:1", "a-run_01", "0" * 64) for _ in range(2))

    async def story() -> None:
        assert await one.claim(0, 4, 9) is Reason.NONE
        assert await other.claim(0, 4, 9) is ONCE
        assert await other.claim(1, 4, 9) is Reason.NONE
        assert await one.claim(1, 5, 9) is Reason.NONE

    asyncio.run(story())
    assert (other.answered(0), one.answered(1)) == (Answered(4, 1), Answered(5, 2))


def test_coordinators_and_runs_do_not_disturb_each_other(tmp_path: Path) -> None:
    stores = [
        store_in(tmp_path, url, run)
        for url in ("http://host:1", "http://host:2", "https://host:1", "http://other:1")
        for run in ("a-run_01", "other-01")
    ]
    assert len({store.file for store in stores}) == 8
    assert {store.answered(1) for store in stores} == {Answered(8, 1)}
    same = AnswerStore(tmp_path, "HTTP://HOST:1/", "a-run_01", "0" * 64)
    assert (same.file, same.answered(0)) == (stores[0].file, Answered(7, 1))


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(AnswerStoreError, match=r"cannot hold what devices have answered .*--memory"):
        AnswerStore(tmp_path / "file", "http://host:1", "a-run_01", "0" * 64)


def test_a_coordinator_with_another_scenario_in_its_second_welcome_is_left(tmp_path: Path) -> None:
    loaded, assembly = known_of(tmp_path, SCENARIO)
    other = loaded_text(tmp_path, RATINGS + NOISE)

    async def story() -> None:
        async with lying(loaded) as liar:
            life = asyncio.create_task(LocalDevices(liar.url, [0], known=(loaded, assembly)).run())
            await liar.until(lambda: 0 in liar.sessions)
            liar.loaded = other
            await liar.sessions[0].socket.close()
            with pytest.raises(ScenarioMismatchError, match=f"the scenario {other.hash[:8]}"):
                await life

    play(story())


def test_evaluations_are_a_series_of_their_own_and_count_with_the_rounds(tmp_path: Path) -> None:
    def claims(store: AnswerStore, *numbers: int) -> list[Reason]:
        async def claim() -> list[Reason]:
            return [await store.claim(0, number, 5) for number in numbers]

        return asyncio.run(claim())

    before, after = FIRST_EVALUATION, FIRST_EVALUATION + 2
    store = AnswerStore(tmp_path, "http://host:1", RUN, "0" * 64)
    assert claims(store, before, 1, 2, after) == [Reason.NONE] * 4
    again = AnswerStore(tmp_path, "http://host:1", RUN, "0" * 64)
    assert again.answered(0) == (2, 4, after)
    assert claims(again, after, before, 2) == [ONCE] * 3
    assert claims(again, 3) == [Reason.NONE]
    assert claims(again, after + 2) == [Reason.BUDGET_SPENT]
