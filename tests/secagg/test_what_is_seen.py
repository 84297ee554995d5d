"""What coordinator and devices see of a device in rounds in which everybody follows the protocol."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from secagg_harness import ROUND, Fleet
from secagg_victim import VICTIM

from edge.crypto.prg import add_all_expanded
from edge.crypto.shamir import combine
from edge.secagg.cryptography import self_seed
from edge.secagg.states import CoordinatorState, Mode
from edge.wire.codec import encode
from edge.wire.messages import Arrays, MaskedInput, UnmaskShares

MODES = [Mode.SEMI_HONEST, Mode.ACTIVE]
DEVICES = 6


def finished(mode: Mode, seed: int, round_number: int = ROUND) -> Fleet:
    fleet = Fleet(DEVICES, mode=mode, seed=seed, round_number=round_number, corrupt=0.0)
    fleet.reach(CoordinatorState.UNMASKING)
    fleet.run()
    assert fleet.server.state is CoordinatorState.DONE
    return fleet


def without_self_mask(fleet: Fleet) -> np.ndarray[Any, Any]:
    """Return what the coordinator makes of the victim's input with all the shares that it is given."""
    cohort = fleet.server.cohort
    assert cohort is not None
    (masked,) = (
        frame.arrays["masked"].copy()
        for frame in fleet.frames
        if isinstance(frame, MaskedInput) and frame.device == VICTIM
    )
    # On the complete graph a holder's index, and an owner's row, is its place among all devices.
    shares = [
        (frame.device + 1, frame.arrays["shares"][VICTIM].tobytes())
        for frame in fleet.frames
        if isinstance(frame, UnmaskShares)
    ]
    secret = combine(shares[: cohort.t], cohort.t)
    add_all_expanded(masked, [], [self_seed(secret, cohort.session, ROUND, VICTIM)])
    return masked


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.few(1)
def test_of_one_device_the_coordinator_is_left_with_numbers_that_are_uniform(mode: Mode) -> None:
    fleets = [finished(mode, seed) for seed in range(40)]
    seen = np.stack([without_self_mask(fleet) for fleet in fleets])
    size = 2.0 ** fleets[0].config.bits
    inputs = [fleet.oracle._inputs[VICTIM] for fleet in fleets]
    assert all((one == inputs[0]).all() for one in inputs)  # the same input in every round, and yet
    assert all(len(set(column)) == len(fleets) for column in seen.T.tolist())
    shares = seen.ravel() / size
    spread = np.sqrt(1 / 12 / shares.size)
    assert abs(shares.mean() - 0.5) < 4 * spread
    quarters = np.bincount((shares * 4).astype(int), minlength=4) / shares.size
    assert np.abs(quarters - 0.25).max() < 4 * np.sqrt(0.25 * 0.75 / shares.size)


@pytest.mark.parametrize("mode", MODES)
def test_what_a_device_is_sent_does_not_depend_on_the_inputs_of_others(
    mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def frames_to_victim() -> list[bytes]:
        fleet = Fleet(DEVICES, mode=mode, corrupt=0.0)
        heard: list[bytes] = []
        answered = fleet.answer

        def answer(device: int, message: Any) -> Any:
            if device == VICTIM:
                heard.append(encode(message))
            return answered(device, message)

        monkeypatch.setattr(fleet, "answer", answer)
        fleet.reach(CoordinatorState.UNMASKING)
        fleet.run()
        assert fleet.server.state is CoordinatorState.DONE
        return heard

    first, honest = frames_to_victim(), Fleet.values

    def others(self: Fleet, device: int) -> Arrays:
        return honest(self, device if device == VICTIM else device + 100)

    monkeypatch.setattr(Fleet, "values", others)
    assert frames_to_victim() == first
    assert len(first) == (4 if mode is Mode.ACTIVE else 3)


def test_in_active_mode_rounds_whose_cohorts_differ_by_one_device_differ_by_its_input() -> None:
    """The limit that remains: no round breaks the protocol, and no device answers a round twice."""
    everybody = finished(Mode.ACTIVE, 0)
    without = Fleet(DEVICES, mode=Mode.ACTIVE, round_number=ROUND + 1, corrupt=0.0)
    without.advertise([device for device in without.devices if device != VICTIM])
    without.deadline()
    without.run()
    totals = [fleet.server.result for fleet in (everybody, without)]
    assert totals[0] is not None
    assert totals[1] is not None
    found = (totals[0].total - totals[1].total).astype(np.int64)
    own = everybody.oracle._inputs[VICTIM].astype(np.int64)
    # Every device rounds at random, anew in each round: by a step at most.
    assert np.abs(found - own).max() <= DEVICES
    assert np.abs(own).max() > 1000 * DEVICES
    assert totals[0].weight - totals[1].weight == everybody.weight(VICTIM)
