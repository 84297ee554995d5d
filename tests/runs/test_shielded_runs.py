"""Whole runs in which shielded devices report in the clear, and others sum securely in the same rounds."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from byte_checks import bytes_of, check_run
from run_helpers import rows_of, run_text, tables_of
from secure_helpers import IDEAL_WIRE, PHONES, differing_columns, faults, secure
from test_secure_byte_conservation import random_secure_scenario
from test_secure_equals_plain import distance, planned_errors

from coordinator.results.summary import summarise
from coordinator.run.runner import RunOutcome
from coordinator.scenario.exit_codes import ExitCode
from edge.device.participation import Participation

DATA = "source: synthetic-ratings, users: 120, items: 60, ratings_per_user: 12, features: {kind: synthetic}"
LEARNING = (
    "algorithm: fedmmf, mask: {kind: one-order, regularization: 1}, factors: 4, optimizer: {kind: sgd},"
    " learning_rate: 0.5"
)
SOME = "{test: recovery, at_most: 50%}"
NOBODY = "{test: indicator, at_most: 0}"
EVERYBODY = "{test: recovery, at_most: 100%}"
ROUNDS = "count: 2, cohort: 24, quorum: 12, deadline: 60 s, interval: 10 min"
SUM_STAGES = ("advertise-keys", "share-keys", "masked-input", "unmask")


def run_of(
    folder: Path,
    shielded: str | None,
    *,
    mode: str = "secagg, clip: 4",
    upload: str = "sparse",
    name: str = "run",
    overrides: tuple[str, ...] = (),
    **parts: Any,
) -> RunOutcome:
    """Run a small scenario; ``shielded`` is the section, None where there is none."""
    section = f"mode: {mode}" + ("" if shielded is None else f", shielded: {shielded}")
    written = {"data": DATA, "learning": f"{LEARNING}, upload: {upload}", "rounds": ROUNDS, "fleet": PHONES}
    return run_text(folder, secure(section, **(written | parts)), overrides, name)


def by_way(outcome: RunOutcome) -> dict[str | None, list[dict[str, Any]]]:
    found: dict[str | None, list[dict[str, Any]]] = {}
    for row in rows_of(outcome, "device_rounds"):
        found.setdefault(row["way"], []).append(row)
    return found


# -- who goes which way ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> RunOutcome:
    """Return a run of some rounds in which nothing goes wrong."""
    return run_of(tmp_path_factory.mktemp("mixed"), SOME, rounds=ROUNDS.replace("count: 2", "count: 6"))


@pytest.mark.slow
def test_a_real_mix_goes_both_ways(mixed: RunOutcome) -> None:
    rounds, ways = rows_of(mixed, "rounds"), by_way(mixed)
    assert set(ways) == {"clear", "secure"}
    for row in rounds:
        assert (row["outcome"], row["secagg_failure"], row["secagg_sum_error"]) == ("completed", "none", 0)
        assert row["clear_updates"] + row["summed_updates"] == row["completed"] == 24
        assert row["clear_updates"] > 0 < row["summed_updates"]
        assert row["secagg_neighbours"] == row["summed_updates"] - 1
        assert row["secagg_double_reveals"] == 0
    assert len(ways["clear"]) == sum(row["clear_updates"] for row in rounds)
    for row in ways["clear"]:
        assert row["report_end_s"] > row["compute_end_s"] - 1e-12
        assert all(row[f"{stage}_start_s"] is None for stage in SUM_STAGES)
        assert row["acknowledge_end_s"] is not None
    for row in ways["secure"]:
        assert row["report_start_s"] is None
        assert all(row[f"{stage}_start_s"] is not None for stage in SUM_STAGES)


def test_a_device_goes_the_same_way_in_every_round(mixed: RunOutcome) -> None:
    ways: dict[int, set[str]] = {}
    for row in rows_of(mixed, "device_rounds"):
        ways.setdefault(row["device"], set()).add(row["way"])
    assert max(Counter(row["device"] for row in rows_of(mixed, "device_rounds")).values()) > 1
    assert all(len(way) == 1 for way in ways.values())


def test_reports_in_the_clear_are_sparse_and_the_sum_is_of_whole_tables(mixed: RunOutcome) -> None:
    ways = by_way(mixed)
    rated = max(row["examples"] for row in ways["clear"])
    # 16 bits and five float32 a row.
    assert max(row["report_up_bytes"] for row in ways["clear"]) < 22 * rated + 500
    assert min(row["masked-input_up_bytes"] for row in ways["secure"]) > 60 * 5 * 4


def test_receipts_in_the_clear_do_not_wait_for_the_sum(mixed: RunOutcome) -> None:
    for number in range(1, 7):
        rows = [row for row in rows_of(mixed, "device_rounds") if row["round"] == number]
        told = {
            way: [row["acknowledge_start_s"] for row in rows if row["way"] == way]
            for way in ("clear", "secure")
        }
        assert min(told["secure"]) == max(told["secure"]) > min(told["clear"])


def test_the_summary_shows_the_mix(mixed: RunOutcome) -> None:
    summary, ways = summarise(tables_of(mixed)), by_way(mixed)
    assert summary["by_way"].keys() == {"clear", "secure"}
    for way, group in summary["by_way"].items():
        rows = ways[way]
        assert group["device_rounds"] == group["completed"] == len(rows)
        assert group["share"] == pytest.approx(len(rows) / 144)
        assert group["mean_up_bytes"] == pytest.approx(np.mean([row["up_bytes"] for row in rows]))
        assert group["latency_s"]["max"] == max(row["latency_s"] for row in rows)
        assert group["mean_compute_s"] == pytest.approx(np.mean([row["compute_s"] for row in rows]))
    assert summary["secure_aggregation"] == {
        "run": "secagg, real cryptography, "
        "shielded devices in the clear (at most 0.5 recovered within 0.5 stars)"
    }


@pytest.mark.slow
def test_thresholds_on_the_mix(tmp_path: Path) -> None:
    promises = (
        "thresholds:\n"
        "  device.shielded: [rate >= 10%, rate <= 90%]\n"
        "  device.up_bytes{way=clear}: [max < 3 KiB]\n"
        "  device.up_bytes{way=secure}: [min > 1 KiB]\n"
        "  device.completed{way=secure}: [rate == 100%]\n"
    )
    outcome = run_of(tmp_path, SOME, more=promises)
    assert outcome.exit_code is ExitCode.HELD
    assert len(outcome.verdicts) == 5


# -- the same as without ---------------------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize("upload", ["sparse", "dense"])
@pytest.mark.parametrize("mode", ["secagg", "active, crypto: modelled"])
def test_one_round_applies_what_a_round_in_the_clear_does(mode: str, upload: str, tmp_path: Path) -> None:
    one = {"rounds": ROUNDS.replace("count: 2", "count: 1"), "fleet": IDEAL_WIRE, "upload": upload}
    plain = run_of(tmp_path, None, mode="off", name="plain", **one)
    both = run_of(tmp_path, SOME, mode=f"{mode}, clip: 4", name="both", **one)
    (clear_round,), (mixed_round,) = rows_of(plain, "rounds"), rows_of(both, "rounds")
    assert 0 < mixed_round["summed_updates"] < 24
    assert mixed_round["clipped_fraction"] == 0.0
    error, loss_error = planned_errors(tmp_path, "both")
    rounding = 2.0**-20  # float32, added up in another order
    assert distance(plain, both) <= 0.5 * error / clear_round["weight"] + rounding
    assert mixed_round["weight"] == clear_round["weight"]
    examples = sum(row["examples"] for row in rows_of(plain, "device_rounds"))
    assert abs(mixed_round["loss"] - clear_round["loss"]) <= loss_error / examples + 1e-12
    for column in ("device", "outcome", "examples", "loss"):
        one_, other = ([row[column] for row in rows_of(run, "device_rounds")] for run in (plain, both))
        assert one_ == other, column


@pytest.mark.few(1)
@pytest.mark.parametrize("mode", ["secagg, clip: 4", "active, clip: 4"])
def test_where_nobody_is_shielded_only_the_judging_is_new(mode: str, tmp_path: Path) -> None:
    more = faults(download="5%", masked_input="10%", unmask="5%")
    ever = run_of(tmp_path, None, mode=mode, upload="dense", name="ever", more=more, fleet=IDEAL_WIRE)
    now = run_of(tmp_path, NOBODY, mode=mode, upload="dense", name="now", more=more, fleet=IDEAL_WIRE)
    found = differing_columns(ever, now)
    times = re.compile(r".*_s")
    allowed = {"energy_compute_j", "energy_radio_j", "energy_j", "memory_bytes"}
    for table, columns in found.items():
        assert [name for name in columns if not times.fullmatch(name) and name not in allowed] == [], table
    for one, other in zip(rows_of(ever, "device_rounds"), rows_of(now, "device_rounds"), strict=True):
        assert (other["compute_s"] > one["compute_s"]) == (one["compute_s"] > 0)
    assert distance(ever, now) == 0.0
    assert {row["clear_updates"] for row in rows_of(now, "rounds")} == {0}


@pytest.mark.slow
def test_where_everybody_is_shielded_there_is_no_sum(tmp_path: Path) -> None:
    plain = run_of(tmp_path, None, mode="off", name="plain", fleet=IDEAL_WIRE)
    now = run_of(tmp_path, EVERYBODY, name="now", fleet=IDEAL_WIRE)
    for one, other in zip(rows_of(plain, "rounds"), rows_of(now, "rounds"), strict=True):
        assert (other["clear_updates"], other["summed_updates"]) == (24, 0)
        assert (other["outcome"], other["secagg_failure"]) == ("completed", "none")
        assert other["secagg_sum_error"] is other["secagg_neighbours"] is other["clipped_fraction"] is None
        assert (one["up_bytes"], one["down_bytes"]) == (other["up_bytes"], other["down_bytes"])
    assert distance(plain, now) < 1e-6


@pytest.mark.few(1)
@pytest.mark.parametrize("mode", ["secagg", "secagg-plus", "active"])
def test_modelled_cryptography_leaves_the_same_tables(mode: str, tmp_path: Path) -> None:
    more = faults(report="10%", advertise_keys="5%", masked_input="10%", unmask="5%")
    parts = {"more": more, "fleet": PHONES.replace("always_on", "bernoulli_google")}
    real, modelled = (
        run_of(tmp_path, SOME, mode=f"{mode}, clip: 4, crypto: {crypto}", name=crypto, **parts)
        for crypto in ("real", "modelled")
    )
    assert not any(differing_columns(real, modelled).values())
    assert distance(real, modelled) == 0.0
    assert {row["outcome"] for row in rows_of(real, "rounds")} == {"completed"}
    assert all(row["clear_updates"] > 0 < row["summed_updates"] for row in rows_of(real, "rounds"))


# -- what judging costs ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_judging_takes_the_same_time_whatever_comes_out(tmp_path: Path) -> None:
    parts = {"fleet": IDEAL_WIRE, "data": DATA.replace("source", "split: {kind: none}, source")}
    seconds: dict[str, dict[int, float]] = {}
    for name, shielded in (
        ("few", "{test: indicator, at_most: 0.03}"),
        ("many", "{test: indicator, at_most: 0.3}"),
    ):
        rows = rows_of(run_of(tmp_path, shielded, name=name, **parts), "device_rounds")
        seconds[name] = {
            row["device"]: row["compute_end_s"] - row["compute_start_s"] for row in rows if row["round"] == 1
        }
        ways = {row["device"]: row["way"] for row in rows if row["round"] == 1}
        seconds[f"{name} clear"] = {device: 0.0 for device, way in ways.items() if way == "clear"}
    assert 0 <= len(seconds["few clear"]) < len(seconds["many clear"])
    assert seconds["few"] == pytest.approx(seconds["many"], abs=1e-12)


@pytest.mark.slow
def test_the_second_fit_of_the_indicator_costs_more_than_looking_at_ratings(tmp_path: Path) -> None:
    def computing(shielded: str | None, name: str) -> float:
        outcome = run_of(tmp_path, shielded, name=name, upload="dense", fleet=IDEAL_WIRE)
        rows = rows_of(outcome, "device_rounds")
        return sum(row["compute_end_s"] - row["compute_start_s"] for row in rows)

    without, looked = computing(None, "without"), computing(SOME, "looked")
    fitted = computing("{test: indicator, at_most: 0.05}", "fitted")
    assert without < looked < fitted


# -- what goes wrong -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_faults_strike_each_way_at_its_own_stages(tmp_path: Path) -> None:
    more = faults(report="50%", masked_input="50%")
    outcome = run_of(tmp_path, SOME, more=more, rounds=ROUNDS.replace("quorum: 12", "quorum: 2"))
    shielded = {row["device"] for row in rows_of(run_of(tmp_path, SOME, name="calm"), "device_rounds")
                if row["way"] == "clear"}  # fmt: skip
    struck = [row for row in rows_of(outcome, "device_rounds") if row["reason"] == "vanished"]
    assert {row["stage"] for row in struck} == {"report", "masked-input"}
    for row in struck:
        assert (row["stage"] == "report") == (row["device"] in shielded)


def test_uploads_break_off_at_the_stage_of_their_own_way(tmp_path: Path) -> None:
    file = tmp_path / "uploads.yaml"
    file.write_text(
        "availability:\n  breaking_off: {kind: bernoulli, drop_probability: 30%,"
        " before_download: 0%, during_compute: 0%, during_upload: 100%, sources: assumption}\n"
    )
    fleet = PHONES.replace("always_on", f"breaking_off, profiles: [{file}]")
    outcome = run_of(tmp_path, SOME, fleet=fleet, rounds=ROUNDS.replace("quorum: 12", "quorum: 2"))
    shielded = {row["device"] for row in rows_of(run_of(tmp_path, SOME, name="calm"), "device_rounds")
                if row["way"] == "clear"}  # fmt: skip
    broken = [row for row in rows_of(outcome, "device_rounds") if row["outcome"] == "dropped"]
    assert {row["stage"] for row in broken} == {"report", "masked-input"}
    for row in broken:
        assert (row["stage"] == "report") == (row["device"] in shielded)


def test_garbage_in_the_clear_is_refused_and_costs_its_sender_its_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Participation.computed

    def computed(self: Participation, arrays: Any, *figures: Any) -> Any:
        rows = arrays["item_rows"]
        spoiled = {**arrays, "item_rows": rows[:, :-1]} if self.device % 2 else arrays
        return honest(self, spoiled, *figures)

    monkeypatch.setattr(Participation, "computed", computed)
    outcome = run_of(tmp_path, SOME)
    rows = rows_of(outcome, "device_rounds")
    refused = [row for row in rows if row["reason"] == "garbage"]
    assert refused
    for row in refused:
        assert (row["outcome"], row["stage"], row["device"] % 2, row["way"]) == (
            "failed",
            "acknowledge",
            1,
            None,
        )
        assert row["discarded_bytes"] >= row["report_up_bytes"] > 0
    assert all(row["device"] % 2 == 0 for row in rows if row["way"] == "clear")
    assert len(refused) + sum(row["completed"] for row in rows_of(outcome, "rounds")) == 48
    assert {row["secagg_sum_error"] for row in rows_of(outcome, "rounds")} == {0}


@pytest.mark.slow
def test_a_sum_that_fails_costs_its_own_updates_alone(tmp_path: Path) -> None:
    more = "faults: [{name: x, at_stage: unmask, on: {fraction: 100%}, vanish: {}}]\n"
    outcome = run_of(tmp_path, SOME, more=more, rounds=ROUNDS.replace("quorum: 12", "quorum: 3"))
    for row in rows_of(outcome, "rounds"):
        assert (row["outcome"], row["secagg_failure"]) == ("completed", "too-few-survivors")
        assert row["completed"] == row["clear_updates"] > 0 == row["summed_updates"]
        examples = [one["examples"] for one in rows_of(outcome, "device_rounds")
                    if one["round"] == row["round"] and one["outcome"] == "completed"]  # fmt: skip
        assert row["weight"] == sum(examples)
    outcomes = {way: {row["outcome"] for row in rows} for way, rows in by_way(outcome).items()}
    assert outcomes == {"clear": {"completed"}, "secure": {"dropped"}}
    abandoned = run_of(
        tmp_path, SOME, more=more, rounds=ROUNDS.replace("quorum: 12", "quorum: 24"), name="more"
    )
    assert {row["outcome"] for row in rows_of(abandoned, "rounds")} == {"abandoned"}
    assert {row["outcome"] for row in rows_of(abandoned, "device_rounds")} == {"abandoned", "dropped"}


def test_devices_whose_sum_failed_are_told_so(tmp_path: Path) -> None:
    more = "faults: [{name: x, at_stage: share-keys, on: {fraction: 85%}, vanish: {}}]\n"
    outcome = run_of(tmp_path, SOME, more=more, rounds=ROUNDS.replace("quorum: 12", "quorum: 3"))
    rows = rows_of(outcome, "rounds")
    assert {row["outcome"] for row in rows} == {"completed"}
    assert {row["secagg_failure"] for row in rows} <= {"too-few-neighbours", "too-few-contributors"}
    told = [row for row in rows_of(outcome, "device_rounds") if row["outcome"] == "abandoned"]
    assert told
    assert {row["reason"] for row in told} <= {"threshold", "quorum"}


def test_phases_have_tests_of_their_own(tmp_path: Path) -> None:
    sections = {
        "strict": f"mode: secagg, clip: 4, shielded: {NOBODY}",
        "some": f"mode: secagg, clip: 4, shielded: {SOME}",
        "plain": "mode: 'off'",
        "never": "mode: secagg, clip: 4",
    }
    phases = "phases:\n" + "".join(
        f"  - {{name: {name}, rounds: 1, secure_aggregation: {{{section}}}}}\n"
        for name, section in sections.items()
    )
    rounds = ROUNDS.replace("count: 2, ", "")
    outcome = run_of(tmp_path, None, upload="dense", rounds=rounds, more=phases)
    found = {
        row["phase"]: (row["clear_updates"], row["summed_updates"]) for row in rows_of(outcome, "rounds")
    }
    assert found["strict"] == found["never"] == (0, 24)
    assert found["plain"] == (24, 0)
    assert found["some"][0] > 0 < found["some"][1]


# -- bytes -----------------------------------------------------------------------------------------------


def random_shielded_scenario(seed: int) -> str:
    """Return a scenario like those of secure sums, whose masking phases let shielded devices report."""
    generator = random.Random(f"shielded {seed}")
    text = random_secure_scenario(seed)
    text = re.sub(r"(?m)^privacy: .*\n", "", text)
    text = re.sub(r"mode: (ckks|off)", "mode: secagg", text)
    mask = f"mask: {{kind: one-order, regularization: {generator.choice([0.3, 3])}}}"
    text = text.replace("algorithm: fedrecon,", f"algorithm: fedmmf, {mask},")
    text = text.replace("ratings_per_user: 8", "ratings_per_user: 8, features: {kind: synthetic}")
    test = generator.choice([SOME, "{test: indicator, at_most: 0.06}", EVERYBODY, NOBODY])
    text = re.sub(r"mode: (secagg-plus|secagg|active)", rf"mode: \1, shielded: {test}", text)
    if generator.random() < 0.5:
        text = text.replace("upload: dense", "upload: sparse")
    return text.replace("at_stage: compute", "at_stage: report")


@pytest.mark.slow
def test_bytes_are_conserved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: Counter[str] = Counter()
    ways: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    for seed in range(10):
        try:
            with monkeypatch.context() as patch:
                tables = check_run(tmp_path, random_shielded_scenario(seed), seed, patch)
        except Exception as error:
            error.add_note(f"replay with random_shielded_scenario({seed})")
            raise
        assert bytes_of(tables) > 0
        for row in tables.read("rounds").to_pylist():
            ended[row["outcome"]] += 1
            assert row["clear_updates"] + row["summed_updates"] == row["completed"]
            assert row["secagg_sum_error"] in (None, 0)
            assert row["secagg_double_reveals"] == 0
            assert (row["secagg_sum_error"] == 0) >= (row["summed_updates"] > 0)
            ways["clear"] += row["clear_updates"]
            ways["secure"] += row["summed_updates"]
        kinds.update(tables.read("events")["kind"].to_pylist())
    assert min(ended["completed"], ended["abandoned"], ways["clear"], ways["secure"]) > 3
    assert {"report", "keys", "masked-input", "late", "duplicate"} <= kinds.keys()
