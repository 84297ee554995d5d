"""What a method that hides the values of ratings does not go with: all that would follow from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.scenario.errors import ScenarioError
from coordinator.scenario.load import load

TEXT = """
format: 2
data: {source: synthetic-ratings, users: 60, items: 40, ratings_per_user: 8, features: {kind: synthetic},
  split: {kind: ratio, test: 20%, validation: 20%}}
fleet: {mix: global_android_2024}
learning: {algorithm: dp-mf}
rounds: {count: 3, cohort: 10}
"""
CASES = {
    "privacy={mechanism: central-gaussian, clip_norm: 1, noise_multiplier: 1, accounting: false}": (
        "privacy: how much is clipped would follow from the values that 'dp-mf' hides by noise of its own"
    ),
    "privacy={mechanism: local-gaussian, clip_norm: 1, noise_multiplier: 1, accounting: false}": (
        "privacy: how much is clipped would follow from the values that 'dp-mf' hides by noise of its own"
    ),
    "aggregation={rule: mean, norm_bound: 1}": "aggregation.norm_bound: how much is clipped would follow",
    "aggregation={rule: median}": "aggregation.rule: whose updates count would follow from the values",
    "data.positive=4": "data.positive: which ratings are kept would follow from the values",
    "data.negatives=2": "data.negatives: where all that is rated counts as 1, 'dp-mf' has no value",
    "evaluation.on=devices": "evaluation.on: would hand the factors out to devices",
    "evaluation.select=rmse": "evaluation.select: which model is released would follow from the values",
    "inference={every: 1, devices: 5}": "inference.every: would hand the factors out before",
    "rounds.target=model.rmse <= 0.9": "rounds.target: when the run ends would follow from the values",
    "thresholds={model.rmse: [{expect: last <= 1, abort: true}]}": (
        "when the run ends would follow from the values that 'dp-mf' hides; leave 'abort' out"
    ),
    "secure_aggregation.mode=secagg-plus": "a sparse update names the items that a device rated",
}


@pytest.mark.parametrize("setting", CASES)
def test_is_refused(tmp_path: Path, setting: str) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(TEXT)
    load(file)
    settings = (setting, "evaluation.ranking={}") if "negatives" in setting else (setting,)
    with pytest.raises(ScenarioError) as caught:
        load(file, settings)
    assert CASES[setting] in str(caught.value)
    assert len(caught.value.problems) == 1
    load(file, ("learning={algorithm: fedrecon, upload: dense, weighting: uniform}", *settings))


def test_devices_may_run_the_model_that_is_released(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(TEXT)
    load(file, ("inference={every: 3, devices: 5}",))
    with pytest.raises(ScenarioError, match="write 'every: 3'"):
        load(file, ("inference={every: 2, devices: 5}",))
    phases = ("rounds.count=null", "phases=[{name: a, time: 1 h}]")
    with pytest.raises(
        ScenarioError, match="inference: would hand the factors out before 'dp-mf' releases them"
    ):
        load(file, (*phases, "inference={every: 2, devices: 5}"))
