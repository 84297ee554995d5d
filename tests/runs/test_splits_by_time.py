"""Runs on splits by time: who takes part, what is said, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from run_helpers import rows_of, run_text

from coordinator.scenario.errors import ScenarioError
from coordinator.scenario.load import load

TABLE = """
format: 2
data: {{source: table, path: {path}, split: {{kind: temporal, test: 25%}}}}
fleet: {{mix: iot_gateways}}
learning: {{algorithm: fedrecon, factors: 2, learning_rate: 0.05}}
rounds: {{count: 1, cohort: 3, deadline: 600 s}}
"""
LIPM = """
format: 2
data:
  source: synthetic-ratings
  users: 30
  items: 40
  ratings_per_user: 10
  timestamps: true
  split: {kind: ratio}
fleet: {mix: iot_gateways}
learning: {algorithm: lipm, factors: 2, learning_rate: 0.05}
rounds: {count: 1, cohort: 10, deadline: 600 s}
"""


def ratings(folder: Path, *, timed: bool) -> Path:
    """Write four users: three that begin early, and one whose first rating is the latest but one."""
    rows = [(user, item, 3 + (user + item) % 3, 100 * item + user) for user in range(3) for item in range(5)]
    rows += [(3, 0, 5, 450), (3, 9, 4, 2000)]
    file = folder / "ratings.csv"
    head = "user,item,rating,time" if timed else "user,item,rating"
    file.write_text("\n".join([head, *(",".join(map(str, row[: 4 if timed else 3])) for row in rows)]) + "\n")
    return file


def notices(outcome: Any) -> list[str]:
    summary = json.loads((outcome.directory / "summary.json").read_text())
    return list(summary["notices"])


def test_users_that_come_after_the_split_have_no_device_and_are_counted(tmp_path: Path) -> None:
    text = TABLE.format(path=ratings(tmp_path, timed=True))
    outcome = run_text(tmp_path, text)
    assert outcome.status == "finished"
    manifest = json.loads((outcome.directory / "manifest.json").read_text())
    assert manifest["data"]["clients"] == 3
    assert manifest["data"]["newcomers"] == 1
    said = " ".join(notices(outcome))
    assert "1 of 4 users rated nothing before the moment of the split" in said
    assert "2 test ratings are theirs" in said
    assert "1 test ratings are of items that nobody had rated before" in said
    scored = {row["users"] for row in rows_of(outcome, "evaluations") if row["tag"] == "all"}
    # Ratings of 450 and 2000 are the newcomer's; the other two of the latest four are of users 1 and 2.
    assert scored == {2}


@pytest.mark.parametrize("kind", ["temporal", "user-temporal"])
def test_data_without_times_is_refused_with_what_to_write(kind: str, tmp_path: Path) -> None:
    text = TABLE.format(path=ratings(tmp_path, timed=False)).replace("kind: temporal", f"kind: {kind}")
    with pytest.raises(
        ScenarioError, match=rf"data\.split\.kind: '{kind}' goes by time, and this data has no"
    ):
        run_text(tmp_path, text)
    (tmp_path / "s.yaml").write_text(LIPM.replace("  timestamps: true\n", ""))
    with pytest.raises(ScenarioError, match="write 'timestamps: true' in data"):
        load(tmp_path / "s.yaml", [f"data.split.kind={kind}"])


def test_a_split_that_leaves_nothing_to_train_on_is_refused(tmp_path: Path) -> None:
    file = ratings(tmp_path, timed=True)
    file.write_text("user,item,rating,time\n" + "".join(f"{user},1,3,77\n" for user in range(4)))
    with pytest.raises(ScenarioError, match=r"data\.split\.test: all ratings that would train have the same"):
        run_text(tmp_path, TABLE.format(path=file))


@pytest.mark.parametrize(
    ("kind", "warned"), [("ratio", True), ("users", True), ("user-temporal", False), ("leave-one-out", False)]
)
def test_a_method_that_reads_the_order_is_warned_about_on_a_random_split(
    kind: str, warned: bool, tmp_path: Path
) -> None:
    outcome = run_text(tmp_path, LIPM, [f"data.split={{kind: {kind}}}"])
    said = [notice for notice in notices(outcome) if "reads ratings in the order of time" in notice]
    assert len(said) == warned
    assert all(notice.startswith("lipm") for notice in said)


def test_a_held_out_rating_without_a_time_is_said_to_be_random(tmp_path: Path) -> None:
    text = LIPM.replace("  timestamps: true\n", "").replace("kind: ratio", "kind: leave-one-out")
    text = text.replace("lipm", "fedrecon")
    said = notices(run_text(tmp_path, text))
    assert any("is drawn at random" in notice for notice in said)
