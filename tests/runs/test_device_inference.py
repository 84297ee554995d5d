"""Devices that run their own models in a run: what they rank, what it takes, that nothing else changes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_helpers import IDEAL_PROFILES, rows_of, run_text, tables_of
from secure_helpers import differing_columns
from test_interruption import running_scenario, wait_for_rows

from coordinator.cli.entry import execute
from coordinator.engine import inference
from coordinator.engine.run_files import MODEL
from coordinator.engine.workload import RatingWorkload
from coordinator.results.diff import diff_runs
from coordinator.results.tables.reader import open_run
from coordinator.results.tables.schemas import is_measured
from coordinator.run.assembling import assemble
from coordinator.run.runner import RunOutcome
from coordinator.scenario.errors import ScenarioError
from coordinator.scenario.load import load
from edge.core.errors import ParityError
from edge.metrics.ranking import top_k
from edge.onnx.session import RoundInference

SCENARIO = """
format: 2
seed: 4
data:
  source: synthetic-ratings
  users: 40
  items: 90
  ratings_per_user: 12
  features: {kind: synthetic}
fleet: {mix: global_android_2024, availability: bernoulli_google}
learning: {algorithm: fedmmf, mask: {kind: one-order}, factors: 4}
rounds: {count: 4, cohort: 20, deadline: 300 s, quorum: 1}
evaluation: {every: 2}
inference: {every: 2, devices: 9, top: 6}
"""
METHODS = {
    "fedrecon": "{algorithm: fedrecon, factors: 4, mask: null}",
    "no item bias": "{algorithm: fedrecon, factors: 4, mask: null, item_bias: false}",
    "no user bias": "{algorithm: fedrecon, factors: 4, mask: null, user_bias: false}",
    "gradient steps": "{algorithm: fedrecon, mask: null, reconstruction: {method: gradient-steps}}",
    "mini-batches": "{algorithm: fedrecon, mask: null, reconstruction: {method: mini-batches, epochs: 1, "
    "batch_size: 4, learning_rate: 0.1}}",
    "zero-order": "{mask: {kind: zero-order}}",
    "one-order": "{mask: {kind: one-order}}",
    "two-order": "{mask: {kind: two-order, factors: 2}}",
    "high-order": "{mask: {kind: high-order, width: 3}}",
    "masks, no biases": "{item_bias: false, user_bias: false}",
}


class Spy:
    """Keeps what onnxruntime gave, and lets it be changed on its way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.outputs: list[dict[str, np.ndarray]] = []
        self._run = inference.run_round
        monkeypatch.setattr(inference, "run_round", self)

    def __call__(self, *args: Any, **kwargs: Any) -> RoundInference:
        found = self._run(*args, **kwargs)
        self.outputs.append(self.changed({name: array.copy() for name, array in found.outputs.items()}))
        return dataclasses.replace(found, outputs=self.outputs[-1])

    def changed(self, outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return outputs


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    return Spy(monkeypatch)


def run(folder: Path, *overrides: str, name: str = "run") -> RunOutcome:
    return run_text(folder, SCENARIO, overrides, name)


def workload_of(folder: Path, overrides: Sequence[str]) -> RatingWorkload:
    file = folder / "again.yaml"
    file.write_text(SCENARIO)
    workload = assemble(load(file, overrides)).workload
    assert isinstance(workload, RatingWorkload)
    return workload


@pytest.mark.few(3)
@pytest.mark.parametrize("sessions", ["shared", "own"])
@pytest.mark.parametrize("method", list(METHODS))
def test_devices_rank_what_the_method_predicts_for_them(
    tmp_path: Path, spy: Spy, method: str, sessions: str
) -> None:
    settings = (f"learning={METHODS[method]}", f"inference.sessions={sessions}")
    outcome = run(tmp_path, *settings)
    rows = rows_of(outcome, "inferences")
    assert [row["round"] for row in rows] == [2] * 9 + [4] * 9
    last = rows[9:]
    assert [row["device"] for row in last] == sorted({row["device"] for row in last})
    assert [row["device"] for row in last] != [row["device"] for row in rows[:9]]

    workload = workload_of(tmp_path, settings)
    devices = np.array([row["device"] for row in last])
    batch = workload.split.train.gather(workload.clients.users[devices])
    with np.load(outcome.directory / MODEL) as saved:
        state = {name: saved[name] for name in saved.files}
    keys = inference.hashed_bits(inference.stream_key(4, "inference", "client"), devices, 4)
    expected = workload.algorithm.scores(state, batch, keys)
    found = spy.outputs[-1]
    np.testing.assert_allclose(found["scores"], expected, rtol=2e-5, atol=2e-5)
    lists = top_k(found["scores"], 6, batch)
    np.testing.assert_array_equal(found["top_items"], lists)
    np.testing.assert_array_equal(found["top_scores"], np.take_along_axis(found["scores"], lists, axis=1))

    assert [row["rated"] for row in last] == np.diff(batch.indptr).tolist()
    assert {row["items"] for row in rows} == {90}
    for row in rows:
        assert 0 <= row["max_relative_error"] <= 1e-5
        assert row["max_absolute_error"] <= 1e-4
        assert row["host_latency_s"] > 0
        assert row["host_opening_s"] > 0
        assert row["host_session_bytes"] >= 0
    openings = {row["host_opening_s"] for row in rows}
    # Two that were opened on their own may have taken the same nanoseconds by chance; not all.
    assert (len(openings) == 1) == (sessions == "shared")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedrecon", "zero-order", "two-order"])
def test_a_devices_own_file_is_the_exported_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    files: list[bytes] = []
    run_round = inference.run_round

    def keep(sessions: Any, *args: Any, **kwargs: Any) -> RoundInference:
        files[:] = list(sessions)
        return run_round(files, *args, **kwargs)

    monkeypatch.setattr(inference, "run_round", keep)
    settings = (f"learning={METHODS[method]}", "inference.sessions=own")
    outcome = run(tmp_path, *settings, name="of-eight")
    short_hash = load(tmp_path / "of-eight.yaml", settings).hash[:8]
    last = rows_of(outcome, "inferences")[9:]
    for place in (0, 8):
        file = tmp_path / "m.onnx"
        arguments = ["--kind", "recommender", "--device", str(last[place]["device"]), "--top", "6"]
        assert execute(["export", str(outcome.directory), *arguments, "-o", str(file)]) == 0
        # In a run it is the run's id that stands for the scenario, so that no file name changes a size.
        assert file.read_bytes().replace(b"of-eight", short_hash.encode()) == files[place]
        assert last[place]["model_bytes"] == file.stat().st_size


def test_latency_and_energy_by_hand(tmp_path: Path) -> None:
    fleet = "{mix: null, devices: {ideal_device: 100%}, networks: {ideal_wire: 100%}, "
    fleet += f"profiles: [{IDEAL_PROFILES}]}}"
    outcome = run(tmp_path, f"fleet={fleet}", "learning={algorithm: fedrecon, factors: 4, mask: null}")
    items, factors, top = 90, 4, 6
    for row in rows_of(outcome, "inferences"):
        flops = 2 * items * factors + 3 * items + items + top * np.log2(top)
        numbers = (items * factors + factors + items) + (3 * items) + 2 * (2 * items + 1)
        numbers += 2 * items + 2 * items + row["rated"] + items + 5 * top
        # What is left out is gathered: an index, a value read and one written, at 1.5 times the cost.
        moved_bytes = 4 * numbers + 1.5 * row["rated"] * (8 + 4 + 4)
        by_hand_s = 1e-4 + 13 * 20e-6 + flops / 2e9 + moved_bytes / 1e9
        assert row["latency_s"] == pytest.approx(by_hand_s, rel=1e-12)
        assert row["energy_j"] == pytest.approx(4.0 * by_hand_s, rel=1e-12)
        assert row["memory_bytes"] == row["model_bytes"] + 4 * 4 * items + 8 * row["rated"]


@pytest.mark.slow
def test_classes_take_what_their_profiles_say(tmp_path: Path) -> None:
    rows = rows_of(run(tmp_path, "inference.devices=40"), "inferences")
    of_class: dict[str, list[float]] = {}
    for row in rows:
        of_class.setdefault(row["class"], []).append(row["latency_s"])
    assert len(of_class) >= 4
    assert np.median(of_class["phone_entry_a53"]) > 1.5 * np.median(of_class["phone_flagship_2023"])
    # The same device is as noisy as its class each time, but never twice the same.
    assert len({row["latency_s"] for row in rows}) == len(rows)
    fleet = {(row["device"], row["class"]) for row in rows}
    assert fleet <= {(row["device"], row["class"]) for row in rows_of(run(tmp_path), "device_rounds")} | fleet
    assert len(fleet) == 40


@pytest.mark.slow
def test_nothing_else_in_the_run_changes(tmp_path: Path) -> None:
    with_it, without = run(tmp_path), run(tmp_path, "inference=null", name="without")
    assert rows_of(without, "inferences") == []
    parted = differing_columns(with_it, without)
    assert parted.pop("inferences")
    assert set(map(tuple, parted.values())) == {()}
    assert (with_it.directory / MODEL).read_bytes() == (without.directory / MODEL).read_bytes()


@pytest.mark.slow
def test_what_is_not_measured_depends_on_the_seed_alone(tmp_path: Path) -> None:
    digests = {}
    for name, settings in {
        "once": (),
        "again": (),
        "own sessions": ("inference.sessions=own",),
        "batches": ("compute.batch=3",),
        "workers": ("compute.workers=2",),
        "other seed": ("seed=5",),
    }.items():
        outcome = run(tmp_path, *settings, name=name)
        digests[name] = json.loads((outcome.directory / "manifest.json").read_text())["digest"]
        assert len(rows_of(outcome, "inferences")) == 18
    other = digests.pop("other seed")
    assert set(digests.values()) == {digests["once"]}
    assert other != digests["once"]


@pytest.mark.slow
def test_how_many_scores_are_kept_at_once_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(tmp_path)
    monkeypatch.setattr(inference, "_SCORES_AT_ONCE", 4 * 90)
    monkeypatch.setattr(inference, "_SCORES_COMPARED", 1)
    pieces = run(tmp_path, name="pieces")
    assert diff_runs(tables_of(whole), tables_of(pieces)).identical
    schema = tables_of(whole).read("inferences").schema
    assert [f.name for f in schema if is_measured(f)] == [
        "host_latency_s", "host_opening_s", "host_session_bytes", "max_absolute_error", "max_relative_error",
    ]  # fmt: skip
    errors = [[row["max_absolute_error"] for row in rows_of(one, "inferences")] for one in (whole, pieces)]
    np.testing.assert_allclose(*errors, rtol=1e-6)


class Drifting(Spy):
    """Moves one score of the second inference."""

    def changed(self, outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if len(self.outputs) == 1:
            outputs["scores"][3, 17] += 0.01
        return outputs


class Repeating(Spy):
    """Lists an item that is not the best."""

    def changed(self, outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        outputs["top_items"][2, 0] = outputs["scores"][2].argmin()
        return outputs


@pytest.mark.slow
@pytest.mark.parametrize("sessions", ["shared", "own"])
def test_a_score_beyond_the_tolerance_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sessions: str, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = run(tmp_path)
    device = rows_of(whole, "inferences")[9 + 3]["device"]
    settings = f"inference.sessions={sessions}"
    with monkeypatch.context() as patched:
        Drifting(patched)
        with pytest.raises(ParityError, match=rf"after round 4, device {device}: the score of item 17 is"):
            run(tmp_path, settings, name="drifting")
    stopped = open_run(tmp_path / "drifting-out.partial")
    assert json.loads((stopped.directory / "manifest.json").read_text())["status"] == "failed"
    assert set(stopped.read("inferences")["round"].to_pylist()) == {2}

    Drifting(monkeypatch)
    arguments = ["run", str(tmp_path / "run.yaml"), "--set", settings, "--out", str(tmp_path / "cli")]
    assert execute([*arguments, "--quiet"]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith(f"error: after round 4, device {device}: the score of item 17 is")
    assert "beyond the tolerance of 1e-05 + 1e-05 of the score" in shown
    assert "Traceback" not in shown


def test_a_wrong_list_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Repeating(monkeypatch)
    with pytest.raises(ParityError, match=r"after round 2, device \d+: place 0 of its list.* is item"):
        run(tmp_path)


def test_a_tolerance_that_no_float32_meets_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(ParityError, match="beyond the tolerance of 1e-12"):
        run(tmp_path, "inference.tolerance=1e-12")


def test_a_list_longer_than_the_catalogue(tmp_path: Path, spy: Spy) -> None:
    outcome = run(tmp_path, "inference.top=100")
    for row, listed in zip(rows_of(outcome, "inferences")[9:], spy.outputs[-1]["top_items"], strict=True):
        assert (listed >= 0).sum() == 90 - row["rated"]


def test_thresholds_on_what_devices_take(tmp_path: Path) -> None:
    promises = "{inference.latency: [p99 < 1 s], 'inference.latency{class=phone_mid_2020}': [p50 > 1 us], "
    promises += "inference.energy: [max < 1 uJ], inference.max_error: [max < 1e-5]}"
    verdicts = run(tmp_path, f"thresholds={promises}").verdicts
    assert [verdict.held for verdict in verdicts] == [True, True, False, True]


def test_more_devices_than_the_data_has_is_refused_before_the_run(tmp_path: Path) -> None:
    lines = [f"u{user}\ti{item}\t{1 + (user + item) % 5}\n" for user in range(30) for item in range(20)]
    (tmp_path / "r.txt").write_text("".join(lines))
    absent = "users: null, items: null, ratings_per_user: null, features: null"
    data = f"data={{source: plain, path: {tmp_path / 'r.txt'}, {absent}}}"
    with pytest.raises(ScenarioError, match="31 devices, but the data has 30 training clients"):
        run(tmp_path, data, f"learning={METHODS['fedrecon']}", "inference.devices=31")


@pytest.mark.slow
def test_a_killed_run_keeps_the_inferences_of_its_finished_rounds(tmp_path: Path) -> None:
    settings = ("rounds.over_select=100%", "evaluation.every=1", "inference={every: 1, devices: 5}")
    (tmp_path / "s.yaml").write_text(SCENARIO)
    with running_scenario(
        tmp_path / "s.yaml", tmp_path / "run", (*settings, "rounds.count=100000")
    ) as process:
        wait_for_rows(process.stderr, tmp_path / "run.partial", 5)
        process.kill()
        process.communicate(timeout=600)
    stopped = open_run(tmp_path / "run.partial")
    assert not stopped.complete
    rounds = stopped.read("rounds", ["round"])["round"].to_pylist()
    rows = stopped.read("inferences")["round"].to_pylist()
    assert len(rounds) >= 5
    # Devices run their models once a round is over, and rows of both are written a second's rounds at a time:
    # the kill may have come between the two.
    assert rows == sorted(rounds[: len(rows) // 5] * 5)
