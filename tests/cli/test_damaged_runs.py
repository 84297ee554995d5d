"""Damaged run directories: every verb that reads one names the file, and ends with 2."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from run_damage import copy_of, damage

from coordinator.cli.entry import execute

SCENARIO = """
format: 2
seed: 3
data: {source: synthetic-ratings, users: 30, items: 30, ratings_per_user: 10}
fleet: {mix: global_android_2024, availability: always_on}
learning: {algorithm: fedrecon, factors: 3, learning_rate: 0.05}
rounds: {count: 3, cohort: 8, deadline: 120 s}
evaluation: {every: 1}
faults: [{name: gone, vanish: {}, at_stage: report, on: {fraction: 20%}}]
baseline: same-seed-without-faults
thresholds: {round.completed: [rate >= 10%], model.rmse: [last <= 9 * baseline]}
"""
SWEEP = """
format: 2
seed: 3
data: {source: synthetic-ratings, users: 30, items: 30, ratings_per_user: 10}
fleet: {mix: global_android_2024, availability: always_on}
learning: {algorithm: fedrecon, factors: 3, learning_rate: 0.05}
rounds: {count: 2, cohort: 8, deadline: 120 s}
thresholds: {round.completed: [rate >= 10%]}
sweep: {rounds.cohort: [6, 8]}
"""
DOCUMENTED = (0, 2, 3)
"""It worked; it was refused; runs differ."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, another one, a model and a sweep, all of them whole."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "run.yaml").write_text(SCENARIO)
    (folder / "sweep.yaml").write_text(SWEEP)
    (folder / "ratings.csv").write_text("item,rating\n1,5\n2,3\n3,1\n")
    quiet = ["run", str(folder / "run.yaml"), "--quiet", "--out"]
    assert execute([*quiet, str(folder / "run")]) == 0
    assert execute([*quiet, str(folder / "other"), "--set", "rounds.cohort=7"]) == 0
    assert execute(["sweep", str(folder / "sweep.yaml"), "--jobs", "1", "--out", str(folder / "sweep")]) == 0
    return folder


def readers(folder: Path, run: Path) -> list[list[str]]:
    """Return the commands that read the run, or the sweep, at ``run``."""
    written = str(folder / "written")
    if run.name == "sweep":
        return [["report", str(run), "-o", written], ["compare", str(run)]]
    other = str(folder / "other")
    return [
        ["report", str(run), "-o", written],
        ["report", str(run), other, "-o", written],
        ["compare", other, str(run)],
        ["diff", str(run), other],
        ["export", str(run), "--kind", "stateless", "-o", written],
        ["export", str(run), "--kind", "recommender", "--device", "3", "-o", written],
    ]


def files_of(run: Path) -> list[Path]:
    """Return the files of a run, or a sweep, that somebody reads."""
    unread = {"report.html", "trace.json.gz", "sweep.csv", "summary.json"}
    return sorted(file for file in run.rglob("*") if file.is_file() and file.name not in unread)


def check(seed: int, runs: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Damage a file of a run or sweep, and let every verb read it."""
    draw = random.Random(seed)
    which = draw.choice(("run", "run", "sweep"))
    damaged = copy_of(runs / which, folder / which)
    for name in ("other", "ratings.csv", "sweep.yaml"):
        if not (folder / name).exists():
            (folder / name).symlink_to(runs / name)
    file = draw.choice(files_of(damaged))
    done = f"seed {seed}: {file.relative_to(damaged)}: {damage(file, draw)}"
    for command in readers(folder, damaged):
        capsys.readouterr()
        code = execute(command)
        said = capsys.readouterr().err
        assert code in DOCUMENTED, f"{done}: {command} ended with {code}: {said}"
        assert "internal error" not in said, f"{done}: {command}: {said}"
        assert "Traceback" not in said, f"{done}: {command}: {said}"
        if code == 2:
            assert damaged.name in said, f"{done}: {command} does not say what is wrong: {said}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(7), 131])
def test_a_damaged_run_is_read_or_refused_by_name(
    seed: int, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(seed, runs, tmp_path, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(8, 68, 20))
def test_damage_of_every_kind_to_every_file(
    first: int, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(first, first + 20):
        check(seed, runs, tmp_path, capsys)
