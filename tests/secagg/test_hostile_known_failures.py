"""Failures that other implementations of secure aggregation are known to have: none may occur here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from secagg_harness import Fleet, small_config, with_arrays

from edge.crypto import errors
from edge.secagg.config import RealPart, SecAggConfig
from edge.secagg.cryptography import DeviceSecrets
from edge.secagg.graph import GraphParameters
from edge.secagg.inputs import decode_sum
from edge.secagg.keylist import KeyRecord
from edge.secagg.states import CoordinatorState, Mode
from edge.wire.codec import decode
from edge.wire.messages import AdvertiseKeys, MaskedInput, UnmaskRequest


@pytest.mark.parametrize("n", range(3, 12))
def test_a_device_lost_during_setup_does_not_kill_the_round_whether_shares_are_even_or_odd(n: int) -> None:
    for silent_in in (CoordinatorState.ADVERTISING, CoordinatorState.SHARING):
        fleet = Fleet(n, corrupt=0.0)
        if silent_in is CoordinatorState.ADVERTISING:
            fleet.advertise(range(1, n))
        else:
            fleet.advertise()
            fleet.deliver(silent=[0])
        fleet.deadline()
        fleet.run()
        fleet.check()
        assert fleet.server.state is CoordinatorState.DONE


def test_a_device_listed_alive_and_dead_does_not_get_both_of_its_shares_released() -> None:
    fleet = Fleet(9, corrupt=0.0)
    fleet.reach(CoordinatorState.UNMASKING)
    requests = {device: decode(frame) for device, frame in fleet.inbox}
    for device, request in requests.items():
        if device == 4:
            continue
        both = with_arrays(request, dead=np.array([4], np.int64), alive=np.arange(9))
        with pytest.raises(errors.MalformedMessageError):
            fleet.clients[device].receive(both)
        with pytest.raises(errors.RepeatedUnmaskError):
            fleet.clients[device].receive(request)
    assert fleet.oracle.double_reveals(1) == 0


def test_a_public_key_is_not_the_private_one() -> None:
    fleet = Fleet(3)
    client = fleet.clients[0]
    record = KeyRecord.of(client.advertise().arrays["record"].tobytes())
    secrets = client._secrets
    assert isinstance(secrets, DeviceSecrets)
    private = {secrets._encryption.secret, secrets._mask.secret, secrets._seed}
    assert len(private) == 3
    assert private.isdisjoint(record)


def test_a_mask_is_not_one_number_for_the_whole_vector() -> None:
    config = SecAggConfig(parts=(RealPart("x", 4096, 1.0),), n_max=3)
    fleet = Fleet(3, config)
    fleet.advertise()
    fleet.run()
    for frame in fleet.frames:
        if isinstance(frame, MaskedInput):
            masked: Any = frame.arrays["masked"]
            mask = masked - fleet.oracle.expected([frame.device])
            assert len(np.unique(mask)) > 4000
            # Uniform over the whole ring: about half of the elements have each bit set.
            bits = np.unpackbits(mask.view(np.uint8)).reshape(-1, 32).mean(axis=0)
            assert ((bits > 0.4) & (bits < 0.6)).all()


@pytest.mark.parametrize("n_max", [10, 1024, 1025, 5000])
def test_the_largest_inputs_of_the_largest_cohort_do_not_wrap(n_max: int) -> None:
    config = SecAggConfig(
        parts=(RealPart("x", 2, 0.5),), n_max=n_max, weight_max=3, corrupt=0.01, dropout=0.01
    )
    quantizer = config.quantizers["x"]
    assert n_max * 3 * quantizer.levels <= 2**31 - 1
    fleet = Fleet(6, config)
    fleet.values = lambda device: {"x": np.array([-9.0, 9.0])}  # type: ignore[method-assign]
    fleet.weight = lambda device: 3  # type: ignore[method-assign]
    fleet.advertise()
    fleet.run()
    fleet.check()
    assert fleet.server.result is not None
    assert decode_sum(config, fleet.server.result.total).reals["x"] == pytest.approx([-9.0, 9.0])
    assert [client.clipped for client in fleet.clients.values()] == [2] * 6


def test_a_ring_of_24_bits_or_a_cohort_that_overflows_is_refused_before_any_round() -> None:
    with pytest.raises(errors.OverflowingConfigError):
        small_config(10, weight_max=2**30)
    config = small_config(10)
    with pytest.raises(errors.OverflowingConfigError):
        Fleet(11, config)


def test_a_threshold_of_2_of_10_is_refused_by_both_ends() -> None:
    with pytest.raises(errors.ThresholdError):
        small_config(10, parameters=GraphParameters(9, 2))
    fleet = Fleet(10)
    fleet.advertise()
    message: Any = decode(fleet.inbox[0][1])
    with pytest.raises(errors.ThresholdError):
        fleet.clients[0].receive(message._replace(threshold=2))


def test_a_weight_above_the_maximum_is_not_sent() -> None:
    fleet = Fleet(4)
    fleet.reach(CoordinatorState.MASKING)
    client = fleet.clients[0]
    client.receive(decode(fleet.inbox[0][1]))
    with pytest.raises(errors.WeightError):
        client.contribute(fleet.values(0), fleet.config.weight_max + 1)


@pytest.mark.parametrize("mode", list(Mode))
def test_a_silent_device_is_waited_for_until_the_deadline_and_no_longer(mode: Mode) -> None:
    fleet = Fleet(8, mode=mode, corrupt=0.0)
    fleet.advertise(range(1, 8))
    while fleet.server.result is None:
        silent = fleet.server.waiting
        stage = fleet.server.state
        fleet.deliver(silent=[0, 7])
        if fleet.server.state is stage:
            assert fleet.server.waiting <= silent
            fleet.deadline()
            assert fleet.server.state is not stage
    fleet.check()


def test_keys_are_fresh_every_round() -> None:
    keys: set[bytes] = set()
    for round_number in range(5):
        fleet = Fleet(3, round_number=round_number)
        for client in fleet.clients.values():
            message = client.advertise()
            assert isinstance(message, AdvertiseKeys)
            keys |= set(KeyRecord.of(message.arrays["record"].tobytes()))
    assert len(keys) == 5 * 3 * 3


def test_an_unmask_request_of_an_earlier_round_releases_nothing() -> None:
    fleet = Fleet(5)
    fleet.reach(CoordinatorState.UNMASKING)
    request: Any = decode(fleet.inbox[0][1])
    assert isinstance(request, UnmaskRequest)
    with pytest.raises(errors.StaleRoundError):
        fleet.clients[0].receive(request._replace(round_number=request.round_number - 1))
    assert fleet.clients[0].receive(request) is not None
