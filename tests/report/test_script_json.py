"""JSON inside a report: what a script draws, and nothing that ends its element."""

from __future__ import annotations

import json
import math

from coordinator.results.report.html import script_json


def test_an_infinite_number_is_nothing_and_all_others_are_kept() -> None:
    drawn = {"x": [1.5, math.inf, [-math.inf, 2]], "y": (math.nan, "inf")}
    assert json.loads(script_json(drawn)) == {"x": [1.5, None, [None, 2]], "y": [None, "inf"]}
    assert json.loads(script_json({"x": [1.5, (2,)]})) == {"x": [1.5, [2]]}


def test_nothing_in_it_ends_the_element() -> None:
    text = script_json({"name": "</script><!-- & -->"})
    assert not set(text) & set("<>&")
    assert json.loads(text) == {"name": "</script><!-- & -->"}
