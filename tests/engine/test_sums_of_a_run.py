"""The secure sums of a run: both ends of a round from one object, and what there is to tell of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pytest
from secure_round_harness import MODEL, PARTS, ROUND, Round, update_of, with_arrays

from coordinator.engine.facts import SumFacts
from coordinator.engine.rounds import FrameVerdict
from coordinator.engine.secure_sums import (
    SecureAggregation,
    SecureSums,
    aggregate_of,
    arrays_of,
    joined,
    lengths,
)
from coordinator.scenario.secure_section import StageDeadlines
from coordinator.secure.secagg.server import SecAggServer
from coordinator.secure.sums.encrypted import EncryptedSums
from coordinator.secure.sums.masked import MaskedSums, SeededRoster
from edge.core.errors import LocalProtocolError
from edge.core.vocabulary import Reason
from edge.crypto.entropy import SeededEntropy, SystemEntropy
from edge.crypto.keys import Identity
from edge.homomorphic.config import CkksConfig
from edge.homomorphic.schemes import ModelledScheme
from edge.homomorphic.vectors import decode_sum as decode_encrypted
from edge.homomorphic.vectors import encode_input as encode_encrypted
from edge.learning.updates import Aggregate, ArraySpec, ClientUpdate
from edge.secagg.client import SecAggClient
from edge.secagg.config import RealPart, SecAggConfig
from edge.secagg.cryptography import MODELLED, REAL, Cryptography
from edge.secagg.inputs import Sums, decode_sum, encode_input, part_values
from edge.secagg.participant import Participant
from edge.secagg.states import CoordinatorState, Mode
from edge.wire.codec import encode
from edge.wire.messages import (
    AdvertiseKeys,
    ConsistencySignature,
    DecryptedSum,
    EncryptedInput,
    MaskedInput,
    Model,
    UnmaskShares,
)

DEADLINES = StageDeadlines.model_validate(
    {"share_keys": "3 s", "masked_input": "4 s", "consistency": "5 s", "unmask": "6 s"}
)
BOTH = pytest.mark.parametrize("mode", list(Mode))
CRYPTO = pytest.mark.parametrize("crypto", [REAL, MODELLED], ids=["real", "modelled"])


def config(mode: Mode = Mode.SEMI_HONEST, **changes: Any) -> SecAggConfig:
    return SecAggConfig(**({"parts": PARTS, "n_max": 10, "weight_max": 3, "mode": mode} | changes))


def masked(mode: Mode = Mode.SEMI_HONEST, crypto: Cryptography = REAL, seed: int = 5) -> MaskedSums:
    return MaskedSums(config(mode), DEADLINES, crypto, seed=seed, devices=20)


def encrypted() -> EncryptedSums:
    return EncryptedSums(CkksConfig(PARTS, n_max=10, weight_max=3), DEADLINES, ModelledScheme())


class OfARun:
    """The two ends as a run makes them, for the harness."""

    def __init__(self, sums: SecureSums, number: int = ROUND) -> None:
        self.sums = sums.round(number)
        self.models: dict[int, Model] = {}

    def server(self, devices: Sequence[int], target: int) -> SecureAggregation:
        return self.sums.start(MODEL, list(devices), target)

    def participant(self, device: int) -> Participant:
        return self.sums.participant(device, self.models.get(device, MODEL))

    def check_sum(self, applied: Collection[int]) -> None:
        assert self.sums.facts().sum_error in (0, None)


def begun(sums: SecureSums, n: int) -> tuple[Round, OfARun]:
    protocol = OfARun(sums)
    return Round(protocol, n), protocol  # type: ignore[arg-type]


def facts(round_: Round, protocol: OfARun) -> SumFacts:
    """Tell the sums which inputs were taken, as the cohort does, and return what there is to tell."""
    for one in round_.judged:
        if one.kind in (MaskedInput, EncryptedInput) and one.verdict is FrameVerdict.NOTE:
            protocol.sums.arrived(one.sender)
    return protocol.sums.facts()


# -- facts -----------------------------------------------------------------------------------------------


@BOTH
@CRYPTO
def test_what_there_is_to_tell_of_a_masked_sum(mode: Mode, crypto: Cryptography) -> None:
    round_, protocol = begun(masked(mode, crypto), 6)
    wide = ClientUpdate({"factors": np.array([9.0, -9.0, 0.5, 2.0], np.float32)}, 1.0, 12, 99.0)
    round_.devices[1].result = wide
    round_.devices[4].result = wide
    round_.reach(MaskedInput, slow=4)
    round_.deadline()
    round_.go()
    # 5 inputs of 4 factors and a loss each, of which those of one device are clipped.
    expected = SumFacts(None, 5, 4, 0, 0, 3 / 25)
    assert facts(round_, protocol) == expected
    round_.check_completed(0, 1, 2, 3, 5)


def test_what_there_is_to_tell_of_an_encrypted_sum() -> None:
    round_, protocol = begun(encrypted(), 6)
    wide = ClientUpdate({"factors": np.array([9.0, -9.0, 0.5, 2.0], np.float32)}, 1.0, 12, 99.0)
    round_.devices[1].result = wide
    round_.devices[4].result = wide
    round_.reach(EncryptedInput, slow=4)
    round_.deadline()
    round_.go()
    assert facts(round_, protocol) == SumFacts(None, None, None, None, None, 3 / 25)
    round_.check_completed(0, 1, 2, 3, 5)


def test_of_an_encrypted_sum_that_nobody_decrypts() -> None:
    round_, protocol = begun(encrypted(), 6)
    round_.devices[1].result = ClientUpdate({"factors": np.full(4, 9.0, np.float32)}, 1.0, 12, 99.0)
    round_.reach(DecryptedSum, slow=0)
    for _ in range(6):
        round_.deadline()
    # What was clipped is not told of a sum that was never made.
    assert facts(round_, protocol) == SumFacts("too-few-survivors", None, None, None, None, None)


def test_of_a_round_without_a_graph() -> None:
    round_, protocol = begun(masked(), 4)
    round_.deadline()
    assert facts(round_, protocol) == SumFacts("too-few-contributors", None, None, None, 0, None)
    round_, protocol = begun(encrypted(), 4)
    round_.deadline()
    assert facts(round_, protocol) == SumFacts("too-few-contributors", None, None, None, None, None)


@BOTH
def test_of_a_round_that_fails_in_the_end(mode: Mode) -> None:
    round_, protocol = begun(masked(mode), 6)
    for device in (0, 1, 2):
        round_.hold(device, UnmaskShares)
    round_.go()
    round_.deadline()
    assert facts(round_, protocol) == SumFacts("too-few-survivors", 5, 4, None, 0, None)
    round_, protocol = begun(masked(mode), 6)
    round_.devices[0].mutate = lambda message: (
        with_arrays(message, masked=message.arrays["masked"] + np.uint32(1))
        if isinstance(message, MaskedInput)
        else message
    )
    round_.go()
    assert facts(round_, protocol).failure == "sum-mismatch"


def test_the_sum_in_the_clear_notices_an_input_that_was_changed_on_its_way() -> None:
    round_, protocol = begun(masked(), 5)

    def changed(message: Any) -> Any:
        if not isinstance(message, MaskedInput):
            return message
        values = message.arrays["masked"].copy()
        values[0] += 7
        return with_arrays(message, masked=values)

    round_.devices[3].mutate = changed
    round_.go()
    assert facts(round_, protocol).sum_error == 7


def test_an_input_that_was_taken_and_is_not_in_the_sum_is_our_own_mistake() -> None:
    round_, protocol = begun(masked(), 5)
    round_.reach(MaskedInput, slow=4)
    round_.deadline()
    round_.go()
    protocol.sums.arrived(4)
    with pytest.raises(LocalProtocolError, match=r"inputs of devices \[4\] were taken"):
        protocol.sums.facts()


# -- both ends -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sums", [masked(), masked(Mode.ACTIVE), encrypted()])
def test_the_input_is_as_long_as_was_said(sums: SecureSums) -> None:
    round_, _ = begun(sums, 4)
    round_.go()
    inputs = [m for m in round_.devices[1].sent if isinstance(m, MaskedInput | EncryptedInput)]
    assert len(inputs) == 1
    name = "masked" if isinstance(inputs[0], MaskedInput) else "ciphertexts"
    assert inputs[0].arrays[name].nbytes == sums.input_bytes


def test_a_device_with_another_model_does_not_take_part() -> None:
    round_, protocol = begun(masked(), 5)
    protocol.models[2] = MODEL._replace(arrays={"factors": np.ones(4, np.float32)})
    round_.go()
    round_.check_completed(0, 1, 3, 4)
    assert round_.verdicts()[2] is Reason.PROTOCOL


def test_an_equal_model_that_is_another_object_is_the_same_model() -> None:
    round_, protocol = begun(masked(), 4)
    protocol.models[2] = MODEL._replace(arrays={"factors": np.zeros(4, np.float32)})
    round_.go()
    round_.check_completed(0, 1, 2, 3)


def frames_of(sums: MaskedSums, number: int = ROUND) -> list[bytes]:
    """Return what a device sends at first in a round."""
    answer = sums.round(number).participant(1, MODEL).begin(update_of(1))
    return [encode(answer.message)]


@BOTH
def test_all_secrets_follow_from_seed_device_and_round(mode: Mode) -> None:
    assert frames_of(masked(mode)) == frames_of(masked(mode))
    assert frames_of(masked(mode)) != frames_of(masked(mode, seed=6))
    keys = {
        bytes(sums.round(number).participant(device, MODEL).begin(update_of(1)).message.arrays["record"])  # type: ignore[union-attr]
        for sums in (masked(mode), masked(mode, seed=6))
        for number in (1, 2)
        for device in (1, 2)
    }
    assert len(keys) == 8


@BOTH
def test_the_sum_does_not_depend_on_where_cryptography_is_done(mode: Mode) -> None:
    totals = []
    for crypto in (REAL, MODELLED):
        round_, _ = begun(masked(mode, crypto), 6)
        round_.go()
        sums = round_.machine.aggregation.sums()
        totals.append((sums.reals["factors"].tolist(), sums.counts["examples"].tolist(), sums.weight))
    assert totals[0] == totals[1]


def test_secrets_of_pairs_are_shared_in_simulated_rounds_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A device by itself, and the coordinator of such devices, compute their own."""
    ends: list[Cryptography] = []
    for name, kind in (("SecAggClient", SecAggClient), ("SecAggServer", SecAggServer)):
        monkeypatch.setattr(
            f"coordinator.secure.sums.masked.{name}",
            lambda *given, kind=kind, **named: ends.append(named["crypto"]) or kind(*given, **named),
        )
    sums = masked()
    sums.part_of(3, MODEL, SystemEntropy())
    sums.round(1, devices_elsewhere=True).start(MODEL._replace(round_number=1), [1, 2, 3], 3)
    assert ends == [REAL, REAL]
    ends.clear()
    for number in (1, 2):
        round_, model = sums.round(number), MODEL._replace(round_number=number)
        round_.start(model, [1, 2, 3], 3)
        round_.participant(1, model)
    (first, first_device, second, second_device) = ends
    assert (first_device, second_device) == (first, second)
    assert len({id(crypto.pairs) for crypto in (first, second, REAL)}) == 3


def test_deadlines_are_those_of_the_scenario() -> None:
    for sums in (masked(), encrypted()):
        round_ = sums.round(1)
        stages = [*CoordinatorState][1:5]
        assert [round_.deadline_s(stage) for stage in stages] == [3.0, 4.0, 5.0, 6.0]
    assert masked().round(1).patience_s == 36.0
    # As many devices may be asked to decrypt, one after the other.
    assert encrypted().round(1).patience_s == 36.0 + 10 * 6.0


def test_only_masks_have_a_configuration_of_masks() -> None:
    assert masked().masked == config()
    assert encrypted().masked is None


# -- rounding --------------------------------------------------------------------------------------------


def test_rounding_moves_an_update_by_no_more_than_its_norm() -> None:
    """A coarse plan, so that rounding is far above what float64 does."""
    parts = (RealPart("a", 300, 2.0), RealPart("b", 50, 0.5), *PARTS[1:])
    plan = {"parts": parts, "n_max": 1000, "weight_max": 1000}
    random = np.random.default_rng(0)
    arrays = {"a": random.uniform(-2, 2, 300), "b": random.uniform(-0.5, 0.5, 50)}
    values, weight = part_values(parts, ClientUpdate(arrays, 1.0, 12, 0.5))
    coarse = SecAggConfig(**plan)  # type: ignore[arg-type]
    of_masks = MaskedSums(coarse, DEADLINES, REAL, seed=1, devices=3)
    decoded = decode_sum(coarse, encode_input(coarse, values, weight, SeededEntropy(bytes(16), 1, 1)).vector)
    moved = math.sqrt(sum(float(np.square(decoded.reals[name] - arrays[name]).sum()) for name in arrays))
    assert 0.3 * of_masks.rounding_norm < moved < of_masks.rounding_norm
    by_hand = math.sqrt(sum(part.length / coarse.quantizers[part.name].scale ** 2 for part in parts[:2]))
    assert of_masks.rounding_norm == pytest.approx(by_hand, rel=1e-12)

    ckks = CkksConfig(**(plan | {"n_max": 2**20, "weight_max": 2**20}))  # type: ignore[arg-type]
    of_ciphertexts = EncryptedSums(ckks, DEADLINES, ModelledScheme())
    open_sum = decode_encrypted(ckks, encode_encrypted(ckks, values, weight).vector, 1)
    moved = math.sqrt(sum(float(np.square(open_sum.reals[name] - arrays[name]).sum()) for name in arrays))
    assert 0.3 * of_ciphertexts.rounding_norm < moved < of_ciphertexts.rounding_norm
    by_hand = math.sqrt(300 * (2.0 / ckks.levels / 2) ** 2 + 50 * (0.5 / ckks.levels / 2) ** 2)
    assert of_ciphertexts.rounding_norm == pytest.approx(by_hand, rel=1e-12)


@pytest.mark.parametrize("noise_sd", [0.0, 1e-3, 2.0])
def test_noise_of_a_device_by_itself_is_no_keystream_of_the_seed(
    noise_sd: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(
        "coordinator.secure.sums.masked.SecAggClient",
        lambda config, **given: made.append(given) or SecAggClient(config, **given),
    )
    parts = tuple(
        dataclasses.replace(part, noise_sd=noise_sd) if isinstance(part, RealPart) else part for part in PARTS
    )
    sums = MaskedSums(config(parts=parts), DEADLINES, REAL, seed=5, devices=20)
    entropy = SystemEntropy()
    sums.part_of(3, MODEL, entropy)
    (given,) = made
    assert given["entropy"] is entropy
    assert (given["rounding"] is entropy) == (noise_sd > 0)


# -- updates and aggregates ------------------------------------------------------------------------------

SPECS = (
    ArraySpec("factors", np.dtype(np.float32), (3,), np.array([2])),
    ArraySpec("bias", np.dtype(np.float64), (), np.array([4])),
)
REALS = {"factors": np.arange(6.0), "bias": np.arange(4.0), "loss": np.array([6.0])}


def test_lengths_are_those_of_one_dense_update() -> None:
    assert list(lengths(SPECS)) == [("factors", 6), ("bias", 4)]


def test_the_loss_and_counts_are_no_arrays_of_an_update() -> None:
    assert [part.name for part in arrays_of(PARTS)] == ["factors"]


def test_a_sum_becomes_what_the_server_update_takes() -> None:
    aggregate = aggregate_of(Sums(REALS, {"examples": np.array([34])}, 3, 2), SPECS)
    assert aggregate.sums["factors"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert aggregate.sums["factors"].dtype == np.float32
    assert aggregate.sums["bias"].tolist() == [0, 1, 2, 3]
    assert dataclasses.replace(aggregate, sums={}) == dataclasses.replace(
        aggregate, sums={}, weight=3.0, clients=2, examples=34, loss=6 / 34
    )


def test_what_stays_on_the_devices_is_unknown() -> None:
    arrays = {name: REALS[name] for name in ("factors", "bias")}
    aggregate = aggregate_of(Sums(arrays, {}, 3, 2), SPECS)
    assert aggregate.examples == 0
    assert math.isnan(aggregate.loss)
    assert aggregate_of(Sums(REALS, {"examples": np.array([4])}, 1, 2), SPECS).loss == 1.5
    assert aggregate_of(Sums(REALS, {"examples": np.array([1])}, 1, 2), SPECS).loss == 6.0
    weightless = aggregate_of(Sums(REALS, {"examples": np.array([0])}, 0, 2), SPECS)
    assert (weightless.weight, math.isnan(weightless.loss)) == (0.0, True)


def test_aggregates_in_the_clear_and_secure_are_joined() -> None:
    some = Aggregate({"factors": np.array([1.0, 2.0])}, 3.0, 4, 10, 0.5)
    more = Aggregate({"factors": np.array([10.0, 20.0])}, 5.0, 6, 30, 0.25)
    both = joined(some, more)
    assert both.sums["factors"].tolist() == [11.0, 22.0]
    assert (both.weight, both.clients, both.examples, both.loss) == (8.0, 10, 40, 12.5 / 40)
    kept_back = joined(dataclasses.replace(some, examples=0), dataclasses.replace(more, examples=0))
    assert (kept_back.weight, kept_back.examples, math.isnan(kept_back.loss)) == (8.0, 0, True)


# -- the roster ------------------------------------------------------------------------------------------


def test_a_roster_is_made_from_the_seed_one_identity_at_a_time() -> None:
    roster = SeededRoster(bytes(32), 4)
    assert (len(roster), list(roster)) == (4, [0, 1, 2, 3])
    assert len(set(roster.values())) == 4
    assert roster == dict(SeededRoster(bytes(32), 4))
    assert roster[1] != SeededRoster(bytes([1] * 32), 4)[1]
    identity = roster.identity(2)
    assert isinstance(identity, Identity)
    assert identity is roster.identity(2)
    assert roster[2] == identity.public


@pytest.mark.parametrize("stranger", [-1, 4])
def test_strangers_are_not_on_the_roster(stranger: int) -> None:
    roster = SeededRoster(bytes(32), 4)
    assert stranger not in roster
    assert "1" not in roster
    assert roster.get(stranger) is None
    with pytest.raises(KeyError):
        roster.identity(stranger)


def test_only_the_active_mode_has_a_roster() -> None:
    assert masked().roster is None
    roster = masked(Mode.ACTIVE).roster
    assert roster is not None
    assert len(roster) == 20
    round_, _ = begun(masked(Mode.ACTIVE), 4)
    round_.go()
    kinds = [type(message) for message in round_.devices[0].sent]
    assert AdvertiseKeys in kinds
    assert ConsistencySignature in kinds
