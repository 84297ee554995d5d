"""Devices that keep their user factors: when a row changes, what it is then, and that it goes nowhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from run_helpers import IDEAL_PROFILES, Silent, rows_of, run_text
from secure_helpers import IDEAL_WIRE, faults, secure

from coordinator.cli.entry import execute
from coordinator.engine import inference
from coordinator.engine.workload import RatingWorkload
from coordinator.run.assembling import assemble
from coordinator.run.runner import RunOutcome, run_assembled
from coordinator.scenario.load import load
from edge.core.rng import hashed_bits
from edge.learning.base import State

FACTORS = 3
STEPS = (
    "{method: gradient-steps, steps: 2, bias_learning_rate: 0.4, regularization: 3, bias_regularization: 0.5}"
)
LEARNING = f"algorithm: fedrecon, factors: {FACTORS}, user_factors: persistent, reconstruction: {STEPS}"
SCENARIO = f"""
format: 2
seed: 4
data: {{source: synthetic-ratings, users: 40, items: 120, ratings_per_user: 12}}
fleet: {IDEAL_WIRE}
learning:
  {{{LEARNING}, client: {{method: gradient-steps, steps: 1, learning_rate: 1, regularization: 0.05}},
  optimizer: {{kind: sgd}}, learning_rate: 0.8}}
rounds: {{count: 5, cohort: 40, deadline: 60 s}}
evaluation: {{every: 5}}
"""
OVERLAPPING = (
    # A mapping is merged into what is there: take that away first.
    "fleet.devices=null",
    "fleet.devices={ideal_device: 60%, slow_device: 40%}",
    "rounds={count: 12, cohort: 10, over_select: 160%, quorum: 4, deadline: 20 s}",
)
"""Rounds end with the tenth report, when slow devices have seconds to compute."""
Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.float32]


class Run:
    """A run, what its devices hold afterwards, and the model that each round began with."""

    def __init__(self, folder: Path, overrides: tuple[str, ...] = (), text: str = SCENARIO) -> None:
        folder.mkdir(exist_ok=True)
        file = folder / "s.yaml"
        file.write_text(text)
        profiles = IDEAL_PROFILES.read_text()
        ideal = profiles[profiles.index("  ideal_device:") : profiles.index("crypto:\n")]
        slow = ideal.replace("ideal_device", "slow_device").replace("20 us", "200 ms")
        (folder / "profiles.yaml").write_text(profiles.replace(ideal, ideal.rstrip() + "\n" + slow))
        loaded = load(file, (*overrides, f"fleet.profiles=[{folder / 'profiles.yaml'}]"))
        assembly = assemble(loaded)
        assert isinstance(assembly.workload, RatingWorkload)
        self.workload = assembly.workload
        self.states: dict[int, State] = {}
        training = self.workload.training

        def noted(state: State, round_number: int) -> Any:
            self.states[round_number] = state
            return training(state, round_number)

        self.workload.training = noted  # type: ignore[method-assign]
        self.outcome: RunOutcome = run_assembled(loaded, assembly, target=folder / "run", observer=Silent())
        # Where every device is late no round completes; what the devices hold is to be seen all the same.
        assert self.outcome.status in ("finished", "no-round-completed")

    @property
    def rows(self) -> Rows:
        """What the devices hold, [users, FACTORS + 1]."""
        assert self.workload.kept is not None
        return self.workload.kept.of(np.arange(self.workload.split.train.n_users))

    def digest(self) -> tuple[Any, ...]:
        """What must not depend on batches and workers."""
        tables = [rows_of(self.outcome, table) for table in ("device_rounds", "evaluations", "events")]
        return (*tables, (self.outcome.directory / "model.npz").read_bytes(), self.rows.tobytes())

    def replayed(self) -> Rows:
        """Compute the rows again: each device alone, in the order in which they finished computing."""
        workload, rows = self.workload, np.zeros_like(self.rows)
        done = [
            e for e in rows_of(self.outcome, "events") if e["kind"] == "computed" and e["reason"] == "none"
        ]
        for event in sorted(done, key=lambda event: event["time_s"]):
            client = np.array([event["device"]])
            users = workload.clients.users[client]
            keys = hashed_bits(workload.key, client, event["round"])
            (update,) = workload.algorithm.client_update(
                self.states[event["round"]], workload.split.train.gather(users), keys, local=rows[users]
            )
            assert update.local is not None
            rows[users] = update.local
        return rows


def by_hand(workload: RatingWorkload, rounds: int) -> tuple[Floats, Floats, Floats]:
    """Train with everybody in every round, written out; return item factors, item biases, user rows."""
    train, state = workload.split.train, workload.algorithm.initial_state(4)
    q, b, mean = state["item_factors"].astype(float), np.zeros(120), float(state["rating_mean"][0])
    p, bias = np.zeros((40, FACTORS)), np.zeros(40)
    for _ in range(rounds):
        change_q, change_b, ratings = np.zeros_like(q), np.zeros_like(b), 0
        for user in range(40):
            batch = train.gather(np.array([user]))
            items, n = batch.items.astype(int), len(batch.items)
            for _ in range(2):
                e = batch.ratings - (mean + b[items] + bias[user] + q[items] @ p[user])
                step = 1.0 / (n + 3.0) * (3.0 * p[user] - e @ q[items])
                bias[user] -= 0.4 / (n + 0.5) * (0.5 * bias[user] - e.sum())
                p[user] -= step
            e = batch.ratings - (mean + b[items] + bias[user] + q[items] @ p[user])
            change_q[items] += e[:, None] * p[user] - 0.05 * q[items]
            change_b[items] += e
            ratings += n
        q, b = q + 0.8 * change_q / ratings, b + 0.8 * change_b / ratings
    return q, b, np.column_stack((p, bias))


@pytest.mark.slow
def test_a_run_with_everybody_is_the_loop_written_out(tmp_path: Path) -> None:
    run = Run(tmp_path)
    q, b, rows = by_hand(run.workload, 5)
    with np.load(run.outcome.directory / "model.npz") as model:
        assert set(model.files) == {"item_factors", "item_bias", "rating_mean"}
        np.testing.assert_allclose(model["item_factors"], q, rtol=0, atol=1e-6)
        np.testing.assert_allclose(model["item_bias"], b, rtol=0, atol=1e-6)
    np.testing.assert_allclose(run.rows, rows, rtol=0, atol=1e-6)
    assert np.abs(rows[:, :FACTORS]).max() > 0.01


@pytest.mark.slow
def test_rounds_that_overlap_do_not_see_each_others_rows(tmp_path: Path) -> None:
    runs = [Run(tmp_path / str(batch), (*OVERLAPPING, f"compute.batch={batch}")) for batch in (1, 7, 256)]
    first = runs[0]
    starts = {row["round"]: row["start_s"] for row in rows_of(first.outcome, "rounds")}
    computed = [e for e in rows_of(first.outcome, "events") if e["kind"] == "computed"]
    across = [e for e in computed if e["time_s"] > starts.get(e["round"] + 1, np.inf)]
    assert across, "some device computes while the next round is on"
    assert max(np.unique([e["device"] for e in computed], return_counts=True)[1]) > 2
    for run in runs:
        assert run.rows.tobytes() == run.replayed().tobytes()
        assert run.digest() == first.digest()


@pytest.mark.slow
def test_a_session_that_ends_while_a_batch_is_computed_leaves_the_old_row(tmp_path: Path) -> None:
    """The result of such a device may be there already, computed along with the others."""
    sessions = (
        "fleet.availability={kind: on-off, session: {distribution: exponential, mean: 6 s},"
        " gap: {distribution: exponential, mean: 2 s}}"
    )
    runs = [
        Run(
            tmp_path / str(batch),
            (*OVERLAPPING, sessions, "rounds.selection=random", f"compute.batch={batch}"),
        )
        for batch in (1, 256)
    ]
    ended = rows_of(runs[1].outcome, "device_rounds")
    assert any((row["stage"], row["reason"]) == ("compute", "session-ended") for row in ended)
    assert runs[0].digest() == runs[1].digest()
    assert runs[1].rows.tobytes() == runs[1].replayed().tobytes()


@pytest.mark.slow
def test_workers_change_nothing(tmp_path: Path) -> None:
    alone, pooled = (
        Run(tmp_path / str(n), (*OVERLAPPING, "rounds.count=4", f"compute.workers={n}", "compute.batch=6"))
        for n in (0, 2)
    )
    assert alone.digest() == pooled.digest()
    assert alone.rows.any()


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["download", "compute", "report"])
def test_a_device_that_vanishes_keeps_what_it_had_computed(stage: str, tmp_path: Path) -> None:
    """Who goes before it has finished computing keeps its old row; who goes later, its new one."""
    text = SCENARIO + faults(**{stage: "50%"})
    run = Run(tmp_path, ("rounds.count=2",), text)
    ended = rows_of(run.outcome, "device_rounds")
    gone = [row for row in ended if row["outcome"] == "dropped"]
    assert len(gone) == 40
    assert {row["stage"] for row in gone} == {stage}
    assert run.rows.tobytes() == run.replayed().tobytes()
    computed = {row["device"] for row in ended if stage == "report" or row["outcome"] == "completed"}
    users = run.workload.clients.users
    never = [users[device] for device in range(40) if device not in computed]
    assert run.rows[[users[device] for device in sorted(computed)]].any(axis=1).all()
    assert not run.rows[never].any()
    assert bool(never) == (stage != "report")


@pytest.mark.slow
def test_a_device_whose_time_is_up_before_it_is_done_keeps_its_old_row(tmp_path: Path) -> None:
    settings = (*OVERLAPPING[:1], "fleet.devices={slow_device: 100%}", "rounds={count: 1, cohort: 40}")
    cut = Run(tmp_path / "cut", (*settings, "rounds.deadline=2 s"))
    ended = rows_of(cut.outcome, "device_rounds")
    assert {(row["outcome"], row["stage"]) for row in ended} == {("late", "compute")}
    assert not cut.rows.any()
    enough = Run(tmp_path / "enough", (*settings, "rounds.deadline=20 s"))
    assert enough.rows.any(axis=1).all()


def test_a_report_that_comes_too_late_leaves_the_new_row(tmp_path: Path) -> None:
    wire = ("fleet.networks=null", "fleet.networks={slow_wire: 100%}")
    settings = (*wire, "data.items=400", "learning.factors=8")
    run = Run(tmp_path, (*settings, "rounds={count: 1, cohort: 4, quorum: 1, deadline: 2800 ms}"))
    rows = rows_of(run.outcome, "device_rounds")
    reported = {row["device"] for row in rows if row["report_start_s"] is not None}
    assert {row["outcome"] for row in rows} == {"late"}
    assert reported
    assert set(np.flatnonzero(run.rows.any(axis=1))) == set(run.workload.clients.users[sorted(reported)])


@pytest.mark.slow
def test_nothing_of_the_rows_is_sent_or_written(tmp_path: Path) -> None:
    """Bytes, times and files are those of reconstructed factors; only values differ."""
    kept = Run(tmp_path / "kept", OVERLAPPING)
    made = Run(tmp_path / "made", (*OVERLAPPING, "learning.user_factors=reconstructed"))
    assert made.workload.kept is None
    valued = {"loss", "memory_bytes"}
    for one, other in zip(
        rows_of(kept.outcome, "device_rounds"), rows_of(made.outcome, "device_rounds"), strict=True
    ):
        assert {k: v for k, v in one.items() if k not in valued} == {
            k: v for k, v in other.items() if k not in valued
        }
        if one["memory_bytes"]:
            assert one["memory_bytes"] == other["memory_bytes"] + 4 * (FACTORS + 1)
    assert rows_of(kept.outcome, "events") == rows_of(made.outcome, "events")
    files = {path.name for path in kept.outcome.directory.iterdir()}
    assert files == {path.name for path in made.outcome.directory.iterdir()}
    for path in kept.outcome.directory.iterdir():
        contents = path.read_bytes()
        for row in kept.rows[kept.rows.any(axis=1)]:
            assert row.tobytes() not in contents, path.name


@pytest.mark.slow
def test_an_evaluation_goes_on_from_the_rows_and_changes_none(tmp_path: Path) -> None:
    often = Run(tmp_path / "often", ("evaluation.every=1",))
    seldom = Run(tmp_path / "seldom")
    assert often.rows.tobytes() == seldom.rows.tobytes()
    workload = often.workload
    with np.load(often.outcome.directory / "model.npz") as saved:
        state = {name: saved[name] for name in saved.files}
    users = workload.split.seen_users
    assert workload.split.test is not None
    support, query = workload.split.train.gather(users), workload.split.test.gather(users)
    keys = np.zeros(len(users), np.uint64)
    predicted = workload.algorithm.predict(state, support, query, keys, often.rows[users])
    rmse = float(np.sqrt(np.mean((predicted.astype(float) - query.ratings) ** 2)))
    measured = [
        row["value"]
        for row in rows_of(often.outcome, "evaluations")
        if row["metric"] == "rmse" and row["tag"] == "all" and row["round"] == 5
    ]
    assert measured == [pytest.approx(rmse, rel=1e-6)]
    fresh = workload.algorithm.predict(state, support, query, keys)
    assert not np.array_equal(fresh, predicted)


@pytest.mark.slow
def test_devices_that_run_their_models_go_on_from_their_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs: list[npt.NDArray[np.float32]] = []
    run_round = inference.run_round

    def noted(*args: Any, **kwargs: Any) -> Any:
        found = run_round(*args, **kwargs)
        outputs.append(found.outputs["scores"].copy())
        return found

    monkeypatch.setattr(inference, "run_round", noted)
    run = Run(tmp_path / "with", ("inference={every: 5, devices: 9, top: 3}",))
    assert run.rows.tobytes() == Run(tmp_path / "without").rows.tobytes()
    with np.load(run.outcome.directory / "model.npz") as saved:
        state = {name: saved[name] for name in saved.files}
    devices = np.array([row["device"] for row in rows_of(run.outcome, "inferences")])
    users = run.workload.clients.users[devices]
    support, keys = run.workload.split.train.gather(users), np.zeros(9, np.uint64)
    expected = run.workload.algorithm.scores(state, support, keys, run.rows[users])
    np.testing.assert_allclose(outputs[-1], expected, rtol=2e-5, atol=2e-5)
    assert np.abs(run.workload.algorithm.scores(state, support, keys) - expected).max() > 1e-2


def test_clients_of_several_users_keep_a_row_of_each(tmp_path: Path) -> None:
    run = Run(tmp_path, ("data.users_per_client=5", "rounds.cohort=8"))
    q, _, rows = by_hand(run.workload, 5)
    with np.load(run.outcome.directory / "model.npz") as model:
        np.testing.assert_allclose(model["item_factors"], q, rtol=0, atol=1e-6)
    np.testing.assert_allclose(run.rows, rows, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_under_secure_aggregation_it_is_the_same_training(tmp_path: Path) -> None:
    rounds = "count: 4, cohort: 12, deadline: 60 s, interval: 10 min"
    parts: dict[str, Any] = {
        "rounds": rounds,
        "fleet": IDEAL_WIRE,
        "learning": f"{LEARNING}, upload: dense, optimizer: {{kind: sgd}}, learning_rate: 0.5",
    }
    masked = Run(tmp_path / "masked", (), secure("mode: secagg, bits: 64", **parts))
    plain = Run(tmp_path / "plain", (), secure("mode: off", **parts))
    assert [row["completed"] for row in rows_of(masked.outcome, "rounds")] == [12] * 4
    assert [row["secagg_sum_error"] for row in rows_of(masked.outcome, "rounds")] == [0] * 4
    assert masked.rows.any()
    np.testing.assert_allclose(masked.rows, plain.rows, rtol=0, atol=1e-5)


def test_no_device_of_such_a_run_is_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = run_text(tmp_path, SCENARIO, ["rounds.count=1"]).directory
    file = tmp_path / "m.onnx"
    arguments = ["export", str(directory), "-o", str(file)]
    assert execute([*arguments, "--kind", "recommender", "--device", "1"]) == 2
    message = capsys.readouterr().err
    assert "learning.user_factors is 'persistent'" in message
    assert "a run directory holds nothing of any device" in message
    assert execute([*arguments, "--kind", "stateless"]) == 2
    assert "learning.user_factors is 'persistent'" in capsys.readouterr().err
    assert not file.exists()


def test_a_refusal_names_the_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(SCENARIO.replace(f"reconstruction: {STEPS}", "split: none"))
    assert execute(["validate", str(file)]) == 2
    message = capsys.readouterr().err
    line = next(n for n, text in enumerate(file.read_text().splitlines(), 1) if "user_factors" in text)
    column = file.read_text().splitlines()[line - 1].index("persistent") + 1
    assert f"s.yaml:{line}:{column}: learning.user_factors: " in message
    assert "write 'reconstruction: {method: gradient-steps, steps: 1}'" in message
