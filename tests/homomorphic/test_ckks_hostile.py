"""Frames that stray, come twice or lie: refused by name, and the round goes on."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from homomorphic_harness import Fleet, long_config, refusal, small_config, with_arrays

from edge.crypto import errors
from edge.homomorphic.config import CIPHERTEXT_BYTES, SLOTS, BadCiphertextError, ImpreciseSumError
from edge.homomorphic.schemes import ModelledScheme, Scheme, TensealScheme
from edge.secagg.states import CoordinatorState
from edge.wire.codec import decode, encode
from edge.wire.messages import Abort, MaskedInput, Model

MASKING, UNMASKING = CoordinatorState.MASKING, CoordinatorState.UNMASKING
LIAR = 1
Forge = Callable[[Any], Any]

STRAY: list[tuple[str, int, Forge, type[errors.SecAggError]]] = [
    ("another run", LIAR, lambda m: m._replace(run_id="other"), errors.StaleSessionError),
    ("an earlier round", LIAR, lambda m: m._replace(round_number=2), errors.StaleRoundError),
    ("a stranger", 9, lambda m: m._replace(device=9), errors.UnknownDeviceError),
    ("in another's name", LIAR, lambda m: m._replace(device=2), errors.WrongSenderError),
    ("of another protocol", LIAR, lambda m: MaskedInput(*m), errors.WrongStageError),
    ("a plain message", LIAR, lambda m: Model(m.run_id, m.round_number, {}), errors.WrongStageError),
    ("an abort of an earlier round", LIAR, lambda m: Abort(m[0], 2, LIAR, "battery"), errors.StaleRoundError),
]
MALFORMED: list[tuple[str, Forge, type[errors.SecAggError]]] = [
    ("no lengths", lambda m: with_arrays(m, lengths=None), errors.MalformedMessageError),
    ("one array too many", lambda m: with_arrays(m, mask=np.zeros(1)), errors.MalformedMessageError),
    ("cut off", lambda m: with_arrays(m, ciphertexts=m.arrays["ciphertexts"][1:]), errors.WrongLengthError),
    (
        "a ciphertext too few",
        lambda m: with_arrays(
            m, ciphertexts=m.arrays["ciphertexts"][CIPHERTEXT_BYTES:], lengths=m.arrays["lengths"][1:]
        ),
        errors.WrongLengthError,
    ),
    (
        "longer than its room",
        lambda m: with_arrays(m, lengths=m.arrays["lengths"] + CIPHERTEXT_BYTES),
        errors.WrongLengthError,
    ),
    ("empty", lambda m: with_arrays(m, lengths=m.arrays["lengths"] * 0), errors.WrongLengthError),
    (
        "lengths of another dtype",
        lambda m: with_arrays(m, lengths=m.arrays["lengths"].astype(np.int32)),
        errors.WrongDtypeError,
    ),
    (
        "ciphertexts of another dtype",
        lambda m: with_arrays(m, ciphertexts=m.arrays["ciphertexts"].view(np.int8)),
        errors.WrongDtypeError,
    ),
    (
        "half of the last one missing",
        lambda m: with_arrays(m, lengths=m.arrays["lengths"] - [0, 20_000]),
        BadCiphertextError,
    ),
    (
        "padding taken for ciphertext",
        lambda m: with_arrays(m, lengths=m.arrays["lengths"] + [0, 1]),
        BadCiphertextError,
    ),
]


@pytest.mark.parametrize(
    ("sender", "forge", "error"), [case[1:] for case in STRAY], ids=[c[0] for c in STRAY]
)
def test_a_stray_input_costs_nobody_anything(
    sender: int, forge: Forge, error: type[errors.SecAggError]
) -> None:
    fleet = Fleet(ModelledScheme(), 3)
    honest = fleet.input(LIAR)
    step = fleet.to_server(sender, forge(honest))
    assert refusal(step) is error
    assert step.send == []
    assert fleet.server.dropped == {}
    assert fleet.server.waiting == {0, 1, 2}
    fleet.to_server(LIAR, honest)
    fleet.contribute([0, 2])
    fleet.finish()
    fleet.check_sum([0, 1, 2])


@pytest.mark.slow
@pytest.mark.parametrize(("forge", "error"), [c[1:] for c in MALFORMED], ids=[c[0] for c in MALFORMED])
@pytest.mark.parametrize("first", [True, False], ids=["first", "not first"])
def test_a_malformed_input_costs_its_sender_its_part(
    scheme: Scheme, forge: Forge, error: type[errors.SecAggError], first: bool
) -> None:
    """The first ciphertext of the two is in order; nothing of it may be left in the sum."""
    fleet = Fleet(scheme, 4, long_config())
    if not first:
        fleet.contribute([0])
    step = fleet.to_server(LIAR, forge(fleet.input(LIAR)))
    assert refusal(step) is error
    assert fleet.server.dropped == {LIAR: MASKING}
    assert fleet.notices() == {LIAR: error.NAME}
    fleet.contribute([2, 3] if not first else [0, 2, 3])
    fleet.finish()
    fleet.check_sum([0, 2, 3])


def test_random_bytes_are_no_ciphertext(tenseal_scheme: TensealScheme) -> None:
    fleet = Fleet(tenseal_scheme, 3)
    noise = np.random.default_rng(0).integers(0, 256, CIPHERTEXT_BYTES, dtype=np.uint8)
    step = fleet.to_server(LIAR, with_arrays(fleet.input(LIAR), ciphertexts=noise))
    assert refusal(step) is BadCiphertextError
    fleet.notices()
    fleet.contribute([0, 2])
    fleet.finish()
    fleet.check_sum([0, 2])


def test_the_last_awaited_being_refused_ends_the_collection() -> None:
    fleet = Fleet(ModelledScheme(), 3)
    fleet.contribute([0, 2])
    step = fleet.to_server(LIAR, with_arrays(fleet.input(LIAR), lengths=None))
    assert refusal(step) is errors.MalformedMessageError
    assert [type(message).__name__ for _, message in step.send] == ["Abort", "DecryptRequest"]
    assert fleet.server.waiting == {0}


def test_a_second_input_is_refused_and_counts_once(scheme: Scheme) -> None:
    fleet = Fleet(scheme, 3)
    message = fleet.input(0)
    fleet.to_server(0, message)
    assert refusal(fleet.to_server(0, message)) is errors.DuplicateMessageError
    fleet.contribute([1, 2])
    assert refusal(fleet.to_server(0, message)) is errors.DuplicateMessageError
    assert fleet.server.dropped == {}
    fleet.finish()
    fleet.check_sum([0, 1, 2])


def test_a_sum_that_nobody_asked_for_is_refused() -> None:
    fleet = Fleet(ModelledScheme(), 3)
    fleet.contribute()
    answer = fleet.decrypted(fleet.asked())
    assert refusal(fleet.to_server(2, answer._replace(device=2))) is errors.WrongStageError
    assert refusal(fleet.to_server(2, answer)) is errors.WrongSenderError
    assert refusal(fleet.to_server(0, answer._replace(round_number=4))) is errors.StaleRoundError
    assert fleet.server.state is UNMASKING
    assert refusal(fleet.to_server(0, answer)) is None
    assert refusal(fleet.to_server(0, answer)) is errors.DuplicateMessageError
    assert refusal(fleet.to_server(0, Abort(answer.run_id, answer.round_number, 0, "late"))) is None
    fleet.check_sum([0, 1, 2])


def test_a_decrypted_sum_before_the_inputs_are_in_is_refused() -> None:
    fleet = Fleet(ModelledScheme(), 2)
    ahead = Fleet(ModelledScheme(), 2)
    ahead.contribute()
    assert refusal(fleet.to_server(0, ahead.decrypted(ahead.asked()))) is errors.WrongStageError


def test_a_dropped_device_cannot_come_back() -> None:
    fleet = Fleet(ModelledScheme(), 3)
    message = fleet.input(LIAR)
    fleet.lose(LIAR)
    assert refusal(fleet.to_server(LIAR, message)) is errors.WrongStageError
    fleet.contribute([0, 2])
    fleet.finish()
    fleet.check_sum([0, 2])


def changed(at: int, by: float) -> Forge:
    def forge(message: Any) -> Any:
        total = message.arrays["total"].copy()
        total[at] += by
        return with_arrays(message, total=total)

    return forge


RUBBISH: list[tuple[str, Forge, type[errors.SecAggError]]] = [
    ("too short", lambda m: with_arrays(m, total=m.arrays["total"][:-1]), errors.WrongLengthError),
    (
        "float32",
        lambda m: with_arrays(m, total=m.arrays["total"].astype(np.float32)),
        errors.WrongDtypeError,
    ),
    ("nothing", lambda m: with_arrays(m, total=None), errors.MalformedMessageError),
    ("not finite", changed(0, np.nan), ImpreciseSumError),
    ("not whole", changed(0, 0.3), ImpreciseSumError),
    ("one contributor more", changed(-1, 1), errors.SumMismatchError),
    ("a negative weight", changed(-2, -100), errors.SumMismatchError),
    ("more weight than there is", changed(-2, 100), errors.SumMismatchError),
    ("beyond the clips", changed(2, 2.0**40), errors.SumMismatchError),
    ("beyond the counts", changed(7, 4), errors.SumMismatchError),
]


@pytest.mark.parametrize(("forge", "error"), [c[1:] for c in RUBBISH], ids=[c[0] for c in RUBBISH])
def test_after_rubbish_the_next_is_asked(forge: Forge, error: type[errors.SecAggError]) -> None:
    fleet = Fleet(ModelledScheme(), 3)
    fleet.contribute()
    step = fleet.to_server(0, forge(fleet.decrypted(fleet.asked())))
    assert refusal(step) is error
    assert fleet.server.dropped == {0: UNMASKING}
    assert [(device, type(message).__name__) for device, message in step.send] == [
        (0, "Abort"),
        (1, "DecryptRequest"),
    ]
    fleet.inbox.pop(0)
    fleet.finish()
    fleet.check_sum([0, 1, 2])


def test_a_quarter_from_whole_is_rounded() -> None:
    fleet = Fleet(ModelledScheme(), 3)
    fleet.contribute()
    fleet.to_server(0, changed(0, 0.2)(fleet.decrypted(fleet.asked())))
    fleet.check_sum([0, 1, 2])


def test_an_input_that_lies_ends_the_round_by_the_name_of_what_is_wrong(scheme: Scheme) -> None:
    """Nobody sees whose it was, so every device refuses the sum in turn."""
    fleet = Fleet(scheme, 3)
    vector = np.zeros(fleet.config.length)
    vector[-1] = 5
    fleet.contribute([0, 2])
    lie = fleet.input(LIAR)
    ciphertext = np.frombuffer(scheme.secret.encrypt(vector)[0], dtype=np.uint8)
    room = np.zeros(CIPHERTEXT_BYTES, dtype=np.uint8)
    room[: len(ciphertext)] = ciphertext
    fleet.to_server(LIAR, with_arrays(lie, ciphertexts=room, lengths=np.array([len(ciphertext)])))
    for device in range(3):
        request = fleet.asked()
        assert request.device == device
        with pytest.raises(errors.SumMismatchError):
            fleet.participants[device].receive(request)
        fleet.to_server(device, fleet.participants[device].give_up("sum-mismatch"))
    assert fleet.server.state is CoordinatorState.ABORTED
    assert isinstance(fleet.server.failure, errors.TooFewSurvivorsError)


def test_the_failure_names_the_last_refused_sum() -> None:
    fleet = Fleet(ModelledScheme(), 2)
    fleet.contribute()
    fleet.to_server(0, changed(-1, 1)(fleet.decrypted(fleet.asked())))
    fleet.inbox.pop(0)
    fleet.deadline()
    assert fleet.server.state is CoordinatorState.ABORTED
    assert isinstance(fleet.server.failure, errors.SumMismatchError)


# -- ciphertexts that load and are still wrong -------------------------------------------------------------


def forged_ciphertext(tenseal: Any, real: TensealScheme, name: str) -> bytes:
    """Return what a device could send that knows the public key and the parameters."""
    if name == "nothing":
        return b""
    if name in ("a product", "another degree"):
        context = tenseal.context(
            tenseal.SCHEME_TYPE.CKKS,
            16_384 if name == "another degree" else 8_192,
            coeff_mod_bit_sizes=[60, 40, 60],
            n_threads=1,
        )
    else:
        context = tenseal.context_from(real.public_bytes, n_threads=1)
    context.global_scale = {"another scale": 2.0**30, "a product": 2.0**20}.get(name, 2.0**40)
    context.auto_relin = context.auto_rescale = False
    numbers = {"fewer numbers": 10, "two in one": SLOTS + 1}.get(name, SLOTS)
    vector = tenseal.ckks_vector(context, np.ones(numbers))
    forged: bytes = (vector * vector if name == "a product" else vector).serialize()
    return forged


FORGED = ["another scale", "fewer numbers", "two in one", "a product", "another degree", "nothing"]


@pytest.mark.parametrize("name", FORGED)
@pytest.mark.parametrize("first", [True, False], ids=["first", "not first"])
def test_a_ciphertext_of_another_shape_is_refused(
    tenseal: ModuleType, tenseal_scheme: TensealScheme, name: str, first: bool
) -> None:
    forged = forged_ciphertext(tenseal, tenseal_scheme, name)
    vector = np.arange(10.0)
    running = tenseal_scheme.public.running_sum()
    if not first:
        running.add(tenseal_scheme.secret.encrypt(vector))
    with pytest.raises(BadCiphertextError):
        running.add([forged])
    with pytest.raises(BadCiphertextError):
        tenseal_scheme.secret.decrypt([forged])
    running.add(tenseal_scheme.secret.encrypt(vector))
    opened = tenseal_scheme.secret.decrypt(running.ciphertexts())
    np.testing.assert_allclose(opened[:10], vector if first else 2 * vector, atol=1e-6)


def test_a_sum_that_would_be_transparent_is_refused_and_leaves_the_sum_alone(
    tenseal: ModuleType, tenseal_scheme: TensealScheme
) -> None:
    """A device that knows the running sum sends its negative in the second of two ciphertexts."""
    context = tenseal.context_from(tenseal_scheme.public_bytes, n_threads=1)
    vector = np.arange(SLOTS + 10.0)
    one, two = tenseal_scheme.secret.encrypt(vector)
    running = tenseal_scheme.public.running_sum()
    running.add([one, two])
    with pytest.raises(BadCiphertextError, match="transparent"):
        running.add([one, (-tenseal.ckks_vector_from(context, two)).serialize()])
    opened = tenseal_scheme.secret.decrypt(running.ciphertexts())
    np.testing.assert_allclose(opened[: len(vector)], vector, atol=1e-6)


def test_an_input_under_another_key_ends_the_round(tenseal_scheme: TensealScheme) -> None:
    fleet = Fleet(tenseal_scheme, 3)
    stranger = Fleet(TensealScheme(), 3)
    fleet.contribute([0, 2])
    fleet.to_server(LIAR, stranger.input(LIAR))
    with pytest.raises((ImpreciseSumError, errors.SumMismatchError)):
        fleet.participants[0].receive(fleet.asked())


# -- the device --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("forge", "error"),
    [
        (lambda m: m._replace(run_id="other"), errors.StaleSessionError),
        (lambda m: m._replace(round_number=2), errors.StaleRoundError),
        (lambda m: m._replace(device=2), errors.WrongReceiverError),
        (lambda m: Abort("other", m.round_number, 0, "late"), errors.StaleSessionError),
        (lambda m: Abort(m.run_id, m.round_number, 2, "late"), errors.WrongReceiverError),
        (lambda m: Model(m.run_id, m.round_number, {}), errors.WrongStageError),
    ],
)
def test_a_device_refuses_what_strayed_and_goes_on(forge: Forge, error: type[errors.SecAggError]) -> None:
    fleet = Fleet(ModelledScheme(), 3)
    fleet.contribute()
    request = fleet.asked()
    with pytest.raises(error):
        fleet.participants[0].receive(decode(encode(forge(request))))
    assert not fleet.participants[0].over
    assert fleet.participants[0].failure is None
    assert refusal(fleet.to_server(0, fleet.decrypted(request))) is None


@pytest.mark.parametrize(
    ("forge", "error"),
    [
        (lambda m: m._replace(survivors=1), errors.TooFewContributorsError),
        (lambda m: m._replace(survivors=2), errors.SumMismatchError),
        (lambda m: with_arrays(m, lengths=None), errors.MalformedMessageError),
        (
            lambda m: with_arrays(m, ciphertexts=m.arrays["ciphertexts"][1:]),
            errors.WrongLengthError,
        ),
        (lambda m: with_arrays(m, lengths=m.arrays["lengths"] - 1), BadCiphertextError),
    ],
)
def test_a_request_that_breaks_the_protocol_ends_the_devices_part(
    scheme: Scheme, forge: Forge, error: type[errors.SecAggError]
) -> None:
    fleet = Fleet(scheme, 3)
    fleet.contribute()
    request = fleet.asked()
    with pytest.raises(error):
        fleet.participants[0].receive(forge(request))
    assert fleet.participants[0].over
    assert fleet.participants[0].failure == error.NAME
    with pytest.raises(errors.WrongStageError):
        fleet.participants[0].receive(request)


def test_a_device_decrypts_once() -> None:
    fleet = Fleet(ModelledScheme(), 3)
    fleet.contribute()
    request = fleet.asked()
    fleet.decrypted(request)
    with pytest.raises(errors.RepeatedUnmaskError):
        fleet.participants[0].receive(request)
    assert fleet.participants[0].failure is None


def test_a_device_that_has_not_contributed_does_not_decrypt() -> None:
    fleet = Fleet(ModelledScheme(), 3)
    fleet.contribute([0, 1])
    fleet.deadline()
    request = fleet.asked()._replace(device=2)
    with pytest.raises(errors.WrongStageError):
        fleet.participants[2].receive(request)
    assert not fleet.participants[2].over


def test_min_contributors_holds_on_the_device_too() -> None:
    fleet = Fleet(ModelledScheme(), 3)
    fleet.contribute()
    careful = Fleet(ModelledScheme(), 3, small_config(min_contributors=4))
    careful.input(0)
    with pytest.raises(errors.TooFewContributorsError):
        careful.participants[0].receive(fleet.asked())
