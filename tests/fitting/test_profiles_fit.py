from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coordinator.cli.entry import execute
from coordinator.results.tables.reader import open_run
from device_profiles import catalogue

SCENARIO = """\
format: 2
seed: 11
data: {source: synthetic-ratings, users: 160, items: 4000, ratings_per_user: 20}
fleet: FLEET
learning: {algorithm: fedrecon, factors: 8}
rounds: {count: 25, cohort: 40, quorum: 1, deadline: 60 s, selection: random}
"""
FLEET = (
    "{devices: {phone_mid_2020: 50%, phone_entry_a53: 50%}, networks: {4g_uk: 60%, wifi_home: 40%},"
    " availability: diurnal_charging, time_zones: 24}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, its telemetry, and what was fitted to it."""
    place = tmp_path_factory.mktemp("fit")
    (place / "s.yaml").write_text(SCENARIO.replace("FLEET", FLEET))
    assert execute(["run", str(place / "s.yaml"), "--quiet", "--out", str(place / "run")]) == 0
    assert execute(["telemetry", str(place / "run"), "--work", "-o", str(place / "t.parquet")]) == 0
    fit = [
        "profiles",
        "fit",
        str(place / "t.parquet"),
        "-o",
        str(place / "fitted.yaml"),
        "--report",
        str(place / "fit.html"),
    ]
    assert execute(fit) == 0
    return place


def test_the_export_is_of_what_the_run_did(folder: Path) -> None:
    table, run = pq.read_table(folder / "t.parquet"), open_run(folder / "run")
    events = run.read("events")
    kinds = table["kind"].to_numpy(zero_copy_only=False)
    moved = table.filter(pa.array(kinds == "transfer"))
    ok = moved["ok"].to_numpy(zero_copy_only=False)
    sent = events.filter(pa.array(np.isin(events["kind"].to_numpy(zero_copy_only=False), ["report", "late"])))
    arrived = sent["fate"].to_numpy(zero_copy_only=False) != "lost"
    reports = (sent["payload_bytes"].to_numpy() + sent["framing_bytes"].to_numpy())[arrived]
    up = moved["direction"].to_numpy(zero_copy_only=False) == "up"
    sizes = moved["bytes"].to_numpy()
    assert sorted(sizes[up & ok & (sizes > 50)]) == sorted(reports[reports > 50])
    # A first contact has handshakes, what follows has none.
    handshakes = moved["handshakes"].to_numpy(zero_copy_only=False)[ok]
    assert set(handshakes) == {0.0, 2.0}
    invited = events["kind"].to_numpy(zero_copy_only=False) == "invited"
    away = events["reason"].to_numpy(zero_copy_only=False)[invited] == "unavailable"
    checked = table.filter(pa.array(kinds == "check-in"))["ok"].to_numpy(zero_copy_only=False)
    assert (len(checked), (~checked).sum()) == (invited.sum(), away.sum())
    tasks = table.filter(pa.array(kinds == "compute"))
    assert tasks["seconds"].to_numpy().sum() == pytest.approx(
        run.read("rounds", ["compute_s"])["compute_s"].to_numpy().sum()
    )
    assert (tasks["flops"].to_numpy() > 0).all()
    assert (tasks["examples"].to_numpy() == 16).all() or len(set(tasks["examples"].to_pylist())) > 1


def test_the_fitted_profiles_are_a_catalogue_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fitted, shipped = catalogue.load([folder / "fitted.yaml"]), catalogue.load()
    found, true = fitted.network("4g_uk"), shipped.network("4g_uk")
    assert found.down_bps == pytest.approx(true.down_bps, rel=0.5)
    assert found.rtt_s == pytest.approx(true.rtt_s, rel=0.05)
    # The radio is that of the nearest profile, with the delay that was measured.
    assert found.radio.promotion_s == pytest.approx(true.radio.promotion_s, abs=0.02)
    assert (found.radio.tail_s, found.radio.base_w) == (true.radio.tail_s, true.radio.base_w)
    assert fitted.network("wifi_home").radio.promotion_s == pytest.approx(0.0, abs=0.02)
    assert sum(group.share for group in fitted.fleet("fitted").groups) == pytest.approx(1.0, abs=1e-9)
    assert execute(["profiles", "show", "4g_uk", "--profiles", str(folder / "fitted.yaml")]) == 0
    shown = capsys.readouterr().out
    assert "telemetry" in shown
    assert "prior" in (folder / "fitted.yaml").read_text()


def test_a_scenario_runs_on_them(folder: Path) -> None:
    scenario = folder / "again.yaml"
    scenario.write_text(
        SCENARIO.replace("FLEET", "{mix: fitted, profiles: [fitted.yaml]}").replace("count: 25", "count: 2")
    )
    assert execute(["validate", str(scenario)]) == 0
    assert execute(["run", str(scenario), "--quiet", "--out", str(folder / "again")]) == 0


def test_the_report_is_one_file_with_charts(folder: Path) -> None:
    page = (folder / "fit.html").read_text()
    assert page.count("<svg") >= 4
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "goodness of fit" in page
    assert "Availability by hour" in page


def test_markdown_and_csv(folder: Path) -> None:
    assert execute(["telemetry", str(folder / "run"), "-o", str(folder / "t.csv")]) == 0
    fit = [
        "profiles",
        "fit",
        str(folder / "t.csv"),
        "-o",
        str(folder / "b.yaml"),
        "--report",
        str(folder / "fit.md"),
    ]
    assert execute(fit) == 0
    text = (folder / "fit.md").read_text()
    assert "| value | found | 95% interval | basis |" in text
    assert "prior: phone_mid_2020" in text


@pytest.mark.parametrize(
    ("contents", "said"),
    [
        ("", "is neither a Parquet file nor CSV"),
        ("kind,device,time_s,direction,bytes,seconds\n", "has no rows"),
        (
            "kind,device,time_s,direction,bytes,seconds\ntransfer,a,1,down,1000,-4\n",
            "row 1, column 'seconds': -4.0",
        ),
        (
            "kind,device,time_s,direction,bytes,seconds\ntransfer,a,1,down,1000,4\n",
            "a profile needs 30 transfers",
        ),
    ],
)
def test_a_senseless_table_is_refused(
    contents: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(contents)
    assert execute(["profiles", "fit", str(path), "-o", str(tmp_path / "f.yaml")]) == 2
    error = capsys.readouterr().err
    assert str(path) in error
    assert said in error
    assert not (tmp_path / "f.yaml").exists()


def test_names_of_a_table_become_names_of_profiles(tmp_path: Path) -> None:
    lines = ["kind,device,class,network,time_s,direction,bytes,seconds,ok"]
    draw = np.random.default_rng(1)
    for number in range(400):
        size = int(np.exp(draw.uniform(6, 13)))
        took = 0.03 + size * 8 / 9e6 * draw.lognormal(0, 0.4)
        lines.append(
            f"transfer,d{number % 20},Évil: [x] #1,'LTE' + {{5G}},{number * 40},down,{size},{took:.5f},true"
        )
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert execute(["profiles", "fit", str(tmp_path / "t.csv"), "-o", str(tmp_path / "f.yaml")]) == 0
    found = catalogue.load([tmp_path / "f.yaml"])
    (group,) = found.fleet("fitted").groups
    assert (group.device, group.network) == ("vil_x_1", "lte_5g")
