"""What a device encrypts, and how its part ends."""

from __future__ import annotations

import numpy as np
import pytest
from homomorphic_harness import CLIP, ROUND, RUN, small_config, update_of

from edge.core.errors import LocalProtocolError
from edge.crypto.errors import NotFiniteError, SecAggError, WeightError, WrongStageError
from edge.homomorphic.config import CIPHERTEXT_BYTES
from edge.homomorphic.participant import CkksParticipant
from edge.homomorphic.schemes import ModelledScheme
from edge.homomorphic.vectors import unpack
from edge.learning.updates import ClientUpdate
from edge.wire.codec import frame_size
from edge.wire.messages import Abort, EncryptedInput


def participant() -> CkksParticipant:
    return CkksParticipant(small_config(), ModelledScheme().secret, device=5, run_id=RUN, round_number=ROUND)


def test_values_are_clipped_without_their_weight_and_counted() -> None:
    device = participant()
    factors = np.array([[0.5, 3.0, -2.5], [2.0, -2.0, 0.0]], dtype=np.float64)
    arrays = {"factors": 4 * factors, "touched": np.array([1, 0, -1])}
    answer = device.begin(ClientUpdate(arrays, 4.0, 12, 1.0))
    assert (device.nonzero, device.clipped) == (6, 2)
    message = answer.message
    assert isinstance(message, EncryptedInput)
    vector = ModelledScheme().secret.decrypt(unpack(small_config(), message.arrays))
    levels = small_config().levels
    steps = 4 * levels * np.clip(factors, -CLIP, CLIP).ravel() / CLIP
    assert vector[:13].tolist() == [*steps, 1, 0, -1, 12, 12 * levels / 64, 4, 1]
    assert not vector[13:].any()


def test_the_frame_has_the_same_length_whatever_is_in_it() -> None:
    sizes = {
        frame_size(participant().begin(update_of(small_config(), device)).message) for device in range(5)
    }
    assert len(sizes) == 1
    assert CIPHERTEXT_BYTES < sizes.pop() < CIPHERTEXT_BYTES + 100


@pytest.mark.parametrize(
    ("changes", "error"),
    [({"weight": 8.0}, WeightError), ({"weight": 0.5}, WeightError), ({"loss": np.nan}, NotFiniteError)],
)
def test_an_update_that_cannot_be_summed_ends_the_devices_part(
    changes: dict[str, float], error: type[SecAggError]
) -> None:
    device = participant()
    with pytest.raises(error):
        device.begin(update_of(small_config(), 5)._replace(**changes))
    assert device.over
    assert device.failure == error.NAME
    assert device.give_up(error.NAME) == Abort(RUN, ROUND, 5, error.NAME)


def test_a_second_begin_is_our_own_mistake() -> None:
    device = participant()
    device.begin(update_of(small_config(), 5))
    with pytest.raises(LocalProtocolError):
        device.begin(update_of(small_config(), 5))


def test_an_abort_ends_it_before_or_after_the_input() -> None:
    for contributes in (False, True):
        device = participant()
        if contributes:
            device.begin(update_of(small_config(), 5))
        assert device.receive(Abort(RUN, ROUND, 5, "too-few-contributors")) is None
        assert device.over
        assert device.failure == "too-few-contributors"
        with pytest.raises(WrongStageError):
            device.receive(Abort(RUN, ROUND, 5, "again"))
        assert device.failure == "too-few-contributors"


def test_giving_up_later_keeps_the_first_reason() -> None:
    device = participant()
    device.give_up("battery")
    assert device.give_up("late").reason == "late"
    assert device.failure == "battery"
