"""Fleets as scenarios describe them: groups, several availabilities at once, traces of their own."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from run_helpers import IDEAL_PROFILES, rows_of, run_text

from coordinator.engine.fleet import Fleet
from coordinator.scenario.dump import dump_resolved
from coordinator.scenario.load import load
from coordinator.simulation.fleet_assembly import build_fleet
from device_profiles import catalogue
from edge.core.vocabulary import Direction
from edge.device.availability import NO_STAGE
from edge.network.conditions import LinkConditions, MixedConditions
from edge.network.playback import TracePlayback

REST = """
format: 2
seed: 3
data: {source: synthetic-ratings, users: 120, items: 150, ratings_per_user: 12}
learning: {algorithm: fedrecon, factors: 4, learning_rate: 0.05}
rounds: {count: 3, cohort: 40, deadline: 120 s, selection: random}
"""
GROUPS = """
fleet:
  groups:
    - {device: phone_entry_a53, network: 3g_uk, share: 30%}
    - {device: phone_flagship_2024, network: 5g_uk, availability: always_on, share: 45.5%}
    - {device: phone_entry_a53, network: 4g_uk, share: 24.5%}
  availability: bernoulli_google
"""
STEADY = "t_s,down_mbps,up_mbps,rtt_ms,loss\n0,8,4,100,0\n10,8,4,100,0\n"
# 10 s at 1 and 2 Mbit/s, 20 s at 4 and 8: the last row lasts as long as the one before it.
STEPS = "t_s,down_mbps,up_mbps,rtt_ms,loss\n0,1,2,40,0.03\n10,4,8,10,0\n30,4,8,10,0\n"


def fleet_of(folder: Path, text: str, n: int = 1000) -> Fleet:
    file = folder / "s.yaml"
    file.write_text(REST + text, encoding="utf-8")
    loaded = load(file)
    # What is shown is the same scenario.
    (folder / "shown.yaml").write_text(dump_resolved(loaded.scenario), encoding="utf-8")
    assert load(folder / "shown.yaml").hash == loaded.hash
    return build_fleet(loaded, n)


def pairs(fleet: Fleet) -> Counter[tuple[str, str]]:
    names = fleet.names
    rows = zip(fleet.device_class.tolist(), fleet.network.tolist(), strict=True)
    return Counter((names.classes[device], names.networks[network]) for device, network in rows)


@pytest.mark.parametrize("n", [7, 1000, 999])
def test_groups_have_exact_counts_of_their_pairs_only(tmp_path: Path, n: int) -> None:
    fleet = fleet_of(tmp_path, GROUPS, n)
    # Largest remainder: 7 devices are 2.1, 3.185 and 1.715.
    expected = {7: (2, 3, 2), 1000: (300, 455, 245), 999: (300, 454, 245)}[n]
    assert pairs(fleet) == {
        ("phone_entry_a53", "3g_uk"): expected[0],
        ("phone_flagship_2024", "5g_uk"): expected[1],
        ("phone_entry_a53", "4g_uk"): expected[2],
    }
    assert fleet.names.classes == ("phone_entry_a53", "phone_flagship_2024")
    assert (np.diff(fleet.device_class.astype(int)) != 0).any()


def test_a_group_has_its_own_availability_and_others_that_of_the_fleet(tmp_path: Path) -> None:
    fleet = fleet_of(tmp_path, GROUPS, 20_000)
    dropped = fleet.availability.dropout(np.arange(20_000), 1).stage != NO_STAGE
    flagship = fleet.device_class == fleet.names.classes.index("phone_flagship_2024")
    assert not dropped[flagship].any()
    assert dropped[~flagship].mean() == pytest.approx(0.08, abs=0.01)


BOTH = "{kind: combined, of: [flaky_mobile, bernoulli_google]}"


def test_availability_and_dropout_act_together_on_a_fleet(tmp_path: Path) -> None:
    text = f"fleet: {{devices: {{sbc_pi4: 100%}}, networks: {{dsl: 100%}}, availability: {BOTH}}}\n"
    fleet, ids = fleet_of(tmp_path, text, 20_000), np.arange(20_000)
    # Sessions of 60 s on average, gaps of 5 s.
    assert fleet.availability.available(ids, 3600.0).mean() == pytest.approx(60 / 65, abs=0.01)
    assert (fleet.availability.dropout(ids, 1).stage != NO_STAGE).mean() == pytest.approx(0.08, abs=0.01)


def test_availability_and_dropout_act_together_on_a_group(tmp_path: Path) -> None:
    (tmp_path / "ours.yaml").write_text(f"availability:\n  both: {BOTH}\n", encoding="utf-8")
    text = """
fleet:
  groups:
    - {device: sbc_pi4, network: dsl, share: 50%, availability: both}
    - {device: sbc_pi5, network: dsl, share: 50%}
  profiles: [ours.yaml]
"""
    fleet, ids = fleet_of(tmp_path, text, 20_000), np.arange(20_000)
    weak = fleet.device_class == fleet.names.classes.index("sbc_pi4")
    available = fleet.availability.available(ids, 3600.0)
    dropped = fleet.availability.dropout(ids, 1).stage != NO_STAGE
    assert available[weak].mean() == pytest.approx(60 / 65, abs=0.01)
    assert dropped[weak].mean() == pytest.approx(0.08, abs=0.01)
    assert available[~weak].all()
    assert not dropped[~weak].any()


def test_both_break_participations_off_in_a_run(tmp_path: Path) -> None:
    harsh = "availability: {harsh: {like: bernoulli_google, drop_probability: 40%, sources: assumption}}\n"
    (tmp_path / "ours.yaml").write_text(harsh, encoding="utf-8")
    text = """
fleet:
  groups:
    - {device: sbc_pi4, network: dsl, share: 50%}
    - {device: sbc_pi5, network: dsl, share: 50%, availability: always_on}
  availability: {kind: combined, of: [diurnal_charging, harsh]}
  profiles: [ours.yaml]
"""
    rows = rows_of(run_text(tmp_path, REST + text), "device_rounds")
    reasons = {
        name: Counter(row["reason"] for row in rows if row["class"] == name)
        for name in ("sbc_pi4", "sbc_pi5")
    }
    assert set(reasons["sbc_pi5"]) == {"none"}
    assert reasons["sbc_pi4"]["unavailable"] > 0
    assert reasons["sbc_pi4"]["vanished"] > 0
    assert reasons["sbc_pi4"]["none"] > 0


def test_regions_of_an_outage_inside_a_combined_profile(tmp_path: Path) -> None:
    text = """
fleet:
  mix: iot_gateways
  availability: {kind: combined, of: [regional_outage, bernoulli_google]}
"""
    fleet, ids = fleet_of(tmp_path, text, 80), np.arange(80)
    assert len(fleet.names.regions) == 8
    times = np.arange(0.0, 5 * 86_400.0, 600.0)
    states = np.array([fleet.availability.available(ids, float(t)) for t in times])
    down = ~states.all(axis=1)
    assert down.any()
    for region in range(8):
        # All of a region or none of it.
        of_region = states[:, fleet.region == region]
        assert (of_region.all(axis=1) | ~of_region.any(axis=1)).all()


APART = """
fleet:
  groups:
    - {device: sbc_pi4, network: apart, share: 50%}
    - {device: sbc_pi4, network: ideal_wire, share: 25%}
    - {device: sbc_pi4, network: followed, share: 25%}
  profiles: [IDEAL, {networks: {apart: APART, followed: {like: apart, link_trace: steady.csv}}}]
""".replace("IDEAL", str(IDEAL_PROFILES)).replace(
    "APART",
    "{like: 4g_uk, device_sigma: 0.6, slow_rate: {sigma: 0.5, correlation_time: 5 min}, sources: assumption}",
)


def test_devices_keep_a_factor_of_their_own_where_the_network_says_so(tmp_path: Path) -> None:
    (tmp_path / "steady.csv").write_text(STEADY)
    fleet = fleet_of(tmp_path, APART, 4_000)
    ids = np.arange(4_000)
    table, specs = fleet.network_table, fleet.link_specs(ids)
    down, up = specs.down_bps / table.down_bps[fleet.link_kind], specs.up_bps / table.up_bps[fleet.link_kind]
    apart = table.device_sigma_log[fleet.link_kind] > 0
    assert apart.sum() == 2_000
    assert np.log(down[apart]).std() == pytest.approx(0.6, rel=0.08)
    assert (down[~apart] == 1.0).all()
    assert up == pytest.approx(down, rel=1e-12)
    picked = np.random.default_rng(4).permutation(4_000)[:50]
    assert (fleet.link_specs(picked).down_bps == specs.down_bps[picked]).all()
    assert fleet.link_specs(picked[:1]).up_bps[0] == specs.up_bps[picked[0]]
    conditions = fleet.link_conditions(ids)
    slow = [conditions.pace(slot, Direction.DOWN, 5.0)[0] for slot in np.flatnonzero(apart).tolist()]
    shipped = catalogue.load().network("4g_uk")
    assert np.log(slow).std() == pytest.approx(np.hypot(shipped.rate_sigma_log, 0.5), rel=0.08)


TRACED = """
fleet:
  groups:
    - {device: sbc_pi4, network: ideal_wire, share: 25%, link_trace: steady.csv}
    - {device: sbc_pi4, network: stepping, share: 25%}
    - {device: sbc_pi4, network: ideal_wire, share: 25%}
    - {device: sbc_pi4, network: slow_wire, share: 25%,
       link_trace: {kind: mahimahi, down: d.mahi, up: u.mahi, rtt: 60 ms, loss: 2%}}
  profiles: [ours/profiles.yaml, IDEAL]
""".replace("IDEAL", str(IDEAL_PROFILES))


@pytest.fixture
def traced(tmp_path: Path) -> Fleet:
    (tmp_path / "ours").mkdir()
    (tmp_path / "steady.csv").write_text(STEADY)
    (tmp_path / "ours" / "steps.csv").write_text(STEPS)
    # 4 packets of 12,000 bits in 100 ms down, and 1 up.
    (tmp_path / "d.mahi").write_text("25\n50\n75\n100\n")
    (tmp_path / "u.mahi").write_text("100\n")
    network = "networks:\n  stepping: {like: 4g_uk, link_trace: steps.csv, note: beside this file}\n"
    (tmp_path / "ours" / "profiles.yaml").write_text(network)
    return fleet_of(tmp_path, TRACED, 400)


def test_typical_rates_are_the_mean_rates_of_each_trace(traced: Fleet) -> None:
    table = traced.network_table
    # Bits of a period over the period: (10 · 1 + 40 · 4) / 50 Mbit/s down, twice that up.
    assert table.down_bps.tolist() == pytest.approx([8e6, 3.4e6, 10e6, 480e3])
    assert table.up_bps.tolist() == pytest.approx([4e6, 6.8e6, 2e6, 120e3])
    assert table.rtt_s.tolist() == pytest.approx([0.1, (10 * 0.04 + 40 * 0.01) / 50, 0.1, 0.06])
    assert table.loss.tolist() == pytest.approx([0.0, 10 * 0.03 / 50, 0.0, 0.02])
    assert table.sigma_log.tolist() == [0.0, 0.0, 0.0, 0.0]
    # What a trace does not hold is that of the network.
    shipped = catalogue.load().network("4g_uk")
    assert table.connect_success.tolist() == [1.0, shipped.connect_success, 1.0, 1.0]
    assert traced.names.networks == ("ideal_wire", "stepping", "slow_wire")
    ids = np.arange(400)
    specs = traced.link_specs(ids)
    assert specs.down_bps.tolist() == table.down_bps[traced.link_kind].tolist()
    assert specs.flaky.tolist() == (traced.link_kind != 2).tolist()


def test_each_link_follows_its_own_trace(traced: Fleet) -> None:
    ids = np.random.default_rng(5).permutation(400)[:200]
    conditions = traced.link_conditions(ids)
    assert isinstance(conditions, MixedConditions)
    conditions.prepare(np.arange(200), 7.0)
    rates = traced.network_table.down_bps[traced.link_kind[ids]]
    seen: dict[int, set[float]] = {kind: set() for kind in range(4)}
    for slot, kind in enumerate(traced.link_kind[ids].tolist()):
        for t_s in (0.0, 7.0, 21.0):
            factor, until_s = conditions.pace(slot, Direction.DOWN, t_s)
            assert until_s > t_s
            seen[kind].add(round(factor * float(rates[slot]), 3))
    assert seen == {0: {8e6}, 1: {1e6, 4e6}, 2: {10e6}, 3: {480e3}}
    # A link is the same in whatever company.
    for slot in (0, 1, 2, 50, 199):
        alone = traced.link_conditions(ids[slot : slot + 1])
        assert isinstance(alone, TracePlayback | LinkConditions)
        for direction in (Direction.DOWN, Direction.UP):
            asked = (direction, 50_000.0, float(rates[slot]), 0.1, 12.5)
            assert alone.alone_time(0, *asked) == conditions.alone_time(slot, *asked)
            assert alone.carry_s(0, direction, 3.0, 9.0) == conditions.carry_s(slot, direction, 3.0, 9.0)


def test_a_trace_of_the_fleet_is_for_links_without_one_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "steady.csv").write_text(STEADY)
    (tmp_path / "steps.csv").write_text(STEPS)
    (tmp_path / "ours.yaml").write_text("networks:\n  stepping: {like: 4g_uk, link_trace: steps.csv}\n")
    text = """
fleet:
  devices: {sbc_pi4: 100%}
  networks: {stepping: 50%, dsl: 50%}
  link_trace: steady.csv
  profiles: [ours.yaml]
"""
    fleet = fleet_of(tmp_path, text, 100)
    assert fleet.network_table.down_bps.tolist() == pytest.approx([3.4e6, 8e6])
    assert isinstance(fleet.link_conditions(np.flatnonzero(fleet.network == 1)), TracePlayback)


def test_the_fleet_in_the_guide_runs(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "adding-a-profile.md").read_text(encoding="utf-8")
    found = re.search(r"```yaml\n(fleet:\n  groups:.*?)```", guide, re.S)
    assert found is not None
    (tmp_path / "our_drive.csv").write_text(STEPS)
    outcome = run_text(tmp_path, REST + found.group(1))
    rows = rows_of(outcome, "device_rounds")
    assert {(row["class"], row["network"]) for row in rows} == {
        ("phone_entry_a53", "3g_uk"),
        ("phone_mid_2020", "4g_uk"),
        ("phone_flagship_2024", "5g_uk"),
    }


def test_a_run_on_several_traces(tmp_path: Path) -> None:
    slow = STEADY.replace(",8,4,100,0", ",0.08,0.04,100,0")
    (tmp_path / "fast.csv").write_text(STEADY)
    (tmp_path / "slow.csv").write_text(slow)
    text = f"""
fleet:
  groups:
    - {{device: ideal_device, network: ideal_wire, share: 50%, link_trace: fast.csv}}
    - {{device: ideal_device, network: slow_wire, share: 50%, link_trace: slow.csv}}
  profiles: ["{IDEAL_PROFILES}"]
"""
    rows = rows_of(run_text(tmp_path, REST + text), "device_rounds")
    took = {
        network: [
            row["download_end_s"] - row["download_start_s"]
            for row in rows
            if row["network"] == network and row["reason"] == "none"
        ]
        for network in ("ideal_wire", "slow_wire")
    }
    assert min(len(times) for times in took.values()) > 10
    # A hundredth of the rate, on the same bytes and the same round trip.
    assert min(took["slow_wire"]) > 5 * max(took["ideal_wire"])


def test_an_inline_phone_at_half_the_speed_computes_twice_as_long(tmp_path: Path) -> None:
    text = (
        REST
        + """
fleet:
  devices: {ours: 100%}
  networks: {wifi_home: 100%}
  availability: always_on
  profiles:
    devices:
      ours: {like: phone_mid_2020, compute_sigma: 0, thermal: none, sources: assumption}
"""
    )
    rate = "fleet.profiles.devices.ours.flops_1_thread"

    def compute_s(*overrides: str) -> list[float]:
        name = re.sub(r"\W", "", "".join(overrides)) or "plain"
        rows = rows_of(run_text(tmp_path, text, ["rounds.count=1", *overrides], name), "device_rounds")
        return [row["compute_s"] for row in sorted(rows, key=lambda row: row["device"])]

    # What a step costs beside its arithmetic, in the framework and for memory, is the same for all.
    all_threads = "fleet.profiles.devices.ours.flops_all_threads=200 TFLOP/s"
    without_arithmetic = compute_s(all_threads, f"{rate}=200 TFLOP/s")
    half, full = compute_s(f"{rate}=10 GFLOP/s"), compute_s()
    assert len(full) == 40
    for free, slow, fast in zip(without_arithmetic, half, full, strict=True):
        assert slow - free == pytest.approx(2 * (fast - free), rel=1e-3)
        assert fast > free


def test_groups_of_a_fleet_of_the_catalogue_are_those_of_a_scenario(tmp_path: Path) -> None:
    (tmp_path / "ours.yaml").write_text("""\
fleets:
  ours:
    groups:
      - {device: phone_entry_a53, network: 3g_uk, share: 30%}
      - {device: phone_flagship_2024, network: 5g_uk, availability: always_on, share: 45.5%}
      - {device: phone_entry_a53, network: 4g_uk, share: 24.5%, link_trace: drive.csv}
    availability: bernoulli_google
    sources: assumption
""")
    (tmp_path / "drive.csv").write_text(STEADY)
    written = fleet_of(tmp_path, GROUPS.replace("24.5%}", "24.5%, link_trace: drive.csv}"))
    named = fleet_of(tmp_path, "fleet: {mix: ours, profiles: [ours.yaml]}\n")
    assert pairs(named) == pairs(written)
    assert named.names == written.names
    assert named.device_class.tolist() == written.device_class.tolist()
    ids = np.arange(1000)
    dropped = [one.availability.dropout(ids, 1).stage.tolist() for one in (named, written)]
    assert dropped[0] == dropped[1]
    flagship = named.device_class == named.names.classes.index("phone_flagship_2024")
    assert not (np.array(dropped[0]) != NO_STAGE)[flagship].any()
    on_4g = named.network == named.names.networks.index("4g_uk")
    rates = [one.network_table.down_bps[one.link_kind] for one in (named, written)]
    assert rates[0].tolist() == rates[1].tolist()
    # Those of the trace, in place of the network's.
    assert set(rates[0][on_4g].tolist()) == {8e6}
    # The scenario's availability takes the place of the fleet's, not of a group's.
    always = fleet_of(tmp_path, "fleet: {mix: ours, availability: always_on, profiles: [ours.yaml]}\n")
    assert (always.availability.dropout(ids, 1).stage == NO_STAGE).all()
