"""The live state of runs: it says what the tables say, tells changes, and stays small."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dashboard_helpers import SECURE, STORMY, figures_of_tables, merged, watched
from run_helpers import rows_of, run_text

from coordinator.engine.facts import RoundRow
from coordinator.results.tables.reader import open_run
from coordinator.results.tables.schemas import SCHEMAS
from coordinator.results.verdicts import read_verdicts
from coordinator.run.runner import RunOutcome
from coordinator.service.dashboard.happenings import KEPT
from coordinator.service.dashboard.live_state import LiveState
from coordinator.service.dashboard.session_figures import MOST_REASONS, OTHER, SessionFigures
from coordinator.service.dashboard.table_figures import KEPT_ROUNDS
from edge.core.vocabulary import Reason


class Curious(LiveState):
    """Asks for all changes after every one, as the quickest reader would."""

    def __init__(self) -> None:
        super().__init__()
        self.known = self.changes(-1)
        self.said = 0
        self.statuses = [self.known["run"]["status"]]

    def look(self) -> None:
        self.known = merged(self.known, self.changes(self.known["version"]))
        self.said += 1
        if self.known["run"]["status"] != self.statuses[-1]:
            self.statuses.append(self.known["run"]["status"])

    def on_batch(self, table: str, batch: Any) -> None:
        super().on_batch(table, batch)
        self.look()

    def on_start(self, name: str, rounds: int | None) -> None:
        super().on_start(name, rounds)
        self.look()

    def on_round(self, row: RoundRow) -> None:
        super().on_round(row)
        self.look()

    def on_end(self, status: str) -> None:
        super().on_end(status)
        self.look()


@pytest.fixture(scope="module")
def stormy(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunOutcome, Curious]:
    live = Curious()
    return watched(tmp_path_factory.mktemp("stormy"), STORMY, live), live


def test_the_totals_are_those_of_the_tables(stormy: tuple[RunOutcome, Curious]) -> None:
    outcome, live = stormy
    expected = figures_of_tables(outcome.directory)
    found = live.changes(-1)
    totals = found["totals"]
    assert totals["rounds"] == {"completed": expected["rounds.completed"], "abandoned": 0}
    for name, number in totals["device_rounds"].items():
        assert number == expected.get(f"device_rounds.{name}", 0)
    for way in ("down", "up"):
        for kind, size in totals["sent_bytes"][way].items():
            assert size == expected[f"{way}.{kind}"] > -1
    for fate, size in totals["fate_bytes"].items():
        assert size == expected[f"fate.{fate}"]
    assert found["now"]["round"] == 6
    assert (found["now"]["stage"], set(found["now"]["states"].values())) == (None, {0})
    last = {
        f"model.{one['metric']}.{one['split']}.{one['population']}": one["last"]
        for one in found["evaluations"]
    }
    assert last == {name: value for name, value in expected.items() if name.startswith("model.")}


def test_the_latency_of_a_round_is_that_of_its_reports(stormy: tuple[RunOutcome, Curious]) -> None:
    outcome, live = stormy
    rows = [row for row in rows_of(outcome, "device_rounds") if row["round"] == 2]
    latency_s = sorted(row["latency_s"] for row in rows if row["latency_s"] is not None)
    told = live.changes(-1)["rounds"][1]
    assert (told["round"], told["reports"]) == (2, len(latency_s))
    assert latency_s[0] <= told["latency_p50_s"] <= told["latency_p95_s"] <= latency_s[-1]
    middle = (len(latency_s) - 1) / 2
    assert told["latency_p50_s"] == pytest.approx(
        (latency_s[int(middle)] + latency_s[int(middle + 0.5)]) / 2, rel=1e-12
    )


def test_every_drop_is_in_the_log_with_its_reason(stormy: tuple[RunOutcome, Curious]) -> None:
    outcome, live = stormy
    expected = [
        (row["round"], row["device"], row["reason"], row["stage"])
        for row in rows_of(outcome, "device_rounds")
        if row["outcome"] not in ("completed", "surplus")
    ]
    found = live.changes(-1)
    told = [(one["round"], one["device"], one["reason"], one["stage"]) for one in found["log"]]
    assert 10 < len(expected) <= KEPT
    assert told == expected
    assert found["log_total"] == len(expected)


def test_the_thresholds_end_as_the_verdicts_do(stormy: tuple[RunOutcome, Curious]) -> None:
    outcome, live = stormy
    told = live.changes(-1)["thresholds"]
    assert [(one["threshold"], one["held"], one["value"], one["margin"]) for one in told] == [
        (one["threshold"], one["held"], one["shown"]["value"], one["shown"]["margin"])
        for one in read_verdicts(outcome.directory)
    ]
    assert [one["held"] for one in told] == [True, False, True, True, True, True]


def test_thresholds_before_the_end_are_those_of_what_was_observed(tmp_path: Path) -> None:
    class Stopping(Curious):
        running: list[dict[str, Any]]

        def on_verdicts(self, verdicts: Any, reason: str | None, ending: str | None) -> None:
            self.running = self.changes(-1)["thresholds"]
            super().on_verdicts(verdicts, reason, ending)

    live = Stopping()
    watched(tmp_path, STORMY, live)
    ended = live.changes(-1)["thresholds"]
    assert [one.pop("final") for one in live.running] == [False] * 6
    assert [one.pop("final") for one in ended] == [True] * 6
    assert live.running == ended


def test_an_interrupted_run_keeps_what_was_observed(tmp_path: Path) -> None:
    class Interrupted(LiveState):
        def on_round(self, row: RoundRow) -> None:
            if row["round"] == 2:
                raise KeyboardInterrupt

    live = Interrupted()
    assert watched(tmp_path, STORMY, live).status == "interrupted"
    found = live.changes(-1)
    assert (found["run"]["status"], found["run"]["reason"]) == ("interrupted", "interrupted by the user")
    assert [(one["held"], one["final"]) for one in found["thresholds"]][:2] == [(True, False)] * 2
    assert found["totals"]["rounds"]["completed"] == 2


def test_a_baseline_that_misses_its_thresholds_is_told(tmp_path: Path) -> None:
    text = STORMY.replace("evaluation:", "baseline: same-seed-without-faults\nevaluation:").replace(
        "max < 2 s", "max < 1 ms"
    )
    live = LiveState()
    assert watched(tmp_path, text, live).status == "failed"
    found = live.changes(-1)
    assert (live.over, found["run"]["status"]) == (True, "failed")
    assert "baseline" in found["run"]["reason"]
    assert [one["final"] for one in found["thresholds"]] == [True] * len(found["thresholds"])
    assert False in [one["held"] for one in found["thresholds"]]


def test_changes_add_up_to_the_whole(stormy: tuple[RunOutcome, Curious]) -> None:
    _, live = stormy
    assert live.said > 20
    assert live.known == live.changes(-1)
    assert live.statuses == ["preparing", "running", "finished"]
    assert live.over
    nothing = live.changes(live.version)
    assert set(nothing) == {"version", "kept", "log", "log_total", "rounds"}
    assert (nothing["log"], nothing["rounds"]) == ([], [])


def test_it_is_json(stormy: tuple[RunOutcome, Curious]) -> None:
    _, live = stormy
    assert json.loads(json.dumps(live.changes(-1), allow_nan=False)) == live.changes(-1)
    fresh = LiveState().changes(-1)
    assert json.loads(json.dumps(fresh, allow_nan=False)) == fresh


@pytest.mark.slow
@pytest.mark.parametrize("text", [STORMY, SECURE], ids=["clear", "secure"])
def test_a_run_is_the_same_whether_it_is_watched(tmp_path: Path, text: str) -> None:
    live = LiveState()
    seen, unseen = watched(tmp_path, text, live), run_text(tmp_path, text, name="unseen")
    for table in SCHEMAS:
        left, right = ([_simulated(row) for row in rows_of(run, table)] for run in (seen, unseen))
        assert left == right
    digests = [json.loads((run.directory / "manifest.json").read_text())["digest"] for run in (seen, unseen)]
    assert digests[0] == digests[1] is not None
    assert live.changes(-1)["now"]["round"] == len(rows_of(seen, "rounds"))


def _simulated(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("wall_s", "host_rss_bytes")}


def test_the_frames_of_a_round_are_those_of_its_events(tmp_path: Path) -> None:
    live = LiveState()
    outcome = watched(tmp_path, SECURE, live)
    now = live.changes(-1)["now"]
    last = [row for row in rows_of(outcome, "events") if row["round"] == 2]
    for way in ("down", "up"):
        frames = [row for row in last if row["direction"] == way and row["kind"] != "handshake"]
        assert now["frames"][way] == len(frames)
        sizes = [row["payload_bytes"] + row["framing_bytes"] for row in frames]
        assert now["frame_bytes"][way] == sum(sizes)


def test_the_baseline_is_told_of_before_the_run(tmp_path: Path) -> None:
    text = STORMY.replace("evaluation:", "baseline: same-seed-without-faults\nevaluation:").replace(
        "p95 < 60 s", "p95 <= 20 * baseline"
    )
    live = Curious()
    outcome = watched(tmp_path, text, live)
    assert live.statuses == ["preparing", "baseline", "running", "finished"]
    found = live.changes(-1)
    assert found["run"]["baseline"] is None
    assert sum(found["totals"]["rounds"].values()) == 6
    assert len(found["thresholds"]) == 6
    verdict = next(one for one in found["thresholds"] if "baseline" in one["threshold"])
    assert verdict["held"] is True
    assert outcome.status == "finished"


def test_a_run_that_fails_says_so(tmp_path: Path) -> None:
    class Broken(LiveState):
        def on_evaluation(self, round_number: int, values: Any) -> None:
            if round_number == 2:
                raise RuntimeError("broken on purpose")

    live = Broken()
    with pytest.raises(RuntimeError, match="on purpose"):
        watched(tmp_path, STORMY, live)
    assert live.over
    assert live.changes(-1)["run"]["status"] == "failed"


def test_what_is_kept_has_a_bound(stormy: tuple[RunOutcome, Curious]) -> None:
    outcome, _ = stormy
    live = LiveState()
    batches = {
        name: outcome_table(outcome, name).combine_chunks().to_batches()[0]
        for name in ("device_rounds", "rounds")
    }
    for _ in range(60):
        for name, batch in batches.items():
            live.on_batch(name, batch)
    found = live.changes(-1)
    assert (len(found["rounds"]), sum(found["totals"]["rounds"].values())) == (KEPT_ROUNDS, 360)
    assert len(found["log"]) == KEPT < found["log_total"]
    assert found["log"][-1]["number"] == found["log_total"]
    # Whoever has not looked for long is told the same.
    assert live.changes(0)["log"] == found["log"]


def outcome_table(outcome: RunOutcome, name: str) -> Any:
    return open_run(outcome.directory).read(name)


def test_one_round_with_more_drops_than_are_kept(stormy: tuple[RunOutcome, Curious]) -> None:
    outcome, _ = stormy
    table = outcome_table(outcome, "device_rounds").combine_chunks()
    dropped = table.filter([name not in ("completed", "surplus") for name in table["outcome"].to_pylist()])
    many = pa.concat_tables([dropped] * 30).unify_dictionaries().combine_chunks().to_batches()[0]
    assert many.num_rows > KEPT
    live = LiveState()
    live.on_batch("device_rounds", many)
    found = live.changes(-1)
    assert (len(found["log"]), found["log_total"]) == (KEPT, many.num_rows)
    assert found["log"][0]["number"] == many.num_rows - KEPT + 1


def test_sessions_are_counted_and_told() -> None:
    live = LiveState()
    live.sessions.used = True
    for device in (1, 2, 3):
        live.joined(device, again=False)
    live.disconnected(1, "reset by peer")
    live.disconnected(2, "")
    live.joined(1, again=True)
    live.left(3, Reason.GARBAGE, "a frame of 0 bytes")
    live.handled(0.002)
    live.handled(0.004)
    found = live.changes(-1)
    assert found["sessions"] == {
        "connected": 1,
        "away": 1,
        "begun": 3,
        "resumed": 1,
        "broken": 2,
        "ended": {"garbage": 1},
        "refused": {},
        "handled": 2,
        "handling_mean_s": pytest.approx(0.003),
    }
    assert [(one["kind"], one["device"]) for one in found["log"]] == [
        ("disconnect", 1), ("disconnect", 2), ("resume", 1), ("leave", 3),
    ]  # fmt: skip


def test_goodbyes_are_no_news() -> None:
    live = LiveState()
    live.joined(1, again=False)
    live.left(1, Reason.SESSION_ENDED, "the run is over")
    assert live.changes(-1)["log"] == []
    assert live.sessions.ended == {"session-ended": 1}


def test_refusals_are_counted_by_reason_and_not_by_device() -> None:
    live = LiveState()
    for device in range(500):
        live.refused(device, "192.0.2.7", f"there is no device {device}; there are 0 to 11")
    assert live.sessions.refused == {"there is no device N; there are N to N": 500}
    assert live.changes(-1)["log"][-1]["reason"] == "there is no device 499; there are 0 to 11"


def test_strangers_cannot_make_it_grow() -> None:
    figures = SessionFigures()
    for index in range(1000):
        figures.refuse("x" * index)
    assert len(figures.refused) == MOST_REASONS + 1
    assert figures.refused[OTHER] == 1000 - MOST_REASONS
    assert max(map(len, figures.refused)) <= 120
    live = LiveState()
    live.refused(None, "192.0.2.7", "y" * 100_000)
    assert len(live.changes(-1)["log"][0]["reason"]) <= 200


def test_a_service_that_closes_says_so_unless_the_end_is_known() -> None:
    live = LiveState()
    live.closing()
    assert live.over
    assert live.changes(-1)["run"]["status"] == "ending"
    live.on_end("finished")
    live.closing()
    assert live.changes(-1)["run"]["status"] == "finished"
