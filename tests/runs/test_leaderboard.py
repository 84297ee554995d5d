"""``benchmarks/leaderboard.py``: the page holds what its run directories do, and runs are not done twice."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import leaderboard
import leaderboard_results
import numpy as np
import pyarrow as pa
import pytest
from leaderboard_lines import LINES, Line
from leaderboard_page import INTRODUCTION, NOT_COMPARED, page
from leaderboard_references import ranked
from ranking_references import Ease

import recfleet
from edge.data.split import Split
from edge.data.store import RatingStore

pytestmark = pytest.mark.slow

PROTOCOLS = {"tiny": "Tiny", "other": "Another"}
FEDMF = Line(
    "FedMF", "fedmf", {"algorithm": "fedmf", "factors": 4}, ("learning_rate",), (0.05, 0.2), "items", "yes"
)
PFEDREC = Line(
    "PFedRec", "pfedrec", {"algorithm": "pfedrec", "factors": 4}, ("item_learning_rate",), (2,), "", "",
    draws_itself=True, is_audited=False,
)  # fmt: skip
TINY = {"fedmf": FEDMF, "pfedrec": PFEDREC}


def scenario(line: Line, value: float, *, sampler: str, only_validation: bool) -> recfleet.Scenario:
    drawn: dict[str, Any] = {} if line.draws_itself else {"negatives": 2}
    return recfleet.Scenario.of(
        {
            "format": 2,
            "data": {
                "source": "synthetic-ratings", "users": 40, "items": 60, "ratings_per_user": 10,
                "timestamps": True, "held_out_negatives": sampler,
                "split": {"kind": "leave-one-out", "validation": True}, **drawn,
            },
            "fleet": {"mix": "global_android_2024", "availability": "always_on"},
            "learning": line.settings(value),
            "rounds": {"count": 3, "cohort": 10, "deadline": "10 min"},
            "record": {"events": "none"},
            "evaluation": {"every": 1, "ranking": {"k": [10]}, "select": "ndcg@10"}
            | ({"on": "validation"} if only_validation else {}),
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with all runs of two lines; PFedRec's leak, and are all of one seed."""
    runs = tmp_path_factory.mktemp("leaderboard")
    fedmf, pfedrec = (runs / "tiny" / name for name in TINY)
    search = scenario(FEDMF, 0.05, sampler="drawn", only_validation=True)
    leaderboard.run_once(search, 1, fedmf / "search-0.05")
    shutil.copytree(fedmf / "search-0.05", fedmf / "search-0.2")
    leaderboard.run_once(search.edited(leaderboard.AUDITED), 1, fedmf / "audit")
    for seed in leaderboard_results.SEEDS:
        final = scenario(FEDMF, 0.05, sampler="drawn", only_validation=False)
        leaderboard.run_once(final, seed, fedmf / f"seed-{seed}")
    search = scenario(PFEDREC, 2, sampler="spared", only_validation=True)
    leaderboard.run_once(search, 1, pfedrec / "search-2")
    final = scenario(PFEDREC, 2, sampler="spared", only_validation=False)
    leaderboard.run_once(final, 1, pfedrec / "seed-1")
    for seed in leaderboard_results.SEEDS[1:]:
        shutil.copytree(pfedrec / "seed-1", pfedrec / f"seed-{seed}")
    return runs


def row(text: str, title: str) -> list[str]:
    """Return the cells of the first row of a line, without markup."""
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith(f"| [{title}]")]
    return [cell.strip() for cell in rows[0]]


def values_of(runs: Path, name: str, metric: str) -> list[float]:
    """Return a metric of the test by seed, from the tables of the runs."""
    found = []
    for seed in leaderboard_results.SEEDS:
        rows = recfleet.open_run(runs / "tiny" / name / f"seed-{seed}").evaluations.to_pylist()
        (one,) = (
            row
            for row in rows
            if (row["split"], row["metric"], row["tag"]) == ("test", metric, "all")
        )  # fmt: skip
        found.append(one["value"])
    return found


class TestThePage:
    def test_figures_are_those_of_the_runs(self, made: Path) -> None:
        cells = row(page(made, PROTOCOLS, TINY), "FedMF")
        for cell, metric in zip(cells[1:3], ("hr@10", "ndcg@10"), strict=True):
            values = values_of(made, "fedmf", metric)
            mean, deviation = (float(part) for part in cell.split("±"))
            assert mean == pytest.approx(np.mean(values), abs=6e-5)
            assert deviation == pytest.approx(np.std(values, ddof=1), abs=6e-5)

    def test_the_interval_is_of_the_differences_by_seed(self, made: Path) -> None:
        cell = row(page(made, PROTOCOLS, TINY), "PFedRec")[3].replace("−", "-")
        pairs = zip(values_of(made, "pfedrec", "ndcg@10"), values_of(made, "fedmf", "ndcg@10"), strict=True)
        changes = np.array([theirs - ours for theirs, ours in pairs])
        mean, half = (float(part) for part in cell.split("±"))
        assert mean == pytest.approx(changes.mean(), abs=6e-5)
        # 4.3027 is the 97.5 % point of Student's t with two degrees of freedom.
        assert half == pytest.approx(4.3027 * changes.std(ddof=1) / math.sqrt(3), abs=6e-5)

    def test_bytes_are_those_until_the_chosen_round(self, made: Path) -> None:
        run = recfleet.open_run(made / "tiny" / "fedmf" / "seed-1")
        result = leaderboard_results.read_seed(run)
        chosen = run.summary["selected"]["round"]
        until = [one for one in run.rounds.to_pylist() if one["round"] <= chosen]
        assert result.round == chosen
        assert result.up_bytes * 40 == pytest.approx(sum(one["up_bytes"] for one in until))
        assert result.down_bytes * 40 == pytest.approx(sum(one["down_bytes"] for one in until))

    def test_a_protocol_that_leaks_is_marked_with_its_counter(self, made: Path) -> None:
        text = page(made, PROTOCOLS, TINY)
        assert "spared, **leaky protocol**: a counter has HR@10" in row(text, "PFedRec")[5]
        assert row(text, "FedMF")[5] == "drawn"

    def test_what_an_audit_reads_off_uploads(self, made: Path) -> None:
        found = recfleet.open_run(made / "tiny" / "fedmf" / "audit").summary["audit"]
        (cells,) = (
            line.split("|") for line in page(made, PROTOCOLS, TINY).splitlines() if "| items |" in line
        )
        shown = [float(part) for part in cells[3].split(",")]
        assert shown == [round(found[f"audit.rated_{name}"], 2) for name in ("precision", "recall")]

    def test_a_line_without_all_seeds_is_named_and_has_no_row(self, made: Path, tmp_path: Path) -> None:
        shutil.copytree(made, tmp_path, dirs_exist_ok=True)
        shutil.rmtree(tmp_path / "tiny" / "pfedrec" / "seed-2")
        text = page(tmp_path, PROTOCOLS, TINY, references=())
        assert "| [PFedRec]" not in text
        assert "--protocol tiny --lines pfedrec`" in text
        assert "--protocol other" in text, "no run of it is there"

    def test_centralised_lines_join_in(self, made: Path, tmp_path: Path) -> None:
        shutil.copytree(made, tmp_path, dirs_exist_ok=True)
        file = tmp_path / "tiny" / "centralised" / "ease.json"
        file.parent.mkdir()
        seeds = {str(seed): {"hr@10": 0.5, "ndcg@10": 0.99} for seed in leaderboard_results.SEEDS}
        search = {"100": 0.3, "300": 0.4}
        contents = {"title": "EASE", "searched": "λ", "search": search, "chosen": "300", "seeds": seeds}
        file.write_text(json.dumps(contents), encoding="utf-8")
        text = page(tmp_path, PROTOCOLS, TINY)
        first = next(line for line in text.splitlines() if "± " in line and line.startswith("| "))
        assert first.startswith("| EASE, centralised | .5000 ± .0000 | .9900 ± .0000 |")
        assert "| EASE | λ | 100: .3000, **300: .4000** |" in text

    def test_the_page_of_the_documentation_is_of_these_settings(self) -> None:
        text = (Path(leaderboard.__file__).parents[1] / "docs" / "leaderboard.md").read_text(encoding="utf-8")
        assert text.startswith(INTRODUCTION)
        assert text.endswith(NOT_COMPARED)
        searched = text.partition("What was searched.")[2]
        for line in LINES.values():
            rows = [row for row in searched.splitlines() if row.startswith(f"| {line.title} | `")]
            for row in rows:
                keys, values = row.split("|")[2:4]
                assert keys.strip() == " and ".join(f"`{key}`" for key in line.searched)
                tried = [value.split(":")[0].strip(" *") for value in values.split(", ")]
                assert tried == [f"{value:g}" for value in line.tried]

    def test_without_any_line_there_is_no_page(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"leaderboard\.py run"):
            page(tmp_path, PROTOCOLS, TINY)


class TestRuns:
    def test_one_that_has_ended_is_not_run_again(self, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise AssertionError("it was run again")

        monkeypatch.setattr(recfleet, "run", refuse)
        target = made / "tiny" / "fedmf" / "seed-1"
        again = scenario(FEDMF, 0.05, sampler="drawn", only_validation=False)
        assert leaderboard.run_once(again, 1, target).directory == target
        with pytest.raises(AssertionError, match="run again"):
            leaderboard.run_once(again, 4, made / "tiny" / "fedmf" / "seed-4")

    @pytest.mark.parametrize("name", ["search-0.05", "audit"])
    def test_search_and_audit_do_not_score_the_test(self, made: Path, name: str) -> None:
        rows = recfleet.open_run(made / "tiny" / "fedmf" / name).evaluations.to_pylist()
        assert {row["split"] for row in rows if not row["metric"].startswith("audit.")} == {"validation"}

    @pytest.mark.parametrize("protocol", leaderboard.PROTOCOLS)
    def test_all_lines_have_valid_scenarios_and_one_budget(self, protocol: str, tmp_path: Path) -> None:
        for folder in ("ml-100k", "ml-1m"):
            (tmp_path / folder).mkdir()
        for line in LINES.values():
            assert len(line.tried) == 3, line.title
            for value in line.tried:
                made = leaderboard.PROTOCOLS[protocol].scenario(line, value, tmp_path, only_validation=True)
                learning = made.loaded.scenario.learning
                assert [getattr(learning, key) for key in line.searched] == [value] * len(line.searched)

    @pytest.mark.parametrize(("values", "best"), [([0.1, 0.3, None], 0.3), ([None, None], -math.inf)])
    def test_evaluations_of_a_model_that_diverged_count_for_nothing(
        self, values: list[float | None], best: float
    ) -> None:
        n = len(values)
        columns = {"metric": ["ndcg@10"] * n, "split": ["validation"] * n, "tag": ["all"] * n}
        rows = pa.table({**columns, "time_s": [1.0] * n, "value": pa.array(values, pa.float64())})
        assert (
            leaderboard_results.best_validation(cast(recfleet.Run, SimpleNamespace(evaluations=rows))) == best
        )

    def test_each_line_has_its_page(self) -> None:
        pages = Path(leaderboard.__file__).parents[1] / "docs" / "methods"
        assert [line.page for line in LINES.values() if not (pages / f"{line.page}.md").exists()] == []

    def test_unknown_lines_are_refused_by_name(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            leaderboard.main(["run", "data", "--protocol", "ml-1m-temporal", "--lines", "fedmff"])
        assert "no line 'fedmff'; there are popularity" in capsys.readouterr().err


def store(rows: list[list[int]], n_items: int) -> RatingStore:
    """Return ratings of 1 of the items in each user's row."""
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    items = np.array([item for row in rows for item in row], np.uint16)
    return RatingStore(indptr, items, np.ones(len(items), np.float32), n_items)


class TestCentralisedLines:
    def test_ease_is_a_ridge_regression_of_each_item_on_the_others(self) -> None:
        rng = np.random.default_rng(1)
        taken = rng.random((30, 8)) < 0.4
        taken[:, 0] |= ~taken.any(axis=1)
        everything = np.broadcast_to(np.arange(8), (30, 8))
        found = Ease(3.0).scores(store([np.flatnonzero(row).tolist() for row in taken], 8), everything)
        x = taken.astype(float)
        for item in range(8):
            others = np.delete(x, item, axis=1)
            weights = np.linalg.solve(others.T @ others + 3.0 * np.eye(7), others.T @ x[:, item])
            np.testing.assert_allclose(found[:, item], others @ weights, atol=1e-10)

    def test_what_is_masked(self) -> None:
        n_items = 30
        train, validation, test = (store([[item]], n_items) for item in (0, 1, 12))
        split = Split(
            "leave-one-out", train, validation, test, None, np.array([0]), np.empty(0, np.int64),
            np.empty(0, np.int64),
        )  # fmt: skip
        scores = -np.arange(n_items, dtype=float)[None, :]  # item 0 first, item 12 the thirteenth
        assert ranked(scores, split, on_test=False) == {"hr@10": 1.0, "ndcg@10": 1.0}
        scores[0, 12] = -10.5  # the twelfth of all, the tenth of those that are left on the test
        on_test = ranked(scores, split, on_test=True)
        assert on_test == {"hr@10": 1.0, "ndcg@10": pytest.approx(1 / math.log2(11))}
        scores[0, 12] = -11.5
        assert ranked(scores, split, on_test=True) == {"hr@10": 0.0, "ndcg@10": 0.0}
