"""The scenarios that are shipped: they load, explain themselves, and keep their promises."""

import os
from pathlib import Path

import pytest
from run_helpers import SCENARIOS, Silent, rows_of
from shipped_runs import NEEDS_DATA

from coordinator.run.runner import RunOutcome, run_scenario
from coordinator.scenario.dump import dump_resolved
from coordinator.scenario.errors import ScenarioError
from coordinator.scenario.exit_codes import ExitCode
from coordinator.scenario.load import load
from coordinator.scenario.schema import ScenarioSettings
from device_profiles.documents import parse_document

NAMES = sorted(file.stem for file in SCENARIOS.glob("*.yaml"))
QUICK = ("coordinator_crash", "on_device_inference", "quickstart", "secagg_basic")


def data_settings(name: str) -> list[str]:
    """Return the settings that point a scenario at its data; skip the test where there are none."""
    if name not in NEEDS_DATA:
        return []
    folder = os.environ.get("RECFLEET_DATA")
    if folder is None:
        pytest.skip(f"{name} needs {NEEDS_DATA[name]}: set RECFLEET_DATA to a folder that holds it")
    path = Path(folder, NEEDS_DATA[name])
    if not path.is_dir():
        pytest.skip(f"{name} needs {path}, which does not exist")
    return [f"data.path={path}"]


def run_shipped(name: str, folder: Path) -> RunOutcome:
    loaded = load(SCENARIOS / f"{name}.yaml", data_settings(name))
    return run_scenario(loaded, target=folder / name, observer=Silent())


def test_all_are_here() -> None:
    assert {
        "battery_savers",
        "coordinator_crash",
        "async_buffered",
        "bank_branches",
        "distributed_dp",
        "fedmmf_high_order",
        "fedmmf_lastfm",
        "fedmmf_one_order",
        "fedmmf_shielded",
        "fedmmf_synthetic",
        "fedmmf_tradeoff",
        "fedmmf_two_order",
        "flash_crowd",
        "hospital_network",
        "implicit_feedback",
        "implicit_secure",
        "iot_gateways",
        "linear_regression_10x5",
        "million_dormant",
        "movielens_100k",
        "movielens_1m",
        "on_device_inference",
        "persistent_factors",
        "poisoned_updates",
        "quickstart",
        "regional_outage",
        "secagg_active",
        "secagg_basic",
        "secagg_dropout_storm",
        "secagg_dropouts",
        "secagg_vs_plain_vs_ckks",
        "stragglers",
        "subway",
        "uk_rural",
        "night_charging",
        "oort_vs_random",
        "sharpness_radii",
        "shop_app",
        "smart_home_iot",
        "social_mobile",
        "unseen_users",
    } <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_it_loads_and_says_what_it_is_for(name: str) -> None:
    scenario = load(SCENARIOS / f"{name}.yaml", references=False).scenario
    assert scenario.title
    assert scenario.description
    assert len(scenario.thresholds) >= 3
    # What a run leaves beside its tables can be run again.
    again = ScenarioSettings.model_validate(parse_document(dump_resolved(scenario), "resolved").root)
    assert again == scenario


@pytest.mark.parametrize("name", sorted(NEEDS_DATA))
def test_missing_data_is_named_with_the_setting_that_helps(name: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        load(SCENARIOS / f"{name}.yaml", ["data.path=nowhere/to/be/found"])
    (problem,) = caught.value.problems
    assert "nowhere" in str(problem)
    assert "--set data.path=" in str(problem)


@pytest.mark.parametrize("name", sorted(NEEDS_DATA))
def test_given_data_it_loads(name: str) -> None:
    loaded = load(SCENARIOS / f"{name}.yaml", data_settings(name))
    assert loaded.resolve(("data", "path")).is_dir()


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.few(1)
def test_quick_ones_keep_their_promises(name: str, tmp_path: Path) -> None:
    outcome = run_shipped(name, tmp_path)
    assert [str(verdict) for verdict in outcome.verdicts if not verdict.held] == []
    assert (outcome.status, outcome.exit_code) == ("finished", ExitCode.HELD)


def test_the_quickstart_shows_drops_and_over_selection(tmp_path: Path) -> None:
    rounds = rows_of(run_shipped("quickstart", tmp_path), "rounds")
    assert sum(row["dropped"] for row in rounds) > 50
    assert sum(row["surplus"] for row in rounds) > 100
    assert all(row["completed"] == 50 for row in rounds)


@pytest.mark.slow
def test_rural_phones_wait_for_3g_and_try_again(tmp_path: Path) -> None:
    outcome = run_shipped("uk_rural", tmp_path)
    rows = rows_of(outcome, "device_rounds")
    assert {row["phase"] for row in rows} == {"night", "morning"}
    retried = [row for row in rows if row["retries"] > 0]
    assert retried
    assert {row["network"] for row in retried} <= {"3g_uk", "4g_uk", "5g_uk"}
    last = [max((r for r in rows if r["round"] == n and r["latency_s"]), key=lambda r: float(r["latency_s"]))
            for n in range(1, 37)]  # fmt: skip
    # Most rounds end with a phone on 3G, though only one in 26 is.
    assert sum(row["network"] == "3g_uk" for row in last) > 24
