"""Every named error of secure sums has the reason that is counted for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edge.core.vocabulary import Reason
from edge.crypto.errors import SecAggError
from edge.secagg.participant import reason_of

REASONS = {
    Reason.DUPLICATE: {"duplicate-message", "repeated-unmask"},
    Reason.STALE: {"stale-session", "stale-round"},
    Reason.NOT_INVITED: {"unknown-device", "wrong-sender"},
    Reason.WRONG_STAGE: {"wrong-stage"},
    Reason.NOT_FINITE: {"not-finite"},
    Reason.QUORUM: {"too-few-contributors"},
    Reason.THRESHOLD: {"too-few-neighbours", "too-few-survivors", "infeasible", "unsafe-threshold"},
    Reason.PROTOCOL: {
        # Plans and models that do not fit.
        *{"overflowing-config", "config-mismatch", "model-mismatch"},
        # Inputs and frames that are not what was agreed.
        *{"bad-weight", "value-range", "wrong-length", "wrong-dtype", "malformed-message", "wrong-receiver"},
        # Keys, signatures and sealed messages.
        *{"duplicate-key", "own-key-changed", "low-order-point", "bad-key"},
        *{"authentication-failed", "missing-signature", "bad-signature"},
        # Lists that contradict themselves.
        *{"not-a-neighbour", "incomplete-list", "overlapping-list", "self-listed-dead"},
        # Shares, and what they rebuild.
        *{"bad-share-index", "bad-share-length", "bad-share-value", "duplicate-share", "wrong-share-count"},
        *{"wrong-share", "inconsistent-shares", "key-mismatch", "commitment-mismatch", "sum-mismatch"},
        # Ciphertexts, and what they decrypt to.
        *{"bad-ciphertext", "imprecise-sum"},
    },
}


def kinds(of: type[SecAggError]) -> Iterator[type[SecAggError]]:
    for kind in of.__subclasses__():
        yield kind
        yield from kinds(kind)


def test_every_error_that_exists_is_listed_here_and_has_a_name_of_its_own() -> None:
    names = [
        kind.NAME for kind in kinds(SecAggError) if kind.__module__.startswith(("edge.", "coordinator."))
    ]
    assert sorted(names) == sorted(set().union(*REASONS.values()))
    assert SecAggError.NAME not in names


@pytest.mark.parametrize("reason", REASONS, ids=lambda reason: reason.name)
def test_the_reason_of_each(reason: Reason) -> None:
    assert {name: reason_of(name) for name in REASONS[reason]} == dict.fromkeys(REASONS[reason], reason)


def test_a_name_of_another_version_breaks_the_protocol() -> None:
    assert reason_of("") is Reason.PROTOCOL
    assert reason_of("of another version") is Reason.PROTOCOL
