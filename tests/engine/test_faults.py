"""Faults of a scenario: whom they strike, at which stage, and what of that is noted for the round."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from fault_samples import fault, plan_of, strike

from coordinator.scenario.faults_section import STAGE_ORDER as ALL_STAGES
from coordinator.scenario.faults_section import STAGES_OF_MODE, Fault
from coordinator.scenario.load import load
from coordinator.simulation.faults.striking import faults_of_phase
from edge.core.vocabulary import Stage, label

Ids = npt.NDArray[np.int64]


def struck(*faults: Fault, ids: Ids | int = 10, seed: int = 1, number: int = 1) -> dict[int, int]:
    """Return the stage at which each device that was struck vanishes, by id."""
    devices = np.arange(ids, dtype=np.int64) if isinstance(ids, int) else ids
    plan = plan_of(len(devices))
    strike(faults, plan, devices, seed=seed, number=number)
    return {int(device): stage for device, stage in zip(devices, plan.drop_stage, strict=True) if stage >= 0}


def test_each_way_is_struck_at_its_own_stages_alone() -> None:
    shielded = [device % 2 == 0 for device in range(10)]
    for at in (Stage.REPORT, Stage.MASKED_INPUT, Stage.UNMASK, Stage.COMPUTE):
        plan = plan_of(10)
        plan.shielded = shielded
        strike([fault(at=at)], plan, np.arange(10))
        spared = {Stage.REPORT: False, Stage.COMPUTE: None}.get(at, True)
        assert plan.drop_stage.tolist() == [-1 if way is spared else at for way in shielded]
        assert plan.computes.all() == (at is not Stage.COMPUTE)


def test_a_stage_of_the_other_way_does_not_save_a_device_that_would_go_later() -> None:
    plan = plan_of(2)
    plan.shielded = [True, False]
    strike([fault("a", Stage.MASKED_INPUT), fault("b", Stage.REPORT)], plan, np.arange(2))
    assert plan.drop_stage.tolist() == [Stage.REPORT, Stage.MASKED_INPUT]


# -- whom ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "n", "count"),
    [
        ("30%", 10, 3),
        ("29%", 100, 29),
        ("10%", 30, 3),
        ("1%", 1000, 10),
        ("35%", 20, 7),
        ("0.1%", 1000, 1),
        ("4%", 10, 0),
        ("26%", 10, 3),
        ("100%", 7, 7),
        ("50%", 0, 0),
    ],
)
def test_exactly_the_share_is_struck(share: str, n: int, count: int) -> None:
    for number in range(1, 6):
        assert len(struck(fault(share=share), ids=n, number=number)) == count


def test_who_is_drawn_follows_from_seed_fault_and_round() -> None:
    usual = struck(fault(share="30%"), ids=200)
    assert struck(fault(share="30%"), ids=200) == usual
    others = [
        struck(fault(share="30%"), ids=200, seed=2),
        struck(fault(share="30%"), ids=200, number=2),
        struck(fault("another", share="30%"), ids=200),
    ]
    for other in others:
        common = len(usual.keys() & other.keys())
        # 60 of 200, twice: 18 in common on average with a standard deviation of 3; six of those either way.
        assert 0 < common < 36


def test_neither_order_nor_place_among_the_invited_decides() -> None:
    ids = np.array([40, 7, 19, 3, 88, 61, 5, 23], dtype=np.int64)
    usual = struck(fault(share="50%"), ids=ids)
    assert len(usual) == 4
    assert struck(fault(share="50%"), ids=np.sort(ids)) == usual
    assert struck(fault(share="50%"), ids=ids[::-1]) == usual


def test_everybody_is_struck_as_often_as_anybody() -> None:
    counts = np.zeros(20)
    for number in range(1, 401):
        counts[list(struck(fault(share="25%"), ids=20, number=number))] += 1
    # 100 of 400 each, standard deviation 8.7; six of those.
    assert counts.min() > 48
    assert counts.max() < 152


def test_one_fault_more_does_not_move_another() -> None:
    one = fault("one", Stage.SHARE_KEYS, "40%")
    alone = struck(one, ids=50)
    both = struck(one, fault("two", Stage.UNMASK, "40%"), ids=50)
    assert {device for device, stage in both.items() if stage == Stage.SHARE_KEYS} == alone.keys()
    assert len(both) > len(alone)


# -- when ------------------------------------------------------------------------------------------------


SCENARIO = """
format: 2
data: {source: synthetic-ratings, users: 60, items: 80}
fleet: {mix: global_android_2024}
learning: {algorithm: fedrecon, upload: dense}
rounds: {cohort: 5, deadline: 60 s}
phases:
  - {name: calm, rounds: 1}
  - {name: storm, rounds: 1, secure_aggregation: {mode: secagg}}
faults:
  - {name: always, at_stage: download, vanish: {}}
  - {name: masks, at_stage: masked-input, vanish: {}}
  - {name: storm, during: storm, at_stage: compute, vanish: {}}
"""


def test_a_fault_strikes_in_its_phase_or_in_all_that_have_its_stage(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(SCENARIO)
    scenario = load(file).scenario
    names = {
        phase: [scenario.faults[number].name for number in faults_of_phase(scenario, phase)]
        for phase in ("calm", "storm")
    }
    assert names == {"calm": ["always"], "storm": ["always", "masks", "storm"]}


ORDER = ALL_STAGES[1:-1]
"""The stages at which a device does, gets or sends something; it comes to all of them after its answer."""


def test_the_order_of_a_round_is_not_that_of_the_numbers() -> None:
    assert {label(stage) for stage in ALL_STAGES} == {
        stage for mode in STAGES_OF_MODE.values() for stage in mode
    }
    assert Stage.ACKNOWLEDGE < Stage.ADVERTISE_KEYS, "appended later, and comes sooner"


@pytest.mark.parametrize("later", range(1, len(ORDER)))
def test_the_earlier_stage_wins_whichever_fault_is_written_first(later: int) -> None:
    for earlier in range(later):
        faults = fault("a", ORDER[earlier]), fault("b", ORDER[later])
        for pair in (faults, faults[::-1]):
            assert set(struck(*pair).values()) == {ORDER[earlier]}


@pytest.mark.parametrize("planned", [*ORDER, Stage.ACKNOWLEDGE])
@pytest.mark.parametrize("at", ORDER)
def test_a_device_that_goes_sooner_anyway_does(planned: Stage, at: Stage) -> None:
    plan = plan_of(2)
    plan.drop_stage[1] = int(planned)
    plan.drop_fraction[1] = 0.25
    strike([fault(at=at)], plan, np.arange(2, dtype=np.int64))
    order = (*ORDER, Stage.ACKNOWLEDGE)
    sooner = order.index(planned) < order.index(at)
    assert plan.drop_stage.tolist() == [at, planned if sooner else at]
    if sooner:
        assert plan.drop_fraction[1] == 0.25
    assert 0 < plan.drop_fraction[0] < 1


@pytest.mark.parametrize("fraction", [0.0, 1.0])
def test_in_the_same_stage_the_sooner_moment_wins(fraction: float) -> None:
    alone = plan_of(1)
    ids = np.zeros(1, dtype=np.int64)
    strike([fault()], alone, ids)
    plan = plan_of(1)
    plan.drop_stage[0] = int(Stage.MASKED_INPUT)
    plan.drop_fraction[0] = fraction
    strike([fault()], plan, ids)
    assert plan.drop_stage.tolist() == [Stage.MASKED_INPUT]
    assert plan.drop_fraction.tolist() == [min(fraction, alone.drop_fraction[0])]


def test_how_far_into_the_stage_is_a_draw_of_its_own() -> None:
    plans = []
    for share in ("100%", "40%"):
        plan = plan_of(100)
        strike([fault(share=share)], plan, np.arange(100, dtype=np.int64))
        plans.append(plan)
    everybody, some = plans
    fractions = np.array(everybody.drop_fraction)
    assert 0 < fractions.min() < 0.2
    assert 0.8 < fractions.max() < 1
    for slot, stage in enumerate(some.drop_stage):
        assert some.drop_fraction[slot] == (fractions[slot] if stage >= 0 else 0)
    # Being drawn says nothing about the moment: the mean over 40 has a standard deviation of 0.046.
    drawn = fractions[np.array(some.drop_stage) >= 0]
    assert abs(float(drawn.mean()) - float(fractions.mean())) < 0.28


# -- what is computed ------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ORDER)
def test_whoever_vanishes_before_its_computation_ends_computes_nothing(at: Stage) -> None:
    plan = plan_of(20)
    strike([fault(at=at, share="30%")], plan, np.arange(20, dtype=np.int64))
    gone = np.array(plan.drop_stage) >= 0
    assert gone.sum() == 6
    before = at in (Stage.DOWNLOAD, Stage.COMPUTE)
    assert plan.computes.tolist() == (~gone).tolist() if before else plan.computes.all()


def test_what_was_not_going_to_be_computed_stays_so() -> None:
    plan = plan_of(4)
    plan.computes[2] = False
    strike([fault(at=Stage.UNMASK)], plan, np.arange(4, dtype=np.int64))
    assert plan.computes.tolist() == [True, True, False, True]


def test_nothing_else_of_the_plan_changes() -> None:
    plan = plan_of(10)
    strike([fault(at=Stage.COMPUTE), fault("b")], plan, np.arange(10, dtype=np.int64))
    untouched = plan_of(10)
    assert plan.reachable.tolist() == untouched.reachable.tolist()
    assert plan.failed_connects.tolist() == untouched.failed_connects.tolist()
    for name in ("obstacle", "shortage", "compute_s", "leaves_s", "crypto"):
        assert np.array_equal(getattr(plan, name), getattr(untouched, name))
