"""What a tuning varies, as it is written: ranges, lists, and what cannot be meant."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.scenario.errors import ScenarioError
from coordinator.tuning.goal import TuneError
from coordinator.tuning.request import read_request
from coordinator.tuning.space import Space, TunedKey, ValueList, ValueRange, parse_key, space_of
from device_profiles.documents import Node
from device_profiles.errors import DocumentError, Position

PLACES = (Position("--vary", 1, 1), Position("--vary", 1, 5))


def axis(node: Node, *path: str | int) -> TunedKey:
    return parse_key(path or ("rounds", "cohort"), node, PLACES)


@pytest.mark.parametrize(
    ("text", "found", "middle", "shown"),
    [
        ("10..100", ValueRange(10, 100, "", True, False), 55, "55"),
        ("5 s..60 s", ValueRange(5, 60, " s", True, False), 32, "32 s"),
        ("50%..200%", ValueRange(50, 200, "%", True, False), 125, "125%"),
        ("0.5..1", ValueRange(0.5, 1, "", False, False), 0.75, "0.75"),
        ("0.001..0.1 log", ValueRange(0.001, 0.1, "", False, True), 0.01, "0.01"),
        ("1..10_000 log", ValueRange(1, 10_000, "", True, True), 100, "100"),
        ("-1.5..-0.5", ValueRange(-1.5, -0.5, "", False, False), -1.0, "-1.0"),
    ],
)
def test_ranges(text: str, found: ValueRange, middle: float, shown: str) -> None:
    values = axis(text).values
    assert values == found
    assert values.at(0.5) == middle
    assert axis(text).shown(middle) == shown
    assert (values.at(0.0), values.at(1.0)) == (found.low, found.high)


@given(st.floats(0.0, 1.0), st.sampled_from(["3..17", "0.001..0.1 log", "5.0 s..5.01 s", "7..9000 log"]))
def test_a_value_is_within_its_range_and_written_as_it_is_read(part: float, text: str) -> None:
    values = axis(text).values
    value = values.at(part)
    assert isinstance(values, ValueRange)
    assert values.low <= value <= values.high
    assert values.found(values.node(value)) == value
    assert values.at(values.part(value)) == value


def test_lists_of_numbers_are_steps_and_others_are_kinds() -> None:
    steps, kinds = axis(["100%", "130%", "200%"]).values, axis(["fedrecon", "fcf"]).values
    assert isinstance(steps, ValueList)
    assert (steps.steps, steps.width, steps.describe(1.0)) == (True, 1, (0.5,))
    assert isinstance(kinds, ValueList)
    assert (kinds.steps, kinds.width) == (False, 2)
    assert sum((a - b) ** 2 for a, b in zip(kinds.describe(0.0), kinds.describe(1.0), strict=True)) == (
        pytest.approx(1.0)
    )
    assert [axis(["200%", "100%"]).values.steps, axis(["1 s", "2"]).values.steps] == [False, False]  # type: ignore[union-attr]
    nested: Node = [{"kind": "oort", "alpha": "2"}, {"kind": "random"}, None]
    values = axis(nested).values
    assert [values.node(value) for value in values.checks()] == nested
    assert values.found({"alpha": "2", "kind": "oort"}) == 0.0
    assert values.found("random") is None


@pytest.mark.parametrize(
    ("node", "said"),
    [
        ("10", "'10' is neither a range nor a list; write such as '10..100'"),
        ("5 s..60 min", "have different units; write both in one"),
        ("5..60 s", "have different units"),
        ("60..5", "write the smaller number first"),
        ("0..1 log", "a logarithmic range begins above 0"),
        (["1"], "a list of less than two values"),
        (["1", "1"], "holds a value twice"),
        ({"a": "1"}, "no list where a range or a list of values belongs"),
        (None, "no list where a range"),
    ],
)
def test_what_cannot_be_meant_is_refused(node: Node, said: str) -> None:
    with pytest.raises(DocumentError) as caught:
        axis(node)
    assert said in str(caught.value)
    assert caught.value.position == PLACES[1]


@pytest.mark.parametrize("key", ["seed", "sweep", "thresholds", "format", "extends"])
def test_keys_that_make_trials_incomparable_are_refused(key: str) -> None:
    with pytest.raises(DocumentError, match="cannot be tuned: "):
        axis("1..2", key)


def test_keys_that_overwrite_each_other_are_refused() -> None:
    with pytest.raises(DocumentError, match="overwrites 'rounds'"):
        space_of([axis([{"cohort": "1"}, {"cohort": "2"}], "rounds"), axis("1..2", "rounds", "cohort")])


def test_a_space_has_all_points_of_its_axes() -> None:
    space = space_of([axis("1..3", "a"), axis(["x", "y"], "b")])
    assert space.size == 6
    assert list(space.every()) == [(a, b) for a in (1.0, 2.0, 3.0) for b in (0.0, 1.0)]
    assert space.settings((2.0, 1.0)) == (("a", "2"), ("b", "y"))
    assert space.describe([(2.0, 1.0)]).shape == (1, 3)
    assert Space((axis("0.1..0.2"),)).size == float("inf")


FILE = """\
minimise: round.duration p95
vary:
  rounds.cohort: 10..100
  rounds.over_select: [100%, 130%]
"""


def test_a_file_and_the_command_line_together(tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    file.write_text(FILE, encoding="utf-8")
    space, goal = read_request(file, ["rounds.deadline=5 s..60 s"], None, None)
    assert [one.name for one in space.axes] == ["rounds.cohort", "rounds.over_select", "rounds.deadline"]
    assert str(goal) == "minimise round.duration p95"
    assert not goal.maximise


def test_the_sample_of_the_page_is_one(tmp_path: Path) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "tuning.md"
    (tmp_path / "space.yaml").write_text(
        page.read_text("utf-8").split("```yaml\n")[1].split("```")[0], "utf-8"
    )
    space, goal = read_request(tmp_path / "space.yaml", ["rounds.quorum=5..9"], None, None)
    assert (len(space.axes), str(goal)) == (3, "minimise round.duration p95")


def test_errors_of_a_file_and_of_the_command_line_have_their_places(tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    file.write_text(FILE.replace("10..100", "ten").replace("minimise:", "minimize:"), encoding="utf-8")
    with pytest.raises(ScenarioError) as caught:
        read_request(file, ["rounds.deadline=5 s..60"], None, "model.rmse last")
    lines = str(caught.value).splitlines()
    assert f"{file}:1:1: minimize: unknown key" in str(caught.value)
    assert "did you mean 'minimise'?" in str(caught.value)
    assert any(line.startswith(f"{file}:3:18: rounds.cohort: 'ten' is neither") for line in lines)
    assert any(line.startswith("--vary:1:17: rounds.deadline: the ends of") for line in lines)


@pytest.mark.parametrize(
    ("minimise", "maximise", "said"),
    [
        (None, None, "no goal is given; write such as --minimise 'round.duration p95'"),
        ("up bytes", "model.rmse last", "2 goals are given, keep one"),
        ("round.duraton p95", None, "did you mean 'round.duration'"),
        ("round.duration", None, "write such as 'round.duration p95'"),
        ("round.duration rate", None, "has no 'rate'"),
        ("up byte", None, "did you mean 'up bytes'?"),
        ("inference.max_error max", None, "is measured on this host"),
    ],
)
def test_goals_that_there_are_not_are_refused(minimise: str | None, maximise: str | None, said: str) -> None:
    with pytest.raises(TuneError) as caught:
        read_request(None, ["rounds.cohort=1..2"], minimise, maximise)
    assert said in str(caught.value)


def test_nothing_varied_is_refused() -> None:
    with pytest.raises(TuneError, match="nothing is varied; write such as --vary"):
        read_request(None, [], "up bytes", None)
