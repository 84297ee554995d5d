"""Clients that hold several users each."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_helpers import rows_of, run_text

SCENARIO = """
format: 1
seed: 6
data: {source: synthetic-ratings, users: 120, items: 200, ratings_per_user: 15, users_per_client: 10}
fleet: {mix: iot_gateways}
learning: {algorithm: fedrecon, factors: 4, learning_rate: 0.05}
rounds: {count: 8, cohort: 12, quorum: 12, deadline: 60 s}
evaluation: {every: 8}
"""


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


def test_a_client_works_through_its_users_in_turn(tmp_path: Path) -> None:
    def of_largest(users_per_client: int) -> dict[str, Any]:
        settings = [f"data.users_per_client={users_per_client}", "rounds.cohort=2", "rounds.quorum=2"]
        outcome = run_text(tmp_path, SCENARIO, settings, name=f"by{users_per_client}")
        return max(rows_of(outcome, "device_rounds"), key=lambda row: int(row["examples"]))

    one, many = of_largest(1), of_largest(60)
    assert many["examples"] > 5 * one["examples"]
    # 1 ms of framework for each of two steps a user at least: sixty users take sixty times as long.
    assert many["compute_s"] > 60 * 2e-3 * np.exp(-1.0)
    assert many["memory_bytes"] < 5 * one["memory_bytes"]  # one user at a time


def test_uploads_of_a_group_name_each_item_once(tmp_path: Path) -> None:
    outcome = run_text(tmp_path, SCENARIO, ["rounds.count=1", "data.users_per_client=60", "rounds.cohort=2",
                                            "rounds.quorum=2"])  # fmt: skip
    row_bytes = 5 * 4 + 2
    for row in rows_of(outcome, "device_rounds"):
        assert row["up_payload_bytes"] % row_bytes == 0
        assert row["examples"] > row["up_payload_bytes"] // row_bytes
        assert row["up_payload_bytes"] // row_bytes <= 200
