"""What ``init`` writes runs as it is, with any fleet and any ratings, and so does what its comments offer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from coordinator.cli.entry import execute
from coordinator.scenario.load import load
from coordinator.scenario.starter import starter_text
from coordinator.scenario.sweep import load_cells
from device_profiles import catalogue

FLEETS = catalogue.load().names()["fleets"]


def write_ratings(path: Path, users: int, ratings: int = 12) -> None:
    rows = [
        f"u{user},i{(user * 7 + 3 * n) % 40},{1 + (user + n) % 5}"
        for user in range(users)
        for n in range(ratings)
    ]
    path.write_text("\n".join([*rows, ""]), encoding="utf-8")


def test_it_runs_as_it_is(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["init"]) == 0
    assert capsys.readouterr().out == "wrote scenario.yaml; run it: recfleet run scenario.yaml\n"
    assert execute(["run", "scenario.yaml", "--quiet", "--out", "run"]) == 0
    assert (in_folder / "run" / "summary.json").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("fleet", FLEETS)
def test_it_runs_with_every_fleet(fleet: str, in_folder: Path) -> None:
    assert execute(["init", "--fleet", fleet, "-o", "it.yaml"]) == 0
    assert execute(["run", "it.yaml", "--quiet"]) == 0


@pytest.mark.parametrize("fleet", FLEETS)
def test_it_names_the_fleet(fleet: str, in_folder: Path) -> None:
    assert execute(["init", "--fleet", fleet]) == 0
    assert load("scenario.yaml").scenario.fleet.mix == fleet


def test_an_unknown_fleet_is_answered_with_the_nearest(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["init", "--fleet", "global_androd_2024"]) == 2
    assert (
        "there is no fleet 'global_androd_2024'; did you mean 'global_android_2024'?"
        in capsys.readouterr().err
    )
    assert list(in_folder.iterdir()) == []


def test_it_reads_ratings_and_fits_the_rounds_to_their_users(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_ratings(in_folder / "ratings.csv", 60)
    assert execute(["init", "--data", "ratings.csv", "-o", "my.yaml"]) == 0
    assert capsys.readouterr().out == (
        "ratings.csv (plain): 720 ratings of 60 users and 40 items; columns user = column 1, "
        "item = column 2, rating = column 3, guessed by position\n"
        "wrote my.yaml; run it: recfleet run my.yaml\n"
    )
    scenario = load("my.yaml").scenario
    assert scenario.data.source == "auto"
    assert (scenario.rounds.cohort, scenario.rounds.quorum) == (36, 0.5)
    assert execute(["run", "my.yaml", "--quiet"]) == 0


def test_it_runs_on_pairs_without_a_rating(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"u{user},i{(user * 7 + 3 * n) % 40}" for user in range(30) for n in range(8)]
    Path("pairs.csv").write_text("\n".join([*rows, ""]), encoding="utf-8")
    assert execute(["init", "--data", "pairs.csv"]) == 0
    assert "no rating column: implicit feedback" in capsys.readouterr().out
    assert execute(["run", "scenario.yaml", "--quiet"]) == 0


def test_settings_say_how_ratings_are_read_there_and_in_the_scenario(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(f"{user};{(user + n) % 9};{n % 5 + 1},5\n" for user in range(20) for n in range(6))
    Path("r.csv").write_text("Kunde;Produkt;Note: 1\n" + rows, encoding="utf-8")
    assert execute(["init", "--data", "r.csv"]) == 2
    columns = 'data.columns={user: Kunde, item: Produkt, rating: "Note: 1"}'
    assert f"or --set '{columns}'" in capsys.readouterr().err
    assert not Path("scenario.yaml").exists()
    assert execute(["init", "--data", "r.csv", "--set", columns, "--set", "data.duplicates=mean"]) == 0
    printed = capsys.readouterr().out
    assert (
        "120 ratings of 20 users and 9 items; columns user = Kunde, item = Produkt, rating = Note: 1"
        in printed
    )
    assert execute(["validate", "scenario.yaml", "--data", "full"]) == 0
    assert capsys.readouterr().out == f"scenario.yaml: ok; data: {printed.splitlines()[0]}\n"
    data = load("scenario.yaml").scenario.data
    assert (data.source, data.duplicates) == ("auto", "mean")
    assert execute(["run", "scenario.yaml", "--quiet"]) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "data.decimal=,"], "--set says how ratings are read; name them with --data"),
        (["--data", "r.csv", "--set", "rounds.cohort=5"], "settings say how ratings are read, data.…=…"),
        (["--data", "r.csv", "--set", "data.colums.user=1"], "data.colums: unknown key"),
    ],
)
def test_other_settings_are_refused(
    arguments: list[str], said: str, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_ratings(Path("r.csv"), 10)
    assert execute(["init", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not Path("scenario.yaml").exists()


@pytest.mark.parametrize("users", [2, 3, 5, 10])
def test_it_runs_with_few_users(users: int, in_folder: Path) -> None:
    write_ratings(in_folder / "ratings.csv", users)
    assert execute(["init", "--data", "ratings.csv"]) == 0
    assert load("scenario.yaml").scenario.rounds.cohort <= users


def test_the_path_of_ratings_starts_at_the_folder_of_the_scenario(in_folder: Path) -> None:
    for name in ("here", "there"):
        (in_folder / name).mkdir()
    write_ratings(in_folder / "there" / 'my "best" ratings: 1.csv', 20)
    data = Path("there", 'my "best" ratings: 1.csv')
    assert execute(["init", "--data", str(data), "-o", "here/it.yaml"]) == 0
    loaded = load("here/it.yaml")
    assert loaded.scenario.data.path == f"../{data}"
    assert loaded.resolve(("data", "path")).samefile(data)
    assert execute(["init", "--data", str(data.absolute()), "-o", "here/that.yaml"]) == 0
    assert load("here/that.yaml").scenario.data.path == str(data.absolute())


def test_nothing_is_replaced(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("scenario.yaml").write_text("mine\n", encoding="utf-8")
    assert execute(["init"]) == 2
    assert capsys.readouterr().err == "error: scenario.yaml is there; name another file with -o, or move it\n"
    assert Path("scenario.yaml").read_text(encoding="utf-8") == "mine\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-o", "missing/it.yaml"], "there is no folder 'missing'; make it first"),
        (["--data", "missing.csv"], "'missing.csv' does not exist"),
        (["--data", "wrong.csv"], "wrong.csv"),
    ],
)
def test_what_cannot_be_done_writes_nothing(
    arguments: list[str], said: str, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("wrong.csv").write_text("not a table\n", encoding="utf-8")
    assert execute(["init", *arguments]) == 2
    printed = capsys.readouterr().err
    assert said in printed
    assert "internal error" not in printed
    assert [path.name for path in in_folder.iterdir()] == ["wrong.csv"]


def test_a_name_without_a_suffix_is_said_so_that_it_is_taken(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["init", "-o", "quickstart"]) == 0
    assert capsys.readouterr().out == "wrote quickstart; run it: recfleet run ./quickstart\n"
    assert execute(["show", "./quickstart"]) == 0
    assert "A first run" in capsys.readouterr().out


def test_what_its_comments_offer_is_valid(tmp_path: Path) -> None:
    text = starter_text("global_android_2024")
    offered = re.findall(r"^# (faults|secure_aggregation|sweep): ", text, re.MULTILINE)
    assert offered == ["faults", "secure_aggregation", "sweep"]
    promised = re.findall(r"^#   (round\.duration|model\.rmse): ", text, re.MULTILINE)
    assert promised == ["round.duration", "model.rmse"]
    file = tmp_path / "all.yaml"
    for key in offered:
        changed = text.replace(f"\n# {key}:", f"\n{key}:").replace(
            "factors: 8", "factors: 8\n  upload: dense"
        )
        file.write_text(changed, encoding="utf-8")
        assert getattr(load(file).scenario, key)
    assert len(load_cells(load(file))) == 2
    promises = "".join(line[1:] + "\n" for line in text.splitlines() if line.startswith("#   "))
    file.write_text(
        text.replace("thresholds:\n", f"thresholds:\n{promises}".replace("   ", "  ")), encoding="utf-8"
    )
    assert len(load(file).scenario.thresholds) == 3
