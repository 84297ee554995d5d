"""Frames out of turn, and a coordinator that tells different devices different stories."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from secagg_harness import MODEL_HASH, ROUND, RUN, Fleet, with_arrays
from secagg_victim import VICTIM, ids, to_victim

from edge.crypto import errors
from edge.crypto.entropy import SeededEntropy
from edge.crypto.keys import KeyPair
from edge.crypto.prg import add_all_expanded
from edge.crypto.shamir import SHARE_BYTES, combine
from edge.secagg.checks import octets
from edge.secagg.client import SecAggClient
from edge.secagg.cryptography import pair_seed, self_seed
from edge.secagg.graph import GraphParameters
from edge.secagg.states import CoordinatorState, DeviceState, Mode
from edge.wire.codec import decode
from edge.wire.messages import (
    Abort,
    ConsistencyCheck,
    MaskedInput,
    SharesDelivery,
    UnmaskRequest,
    UnmaskShares,
)

# -- frames that change nothing --------------------------------------------------------------------------


def test_strayed_stale_repeated_and_early_frames_change_nothing() -> None:
    fleet = Fleet(5)
    fleet.advertise()
    victim = fleet.clients[VICTIM]
    key_list_message = to_victim(fleet)
    early = SharesDelivery(RUN, ROUND, VICTIM, {})

    def refused(message: Any, error: type[errors.SecAggError]) -> None:
        before = victim.state
        with pytest.raises(error):
            victim.receive(message)
        assert victim.state is before

    refused(early, errors.WrongStageError)
    refused(key_list_message._replace(round_number=ROUND - 1), errors.StaleRoundError)
    refused(key_list_message._replace(run_id="another"), errors.StaleSessionError)
    refused(key_list_message._replace(device=VICTIM + 1), errors.WrongReceiverError)
    refused(ConsistencyCheck(RUN, ROUND, {}), errors.WrongStageError)
    reply = victim.receive(key_list_message)
    assert reply is not None
    refused(key_list_message, errors.DuplicateMessageError)
    fleet.to_server(VICTIM, reply)
    fleet.deliver()
    fleet.deliver()
    request = to_victim(fleet)
    answer = victim.receive(request)
    assert answer is not None
    refused(request, errors.RepeatedUnmaskError)
    refused(Abort(RUN, ROUND, VICTIM, "too late"), errors.WrongStageError)
    fleet.to_server(VICTIM, answer)
    fleet.run()
    fleet.check()
    assert len(fleet.server.result.survivors) == 5  # type: ignore[union-attr]


def test_an_abort_ends_the_devices_part_once() -> None:
    fleet = Fleet(3)
    fleet.advertise()
    client = fleet.clients[VICTIM]
    assert client.receive(Abort(RUN, ROUND, VICTIM, "too-few-neighbours")) is None
    assert client.state is DeviceState.ABORTED
    assert client.failure == "too-few-neighbours"
    with pytest.raises(errors.DuplicateMessageError):
        client.receive(Abort(RUN, ROUND, VICTIM, "too-few-neighbours"))


def test_a_refused_unmask_request_cannot_be_corrected_by_a_second() -> None:
    fleet = Fleet(5)
    fleet.reach(CoordinatorState.UNMASKING)
    request = to_victim(fleet)
    victim = fleet.clients[VICTIM]
    with pytest.raises(errors.SelfDeadError):
        victim.receive(with_arrays(request, dead=ids(VICTIM)))
    with pytest.raises(errors.RepeatedUnmaskError):
        victim.receive(request)


# -- two stories -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("parameters", [None, GraphParameters(6, 4), GraphParameters(6, 7)])
def test_a_coordinator_that_tells_two_stories_gets_at_most_one_secret_of_anybody(
    parameters: GraphParameters | None,
) -> None:
    fleet = Fleet(15, corrupt=0.0, parameters=parameters)
    fleet.reach(CoordinatorState.UNMASKING)
    target = 4
    requests = {device: decode(frame) for device, frame in fleet.inbox}
    fleet.inbox = []
    told = 0
    for device, request in requests.items():
        if device != target and target in fleet.clients[device].partners:
            told += 1
            if told % 2:  # half of its neighbours hear that it is dead
                request = with_arrays(request, dead=ids(target))  # noqa: PLW2901
        fleet.answer(device, request)
    cohort = fleet.server.cohort
    assert cohort is not None
    assert fleet.oracle.double_reveals(cohort.t) == 0
    # Shares of both kinds did leave, except where the threshold does not survive a single dead neighbour.
    assert fleet.oracle.double_reveals(1) == (cohort.t <= cohort.k)


def test_in_active_mode_two_stories_release_nothing() -> None:
    fleet = Fleet(8, mode=Mode.ACTIVE, corrupt=0.0)
    fleet.reach(CoordinatorState.CHECKING)
    checks = {device: decode(frame) for device, frame in fleet.inbox}
    fleet.inbox = []
    signatures = {}
    for device, check in checks.items():
        survivors = ids(*range(8)) if device % 2 else ids(*(other for other in range(8) if other != 3))
        if device == 3:
            survivors = ids(*range(8))
        reply: Any = fleet.clients[device].receive(with_arrays(check, survivors=survivors))
        signatures[device] = reply.arrays["signature"]
    for device in range(8):
        others = [other for other in range(8) if other not in (3, device)]
        dead = ids() if device % 2 else ids(3)
        request = UnmaskRequest(
            RUN,
            ROUND,
            device,
            8 if device % 2 else 7,
            {
                "dead": dead,
                "signers": ids(*others),
                "signatures": np.stack([signatures[other] for other in others]),
            },
        )
        with pytest.raises(errors.BadSignatureError):
            fleet.clients[device].receive(request)


def test_an_answer_holds_one_share_of_each_device_and_no_more() -> None:
    fleet = Fleet(6, corrupt=0.0)
    fleet.reach(CoordinatorState.MASKING)
    fleet.deliver(silent=[5])
    fleet.deadline()
    request = to_victim(fleet)
    answer: Any = fleet.clients[VICTIM].receive(request)
    assert answer.arrays["shares"].shape == (6, SHARE_BYTES)


def test_a_model_given_to_one_device_only_shares_no_secret_with_the_others() -> None:
    # A coordinator that trains one device on another model learns which part of the sum is its own, unless
    # the model is bound into the session.
    fleet = Fleet(5)
    odd = SecAggClient(
        fleet.config,
        device=VICTIM,
        run_id=RUN,
        round_number=ROUND,
        model_hash=bytes(32),
        entropy=SeededEntropy(bytes(16), VICTIM, ROUND),
    )
    fleet.clients[VICTIM] = odd
    right = octets(fleet.config.hash + MODEL_HASH).reshape(2, -1)
    fleet.advertise(mutate=lambda message: with_arrays(message, context=right))
    message = to_victim(fleet)
    with pytest.raises(errors.ModelMismatchError):
        odd.receive(message)
    # Even one told the hash it expects derives other keys.
    told = with_arrays(message, context=octets(fleet.config.hash + bytes(32)).reshape(2, -1))
    second = SecAggClient(
        fleet.config,
        device=VICTIM,
        run_id=RUN,
        round_number=ROUND,
        model_hash=bytes(32),
        entropy=SeededEntropy(bytes(16), VICTIM, ROUND),
    )
    second.advertise()
    fleet.clients[VICTIM] = second
    reply = second.receive(told)
    assert reply is not None
    fleet.to_server(VICTIM, reply)
    fleet.run()
    assert {type(error) for error in fleet.errors.values()} == {errors.AuthenticationError}
    assert fleet.server.result is None


# -- one device's input, by stories alone ----------------------------------------------------------------


class Storyteller:
    """A coordinator that is after the input of one device and gives everybody true keys.

    It tells its victim that only as many neighbours shared as a device insists on. Their mask keys take the
    pairwise masks off, and it has them rebuilt by telling each holder that some of them died, each another
    part; the victim's seed it gets from whom it is not said to have died, which is everybody.
    """

    def __init__(self, mode: Mode) -> None:
        self.fleet = fleet = Fleet(50, mode=mode)
        fleet.reach(CoordinatorState.MASKING)
        cohort = fleet.server.cohort
        assert cohort is not None
        self.session, self.t, self.records = cohort.session, cohort.t, cohort.records
        self.partners = [device for device in fleet.devices if device != VICTIM][: self.t - 1]
        sent = [(device, decode(frame)) for device, frame in fleet.inbox]
        fleet.inbox = []
        for device, delivery in sent:
            senders = self.t - 1 if device == VICTIM else len(fleet.devices) - 1
            arrays = {name: array[:senders] for name, array in delivery.arrays.items()}
            masked = fleet.answer(device, delivery._replace(arrays=arrays))
            assert isinstance(masked, MaskedInput)
            if device == VICTIM:
                self.masked = masked.arrays["masked"].copy()
        if mode is Mode.ACTIVE:
            self.check()

    def check(self) -> None:
        """Have everybody sign the same survivors, those that the first story is for."""
        survivors = ConsistencyCheck(RUN, ROUND, {"survivors": ids(*self.fleet.devices)})
        signed: dict[int, Any] = {}
        for device in self.fleet.devices:
            if device != VICTIM:  # which knows of fewer that shared, and refuses
                reply: Any = self.fleet.answer(device, survivors)
                signed[device] = reply.arrays["signature"].tobytes()
        self.signed = signed

    def dead_for(self, holder: int) -> list[int]:
        """Return which partners ``holder`` is told are dead: t holders hear it of each."""
        others = len(self.fleet.devices) - 1
        dead = []
        for nth, partner in enumerate(self.partners):
            told = [(partner + 1 + nth + step) % (others + 1) for step in range(others + 1)]
            if holder in [one for one in told if one not in (partner, VICTIM)][: self.t]:
                dead.append(partner)
        return dead

    def request(self, holder: int) -> UnmaskRequest:
        dead = self.dead_for(holder)
        arrays: dict[str, Any] = {"dead": ids(*dead)}
        if self.fleet.config.mode is Mode.ACTIVE:
            signers = [one for one in self.signed if one not in (holder, *dead)]
            signatures = b"".join(self.signed[one] for one in signers)
            arrays |= {"signers": ids(*signers), "signatures": octets(signatures).reshape(-1, 64)}
        return UnmaskRequest(RUN, ROUND, holder, len(self.fleet.devices) - len(dead), arrays)

    def told(self) -> dict[int, tuple[list[int], UnmaskShares]]:
        """Tell the stories; return, by holder, whom it was told are dead and what it released."""
        answers = {}
        for holder in self.fleet.devices:
            if holder != VICTIM:
                answer = self.fleet.answer(holder, self.request(holder))
                if isinstance(answer, UnmaskShares):
                    answers[holder] = (self.dead_for(holder), answer)
        return answers


def test_in_semi_honest_mode_stories_alone_give_the_input_of_one_device() -> None:
    plot = Storyteller(Mode.SEMI_HONEST)
    answers = plot.told()
    assert len(answers) == 49

    def secret(owner: int, *, key: bool) -> bytes:
        # On the complete graph a holder's index, and an owner's row, is its place among all devices.
        shares = [
            (holder + 1, answer.arrays["shares"][owner].tobytes())
            for holder, (dead, answer) in answers.items()
            if (owner in dead) is key
        ]
        return combine(shares[: plot.t], plot.t)

    added, subtracted = [], [self_seed(secret(VICTIM, key=False), plot.session, ROUND, VICTIM)]
    for partner in plot.partners:
        key = KeyPair(secret(partner, key=True))
        seed = pair_seed(key, plot.records[VICTIM].mask, plot.session, ROUND, partner, VICTIM)
        (subtracted if partner > VICTIM else added).append(seed)
    add_all_expanded(plot.masked, added, subtracted)
    assert plot.masked.tolist() == plot.fleet.oracle._inputs[VICTIM].tolist()


def test_in_active_mode_the_same_stories_give_no_share() -> None:
    plot = Storyteller(Mode.ACTIVE)
    assert plot.told() == {}
    assert {type(error) for error in plot.fleet.errors.values()} <= {
        errors.OverlappingListError,
        errors.IncompleteListError,
    }
