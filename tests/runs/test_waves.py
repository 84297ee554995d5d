"""Devices that are computed in waves leave the same rows, in the same order, and the same model as one by
one."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_helpers import SCENARIOS
from shipped_runs import NEEDS_DATA, SHORTENED, settings_of

from coordinator.scenario.dump import dump_resolved
from coordinator.scenario.load import load
from coordinator.simulation.backend import SimulatedCohort
from coordinator.simulation.wave import Wave
from coordinator.simulation.wave_flows import WaveFlows, WaveTraffic
from coordinator.swarm.generator import text_of
from coordinator.swarm.trial import run_trial

PLAIN: dict[str, Any] = {
    "format": 2,
    "seed": 7,
    "data": {"source": "synthetic-ratings", "users": 60, "items": 40, "ratings_per_user": 8},
    "fleet": {"mix": "global_android_2024", "availability": "always_on"},
    "learning": {"algorithm": "fedrecon", "factors": 3, "learning_rate": 0.05},
    "rounds": {"count": 4, "cohort": 12, "quorum": 1, "deadline": "30 s"},
    "evaluation": {"every": 2},
}
DROPS = {
    **{"kind": "bernoulli", "drop_probability": "40%", "before_download": "30%"},
    **{"during_compute": "30%", "during_upload": "40%"},
}
"""Devices go away at all stages."""


def scenario(**changes: Any) -> str:
    """Return the text of a scenario: :data:`PLAIN` with sections changed or added to."""
    made = {name: dict(value) if isinstance(value, dict) else value for name, value in PLAIN.items()}
    for name, value in changes.items():
        made[name] = {**made.get(name, {}), **value} if isinstance(value, dict) else value
    return text_of(made)


@pytest.fixture(autouse=True, scope="module")
def waves_of_few() -> Iterator[None]:
    """Let the fewest devices be a wave."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimulatedCohort, "fewest_in_wave", 1)
        yield


class Waves:
    """How many devices acted in waves, how many shared a crowded link, and how often frames joined it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.devices = self.shared = self.joined = 0
        begin, join, leave = SimulatedCohort._begin_wave, WaveTraffic.join, WaveFlows.leave

        def begun(cohort: SimulatedCohort, *arguments: Any) -> Any:
            chosen = begin(cohort, *arguments)
            self.devices += int(np.count_nonzero(chosen))
            return chosen

        def joins(traffic: WaveTraffic) -> None:
            self.joined += 1
            join(traffic)

        def leaves(flows: WaveFlows, number: int, places: Any, last_byte_s: Any) -> None:
            alone_s = flows.lines.frames(number).last_byte_s[places]
            self.shared += int(np.count_nonzero(np.isfinite(last_byte_s) & (last_byte_s > alone_s)))
            leave(flows, number, places, last_byte_s)

        monkeypatch.setattr(SimulatedCohort, "_begin_wave", begun)
        monkeypatch.setattr(WaveTraffic, "join", joins)
        monkeypatch.setattr(WaveFlows, "leave", leaves)


def same(text: str) -> None:
    """Assert that a run is the same whether its devices act one by one or in waves."""
    alone, together = run_trial(text, "alone"), run_trial(text, "together", watched=False)
    assert alone.error is None
    assert together.error is None
    # The digest is of all tables but for what is measured, in the order of their rows, and of the model.
    assert alone.digest() == together.digest()


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="plain"),
        pytest.param({"fleet": {"availability": DROPS}}, id="drops"),
        pytest.param({"rounds": {"over_select": "150%"}}, id="surplus"),
        pytest.param(
            {"fleet": {"availability": DROPS}, "rounds": {"over_select": "150%", "deadline": "900 ms"}},
            id="late",
        ),
        pytest.param(
            {"rounds": {"quorum": 6, "pacing": {"mode": "synchronous", "grace": "300 ms"}}}, id="grace"
        ),
        pytest.param(
            {"fleet": {"availability": "onoff_sessions"}, "rounds": {"max_wait": "12 h"}}, id="sessions"
        ),
        pytest.param({"connection": {"keep_alive": True}, "rounds": {"over_select": "200%"}}, id="kept"),
        pytest.param({"fleet": {"mix": "uk_rural_2024"}}, id="lossy"),
        pytest.param({"data": {"users_per_client": 3}, "rounds": {"cohort": 8}}, id="groups"),
        pytest.param({"learning": {"algorithm": "fedmf", "factors": 3}}, id="own rows"),
        pytest.param(
            {
                "privacy": {"mechanism": "central-gaussian", "clip_norm": 0.1, "noise_multiplier": 1},
                "learning": {"weighting": "uniform"},
            },
            id="clipped",
        ),
        pytest.param(
            {"aggregation": {"rule": "mean", "norm_bound": 0.05}, "learning": {"weighting": "uniform"}},
            id="bounded",
        ),
        pytest.param({"aggregation": {"rule": "median"}}, id="median"),
        pytest.param({"rounds": {"selection": "oort"}}, id="oort"),
        pytest.param({"rounds": {"selection": "oort", "over_select": "200%"}}, id="oort of the late, too"),
        pytest.param(
            {
                "data": {"items": 9000},
                "fleet": {
                    "mix": None,
                    "devices": {"mcu_esp32c3": "50%", "phone_low_2018": "50%"},
                    "networks": {"wifi_home": "100%"},
                },
            },
            id="no memory",
        ),
        pytest.param({"learning": {"learning_rate": 1e30}}, id="diverges"),
    ],
)
@pytest.mark.few(8)
def test_the_same_as_one_by_one(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    waves = Waves(monkeypatch)
    same(scenario(**changes))
    assert waves.devices > 20


@pytest.mark.parametrize(("fewest", "in_waves"), [(12, 48), (13, 0)])
def test_too_few_devices_act_one_by_one(fewest: int, in_waves: int, monkeypatch: pytest.MonkeyPatch) -> None:
    waves = Waves(monkeypatch)
    monkeypatch.setattr(SimulatedCohort, "fewest_in_wave", fewest)
    assert run_trial(scenario(), "run", watched=False).error is None
    assert waves.devices == in_waves


CROWDED: dict[str, Any] = {
    "data": {"items": 2000, "users": 200},
    "rounds": {"count": 10, "cohort": 30, "over_select": "150%", "deadline": "3 s"},
}
"""Late devices of one round still upload while the next begins."""


def at_rate(rate: str) -> dict[str, Any]:
    return {**CROWDED, "coordinator": {"down_rate": rate, "up_rate": rate}}


@pytest.mark.parametrize("availability", ["always_on", DROPS], ids=["whole", "drops"])
@pytest.mark.parametrize("rate", ["150 Mbit/s", "100 Mbit/s", "20 Mbit/s"])
def test_waves_share_a_crowded_link(rate: str, availability: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    waves = Waves(monkeypatch)
    same(scenario(**at_rate(rate), fleet={"availability": availability}))
    assert waves.devices > 200
    assert waves.shared > 10
    assert waves.joined == 0


@pytest.mark.parametrize("rate", ["500 Mbit/s", "400 Mbit/s", "100 Mbit/s"])
def test_frames_join_a_link_where_others_may_be_in_the_way(
    rate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # From the fifth round on a fault lets some devices act alone, while frames of before are under way.
    waves = Waves(monkeypatch)
    cell = {"on": {"fraction": "40%"}, "bandwidth": {"scale": "80%"}}
    phases = [{"name": "before", "rounds": 5}, {"name": "later", "rounds": 5}]
    rounds = {name: value for name, value in CROWDED["rounds"].items() if name != "count"}
    changes = {**at_rate(rate), "rounds": {**rounds, "count": None}}
    same(scenario(**changes, phases=phases, faults=[{"name": "cell", "during": "later", **cell}]))
    assert waves.devices > 100
    assert waves.joined > 0


rounds_drawn = st.fixed_dictionaries(
    {
        "cohort": st.integers(1, 16),
        "over_select": st.sampled_from(["100%", "130%", "250%"]),
        "deadline": st.sampled_from(["200 ms", "800 ms", "1 s", "3 s", "60 s"]),
        "quorum": st.just(1),
    },
    optional={"interval": st.sampled_from(["100 ms", "2 s"])},
)


@settings(max_examples=12)
@given(
    seed=st.integers(0, 10**6),
    mix=st.sampled_from(["global_android_2024", "uk_mobile_2024", "uk_rural_2024"]),
    availability=st.sampled_from(["always_on", DROPS, {**DROPS, "drop_probability": "5%"}]),
    rounds=rounds_drawn,
    grace_ms=st.sampled_from([None, 50, 1000]),
    items=st.sampled_from([16, 400, 2000]),
    megabits=st.sampled_from([40, 250, 10_000]),
    keep_alive=st.booleans(),
)
def test_any_fleet_and_pace(
    seed: int,
    mix: str,
    availability: Any,
    rounds: dict[str, Any],
    grace_ms: int | None,
    items: int,
    megabits: int,
    keep_alive: bool,
) -> None:
    if grace_ms is not None:
        rounds = {**rounds, "pacing": {"mode": "synchronous", "grace": f"{grace_ms} ms"}}
    rate = f"{megabits} Mbit/s"
    same(
        scenario(
            seed=seed,
            data={"items": items},
            fleet={"mix": mix, "availability": availability},
            rounds={**rounds, "count": 3},
            coordinator={"down_rate": rate, "up_rate": rate},
            connection={"keep_alive": keep_alive},
            evaluation={"final": False},
        )
    )


@pytest.mark.slow
@settings(max_examples=12)
@given(
    seed=st.integers(0, 10**6),
    down=st.sampled_from(["5 Mbit/s", "20 Mbit/s", "80 Mbit/s", "300 Mbit/s"]),
    up=st.sampled_from(["1 Mbit/s", "5 Mbit/s", "100 Mbit/s"]),
    mix=st.sampled_from(["global_android_2024", "uk_rural_2024"]),
    availability=st.sampled_from(["always_on", "onoff_sessions", DROPS]),
    over_select=st.sampled_from(["100%", "150%", "250%"]),
    deadline=st.sampled_from(["900 ms", "3 s", "60 s"]),
    upload=st.sampled_from(["dense", "sparse"]),
    fault=st.sampled_from(
        [
            {},
            {"slowdown": {"factor": 3}, "on": {"fraction": "5%"}},
            {"bandwidth": {"scale": "50%"}, "on": {"fraction": "60%"}},
        ]
    ),
)
def test_crowded_links_of_fleets_with_and_without_faults(
    seed: int,
    down: str,
    up: str,
    mix: str,
    availability: Any,
    over_select: str,
    deadline: str,
    upload: str,
    fault: dict[str, Any],
) -> None:
    rounds = {"count": None, "cohort": 40, "over_select": over_select, "deadline": deadline}
    same(
        scenario(
            seed=seed,
            data=CROWDED["data"],
            fleet={"mix": mix, "availability": availability},
            learning={"upload": upload},
            rounds=rounds,
            coordinator={"down_rate": down, "up_rate": up},
            phases=[
                {"name": "before", "rounds": 2},
                {"name": "later", "rounds": 2},
                {"name": "end", "rounds": 2},
            ],
            faults=[{"name": "cell", "during": "later", **fault}] if fault else [],
        )
    )


@pytest.mark.parametrize("cohort", [1, 9])
def test_devices_that_are_all_alike_keep_their_order(cohort: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without jitter or noise all events of a round are ties.
    waves = Waves(monkeypatch)
    fleet = {
        "devices": {"minipc_n100": "100%"},
        "networks": {"steady": "100%"},
        "profiles": [
            {
                "networks": {
                    "steady": {
                        **{"like": "wifi_enterprise", "jitter": "0 ms", "loss": "0%", "rate_sigma": 0},
                        "sources": "assumption",
                    }
                }
            }
        ],
    }
    made = {name: value for name, value in PLAIN.items() if name != "fleet"}
    text = text_of(
        {**made, "fleet": fleet, "rounds": {**PLAIN["rounds"], "cohort": cohort, "over_select": "150%"}}
    )
    same(text)
    assert waves.devices > 0


@pytest.mark.parametrize("rate", ["10 Gbit/s", "1 Mbit/s"], ids=["used", "no room"])
def test_a_wave_is_freed_when_it_ends(rate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: weakref.WeakSet[Wave] = weakref.WeakSet()
    most: list[int] = []
    made = Wave.__init__

    def noted(wave: Wave, *arguments: Any) -> None:
        made(wave, *arguments)
        alive.add(wave)
        most.append(len(alive))

    monkeypatch.setattr(Wave, "__init__", noted)
    gc.disable()
    try:
        link = {"down_rate": rate, "up_rate": rate}
        run_trial(
            scenario(data={"items": 800}, rounds={"count": 8}, coordinator=link), "freed", watched=False
        )
    finally:
        gc.enable()
    # The timer that a wave has set last may still lie in the heap when the next begins.
    assert len(most) == 8
    assert max(most) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SHORTENED.keys() - NEEDS_DATA.keys()))
def test_shipped_scenarios(name: str) -> None:
    loaded = load(SCENARIOS / f"{name}.yaml", [*settings_of(name), "thresholds=null"])
    same(dump_resolved(loaded.scenario))
