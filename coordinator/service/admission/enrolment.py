"""Enrolment tokens: what lets a device in, and the judgement on what it shows. No I/O; time is handed in.

A token is ``recfleet.<id>.<secret>``: the id finds the record, the secret is 32 random bytes. The record
holds SHA-256 of the secret. A slow hash (scrypt, Argon2) protects passwords, which can be guessed from their
hash; nobody guesses 256 random bits, however fast the hash. And a fast one costs a busy coordinator nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from typing import Final

from edge.core.errors import RecfleetError

_PREFIX: Final = "recfleet"
_ID_BYTES: Final = 6
_SECRET_BYTES: Final = 32
_TOKEN: Final = re.compile(rf"{_PREFIX}\.([0-9a-f]{{{2 * _ID_BYTES}}})\.([A-Za-z0-9_-]{{43}})", re.ASCII)
NOT_VALID: Final = "the enrolment token is not valid for this device"
"""The one answer to every token that is not good enough: it does not say what is wrong with it."""


class EnrolmentError(RecfleetError):
    """Tokens that cannot be issued or revoked; the message says what to write instead."""


@dataclass(frozen=True, slots=True)
class Enrolment:
    """The record of a token; the token cannot be made from it.

    Attributes
    ----------
    key : the id in the token.
    digest : SHA-256 of its secret, 32 bytes.
    first, last : the devices that may come in with it, both included.
    issued_s, expires_s, revoked_s : seconds since 1970; ``revoked_s`` None as long as it is not revoked.
    """

    key: str
    digest: bytes = field(repr=False)
    first: int
    last: int
    issued_s: float
    expires_s: float
    revoked_s: float | None = None

    def state(self, now_s: float) -> str:
        """Return ``valid``, ``expired`` or ``revoked``."""
        if self.revoked_s is not None:
            return "revoked"
        return "valid" if now_s < self.expires_s else "expired"

    def covers(self, device: int) -> bool:
        """Return whether the token is for a device."""
        return self.first <= device <= self.last


def issue(first: int, last: int, now_s: float, lifetime_s: float) -> tuple[str, Enrolment]:
    """Return a new token for the devices ``first`` to ``last``, and its record; nothing else has the token.

    Raises
    ------
    EnrolmentError : there is no such device, or it would have expired already.
    """
    if not 0 <= first <= last:
        raise EnrolmentError(f"there are no devices {first} to {last}; write FIRST-LAST, from 0 upwards")
    if not 0.0 < lifetime_s < float("inf"):
        raise EnrolmentError("a token that has expired lets nobody in; write a time above 0, such as 7d")
    key, secret = secrets.token_hex(_ID_BYTES), secrets.token_urlsafe(_SECRET_BYTES)
    record = Enrolment(key, _digest(secret), first, last, now_s, now_s + lifetime_s)
    return f"{_PREFIX}.{key}.{secret}", record


def key_of(token: str) -> str | None:
    """Return the id in a token; None for what is no token."""
    match = _TOKEN.fullmatch(token)
    return None if match is None else match[1]


def judge(token: str, record: Enrolment | None, device: int, now_s: float) -> str | None:
    """Return why ``token`` does not let a device in; None if it does.

    Parameters
    ----------
    token : what the device shows.
    record : found under the id in the token; None if there is none.
    now_s : seconds since 1970.

    The answer, and how long it takes, is the same whatever is wrong: the secret is hashed and compared in
    constant time even where there is no record.
    """
    match = _TOKEN.fullmatch(token)
    secret = "" if match is None else match[2]
    same = hmac.compare_digest(_digest(secret), _NO_DIGEST if record is None else record.digest)
    if match is None or record is None or match[1] != record.key:
        return NOT_VALID
    if not same or record.state(now_s) != "valid" or not record.covers(device):
        return NOT_VALID
    return None


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


_NO_DIGEST: Final = bytes(32)
