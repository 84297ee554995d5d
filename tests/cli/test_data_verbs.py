"""``data``, ``validate`` and ``run`` on ratings that a user brings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coordinator.cli.entry import execute

ROWS = [
    (user, 100 + item, 1 + (user + item) % 5, 1_206_914_169 + 60 * item)
    for user in range(1, 31)
    for item in range(12)
]
REST = """\
fleet: {mix: enterprise_wifi, availability: always_on}
learning: {algorithm: fedrecon, factors: 4}
rounds: {count: 2, cohort: 10, quorum: 1, deadline: 60 s}
"""


@pytest.fixture
def ratings(in_folder: Path) -> Path:
    """Make a file with an index, a user's rating given twice, and a rating that is missing."""
    rows = [*ROWS, (1, 100, 5, 1_300_000_000), (2, 100, "", 1_300_000_000)]
    lines = [f"{at},{','.join(map(str, row))}" for at, row in enumerate(rows)]
    path = Path("ratings.csv")
    path.write_text("\n".join([",user_id,item_id,rating,timestamp", *lines]) + "\n")
    return path


def _scenario(section: str, rest: str = REST) -> str:
    Path("s.yaml").write_text(f"format: 2\nseed: 3\n{section}{rest}")
    return "s.yaml"


def test_data_shows_what_there_is_and_the_yaml_that_reads_it(
    ratings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["data", "ratings.csv", "--set", "data.on_bad_row=skip"]) == 0
    shown = capsys.readouterr().out
    lines, _, section = shown.partition("\n\n")
    assert lines.splitlines()[0] == (
        "ratings.csv (table): 360 ratings of 30 users and 12 items; columns user = user_id, item = "
        "item_id, rating, "
        "time = timestamp; left out an unnamed index column; 1 bad row skipped; 1 duplicate, the last kept"
    )
    for row in (
        "rows        361, 1 duplicates (the last kept), 1 bad ones skipped",
        "users       30, ratings each 12 to 12, median 12",
        "items       12, ratings each 30 to 30, median 30",
        "density     100.000%",
        "ratings     1 to 5, mean 3.008",
        "times       2008-03-30 21:56:09 to 2011-03-13 07:06:40",
        "left out    an unnamed index column",
    ):
        assert f"  {row}\n" in lines + "\n", row
    assert "              5         73  ████████████████████████████████████████\n" in lines
    assert section == (
        "data:\n  source: table\n  path: ratings.csv\n  on_bad_row: skip\n"
        "# For 'recfleet serve', which reads no ratings, if every user has some to train on:\n"
        "#   public: {clients: 30, items: 12, rating_mean: 3.00833}\n"
    )
    assert execute(["validate", _scenario(section), "--data", "full"]) == 0
    assert capsys.readouterr().out == f"s.yaml: ok; data: {lines.splitlines()[0]}\n"


def test_data_writes_columns_that_were_guessed(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("a b.csv").write_text("# from a tool\n" + "".join(f"{u};{i}\n" for u, i, _, _ in ROWS))
    assert execute(["data", "a b.csv"]) == 0
    section = capsys.readouterr().out.partition("\n\n")[2]
    assert "  columns:\n    user: 1\n    item: 2\n  positive: 1\n" in section
    rest = REST.replace("fedrecon, factors: 4", "fedncf") + "evaluation: {ranking: {}}\n"
    assert execute(["validate", _scenario(section, rest)]) == 0
    assert capsys.readouterr().out == "s.yaml: ok\n"


def test_data_refuses_as_a_run_does(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("r.csv").write_text("1,10,978300760,5\n1,11,978302109,3\n")
    assert execute(["data", "r.csv"]) == 2
    message = "r.csv: column 3, taken for the rating, looks like times; write data.columns, such as"
    assert f"error: {message}" in capsys.readouterr().err
    scenario = _scenario("data: {source: auto, path: r.csv}\n")
    assert execute(["validate", scenario]) == 2
    assert f"s.yaml: data: r.csv: {message.removeprefix('r.csv: ')}" in capsys.readouterr().err
    assert execute(["data", "r.csv", "--set", "data.columns.usr=1"]) == 2
    assert "data.columns.usr: unknown key" in capsys.readouterr().err
    assert execute(["data", "nowhere.csv"]) == 2
    assert "nowhere.csv" in capsys.readouterr().err


def test_validate_reads_the_first_rows_or_all(
    ratings: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge.data.table.files.BLOCK_BYTES", 4096)
    scenario = _scenario("data: {source: table, path: ratings.csv}\n")
    assert execute(["validate", scenario]) == 0
    assert execute(["validate", scenario, "--data", "full"]) == 2
    assert "ratings.csv:363: rating is missing; leave such rows out with data.on_bad_row: skip" in (
        capsys.readouterr().err
    )


def lines_of(shown: str, start: str) -> list[str]:
    """Return the lines of what was shown that begin so."""
    return [line for line in shown.splitlines() if line.startswith(start)]


def test_a_run_says_what_it_read(ratings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario = _scenario(
        "data: {source: table, path: ratings.csv, on_bad_row: skip, duplicates: mean, min_item: 2, "
        "sample_users: 20}\n"
    )
    assert execute(["run", scenario, "--out", "out"]) == 0
    (read,) = lines_of(capsys.readouterr().out, "data: ")
    assert read.startswith(
        "data: ratings.csv (table): 360 ratings of 30 users and 12 items; columns user = user_id, "
    )
    assert read.endswith("1 duplicate, their mean taken; kept of them 240 ratings of 20 users and 12 items")
    data = json.loads(Path("out/manifest.json").read_text())["data"]
    assert (data["users"], data["skipped"], data["duplicates"]) == (20, 1, 1)


def test_a_run_warns_of_outliers(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [*ROWS, (3, 999, 55, 0)]
    Path("r.csv").write_text("user,item,rating,time\n" + "".join(f"{u},{i},{r},{t}\n" for u, i, r, t in rows))
    assert execute(["run", _scenario("data: {source: auto, path: r.csv}\n"), "--out", "out"]) == 0
    (warning,) = lines_of(capsys.readouterr().out, "warning: ")
    assert warning.startswith("warning: 1 rating is outside 1 to 5, where all others are: 55 in row 361; ")


def test_pairs_without_a_rating_need_a_word(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("r.csv").write_text("".join(f"{u},{i}\n" for u, i, _, _ in ROWS))
    scenario = _scenario("data: {source: auto, path: r.csv}\n")
    for verb in (["validate", scenario], ["run", scenario, "--out", "out"]):
        assert execute(verb) == 2
        shown = capsys.readouterr().err
        assert "s.yaml:3:28: data.path: r.csv has no rating column: implicit feedback" in shown
        assert "write 'data.positive: 1'" in shown
        assert "'data.negatives: 4'" in shown
    said = ["--set", "data.negatives=2", "--set", "evaluation.ranking={}"]
    assert execute(["run", scenario, "--out", "out", *said]) == 0
    (read,) = lines_of(capsys.readouterr().out, "data: ")
    assert "360 pairs of 30 users and 12 items" in read


def test_runs_from_prepared_ratings_are_those_from_the_file(
    ratings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    read = ["data.on_bad_row=skip", "data.duplicates=mean", "data.min_item=2"]
    assert (
        execute(["data", "prepare", "ratings.csv", "-o", "out/p", *(f"--set={text}" for text in read)]) == 0
    )
    line, _, section = capsys.readouterr().out.partition("\n\n")
    assert line == (
        "ratings.csv (table): 360 ratings of 30 users and 12 items; columns user = user_id, item = item_id, "
        "rating, time = timestamp; left out an unnamed index column; 1 bad row skipped; 1 duplicate, their "
        "mean taken"
    )
    assert section == "data:\n  source: parquet\n  path: out/p\n  min_item: 2\n"
    assert execute(["run", _scenario(section), "--out", "prepared"]) == 0
    scenario = _scenario(
        "data: {source: table, path: ratings.csv, on_bad_row: skip, duplicates: mean, min_item: 2}\n"
    )
    assert execute(["run", scenario, "--out", "whole"]) == 0
    assert execute(["diff", "prepared", "whole"]) == 0
    digests = [json.loads(Path(run, "manifest.json").read_text())["digest"] for run in ("prepared", "whole")]
    assert digests[0] == digests[1]


def test_prepared_ratings_that_were_changed_are_refused(
    ratings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["data", "prepare", "ratings.csv", "-o", "p", "--set", "data.on_bad_row=skip"]) == 0
    with Path("p/ratings.parquet").open("ab") as stream:
        stream.write(b"more")
    for verb in (["data", "p"], ["run", _scenario("data: {source: parquet, path: p}\n"), "--out", "out"]):
        assert execute(verb) == 2
        assert "p/ratings.parquet: is not what _manifest.json was written with" in capsys.readouterr().err
    assert execute(["data", "prepare", "ratings.csv", "-o", "p"]) == 2
    assert "p: is there already" in capsys.readouterr().err
