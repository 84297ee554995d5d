from __future__ import annotations

import pytest
from swarm_helpers import ENCRYPTED, MASKED, PLAIN, PRIVATE, breakable, said, trial_of

from coordinator.swarm.invariants.bounds import bounded_updates
from coordinator.swarm.invariants.sums import decode

BOUND = "aggregation: {rule: mean, norm_bound: 0.1}\n"
LIAR = "{name: p, during: storm, on: {devices: [2, 3, 4]}, poisoned_updates: {kind: huge-norm%s}}]"


def with_liar(text: str, ignores: str) -> str:
    return text.replace("vanish: {}}]", f"vanish: {{}}}}, {LIAR % ignores}")


@pytest.mark.slow
@pytest.mark.parametrize("text", [PLAIN + BOUND, MASKED + BOUND, ENCRYPTED + BOUND, PRIVATE])
@pytest.mark.parametrize("ignores", ["", ", ignores_bound: true"])
def test_a_run_without_bugs_keeps_it(text: str, ignores: str) -> None:
    trial = trial_of(with_liar(text, ignores))
    assert trial.record.inputs
    assert said(bounded_updates, trial) == []


@pytest.mark.parametrize("text", [PLAIN + BOUND, PRIVATE])
def test_a_report_above_the_bound_that_was_accepted(text: str) -> None:
    broken, _ = breakable(trial_of(text))
    one = broken.record.inputs[0]
    assert one.report is not None
    arrays = {**one.report.arrays, "item_rows": one.report.arrays["item_rows"] + 100}
    broken.record.inputs[0] = one._replace(report=one.report._replace(arrays=arrays))
    assert f"round 1: the update of device {one.device} has the norm" in said(bounded_updates, broken)[0]


@pytest.mark.parametrize("text", [MASKED, ENCRYPTED])
def test_a_hidden_update_above_the_bound(text: str) -> None:
    plain = trial_of(text.replace("learning_rate: 0.1", "learning_rate: 0.1, client: "
                                  "{method: gradient-steps, steps: 1, learning_rate: 5}"))  # fmt: skip
    broken, _ = breakable(trial_of(text + BOUND))
    assert said(bounded_updates, broken) == []
    broken.record.vectors = plain.record.vectors
    assert "the hidden update of device" in said(bounded_updates, broken)[0]


def test_inputs_stand_for_the_numbers_they_were_made_of() -> None:
    clear, masked, encrypted = trial_of(PLAIN), trial_of(MASKED), trial_of(ENCRYPTED)
    for hidden in (masked, encrypted):
        sums = hidden.secure_sums["storm"]
        assert sums is not None
        checked = 0
        for one in clear.record.inputs:
            vector = hidden.record.vectors.get((one.round_number, one.device))
            if one.round_number != 1 or vector is None:
                continue
            assert one.report is not None
            decoded = decode(sums, vector)
            table, unit = decoded.reals["item_rows"]
            rows = table.reshape(-1, 3)[one.report.arrays["items"]]
            assert rows == pytest.approx(one.report.arrays["item_rows"].astype(float), abs=unit * 1.01)
            assert (decoded.examples, decoded.weight, decoded.contributors) == (one.report.examples, 1, 1)
            checked += 1
        assert checked
