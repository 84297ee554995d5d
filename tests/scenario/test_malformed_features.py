"""Scenarios whose features, masks, audits or file names are refused, each with its place."""

from pathlib import Path

import pytest
from malformed import Malformed, case, check_refused

HEAD = """format: 2
fleet: {mix: global_android_2024}
rounds: {count: 1, cohort: 5}
"""
RATINGS = "data: {source: synthetic-ratings, users: 20, items: 90"
MASKED = "learning: {algorithm: fedmmf, mask: {kind: one-order}}"
PLAIN = "learning: {algorithm: fedrecon}"
LONG = "a" * 300


def features(written: str, learning: str = PLAIN, more: str = "") -> str:
    return f"{HEAD}{RATINGS}, features: {{{written}}}}}\n{learning}\n{more}"


CASES = [
    case("fedmmf without features", f"{HEAD}{RATINGS}}}\n{MASKED}\n",
         "s.yaml:4:1: data.features: missing; fedmmf fits its masks to the features of the items"),
    case("features of other ratings", features("kind: movielens", MASKED),
         "s.yaml:4:74: data.features.kind: 'movielens' does not belong to ratings of 'synthetic-ratings'",
         hint="write one of synthetic, table"),
    case("features unknown", features("kind: genres"),
         "s.yaml:4:74: data.features.kind: 'genres' is not one of: movielens, lastfm-tags, table, synthetic"),
    case("table not there", features("kind: table, path: t.csv"),
         "s.yaml:4:87: data.features.path: there is no such file"),
    case("table with a name that no file can have", features(f"kind: table, path: {LONG}"),
         "s.yaml:4:87: data.features.path: there is no such file"),
    case("ratings with a name that no file can have",
         f"{HEAD}data: {{source: plain, path: {LONG}}}\n{PLAIN}\n",
         "s.yaml:4:29: data.path: there is no such file or folder"),
    case("parent with a name that no file can have", f"extends: {LONG}.yaml\n",
         "s.yaml:1:10: extends: there is no such file"),
    case("mask unknown", features("kind: synthetic", "learning: {algorithm: fedmmf, mask: {kind: x}}"),
         "s.yaml:5:44: learning.mask.kind: 'x' is not one of: zero-order, one-order, two-order, high-order"),
    case("mask missing", features("kind: synthetic", "learning: {algorithm: fedmmf}"),
         "s.yaml:5:1: learning.mask"),
    case("audit of no mask", f"{HEAD}{RATINGS}}}\n{PLAIN}\naudit: {{}}\n",
         "s.yaml:6:1: audit: audits are of the masks of fedmmf; leave it out, or write 'rated_items: true'"),
    case("audit of no favourites", features("kind: synthetic", MASKED, "audit: {ranking: 0}\n"),
         "s.yaml:6:18: audit.ranking: '0'"),
]  # fmt: skip


@pytest.mark.parametrize("malformed", CASES, ids=lambda malformed: malformed.name)
def test_each_is_refused_at_its_place(malformed: Malformed, tmp_path: Path) -> None:
    check_refused(malformed, tmp_path)
