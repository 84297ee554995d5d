from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from serving_models import info_for, item_model, one_recommender, recommender_scores, user_model

from coordinator.cli.entry import execute
from coordinator.results.export import TrainedModel, read_finished, trained_model
from coordinator.results.tables.schemas import OLDEST_VERSION
from edge.core.errors import DataError, ModelFileError
from edge.learning import fedrecon_kernels as kernels
from edge.learning.base import Ratings
from edge.learning.method_settings import Ridge
from edge.onnx.loading import check_model
from edge.onnx.recommenders import recommender_model
from edge.onnx.recommending import History, read_history, read_titles, recommend
from edge.onnx.score_graphs import UserModel
from edge.onnx.session import OnnxSession
from edge.onnx.stateless_graph import stateless_model

SCENARIO = """\
format: 2
title: Sixty clients
seed: 3
data: {source: synthetic-ratings, users: 60, items: 80, ratings_per_user: 20}
fleet: {mix: enterprise_wifi, availability: always_on}
learning: {algorithm: fedrecon, factors: 4}
rounds: {count: 3, cohort: 20, quorum: 1, deadline: 60 s}
"""
INFO = info_for(4, item_labels=("a", "b", "c", "d"), rating_range=(1.0, 5.0))


def nothing_left(model: Any, value: int) -> None:
    """Let a list say another number than -1 where no item is left."""
    (tensor,) = [tensor for tensor in model.graph.initializer if tensor.name == "nothing_left"]
    tensor.raw_data = np.array(value, np.int64).tobytes()


def reconstructed(
    trained: TrainedModel, items: npt.NDArray[np.int64], ratings: npt.NDArray[np.float32]
) -> UserModel:
    """Return what one device reconstructs from ratings [r] of items [r], ascending indices."""
    model, with_bias = trained.items, trained.user_bias
    table = kernels.item_table(model.factors, model.bias, user_bias=with_bias, mean=model.mean)
    indptr = np.array([0, len(items)], np.int64)
    design = kernels.gather(table, Ratings(indptr, items, ratings), 0, 1)
    local = kernels.reconstruct(table, design, indptr, np.zeros(1, np.uint64), trained.ridge)[0]
    return UserModel(local[: model.width], float(local[-1]) if with_bias else 0.0)


@pytest.fixture
def run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(SCENARIO, encoding="utf-8")
    assert execute(["run", "small.yaml", "--quiet", "--out", "run"]) == 0
    (tmp_path / "ratings.csv").write_text("item,rating\n3,4\n5,1\n", encoding="utf-8")
    return Path("run")


def test_from_a_run_to_recommendations(run_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["export", "run", "--kind", "stateless", "--top", "20", "-o", "m.onnx"]) == 0
    assert "m.onnx: stateless, 80 items" in capsys.readouterr().out
    assert execute(["recommend", "m.onnx", "--ratings", "ratings.csv", "--top", "3"]) == 0
    rows = [
        line.strip("│").split("│") for line in capsys.readouterr().out.splitlines() if line.startswith("│")
    ]
    shown = [(int(rank), int(item), float(score)) for rank, item, score in rows]
    trained = trained_model(read_finished(run_directory))
    user = reconstructed(trained, np.array([3, 5]), np.array([4, 1], np.float32))
    scores = recommender_scores(trained.items, user, None)
    scores[[3, 5]] = -np.inf
    best = np.argsort(-scores)[:3]
    assert [(rank, item) for rank, item, _ in shown] == list(enumerate(best.tolist(), start=1))
    np.testing.assert_allclose([score for *_, score in shown], scores[best], atol=1e-3)


def test_titles_that_lie_beside_the_ratings_are_in_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [f"{user}\t{item}\t{1 + (user + item) % 5}\t0" for user in range(40) for item in range(9)]
    Path("u.data").write_text("\n".join(lines) + "\n", encoding="utf-8")
    Path("u.item").write_text("".join(f"{item}|Film {item}|\n" for item in range(8)), encoding="utf-8")
    data = "{source: movielens-100k, path: u.data}"
    text = SCENARIO.replace("{source: synthetic-ratings, users: 60, items: 80, ratings_per_user: 20}", data)
    Path("small.yaml").write_text(text, encoding="utf-8")
    assert execute(["run", "small.yaml", "--quiet", "--out", "run"]) == 0
    assert execute(["export", "run", "--kind", "stateless", "-o", "m.onnx"]) == 0
    Path("mine.csv").write_text("".join(f"{item},5\n" for item in range(1, 8)), encoding="utf-8")
    capsys.readouterr()
    assert execute(["recommend", "m.onnx", "--ratings", "mine.csv"]) == 0
    rows = [line.split("│")[2:4] for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert sorted((item.strip(), title.strip()) for item, title in rows) == [("0", "Film 0"), ("8", "8")]


def test_a_run_of_another_version_is_refused(run_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = json.loads((run_directory / "manifest.json").read_text(encoding="utf-8"))
    manifest["schema_version"] = OLDEST_VERSION - 1
    (run_directory / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    assert execute(["export", "run", "--kind", "stateless", "-o", "m.onnx"]) == 2
    assert "was made by another version of recfleet" in capsys.readouterr().err


def test_the_same_run_exports_the_same_bytes(run_directory: Path) -> None:
    for name in ("a.onnx", "b.onnx"):
        assert execute(["export", "run", "--kind", "stateless", "--int8", "-o", name]) == 0
    assert Path("a.onnx").read_bytes() == Path("b.onnx").read_bytes()


def test_ids_are_those_of_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    lines = [
        f"{user},{item * 10},{rng.integers(1, 6)},0"
        for user in range(40)
        for item in range(20)
        if rng.random() < 0.5
    ]
    Path("ratings.csv").write_text(
        "\n".join(["userId,movieId,rating,timestamp", *lines]) + "\n", encoding="utf-8"
    )
    data = "{source: movielens-csv, path: ratings.csv}"
    text = SCENARIO.replace("{source: synthetic-ratings, users: 60, items: 80, ratings_per_user: 20}", data)
    Path("small.yaml").write_text(text, encoding="utf-8")
    assert execute(["run", "small.yaml", "--quiet", "--out", "run"]) == 0
    kept = json.loads(Path("run/items.json").read_text(encoding="utf-8"))
    labels = [item * 10 for item in range(20)]
    assert kept == {"labels": labels, "rating_range": [1.0, 5.0], "titles": None}
    Path("titles.csv").write_text(
        'item,title\n0,Zero\n190,"Nine, \x1b[31mteen"\n777,Other\n', encoding="utf-8"
    )
    command = ["export", "run", "--kind", "stateless", "--fp16", "--titles", "titles.csv", "-o", "m.onnx"]
    assert execute(command) == 0
    Path("mine.csv").write_text("".join(f"{item * 10},5\n" for item in range(1, 19)), encoding="utf-8")
    capsys.readouterr()
    assert execute(["recommend", "m.onnx", "--ratings", "mine.csv"]) == 0
    shown = capsys.readouterr().out
    assert sum(line.startswith("│") for line in shown.splitlines()) == 2
    assert "│ Zero " in shown
    assert "Nine, \N{REPLACEMENT CHARACTER}[31mteen" in shown
    assert "\x1b" not in shown


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["recommend", "m.onnx", "--ratings", "ratings.csv", "--top", "40"],
            "the model lists 20 items at most",
        ),
        (["recommend", "m.onnx", "--ratings", "unknown.csv"], "unknown.csv:1: the model knows no item '99'"),
        (["recommend", "ratings.csv", "--ratings", "ratings.csv"], "ratings.csv: not a model"),
        (["recommend", "m.onnx", "--ratings", "none.csv"], "none.csv: cannot be read"),
        (["export", ".", "--kind", "stateless", "-o", "x.onnx"], "has no manifest.json"),
        (["export", "run", "--kind", "stateless", "--int8", "--fp16", "-o", "x.onnx"], "leave one out"),
    ],
)
def test_what_cannot_be_done_exits_with_2(
    run_directory: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert execute(["export", "run", "--kind", "stateless", "--top", "20", "-o", "m.onnx"]) == 0
    Path("unknown.csv").write_text("99,3\n3,3\n", encoding="utf-8")
    assert execute(arguments) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown
    assert not Path("x.onnx").exists()


def test_unknown_items_are_left_out_when_asked(
    run_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["export", "run", "--kind", "stateless", "-o", "m.onnx"]) == 0
    Path("unknown.csv").write_text("99,3\n3,3\n", encoding="utf-8")
    assert execute(["recommend", "m.onnx", "--ratings", "unknown.csv", "--skip-unknown"]) == 0
    assert "left out, unknown to the model: 99" in capsys.readouterr().err


def test_other_reconstructions_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    steps = "factors: 4, reconstruction: {method: gradient-steps}"
    Path("small.yaml").write_text(SCENARIO.replace("factors: 4", steps), encoding="utf-8")
    assert execute(["run", "small.yaml", "--quiet", "--out", "run"]) == 0
    assert execute(["export", "run", "--kind", "stateless", "-o", "m.onnx"]) == 2
    assert "method is 'gradient-steps'; a stateless export needs 'ridge'" in capsys.readouterr().err


def test_a_device_without_user_bias_reconstructs_factors_alone(run_directory: Path) -> None:
    trained = trained_model(read_finished(run_directory))
    without = dataclasses.replace(trained, user_bias=False)
    items, ratings = np.array([3, 5]), np.array([4, 1], np.float32)
    user = reconstructed(without, items, ratings)
    assert user.bias == 0.0
    found = OnnxSession(without.stateless(5)).run({"items": items, "ratings": ratings}).outputs["scores"]
    np.testing.assert_allclose(found, recommender_scores(trained.items, user, None), atol=1e-4)


def test_the_mechanism_of_privacy_is_in_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    private = "privacy: {mechanism: central-gaussian, clip_norm: 1, noise_multiplier: 1, accounting: false}\n"
    learning = "factors: 4, upload: dense, weighting: uniform"
    Path("small.yaml").write_text(SCENARIO.replace("factors: 4", learning) + private, encoding="utf-8")
    assert execute(["run", "small.yaml", "--quiet", "--out", "run"]) == 0
    loaded = check_model(trained_model(read_finished(Path("run"))).stateless(5), "ours")
    assert (loaded.info.scenario, loaded.info.seed, loaded.info.privacy) == ("small", 3, "central-gaussian")


def test_only_a_stateless_model_takes_ratings() -> None:
    rng = np.random.default_rng(0)
    model = recommender_model(one_recommender(item_model(rng, 4), user_model(rng)), INFO, top=2)
    history = History(np.zeros(0, np.int64), np.zeros(0, np.float32), ())
    with pytest.raises(ModelFileError, match="kind 'recommender' takes no ratings"):
        recommend(check_model(model, "ours"), history, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: setattr(m.graph.output[1], "name", "top_indices"), "no list of items and scores"),
        (lambda m: nothing_left(m, 9), "items outside its 4"),
    ],
)
def test_a_model_that_returns_something_else_is_refused(change: Callable[[Any], Any], message: str) -> None:
    rng = np.random.default_rng(0)
    model = onnx.load_from_string(stateless_model(item_model(rng, 4), Ridge(), INFO, user_bias=True, top=5))
    change(model)
    loaded = check_model(model.SerializeToString(), "theirs")
    history = History(np.array([1]), np.array([3.0], np.float32), ())
    with pytest.raises(ModelFileError, match=message):
        recommend(loaded, history, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,4\nz,3\n", r":2: the model knows no item 'z'"),
        ("a,4\nb,3\na,2\n", r":3: item 'a' was rated in line 1 already"),
        ("a,nan\n", r":1: the rating 'nan' is not finite"),
        ("a,inf\n", r":1: the rating 'inf' is not finite"),
        ("item,rating\na,6\n", r":2: the rating 6 is outside the scale of the data, 1 … 5"),
        ("a,0.5\n", r":1: the rating 0.5 is outside"),
        ("movie,stars\na,4\n", r":1: the rating 'stars' is no number"),
        ("a,4\nitem,rating\n", r":2: the rating 'rating' is no number"),
        ("a;4\n", r":1: 1 fields; write 'item,rating'"),
        ("a,4,9\n", r":1: 3 fields"),
        ('a,4\n"b,3\n', r":2: no CSV"),
    ],
)
def test_ratings_that_make_no_history_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "r.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=r"r\.csv" + message):
        read_history(path, INFO, skip_unknown=False)


def test_bytes_that_are_no_text_are_refused_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_bytes(b"a,4\n\xff,3\n")
    with pytest.raises(DataError, match=r"r\.csv:2: no UTF-8 text"):
        read_history(path, INFO, skip_unknown=False)


def test_a_history(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_text("\ufeffItem, Rating\n\n c , 4.5\nz,1\na,1\n", encoding="utf-8")
    history = read_history(path, INFO, skip_unknown=True)
    assert history.items.tolist() == [2, 0]
    assert history.ratings.tolist() == [4.5, 1.0]
    assert history.skipped == ("z",)


def test_an_empty_file_is_an_empty_history(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_text("", encoding="utf-8")
    history = read_history(path, INFO, skip_unknown=False)
    assert history.items.dtype == np.int64
    assert history.items.size == history.ratings.size == 0


def test_titles(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("item,title\nb,Bee\nz,Zed\n", encoding="utf-8")
    assert read_titles(path, INFO) == ("a", "Bee", "c", "d")
    path.write_text("b,Bee\nb,Bug\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"t\.csv:2: item 'b' has a title in line 1 already"):
        read_titles(path, INFO)
    path.write_text("z,Zed\n", encoding="utf-8")
    with pytest.raises(DataError, match="names no item of the model"):
        read_titles(path, INFO)
