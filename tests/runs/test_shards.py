"""A run in shards is the run without them, to the last bit; what cannot be one is refused by name."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest
from run_helpers import SCENARIOS
from shard_helpers import ShardsHere, outcome_of
from shipped_runs import NEEDS_DATA, data_folder, settings_of

from coordinator.engine.rounds import RoundPlan
from coordinator.scenario.errors import ScenarioError
from coordinator.scenario.load import LoadedScenario, load, load_text
from coordinator.scenario.sharding import can_be_sharded, check_sharding
from coordinator.simulation.parts import ACCEPTS, LEAVES, REPORTS, Told
from coordinator.simulation.sharded import CoupledRoundsError, close_of, in_order, is_sharp
from coordinator.swarm.generator import document, text_of
from edge.core.vocabulary import Reason
from edge.learning.accumulators import RowAccumulator
from edge.learning.updates import Accumulator

COUPLED: Final = {
    "async_buffered",
    "bank_branches",
    "coordinator_crash",
    "distributed_dp",
    "fedmmf_shielded",
    "fedmmf_synthetic",
    "flash_crowd",
    "hospital_network",
    "implicit_secure",
    "secagg_active",
    "secagg_basic",
    "secagg_dropout_storm",
    "secagg_dropouts",
    "secagg_vs_plain_vs_ckks",
    "shop_app",
}
"""The shipped scenarios that cannot be run in shards; docs/scaling.md says why."""
SHARDED: Final = sorted({file.stem for file in SCENARIOS.glob("*.yaml")} - COUPLED)
SWARM_SEED: Final = 21
LINK: Final = """
format: 2
title: a narrow link of the coordinator
seed: 4
data: {{source: synthetic-ratings, users: 60, items: 2000, ratings_per_user: 12}}
fleet: {{devices: {{phone_low_2018: 100%}}, networks: {{wifi_home: 100%}}, availability: always_on}}
coordinator: {{up_rate: {link}, down_rate: {link}}}
learning: {{algorithm: fedrecon, factors: 8}}
rounds: {{count: 3, cohort: 20, over_select: {over}, deadline: 60 s, interval: {interval}}}
"""


def shipped(name: str) -> LoadedScenario:
    """Return a shipped scenario, cut short; promises are those of the whole one."""
    return load(SCENARIOS / f"{name}.yaml", settings_of(name))


def assert_same(loaded: LoadedScenario, *counts: int) -> None:
    """Assert that so many shards make the run that none makes."""
    whole = outcome_of(loaded)
    for count in counts:
        assert outcome_of(loaded, ShardsHere(loaded, count)) == whole, f"{count} shards"


@pytest.mark.parametrize("name", sorted({file.stem for file in SCENARIOS.glob("*.yaml")}))
def test_which_shipped_scenarios_can_be_run_in_shards(name: str) -> None:
    assert can_be_sharded(load(SCENARIOS / f"{name}.yaml", data_here=False)) == (name in SHARDED)


@pytest.mark.few(3)
@pytest.mark.parametrize("name", ["quickstart", "regional_outage", "oort_vs_random", *SHARDED])
def test_shipped_scenarios_are_the_same_in_any_number_of_shards(name: str) -> None:
    if name in NEEDS_DATA and data_folder(name) is None:
        pytest.skip("its data is not here")
    assert_same(shipped(name), 1, 2, 7)


@pytest.mark.few(4)
@pytest.mark.parametrize("index", range(120))
def test_runs_of_a_swarm_are_the_same_in_any_number_of_shards(index: int) -> None:
    loaded = load_text(text_of(document(SWARM_SEED, index)), f"swarm-{index}")
    if not can_be_sharded(loaded):
        with pytest.raises(ScenarioError, match="cannot be run in shards"):
            check_sharding(loaded, 2)
        return
    assert_same(loaded, 2, 7)


def test_a_round_that_fills_the_link_is_left_to_one_shard() -> None:
    loaded = load_text(LINK.format(link="2 Mbit/s", over="100%", interval="10 min"), "narrow")
    shards = ShardsHere(loaded, 3)
    assert outcome_of(loaded, shards) == outcome_of(loaded)
    assert shards.asked == [[0, 1, 2], [0]] * 3


def test_rounds_in_each_others_way_are_refused_by_name() -> None:
    loaded = load_text(LINK.format(link="300 kbit/s", over="180%", interval="0 s"), "crowd")
    with pytest.raises(CoupledRoundsError, match=r"coordinator\.up_rate.*or run with --shards 1"):
        outcome_of(loaded, ShardsHere(loaded, 2))


def test_obstacles_are_named_with_their_places() -> None:
    loaded = load(SCENARIOS / "coordinator_crash.yaml")
    with pytest.raises(ScenarioError) as refused:
        check_sharding(loaded, 20)
    lines = str(refused.value).splitlines()
    assert [line.split(": ")[1] for line in lines[::2]] == [
        "compute.sum_groups",
        "secure_aggregation.mode",
        "faults[0].coordinator_crash",
        "faults[1].coordinator_crash",
    ]
    assert lines[1] == "    run with --shards 16, or fewer"
    assert lines[3] == "    write 'off', or run with --shards 1"
    assert all(line.startswith(f"{SCENARIOS / 'coordinator_crash.yaml'}:") for line in lines[::2])


def test_workers_of_their_own_are_refused() -> None:
    loaded = load(SCENARIOS / "quickstart.yaml", ["compute.workers=2"])
    with pytest.raises(ScenarioError, match=r"compute\.workers: shards compute in their own processes"):
        check_sharding(loaded, 2)


def test_sums_that_are_not_kept_by_group_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = shipped("quickstart")
    monkeypatch.setattr(RowAccumulator, "partial", Accumulator.partial)
    with pytest.raises(ScenarioError, match=r"learning\.algorithm: cannot be run in shards: RowAccumulator"):
        outcome_of(loaded, ShardsHere(loaded, 2))


# -- the close of a round ---------------------------------------------------------------------------------


def arrivals(*told: tuple[float, int, int]) -> Told:
    """Return arrivals from moments, slots and what they are."""
    columns = list(zip(*told, strict=True))
    return Told(np.array(columns[0], float), np.array(columns[1]), np.array(columns[2], np.int8))


def plan(target: int, quorum: int, grace_s: float | None = None) -> RoundPlan:
    return RoundPlan("run", 1, target, quorum, 60.0, grace_s)


TOLD: Final = arrivals(
    (1.0, 0, ACCEPTS), (2.0, 0, REPORTS), (3.0, 1, REPORTS), (4.0, 2, LEAVES), (9.0, 3, REPORTS)
)


def test_a_round_is_over_when_its_cohort_is_full() -> None:
    assert close_of(TOLD, plan(2, 1), 5) == (2, 3.0, Reason.COHORT_FULL)


def test_a_round_is_over_when_its_time_of_grace_is() -> None:
    assert close_of(TOLD, plan(4, 2, 2.5), 5) == (2, 5.5, Reason.DEADLINE)
    assert close_of(TOLD, plan(2, 1, 2.5), 5) == (2, 3.0, Reason.COHORT_FULL)


def test_a_round_that_goes_on_until_nobody_is_left_has_no_close() -> None:
    assert close_of(TOLD, plan(4, 2), 4) is None
    assert close_of(TOLD, plan(3, 2, 6.0), 4) is None
    assert close_of(TOLD, plan(4, 4), 5) is None


def test_a_close_at_which_something_else_arrives_is_not_for_parts_to_tell() -> None:
    full = (2, 3.0, Reason.COHORT_FULL)
    assert is_sharp(TOLD, full)
    assert not is_sharp(arrivals((1.0, 0, ACCEPTS), (3.0, 0, REPORTS), (3.0, 1, REPORTS)), full)
    assert is_sharp(TOLD, (2, 5.5, Reason.DEADLINE))
    assert not is_sharp(TOLD, (2, 9.0, Reason.DEADLINE))


def test_what_parts_are_told_is_put_in_order_of_time_and_slot() -> None:
    first = np.array([0, 3]), arrivals((1.0, 1, ACCEPTS), (2.0, 0, LEAVES))
    second = np.array([1, 2]), arrivals((1.0, 0, ACCEPTS), (3.0, 1, REPORTS))
    together = in_order([first, second])
    assert together.time_s.tolist() == [1.0, 1.0, 2.0, 3.0]
    assert together.slot.tolist() == [1, 3, 0, 2]
    assert together.what.tolist() == [ACCEPTS, ACCEPTS, LEAVES, REPORTS]
