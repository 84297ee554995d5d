"""The coordinator crashes at every moment at which it does anything, one run for each of them.

Whatever the moment: nothing that was applied is lost, nothing is applied twice, and the model is that of a
run that never had the rounds that were lost.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import types
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_helpers import SCENARIOS, rows_of, run_text
from secure_helpers import IDEAL_WIRE, secure

from coordinator.engine.actor import Coordinator
from coordinator.engine.crashes import CHECKPOINT, Checkpoint
from coordinator.engine.stop_reason import StopReason
from coordinator.engine.training import Training
from coordinator.run.runner import RunOutcome
from coordinator.simulation.backend import SimulatedCohort, Simulation
from edge.learning.updates import Aggregate

ROUNDS = 2
DOWN_S = 30.0
MODES = {
    "plain": "mode: off",
    "active": "mode: active, min_contributors: 2",
    "ckks": "mode: ckks, crypto: modelled",
}
"""How updates come to the coordinator; all devices take part in every round, and do always the same.

``active`` has every stage of ``secagg``, and one more.
"""


def scenario(mode: str, rounds: int = ROUNDS, fault: str = "at: 30 days, for: 30 s") -> str:
    """Return a scenario whose coordinator may crash, but would only long after its end."""
    return secure(
        MODES[mode],
        rounds=f"count: {rounds}, cohort: 3, deadline: 60 s, interval: 5 s",
        fleet=IDEAL_WIRE,
        data="source: synthetic-ratings, users: 3, items: 12, ratings_per_user: 6",
        more=f"faults: [{{name: crash, coordinator_crash: {{}}, {fault}}}]\n",
    )


class Moments:
    """Counts what the coordinator does, and lets it crash at one of these moments.

    Its coroutine is resumed, or comes to its next ``await``; a frame arrives, or has been acted on; a
    deadline passes, or has been acted on.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, crash_at: int = 0) -> None:
        self.crash_at = crash_at
        self.seen: list[str] = []
        self.training: Training
        self.simulation: Simulation
        self.sums: list[Aggregate] = []
        """What was applied, in order."""
        aggregate = Training._aggregate

        def summed(training: Training, *arguments: Any) -> Aggregate:
            self.sums.append(aggregate(training, *arguments))
            return self.sums[-1]

        monkeypatch.setattr(Training, "_aggregate", summed)
        run = Training.run
        monkeypatch.setattr(
            Training, "run", lambda training, simulation: self._run(run, training, simulation)
        )
        for owner, name in (
            (SimulatedCohort, "_handle"),
            (Coordinator, "_deadline_passed"),
            (Coordinator, "_stage_deadline_passed"),
        ):
            monkeypatch.setattr(owner, name, self._watched(name, getattr(owner, name)))

    def come(self, name: str) -> None:
        """Come to a moment."""
        self.seen.append(name)
        if len(self.seen) == self.crash_at:
            self.simulation.crash(0, DOWN_S)

    def _watched(self, name: str, act: Callable[..., None]) -> Callable[..., None]:
        def watched(*arguments: Any) -> None:
            self.come(f"before {name}")
            act(*arguments)
            self.come(f"after {name}")

        return watched

    async def _run(
        self,
        run: Callable[[Training, Simulation], Coroutine[Any, Any, StopReason]],
        training: Training,
        simulation: Simulation,
    ) -> StopReason:
        self.training, self.simulation = training, simulation
        return await self._stepped(run(training, simulation))

    @types.coroutine
    def _stepped(self, story: Coroutine[Any, Any, StopReason]) -> Generator[Any, Any, StopReason]:
        waits_for = story.send(None)
        while True:
            self.come("await")
            yield waits_for
            self.come("resumed")
            try:
                waits_for = story.send(None)
            except StopIteration as end:
                found: StopReason = end.value
                return found


def run(folder: Path, mode: str, rounds: int = ROUNDS) -> RunOutcome:
    return run_text(folder, scenario(mode, rounds), name=f"r{len(list(folder.iterdir()))}")


def model_of(outcome: RunOutcome) -> dict[str, Any]:
    with np.load(outcome.directory / "model.npz") as file:
        return {name: file[name] for name in file.files}


@pytest.fixture(scope="module", params=MODES)
def calm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a mode, its models after each number of rounds that were applied, and the moments of a run."""
    mode: str = request.param
    folder = tmp_path_factory.mktemp(f"calm-{mode}")
    models = [model_of(run(folder, mode, rounds)) for rounds in range(1, ROUNDS + 1)]
    with pytest.MonkeyPatch.context() as monkeypatch:
        moments = Moments(monkeypatch)
        assert run(folder, mode).status == "finished"
    return mode, models, moments.seen


def folded(training: Training, sums: list[Aggregate]) -> dict[str, Any]:
    """Return the model to which sums lead that are applied one after the other, each once."""
    algorithm = training._workload.algorithm
    state = algorithm.initial_state(training._scenario.seed)
    optimizer_state = algorithm.initial_optimizer_state(state)
    for applied, total in enumerate(sums):
        state, optimizer_state = algorithm.server_update(state, optimizer_state, total, applied)
    return dict(state)


@pytest.mark.slow
def test_a_crash_at_every_moment(calm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mode, models, seen = calm
    # Every frame of three devices, and every step of the coordinator's coroutine. One device decrypts.
    frames = {"plain": 3 * 2, "active": 3 * 6, "ckks": 3 * 2 + 1}[mode]
    assert seen.count("before _handle") == frames * ROUNDS
    assert seen.count("await") == seen.count("resumed") == 2 * ROUNDS
    losses = 0
    for number in range(1, len(seen) + 1):
        with monkeypatch.context() as patch:
            moments = Moments(patch, number)
            outcome = run(tmp_path, mode)
        where = f"{mode}, moment {number} ({seen[number - 1]})"
        assert moments.seen[:number] == seen[:number], where
        rounds = rows_of(outcome, "rounds")
        ended = [(row["outcome"], row["reason"]) for row in rounds]
        lost = ended.count(("abandoned", "coordinator-crash"))
        applied = ended.count(("completed", "none"))
        assert (lost <= 1, lost + applied) == (True, ROUNDS), f"{where}: {ended}"
        losses += lost
        assert [row["stage"] for row in rows_of(outcome, "faults")] == [None], where
        for row in rounds:
            assert (row["secagg_sum_error"] or 0) == (row["secagg_double_reveals"] or 0) == 0, where
        # Every sum of a round that is told of as completed is in the model once, to the last bit.
        assert len(moments.sums) == applied, where
        found = model_of(outcome)
        for name, array in folded(moments.training, moments.sums).items():
            np.testing.assert_array_equal(found[name], array, err_msg=where)
        # The order of a sum of floats and the random rounding of masked inputs are those of another round;
        # one that was lost or applied twice would make a difference of hundredths.
        tolerance = 1e-3 if mode == "active" else 1e-6
        for name, array in models[applied - 1].items():
            np.testing.assert_allclose(found[name], array, atol=tolerance, err_msg=where)
    assert losses > len(seen) / 2


@pytest.mark.few(1)
def test_rounds_that_are_missing_would_be_noticed(calm: Any) -> None:
    _, models, _ = calm
    for one, other in itertools.pairwise(models):
        assert max(float(np.abs(one[name] - other[name]).max()) for name in one) > 1e-2


# -- what is on disk -----------------------------------------------------------------------------------------


def dies_while_saving(path: Path, step: str) -> None:
    """Save the model of nine rounds over that of eight in a process that dies on the way."""
    code = f"""
import os, sys
from pathlib import Path
import numpy as np
from coordinator.results import run_directory
from coordinator.engine.crashes import Checkpoint

def die(*_):
    os._exit(77)

step = {step!r}
if step == "before the bytes are safe":
    run_directory.os.fsync = die
elif step == "before the change of name":
    Path.replace = die
Checkpoint(Path(sys.argv[1])).save({{"w": np.full(1000, 9.0)}}, {{"m": np.full(2, 9.0)}}, 9)
die()
"""
    done = subprocess.run([sys.executable, "-c", code, str(path)], cwd=SCENARIOS.parent, check=False)
    assert done.returncode == 77


@pytest.mark.parametrize(
    ("step", "found"),
    [("before the bytes are safe", 8), ("before the change of name", 8), ("after the change of name", 9)],
)
@pytest.mark.few(1)
def test_a_crash_while_the_model_is_saved_leaves_one_whole_model(
    step: str, found: int, tmp_path: Path
) -> None:
    path = tmp_path / CHECKPOINT
    checkpoint = Checkpoint(path)
    checkpoint.save({"w": np.full(1000, 8.0)}, {"m": np.full(2, 8.0)}, 8)
    dies_while_saving(path, step)
    state, optimizer_state, applied = checkpoint.restore()
    assert applied == found
    assert np.array_equal(state["w"], np.full(1000, float(found)))
    assert np.array_equal(optimizer_state["m"], np.full(2, float(found)))
    # What the dead process left behind is in nobody's way.
    checkpoint.save({"w": np.full(1000, 10.0)}, {"m": np.full(2, 10.0)}, 10)
    assert checkpoint.restore()[2] == 10
    assert [file.name for file in tmp_path.iterdir()] == [CHECKPOINT]


class KilledError(Exception):
    """The process ends here."""


@pytest.mark.few(1)
@pytest.mark.parametrize("saves", range(1, ROUNDS + 2))
def test_a_process_that_died_while_saving_is_taken_up_by_another(
    saves: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = model_of(run(tmp_path, "plain"))
    replace, left = Path.replace, [saves]

    def dies(self: Path, target: Path) -> Path:
        if target.name == CHECKPOINT:
            left[0] -= 1
            if left[0] == 0:
                raise KilledError
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", dies)
        with pytest.raises(KilledError):
            run_text(tmp_path, scenario("plain"), name="killed")
    (remains,) = tmp_path.glob("killed-out*")
    if saves == 1:
        assert not (remains / CHECKPOINT).exists(), "nothing was trained yet"
        return
    restored = Checkpoint(remains / CHECKPOINT).restore()
    assert restored[2] == saves - 2, "the round whose model was being saved is lost, and no other"

    initialise = Training.__init__

    def take_up(self: Training, *arguments: Any) -> None:
        initialise(self, *arguments)
        self.state, self._optimizer_state, self._applied = restored

    monkeypatch.setattr(Training, "__init__", take_up)
    taken_up = model_of(run(tmp_path, "plain", rounds=ROUNDS - restored[2]))
    for name, array in whole.items():
        np.testing.assert_allclose(taken_up[name], array, atol=1e-6)
