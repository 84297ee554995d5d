"""Files with tokens: one for all devices, or a line for each, with its identity where it has one."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from coordinator.service.admission.enrolment import key_of
from edge.core.errors import RecfleetError
from edge.crypto.keys import Identity
from edge.secagg.roster import Enrolled

T = TypeVar("T")

_LINE = re.compile(
    r"([0-9]{1,18})\s+(\S+)(?:\s+identity\.([A-Za-z0-9_-]{43})\s+roster\.([0-9a-f]{64}))?", re.ASCII
)


class TokenFileError(RecfleetError):
    """A file that gives no token; the message says where and why, never what a token is."""


def write_line(device: int | None, token: str) -> str:
    """Return a line of a file: for one device, or for all that the token is for."""
    return token if device is None else f"{device} {token}"


def write_enrolled_line(device: int, token: str, secret: bytes, roster_hash: bytes) -> str:
    """Return a line for a device with an identity, whose secret has 32 bytes, as the roster's hash has."""
    identity = base64.urlsafe_b64encode(secret).decode().rstrip("=")
    return f"{write_line(device, token)} identity.{identity} roster.{roster_hash.hex()}"


class Tokens(NamedTuple):
    """What a file gives: a device's token, and what devices were enrolled with; None without identities.

    ``token_of`` raises ``TokenFileError`` for a device that has none.
    """

    token_of: Callable[[int], str]
    enrolled: Enrolled | None


def read_tokens(text: str, name: str) -> Tokens:
    """Return what the text of a file gives.

    Raises
    ------
    TokenFileError : a line is none, or does not go together with the others; later, if a device has none.
    """
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise TokenFileError(f"{name} is empty; write a token, or lines 'DEVICE TOKEN'")
    if len(lines) == 1 and key_of(lines[0][1]) is not None:
        alone = lines[0][1]
        return Tokens(lambda _device: alone, None)
    tokens: dict[int, str] = {}
    secrets: dict[int, bytes] = {}
    rosters: set[str | None] = set()
    for number, line in lines:
        match = _LINE.fullmatch(line)
        if match is None or key_of(match[2]) is None:
            raise TokenFileError(
                f"{name}:{number}: write 'DEVICE TOKEN', as 'recfleet enroll issue' prints it"
            )
        if int(match[1]) in tokens:
            raise TokenFileError(f"{name}:{number}: device {match[1]} has a token already; keep one of them")
        tokens[int(match[1])] = match[2]
        rosters.add(match[4])
        if len(rosters) > 1:
            raise TokenFileError(
                f"{name}:{number}: other lines are of another roster, or have none; devices of one process "
                "are enrolled together"
            )
        if match[3] is not None:
            secrets[int(match[1])] = base64.urlsafe_b64decode(match[3] + "=")
    (roster,) = rosters
    enrolled = None
    if roster is not None:
        enrolled = Enrolled(lambda device: Identity(_of(secrets, device, name)), bytes.fromhex(roster))
    return Tokens(lambda device: _of(tokens, device, name), enrolled)


def _of(found: Mapping[int, T], device: int, name: str) -> T:
    if device not in found:
        raise TokenFileError(f"{name} has no token for device {device}; add a line '{device} TOKEN'")
    return found[device]
