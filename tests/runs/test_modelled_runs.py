"""Modelled cryptography leaves the same tables as the real one: bytes, seconds, outcomes and model."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from run_helpers import rows_of, run_text
from secure_helpers import PHONES, STAGES, differing_columns, faults, secure, with_tenseal

from coordinator.run.runner import RunOutcome

MODES = {
    "secagg": 20,
    "secagg-plus": 60,  # from 51 devices on the graph is sparse
    "active": 60,
}
"""Wanted devices by mode."""


def run_with(folder: Path, section: str, cohort: int, struck: str, fleet: str = PHONES) -> RunOutcome:
    """Run two rounds with a fault at every stage that the mode has, each striking ``struck``."""
    mode = section.removeprefix("mode: ").split(",")[0]
    text = secure(
        section,
        rounds=f"count: 2, cohort: {cohort}, over_select: 130%, deadline: 60 s",
        fleet=fleet,
        more=faults(**{stage.replace("-", "_"): struck for stage in STAGES[mode]}),
    )
    return run_text(folder, text, name=section.rsplit(maxsplit=1)[-1])


def assert_same(real: RunOutcome, modelled: RunOutcome) -> None:
    assert differing_columns(real, modelled) == {
        "rounds": [],
        "device_rounds": [],
        "events": [],
        "evaluations": [],
        "evaluation_rounds": [],
        "device_evaluations": [],
        "inferences": [],
        "faults": [],
    }
    with np.load(real.directory / "model.npz") as one, np.load(modelled.directory / "model.npz") as other:
        assert one.files == other.files
        for name in one.files:
            assert one[name].tobytes() == other[name].tobytes()


@pytest.mark.few(1)
@pytest.mark.parametrize("mode", MODES)
def test_of_masks(mode: str, tmp_path: Path) -> None:
    # Phones leave by themselves, too: Google's production fleet.
    fleet = PHONES.replace("always_on", "bernoulli_google")
    real = run_with(tmp_path, f"mode: {mode}, crypto: real", MODES[mode], "4%", fleet)
    modelled = run_with(tmp_path, f"mode: {mode}, crypto: modelled", MODES[mode], "4%", fleet)
    assert_same(real, modelled)
    rounds, devices = rows_of(real, "rounds"), rows_of(real, "device_rounds")
    assert {row["outcome"] for row in rounds} == {"completed"}
    listed = Counter(row["round"] for row in rows_of(real, "events") if row["kind"] == "key-list")
    for row in rounds:
        assert (row["secagg_neighbours"] == listed[row["round"]] - 1) == (mode == "secagg")
    assert sum(row["surplus"] for row in rounds) > 0
    # Who vanishes with its input in the sum counts as completed.
    vanished = {row["stage"] for row in devices if row["reason"] == "vanished"}
    assert vanished == set(STAGES[mode]) - {"consistency", "unmask"}


def test_of_masks_in_a_round_that_fails(tmp_path: Path) -> None:
    real = run_with(tmp_path, "mode: active, bits: 64, crypto: real", 20, "25%")
    assert_same(real, run_with(tmp_path, "mode: active, bits: 64, crypto: modelled", 20, "25%"))
    assert {row["outcome"] for row in rows_of(real, "rounds")} == {"abandoned"}


@pytest.mark.few(1)
@with_tenseal
@pytest.mark.parametrize(("struck", "ending"), [("10%", "completed"), ("50%", "abandoned")])
def test_of_ciphertexts(struck: str, ending: str, tmp_path: Path) -> None:
    real = run_with(tmp_path, "mode: ckks, min_contributors: 5, crypto: real", 10, struck)
    assert_same(real, run_with(tmp_path, "mode: ckks, min_contributors: 5, crypto: modelled", 10, struck))
    assert {row["outcome"] for row in rows_of(real, "rounds")} == {ending}
