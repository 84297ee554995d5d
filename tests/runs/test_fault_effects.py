"""What each kind of fault does, against figures computed by hand: one device without chance, one round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from by_hand import DOWN_BPS, RTT_S, UP_BPS, leaving_s, small_round_trip_s
from run_helpers import SMALL, rows_of, run_text
from secure_helpers import differing_columns, secure
from test_hand_computed_round import SCENARIO, hand_computed_compute_s

from coordinator.run.runner import RunOutcome
from coordinator.scenario.errors import ScenarioError

Rows = list[dict[str, Any]]
SYN_BYTES = 60


@dataclass(frozen=True)
class Run:
    outcome: RunOutcome
    rounds: Rows
    devices: Rows
    events: Rows
    faults: Rows

    @property
    def device(self) -> dict[str, Any]:
        """The device in the first round."""
        return self.devices[0]

    @property
    def weights(self) -> Any:
        """The model at the end."""
        with np.load(self.outcome.directory / "model.npz") as file:
            return {name: file[name] for name in file.files}

    def frame_bytes(self, kind: str) -> int:
        found = next(row for row in self.events if row["kind"] == kind and row["direction"] != "none")
        return int(found["payload_bytes"] + found["framing_bytes"])

    def bytes_of(self, kind: str) -> int:
        """All that travelled for frames of a kind in the first round."""
        return sum(
            row[f"{part}_bytes"]
            for row in self.events
            if row["kind"] == kind and row["round"] == 1
            for part in ("payload", "framing", "tcp_ip", "retransmitted")
        )


def run(
    folder: Path, fault: str = "", *, rounds: int = 1, base: str = SCENARIO, deadline: str = "60 s"
) -> Run:
    text = base.replace("count: 2", f"count: {rounds}").replace("deadline: 60 s", f"deadline: {deadline}")
    if fault:
        text += f"faults: [{{name: it, {fault}}}]\n"
    folder.mkdir(exist_ok=True)
    outcome = run_text(folder, text, name=f"r{len(list(folder.iterdir()))}")
    tables = (rows_of(outcome, table) for table in ("rounds", "device_rounds", "events", "faults"))
    return Run(outcome, *tables)


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(tmp_path_factory.mktemp("calm"))


def struck(found: Run) -> list[tuple[str, int]]:
    assert {(row["round"], row["fault"], row["device"]) for row in found.faults} <= {(1, "it", 0)}
    return [(row["stage"], row["count"]) for row in found.faults]


# -- devices that compute more slowly ----------------------------------------------------------------------


@pytest.mark.slow
def test_a_slowdown_multiplies_what_computing_takes(tmp_path: Path, calm: Run) -> None:
    slow = run(tmp_path, "slowdown: {factor: 4}")
    assert slow.device["compute_s"] == pytest.approx(4 * hand_computed_compute_s(), rel=1e-12)
    later_s = 3 * hand_computed_compute_s()
    assert slow.device["report_end_s"] == pytest.approx(calm.device["report_end_s"] + later_s, rel=1e-9)
    assert struck(slow) == [("compute", 1)]


@pytest.mark.slow
def test_a_slowdown_ends_in_the_middle_of_a_computation(tmp_path: Path, calm: Run) -> None:
    begins_s = calm.device["compute_start_s"] + 1e-3
    slow = run(tmp_path, f"at: {begins_s!r} s, for: 2 ms, slowdown: {{factor: 4}}")
    # In two milliseconds half a millisecond of work is done.
    assert slow.device["compute_s"] == pytest.approx(hand_computed_compute_s() + 1.5e-3, rel=1e-9)


# -- links -------------------------------------------------------------------------------------------------


def test_a_cap_on_the_rate_is_the_rate(tmp_path: Path, calm: Run) -> None:
    capped = run(tmp_path, "bandwidth: {up: 100 kbit/s}, at_stage: report")
    starts_s = capped.device["report_start_s"]
    assert starts_s == calm.device["report_start_s"]
    took_s = leaving_s(calm.frame_bytes("report"), 100e3) + small_round_trip_s(UP_BPS) / 2
    assert capped.device["report_end_s"] - starts_s == pytest.approx(took_s, rel=1e-9)
    assert struck(capped) == [("report", 1)]


@pytest.mark.slow
def test_a_cap_above_the_rate_changes_nothing(tmp_path: Path, calm: Run) -> None:
    capped = run(tmp_path, "bandwidth: {up: 1 Gbit/s, down: 1 Gbit/s}")
    assert capped.devices == calm.devices


def test_a_scaled_link_keeps_its_share_one_way(tmp_path: Path, calm: Run) -> None:
    scaled = run(tmp_path, "bandwidth: {scale: 10%}, direction: down, at_stage: download")
    took_s = leaving_s(calm.frame_bytes("model"), DOWN_BPS / 10) + small_round_trip_s(DOWN_BPS) / 2
    model = scaled.device
    assert model["download_end_s"] - model["download_start_s"] == pytest.approx(took_s, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("direction", "one_way", "round_trip"), [("up", 0.3, 0.3), ("both", 0.3, 0.6)])
def test_latency_delays_each_way_and_the_acknowledgements(
    direction: str, one_way: float, round_trip: float, tmp_path: Path, calm: Run
) -> None:
    late = run(tmp_path, f"latency: {{mean: 300 ms}}, direction: {direction}, at_stage: report")
    took_s = leaving_s(calm.frame_bytes("report"), UP_BPS, RTT_S + round_trip)
    took_s += small_round_trip_s(UP_BPS) / 2 + one_way
    assert late.device["report_end_s"] - late.device["report_start_s"] == pytest.approx(took_s, rel=1e-9)


def test_what_befalls_a_link_goes_together(tmp_path: Path, calm: Run) -> None:
    both = run(tmp_path, "bandwidth: {up: 100 kbit/s}, latency: {mean: 300 ms}, at_stage: report")
    took_s = leaving_s(calm.frame_bytes("report"), 100e3, RTT_S + 0.6) + small_round_trip_s(UP_BPS) / 2 + 0.3
    device = both.device
    assert device["report_end_s"] - device["report_start_s"] == pytest.approx(took_s, rel=1e-9)
    assert [(row["kind"], row["stage"], row["count"]) for row in both.faults] == [
        ("bandwidth+latency", "report", 1)
    ]


@pytest.mark.slow
def test_jitter_has_its_mean(tmp_path: Path) -> None:
    fault = "faults: [{name: it, latency: {mean: 1 s, jitter: 500 ms}, direction: up, at_stage: invite}]\n"
    base = SMALL.replace("count: 3, cohort: 20", "count: 20, cohort: 100")
    waits = []
    for text in (base, base + fault):
        events = rows_of(run_text(tmp_path, text, name=f"j{len(waits)}"), "events")
        took = [row["end_s"] - row["start_s"] for row in events if row["kind"] == "accepted"]
        waits.append(float(np.mean(took)))
    # 2000 frames: the mean of the exponential has a standard deviation of 11 ms; five of those.
    assert waits[1] - waits[0] == pytest.approx(1.5, abs=0.056)


def test_loss_costs_retransmissions(tmp_path: Path, calm: Run) -> None:
    lossy = run(tmp_path, "loss: {probability: 40%}, at_stage: report")
    assert calm.device["up_retransmitted_bytes"] == 0
    again = lossy.device["up_retransmitted_bytes"]
    assert again > 0
    assert again % 1500 == 0
    assert lossy.device["report_end_s"] > calm.device["report_end_s"]
    assert lossy.device["down_retransmitted_bytes"] == 0


def test_what_a_link_by_itself_loses_is_sent_again_with_its_headers(tmp_path: Path) -> None:
    lossy = run(tmp_path, base=SCENARIO.replace("ideal_wire", "lossy_wire"))
    sizes = [row["retransmitted_bytes"] for row in lossy.events if row["kind"] in ("model", "report")]
    assert min(sizes) > 0
    assert [size % 1500 for size in sizes] == [0] * len(sizes)
    assert lossy.device["up_retransmitted_bytes"] % 1500 == 0


@pytest.mark.slow
def test_a_transfer_stands_still_in_a_blackout_and_goes_on(tmp_path: Path, calm: Run) -> None:
    # In the second flight of two: what is left fits into the window that it restarts with.
    begins_s = calm.device["report_start_s"] + 0.12
    dark = run(tmp_path, f"at: {begins_s!r} s, for: 5 s, blackout: {{}}")
    assert dark.device["report_end_s"] == pytest.approx(calm.device["report_end_s"] + 5, rel=1e-9)
    assert dark.device["report_up_bytes"] == calm.device["report_up_bytes"]
    assert dark.device["outcome"] == "completed"
    assert struck(dark) == [("report", 1)]


@pytest.mark.slow
def test_a_blackout_of_the_other_way_does_not_matter(tmp_path: Path, calm: Run) -> None:
    dark = run(tmp_path, "blackout: {}, direction: down, at_stage: report")
    assert dark.devices == calm.devices
    assert dark.faults == []


def test_a_connection_waits_for_its_syn_to_come_through(tmp_path: Path, calm: Run) -> None:
    dark = run(tmp_path, "at: 0 s, for: 2.5 s, blackout: {}")
    # Sent at 0 s and 1 s in vain, at 3 s not.
    assert dark.device["invite_end_s"] == pytest.approx(calm.device["invite_end_s"] + 3, rel=1e-9)
    assert dark.device["report_end_s"] == pytest.approx(calm.device["report_end_s"] + 3, rel=1e-9)
    assert dark.bytes_of("invited") == calm.bytes_of("invited") + 2 * SYN_BYTES


def test_a_blackout_from_a_stage_on(tmp_path: Path, calm: Run) -> None:
    dark = run(tmp_path, "blackout: {}, at_stage: download, for: 7 s")
    # The model was about to leave; the radio is a wire, the connection open.
    assert dark.device["download_end_s"] == pytest.approx(calm.device["download_end_s"] + 7, rel=1e-9)
    assert dark.device["invite_end_s"] == calm.device["invite_end_s"]


def test_a_dead_link_reaches_nobody(tmp_path: Path) -> None:
    dead = run(tmp_path, "blackout: {}")
    device = dead.device
    assert (device["outcome"], device["stage"], device["reason"]) == (
        "unreachable",
        "invite",
        "connection-lost",
    )
    assert dead.rounds[0]["end_s"] == 60


def lost(found: Run) -> Any:
    (row,) = [row for row in found.events if row["fate"] == "lost"]
    return row


def test_tcp_gives_a_dead_link_up_and_the_headers_of_what_it_sent_count(tmp_path: Path, calm: Run) -> None:
    unconnected = lost(run(tmp_path, "blackout: {}", deadline="30 h"))
    assert (unconnected["kind"], unconnected["reason"]) == ("invited", "connection-lost")
    # SYNs at 0, 1, 3 … s: the sixteenth doubling ends at 2¹⁶ - 1 s.
    assert unconnected["end_s"] == 2**16 - 1
    assert unconnected["payload_bytes"] + unconnected["framing_bytes"] == calm.frame_bytes("invited") < 1448
    assert unconnected["tcp_ip_bytes"] == 52
    silent = lost(run(tmp_path, "blackout: {}, at_stage: report", deadline="30 h"))
    assert (silent["kind"], silent["reason"]) == ("report", "connection-lost")
    # The time-out is the round trip and 200 ms, and doubles fifteen times.
    began_s = calm.device["report_start_s"]
    assert silent["end_s"] == pytest.approx(began_s + (RTT_S + 0.2) * (2**16 - 1), rel=1e-6)
    size = calm.frame_bytes("report")
    assert silent["payload_bytes"] + silent["framing_bytes"] == size
    segments = math.ceil(size / 1448)
    assert silent["tcp_ip_bytes"] == 52 * segments + 52 * math.ceil(segments / 2)


def test_a_report_into_a_dead_link_is_late(tmp_path: Path) -> None:
    dead = run(tmp_path, "blackout: {}, at_stage: report")
    device = dead.device
    assert (device["outcome"], device["stage"], device["reason"]) == ("late", "report", "deadline")
    assert device["report_up_bytes"] == device["lost_bytes"]


# -- going away --------------------------------------------------------------------------------------------


@pytest.mark.few(2)
@pytest.mark.parametrize("stage", ["invite", "download", "compute", "report"])
@pytest.mark.parametrize("kind", ["vanish", "reset"])
def test_a_reset_is_noticed_at_once_and_a_vanished_device_is_waited_for(
    kind: str, stage: str, tmp_path: Path
) -> None:
    gone = run(tmp_path, f"{kind}: {{}}, at_stage: {stage}")
    device, row = gone.device, gone.rounds[0]
    reason = {"vanish": "vanished", "reset": "connection-reset"}[kind]
    assert (device["outcome"], device["stage"], device["reason"]) == ("dropped", stage, reason)
    assert (row["outcome"], row["reason"]) == ("abandoned", "quorum")
    went_s = next(event["time_s"] for event in gone.events if event["kind"] == "dropped")
    assert row["end_s"] == (went_s if kind == "reset" else 60)
    assert struck(gone) == [(stage, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["vanish", "reset"])
def test_who_goes_before_its_receipt_has_reported(kind: str, tmp_path: Path, calm: Run) -> None:
    gone = run(tmp_path, f"{kind}: {{}}, at_stage: acknowledge")
    assert gone.device["outcome"] == "completed"
    receipts = [row["fate"] for row in gone.events if row["kind"] == "acknowledged"]
    assert receipts == ["lost"]
    assert np.array_equal(gone.weights["weights"], calm.weights["weights"])


@pytest.mark.slow
def test_vanished_at_a_time_and_away_for_a_while(tmp_path: Path, calm: Run) -> None:
    at_s = calm.device["download_start_s"] + 0.01
    gone = run(tmp_path, f"vanish: {{}}, at: {at_s!r} s, for: 90 s", rounds=3)
    endings = [(row["outcome"], row["stage"], row["reason"]) for row in gone.devices]
    assert endings == [
        ("dropped", "download", "vanished"),
        ("unreachable", "invite", "unavailable"),
        ("completed", None, "none"),
    ]
    assert next(row["time_s"] for row in gone.events if row["kind"] == "dropped") == at_s


# -- frames ------------------------------------------------------------------------------------------------


def test_a_late_frame_comes_so_much_later(tmp_path: Path, calm: Run) -> None:
    late = run(tmp_path, "late: {by: 5 s}, at_stage: report")
    assert late.device["report_end_s"] == pytest.approx(calm.device["report_end_s"] + 5, rel=1e-12)
    assert late.device["up_bytes"] == calm.device["up_bytes"]


def test_a_report_after_the_deadline_is_not_applied(tmp_path: Path, calm: Run) -> None:
    late = run(tmp_path, "late: {by: 70 s}, at_stage: report")
    assert late.rounds[0]["outcome"] == "abandoned"
    assert late.device["outcome"] == "late"
    assert late.device["discarded_bytes"] == calm.bytes_of("report")
    assert not late.weights["weights"].any(), "as it was in the beginning"


def test_a_duplicate_travels_twice_and_counts_once(tmp_path: Path, calm: Run) -> None:
    twice = run(tmp_path, "duplicate: {}, at_stage: report")
    report = calm.bytes_of("report")
    assert twice.device["up_bytes"] == calm.device["up_bytes"] + report
    assert twice.device["discarded_bytes"] == report
    assert twice.rounds[0]["weight"] == calm.rounds[0]["weight"]
    assert np.array_equal(twice.weights["weights"], calm.weights["weights"])
    assert [row["kind"] for row in twice.events if row["stage"] == "report"] == ["report", "duplicate"]


def test_a_frame_that_nothing_overtakes_comes_when_its_wait_is_over(tmp_path: Path, calm: Run) -> None:
    held = run(tmp_path, "reorder: {wait: 2 s}, at_stage: invite, direction: up")
    assert held.device["invite_end_s"] == pytest.approx(calm.device["invite_end_s"] + 2, rel=1e-12)


def test_garbage_is_refused(tmp_path: Path, calm: Run) -> None:
    bad = run(tmp_path, "corrupt: {}, at_stage: report")
    device, row = bad.device, bad.rounds[0]
    assert (device["outcome"], device["reason"]) == ("failed", "garbage")
    assert device["discarded_bytes"] == calm.bytes_of("report")
    assert (row["outcome"], row["reason"]) == ("abandoned", "quorum")
    assert row["end_s"] == calm.rounds[0]["end_s"], "nobody is left to wait for"


def test_a_device_that_is_sent_garbage_goes_away(tmp_path: Path, calm: Run) -> None:
    bad = run(tmp_path, "corrupt: {}, at_stage: download")
    device, row = bad.device, bad.rounds[0]
    assert (device["outcome"], device["stage"], device["reason"]) == ("dropped", "download", "garbage")
    assert device["discarded_bytes"] == calm.bytes_of("model")
    assert row["end_s"] == device["download_end_s"]


# -- devices in trouble ------------------------------------------------------------------------------------


def test_a_task_without_memory_fails(tmp_path: Path) -> None:
    short = run(tmp_path, "memory_pressure: {factor: 0.1%}")
    assert (short.device["outcome"], short.device["reason"]) == ("failed", "memory")
    assert struck(short) == [("compute", 1)]


def test_a_clock_that_is_ahead_gives_up_early(tmp_path: Path, calm: Run) -> None:
    early = run(tmp_path, "clock_skew: {ahead: 59.9 s}")
    device = early.device
    assert (device["outcome"], device["reason"]) == ("late", "deadline")
    invited_s = next(row["end_s"] for row in early.events if row["kind"] == "invited")
    assert max(row["time_s"] for row in early.events) == pytest.approx(invited_s + 0.1, rel=1e-9)
    assert early.rounds[0]["end_s"] == 60


@pytest.mark.slow
def test_a_clock_that_is_behind_works_in_vain(tmp_path: Path) -> None:
    slow = "slowdown: {factor: 200}"
    aware = run(tmp_path, slow, deadline="1 s")
    assert aware.device["report_up_bytes"] == 0
    both = f"{slow}}}, {{name: clock, clock_skew: {{behind: 30 s}}"
    unaware = run(tmp_path, both, deadline="1 s")
    assert (unaware.device["outcome"], unaware.device["stage"]) == ("late", "acknowledge")
    assert unaware.device["report_up_bytes"] > 0
    assert unaware.rounds[0]["end_s"] == aware.rounds[0]["end_s"] == 1


@pytest.mark.slow
def test_a_crowd_answers_at_one_instant(tmp_path: Path) -> None:
    base = SMALL + "coordinator: {up_rate: 1 Mbit/s}\n"
    crowd = run(tmp_path, "flash_crowd: {after: 5 s}", base=base)
    answers = [row["start_s"] for row in crowd.events if row["kind"] == "accepted" and row["round"] == 1]
    assert answers.count(5.0) > 15
    assert min(answers) == 5.0
    calmer = run(tmp_path, base=base)
    waits = [
        np.mean([row["download_end_s"] - row["download_start_s"] for row in found.devices[:20]])
        for found in (crowd, calmer)
    ]
    assert waits[0] > waits[1], "all models leave at once over one link"


def test_what_is_sent_at_one_instant_can_be_pinned(tmp_path: Path) -> None:
    crowd = run(tmp_path, "flash_crowd: {after: 5 s}, at_stage: report")
    assert crowd.device["report_start_s"] == 5


# -- poison ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_flipped_sign_turns_the_step_round(tmp_path: Path, calm: Run) -> None:
    flipped = run(tmp_path, "poisoned_updates: {kind: sign-flip}")
    assert np.array_equal(flipped.weights["weights"], -calm.weights["weights"])
    assert struck(flipped) == [("compute", 1)]


@pytest.mark.slow
def test_a_huge_update_is_so_much_longer(tmp_path: Path, calm: Run) -> None:
    huge = run(tmp_path, "poisoned_updates: {kind: huge-norm, scale: 1000}")
    np.testing.assert_allclose(huge.weights["weights"], 1000 * calm.weights["weights"], rtol=1e-12)


def test_an_update_that_is_no_number_is_refused(tmp_path: Path, calm: Run) -> None:
    bad = run(tmp_path, "poisoned_updates: {kind: nan}")
    assert (bad.device["outcome"], bad.device["reason"]) == ("failed", "garbage")
    assert bad.rounds[0]["outcome"] == "abandoned"
    assert not bad.weights["weights"].any()


@pytest.mark.slow
def test_poison_in_a_secure_sum(tmp_path: Path) -> None:
    base = secure("mode: secagg", data="source: synthetic-ratings, users: 12, items: 40, ratings_per_user: 9")
    healthy = run(tmp_path, base=base)
    refused = run(tmp_path, "poisoned_updates: {kind: nan}, on: {devices: [3, 7]}", base=base)
    assert {row["device"]: row["reason"] for row in refused.devices if row["outcome"] == "failed"} == {
        3: "not-finite",
        7: "not-finite",
    }
    assert (refused.rounds[0]["completed"], refused.rounds[0]["secagg_sum_error"]) == (10, 0)
    # A huge update is in the sum, exactly, as far as the clip of each element lets it be.
    huge = run(tmp_path, "poisoned_updates: {kind: huge-norm}, on: {devices: [3]}", base=base)
    assert (huge.rounds[0]["completed"], huge.rounds[0]["secagg_sum_error"]) == (12, 0)
    assert healthy.rounds[0]["clipped_fraction"] == 0.0
    assert 0.0 < huge.rounds[0]["clipped_fraction"] <= 1 / 12


# -- the coordinator ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_slow_coordinator_handles_one_frame_after_the_other(tmp_path: Path, calm: Run) -> None:
    slow = run(tmp_path, "coordinator_slow: {handling: 1 s}")
    assert slow.device["download_start_s"] == pytest.approx(calm.device["download_start_s"] + 1, rel=1e-12)
    assert slow.rounds[0]["duration_s"] == pytest.approx(calm.rounds[0]["duration_s"] + 2, rel=1e-12)
    crowd = run(tmp_path, "coordinator_slow: {handling: 200 ms}", base=SMALL)
    # Twenty answers and twenty reports, in turns.
    assert crowd.rounds[0]["duration_s"] >= 40 * 0.2


@pytest.mark.few(2)
@pytest.mark.parametrize("stage", ["invite", "download", "compute", "report", "acknowledge"])
def test_a_crash_loses_the_round_and_nothing_else(stage: str, tmp_path: Path, calm: Run) -> None:
    device = calm.device
    at_s = (device[f"{stage}_start_s"] + device[f"{stage}_end_s"]) / 2
    crashed = run(tmp_path, f"coordinator_crash: {{}}, at: {at_s!r} s, for: 30 s", rounds=2)
    first, second = crashed.rounds
    applied = stage == "acknowledge"
    assert (first["outcome"], first["reason"]) == (
        ("completed", "none") if applied else ("abandoned", "coordinator-crash")
    )
    assert second["start_s"] == pytest.approx(at_s + 30, rel=1e-12)
    assert (second["round"], second["outcome"]) == (2, "completed")
    # Nothing is lost that was applied, nothing is applied twice: as without the round that was lost.
    same = run(tmp_path, rounds=2 if applied else 1)
    assert np.array_equal(crashed.weights["weights"], same.weights["weights"])
    assert [(row["device"], row["stage"], row["first_s"]) for row in crashed.faults] == [(None, None, at_s)]
    if not applied:
        ending = crashed.device
        assert (ending["outcome"], ending["stage"], ending["reason"]) == (
            "dropped",
            stage,
            "coordinator-crash",
        )


@pytest.mark.slow
def test_a_crash_between_rounds_delays_the_next(tmp_path: Path, calm: Run) -> None:
    base = SCENARIO.replace("rounds: {", "rounds: {interval: 10 s, ") + "connection: {keep_alive: true}\n"
    at_s = calm.rounds[0]["end_s"] + 5
    crashed = run(tmp_path, f"coordinator_crash: {{}}, at: {at_s!r} s, for: 30 s", rounds=2, base=base)
    assert [row["outcome"] for row in crashed.rounds] == ["completed", "completed"]
    assert crashed.rounds[1]["start_s"] == pytest.approx(at_s + 30, rel=1e-12)
    assert [row["round"] for row in crashed.faults] == [2]
    # Idle connections are gone, too: they are opened again.
    calmer = run(tmp_path, rounds=2, base=base)
    opened = [
        [row["tcp_ip_bytes"] for row in found.events if row["kind"] == "invited"]
        for found in (crashed, calmer)
    ]
    assert opened[0][1] == opened[0][0] == opened[1][0] > opened[1][1]


def test_a_crash_at_a_stage_of_every_round_of_a_phase(tmp_path: Path) -> None:
    phases = "phases: [{name: bad, rounds: 1}, {name: good, rounds: 1}]\n"
    base = SMALL.replace("count: 3, ", "") + phases
    crashed = run(tmp_path, "coordinator_crash: {}, at_stage: report, during: bad, for: 30 s", base=base)
    assert [row["outcome"] for row in crashed.rounds] == ["abandoned", "completed"]
    first_report_s = min(row["time_s"] for row in crashed.events if row["kind"] == "report")
    assert crashed.rounds[0]["end_s"] == first_report_s


@pytest.mark.slow
def test_a_crash_after_the_last_round_is_told_of(tmp_path: Path, calm: Run) -> None:
    at_s = calm.rounds[0]["end_s"] + 0.01
    crashed = run(tmp_path, f"coordinator_crash: {{}}, at: {at_s!r} s, for: 30 s")
    assert [(row["round"], row["first_s"]) for row in crashed.faults] == [(2, at_s)]
    assert crashed.device["outcome"] == "completed"


# -- whom it cannot strike ---------------------------------------------------------------------------------


def test_a_device_that_the_data_does_not_have(tmp_path: Path) -> None:
    lines = [f"{user},{item},{1 + (user + item) % 5},0" for user in range(8) for item in range(12)]
    (tmp_path / "ratings.csv").write_text("userId,movieId,rating,timestamp\n" + "\n".join(lines) + "\n")
    text = SMALL.replace(
        "{source: synthetic-ratings, users: 120, items: 150, ratings_per_user: 12}",
        f"{{source: movielens-csv, path: {tmp_path}, split: {{kind: ratio, test: 20%}}}}",
    ).replace("cohort: 20", "cohort: 4")
    faults = "faults: [{name: it, blackout: {}, on: {devices: [0, 8]}}]\n"
    with pytest.raises(ScenarioError, match=r"on\.devices\[1\]: there is no device 8; the last of 8 is 7"):
        run_text(tmp_path, text + faults)


# -- what a fault does not touch ---------------------------------------------------------------------------


def test_a_crash_breaks_off_an_invitation_on_its_way(calm: Run, tmp_path: Path) -> None:
    arrives_s = next(row["end_s"] for row in calm.events if row["kind"] == "invited")
    crash_s = round(arrives_s / 2, 6)
    found = run(tmp_path, f"coordinator_crash: {{}}, at: {crash_s} s, for: 1 s")
    row = found.device
    assert (row["outcome"], row["stage"], row["reason"]) == ("dropped", "invite", "coordinator-crash")
    (invited,) = (row for row in found.events if row["kind"] == "invited" and row["round"] == 1)
    assert (invited["fate"], invited["end_s"]) == ("lost", pytest.approx(crash_s))
    assert row["delivered_bytes"] == 0


def test_devices_that_are_given_a_model_that_has_run_away_say_so(tmp_path: Path) -> None:
    base = SMALL.replace("factors: 4", "factors: 4, optimizer: {kind: sgd}")
    base = base.replace("learning_rate: 0.05", "learning_rate: 1e30")
    found = run(tmp_path, "latency: {mean: 1 ms}, at: 30 days, for: 1 s", base=base)
    computed = [row for row in found.devices if row["round"] > 1 and row["compute_s"] > 0]
    assert {(row["outcome"], row["reason"]) for row in computed} == {("failed", "not-finite")}


def test_updates_beyond_all_bounds_are_refused_by_name(tmp_path: Path) -> None:
    fault = "poisoned_updates: {kind: huge-norm, scale: 1e30}, at: 0 s, for: 1 ms"
    found = run(tmp_path, fault, base=SMALL)
    computed = [row for row in found.devices if row["round"] == 1 and row["compute_s"] > 0]
    assert {(row["outcome"], row["reason"]) for row in computed} == {("failed", "out-of-range")}


@pytest.mark.slow
def test_mains_power_cannot_be_drained(tmp_path: Path) -> None:
    base = SMALL.replace("global_android_2024", "iot_gateways")
    calm, drained = run(tmp_path, base=base), run(tmp_path, "battery_drain: {level: 0%}", base=base)
    assert drained.faults == []
    assert not any(differing_columns(calm.outcome, drained.outcome).values())


def test_a_reset_at_a_time_happens_once(tmp_path: Path) -> None:
    found = run(tmp_path, "reset: {}, at: 0.05 s", base=SMALL)
    reset = [row for row in found.devices if row["reason"] == "connection-reset"]
    assert {row["round"] for row in reset} == {1}
    assert len(found.rounds) > 1
    assert all(row["dropped"] == 0 for row in found.rounds if row["round"] > 1)


@pytest.mark.slow
def test_equal_runs_with_faults_are_equal(tmp_path: Path) -> None:
    text = SMALL + (
        "faults:\n"
        "  - {name: a, loss: {probability: 20%}, on: {fraction: 50%}}\n"
        "  - {name: b, reset: {probability: 5%}}\n"
        "  - {name: c, duplicate: {probability: 30%}}\n"
        "  - {name: d, coordinator_crash: {}, at: 2 s, for: 3 s}\n"
    )
    runs = [
        run_text(tmp_path, text, overrides, name=f"e{number}")
        for number, overrides in enumerate([(), (), ("compute.batch=3",)])
    ]
    for other in runs[1:]:
        assert {name for columns in differing_columns(runs[0], other).values() for name in columns} == set()
