"""Clients that hold several users each."""

from pathlib import Path
from typing import Any

import pytest
from run_helpers import IDEAL_PROFILES, rows_of, run_text

SCENARIO = """
format: 2
seed: 6
data: {source: synthetic-ratings, users: 120, items: 200, ratings_per_user: 15, users_per_client: 10}
fleet: {mix: iot_gateways}
learning: {algorithm: fedrecon, factors: 4, learning_rate: 0.05}
rounds: {count: 8, cohort: 12, quorum: 12, deadline: 60 s}
evaluation: {every: 8}
"""


@pytest.mark.slow
@pytest.mark.parametrize("grouping", ["iid", "by-activity", "dirichlet"])
def test_groups_of_users_train_together(grouping: str, tmp_path: Path) -> None:
    outcome = run_text(tmp_path, SCENARIO, [f"data.grouping={grouping}"])
    rounds = rows_of(outcome, "rounds")
    assert [row["completed"] for row in rounds] == [12] * 8
    losses = [row["loss"] for row in rounds]
    assert losses[-1] < 0.9 * losses[0]
    rows = rows_of(outcome, "device_rounds")
    assert {row["device"] for row in rows} == set(range(12))
    # Every training rating belongs to exactly one client, so each round covers all of them.
    training_ratings = sum(row["examples"] for row in rows if row["round"] == 1)
    assert rounds[0]["weight"] == training_ratings > 1000
    rmse = [row for row in rows_of(outcome, "evaluations") if row["metric"] == "rmse" and row["tag"] == "all"]
    assert rmse[-1]["users"] == 120
    assert rmse[-1]["value"] < rmse[0]["value"]


@pytest.mark.slow
def test_a_client_works_through_its_users_in_turn(tmp_path: Path) -> None:
    text = SCENARIO.replace(
        "mix: iot_gateways",
        f"devices: {{ideal_device: 100%}}, networks: {{ideal_wire: 100%}}, profiles: [{IDEAL_PROFILES}]",
    )

    def first_round(users_per_client: int) -> list[dict[str, Any]]:
        clients = 120 // users_per_client
        settings = [f"data.users_per_client={users_per_client}", f"rounds.cohort={clients}", "rounds.count=1"]
        settings.append(f"rounds.quorum={clients}")
        return rows_of(run_text(tmp_path, text, settings, name=f"by{users_per_client}"), "device_rounds")

    alone, together = first_round(1), first_round(60)
    assert (len(alone), len(together)) == (120, 2)
    # Devices are alike and without chance: it takes as long in total whoever holds the users.
    assert sum(row["compute_s"] for row in together) == pytest.approx(sum(row["compute_s"] for row in alone))
    # At least the 1 ms that a framework spends on each of a user's two steps.
    assert min(row["compute_s"] for row in together) > 60 * 2e-3
    # One user at a time: the memory is that of the largest, not the sum.
    assert max(row["memory_bytes"] for row in together) == max(row["memory_bytes"] for row in alone)


def test_uploads_of_a_group_name_each_item_once(tmp_path: Path) -> None:
    outcome = run_text(tmp_path, SCENARIO, ["rounds.count=1", "data.users_per_client=60", "rounds.cohort=2",
                                            "rounds.quorum=2"])  # fmt: skip
    row_bytes = 5 * 4 + 2
    for row in rows_of(outcome, "device_rounds"):
        assert row["up_payload_bytes"] % row_bytes == 0
        assert row["examples"] > row["up_payload_bytes"] // row_bytes
        assert row["up_payload_bytes"] // row_bytes <= 200
