"""The rows of a run agree with each other and with common sense."""

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from run_helpers import rows_of, run_text

SCENARIO = """
format: 2
seed: 5
data: {source: synthetic-ratings, users: 200, items: 250, ratings_per_user: 20}
fleet: {mix: global_android_2024, availability: bernoulli_google}
learning: {algorithm: fedrecon, factors: 6, learning_rate: 0.05}
rounds: {count: 6, cohort: 40, over_select: 130%, quorum: 20, deadline: 20 s}
evaluation: {every: 3, ranking: {k: [5]}}
"""
STAGES = ("invite", "download", "compute", "report", "acknowledge")
OUTCOMES = ("completed", "late", "dropped", "declined", "failed", "unreachable", "surplus", "abandoned")


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    outcome = run_text(tmp_path_factory.mktemp("accounting"), SCENARIO)
    return {name: rows_of(outcome, name) for name in ("rounds", "device_rounds", "events", "evaluations")}


def test_stages_follow_one_another(tables: dict[str, list[dict[str, Any]]]) -> None:
    seen: Counter[str] = Counter()
    for row in tables["device_rounds"]:
        if row["outcome"] == "surplus" and row["stage"] == "download":
            # Accepted after the cohort was full: the coordinator's answer is that it may go.
            assert [row[f"{stage}_start_s"] is not None for stage in STAGES] == [
                True,
                False,
                False,
                False,
                True,
            ]
            continue
        last_s = row["invite_start_s"]
        ended = False
        for stage in STAGES:
            start_s, end_s = row[f"{stage}_start_s"], row[f"{stage}_end_s"]
            assert (start_s is None) == (end_s is None)
            if start_s is None:
                ended = True
                continue
            assert not ended, f"{stage} comes after a stage that was never reached"
            assert last_s <= start_s <= end_s
            last_s = end_s
            seen[stage] += 1
    assert [seen[stage] for stage in STAGES] == sorted(seen.values(), reverse=True)
    assert seen["invite"] > seen["report"] > 100


def test_completed_devices_have_passed_every_stage(tables: dict[str, list[dict[str, Any]]]) -> None:
    completed = [row for row in tables["device_rounds"] if row["outcome"] == "completed"]
    assert len(completed) == 6 * 40
    for row in completed:
        assert row["stage"] is None
        assert row["reason"] == "none"
        assert row["latency_s"] == row["report_end_s"] - row["invite_start_s"]
        transfers_s = sum(
            row[f"{stage}_end_s"] - row[f"{stage}_start_s"] for stage in STAGES if stage != "compute"
        )
        whole_s = row["acknowledge_end_s"] - row["invite_start_s"]
        # The invitation's stage holds two transfers with nothing between them.
        assert transfers_s + row["compute_s"] + row["wait_s"] == pytest.approx(whole_s, abs=1e-9)
        assert row["compute_s"] == pytest.approx(row["compute_end_s"] - row["compute_start_s"], abs=1e-12)
        assert row["examples"] > 0
        assert row["loss"] > 0.0
        assert row["wasted_compute_s"] == 0.0


def test_what_was_not_completed_is_wasted(tables: dict[str, list[dict[str, Any]]]) -> None:
    others = [row for row in tables["device_rounds"] if row["outcome"] != "completed"]
    assert {row["outcome"] for row in others} == {"dropped", "surplus"}
    for row in others:
        assert row["wasted_bytes"] == row["up_bytes"] + row["down_bytes"]
        assert row["wasted_compute_s"] == row["compute_s"]
        assert row["reason"] == {"dropped": "vanished", "surplus": "cohort-full"}[row["outcome"]]
    assert {row["stage"] for row in others if row["outcome"] == "dropped"} == {
        "download",
        "compute",
        "report",
    }


def test_a_vanished_device_leaves_no_report(tables: dict[str, list[dict[str, Any]]]) -> None:
    reported = {(row["round"], row["device"]) for row in tables["events"] if row["kind"] == "report"}
    dropped = [row for row in tables["device_rounds"] if row["outcome"] == "dropped"]
    for row in dropped:
        if row["stage"] in ("download", "compute"):
            assert (row["round"], row["device"]) not in reported
            assert row["report_up_bytes"] == 0
        assert row["latency_s"] is None
    assert any(row["stage"] == "report" and row["lost_bytes"] > 0 for row in dropped)


def test_energy_is_that_of_the_device_and_its_radio(tables: dict[str, list[dict[str, Any]]]) -> None:
    for row in tables["device_rounds"]:
        if row["outcome"] in ("completed", "surplus"):
            assert row["energy_radio_j"] > 0.0
        if row["compute_s"] > 0.0:
            power_w = row["energy_compute_j"] / row["compute_s"]
            assert 1.0 < power_w < 6.0  # what the phones of the catalogue draw at full load

    def mean_radio_j(network: str) -> float:
        rows = [
            row["energy_radio_j"]
            for row in tables["device_rounds"]
            if row["network"] == network and row["outcome"] == "completed"
        ]
        return float(sum(rows) / len(rows))

    # An LTE radio stays awake for ten seconds at about a watt after a transfer, Wi-Fi for a quarter second.
    assert 10.0 < mean_radio_j("4g_uk") < 15.0
    assert 0.1 < mean_radio_j("wifi_home") < 0.5


def test_rounds_are_the_sums_of_their_devices(tables: dict[str, list[dict[str, Any]]]) -> None:
    for round_ in tables["rounds"]:
        rows = [row for row in tables["device_rounds"] if row["round"] == round_["round"]]
        assert round_["invited"] == len(rows) == 52
        counts = Counter(row["outcome"] for row in rows)
        assert {name: round_[name] for name in OUTCOMES} == {name: counts[name] for name in OUTCOMES}
        for column in ("up_bytes", "down_bytes", "delivered_bytes", "lost_bytes", "retries"):
            assert round_[column] == sum(row[column] for row in rows)
        completed = [row for row in rows if row["outcome"] == "completed"]
        assert round_["end_s"] == max(row["report_end_s"] for row in completed)
        assert round_["weight"] == sum(row["examples"] for row in completed)
        loss = sum(row["loss"] * row["examples"] for row in completed) / round_["weight"]
        assert round_["loss"] == pytest.approx(loss, rel=1e-9)
        energy_j = sum(row["energy_compute_j"] + row["energy_radio_j"] for row in rows)
        assert round_["energy_j"] == pytest.approx(energy_j, rel=1e-9)


def test_the_next_round_begins_when_the_last_has_ended(tables: dict[str, list[dict[str, Any]]]) -> None:
    rounds = tables["rounds"]
    assert [round_["round"] for round_ in rounds] == [1, 2, 3, 4, 5, 6]
    for before, after in itertools.pairwise(rounds):
        assert after["start_s"] == before["end_s"]


def test_no_device_takes_part_in_two_rounds_at_once(tables: dict[str, list[dict[str, Any]]]) -> None:
    busy_until: dict[int, float] = {}
    starts = {round_["round"]: round_["start_s"] for round_ in tables["rounds"]}
    for row in tables["device_rounds"]:
        assert starts[row["round"]] >= busy_until.get(row["device"], 0.0)
        if row["outcome"] in ("completed", "surplus"):
            ends = [row[f"{stage}_end_s"] for stage in STAGES]
            busy_until[row["device"]] = max(end for end in ends if end is not None)


def test_evaluations_come_when_asked_for(tables: dict[str, list[dict[str, Any]]]) -> None:
    rows = tables["evaluations"]
    assert sorted({row["round"] for row in rows}) == [0, 3, 6]
    everybody = {row["metric"]: row for row in rows if row["round"] == 6 and row["tag"] == "all"}
    assert {"rmse", "mae", "hr@5", "ndcg@5", "recall@5", "precision@5"} <= set(everybody)
    assert everybody["mae"]["value"] < everybody["rmse"]["value"]
    by_network = [
        row for row in rows if row["round"] == 6 and row["tag"] == "network" and row["metric"] == "rmse"
    ]
    assert sum(row["users"] for row in by_network) == everybody["rmse"]["users"] == 200


def test_a_run_without_events_has_the_same_other_tables(
    tables: dict[str, list[dict[str, Any]]], tmp_path: Path
) -> None:
    outcome = run_text(tmp_path, SCENARIO, ["record.events=none", "rounds.count=2"])
    assert rows_of(outcome, "events") == []
    expected = [row for row in tables["device_rounds"] if row["round"] <= 2]
    got = rows_of(outcome, "device_rounds")
    unlike = [name for name in got[0] if [row[name] for row in got] != [row[name] for row in expected]]
    assert unlike == []


def test_a_report_counts_though_its_device_has_left_before_the_receipt(tmp_path: Path) -> None:
    short = "{distribution: exponential, mean: 1 s}"
    settings = [
        f"fleet.availability={{kind: on-off, session: {short}, gap: {short}}}",
        "rounds.selection=availability-aware",
        "rounds.over_select=100%",
        "rounds.quorum=1",
        "rounds.count=30",
        "evaluation.final=false",
    ]
    outcome = run_text(tmp_path, SCENARIO, settings)
    rows = rows_of(outcome, "device_rounds")
    left = {(row["round"], row["device"]) for row in rows_of(outcome, "events")
            if row["kind"] == "dropped" and row["stage"] == "acknowledge"}  # fmt: skip
    assert left
    assert {row["outcome"] for row in rows if (row["round"], row["device"]) in left} == {"completed"}
    for round_ in rows_of(outcome, "rounds"):
        completed = [row for row in rows if row["round"] == round_["round"] and row["outcome"] == "completed"]
        assert round_["completed"] == len(completed)
        assert round_["weight"] == sum(row["examples"] for row in completed)
