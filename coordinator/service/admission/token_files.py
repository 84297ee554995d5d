"""Files with tokens: one for all devices, or a line for each."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from coordinator.service.admission.enrolment import key_of
from edge.errors import RecfleetError

_LINE = re.compile(r"([0-9]{1,18})\s+(\S+)", re.ASCII)


class TokenFileError(RecfleetError):
    """A file that gives no token; the message says where and why, never what a token is."""


def write_line(device: int | None, token: str) -> str:
    """Return a line of a file: for one device, or for all that the token is for."""
    return token if device is None else f"{device} {token}"


def read_tokens(text: str, name: str) -> Callable[[int], str]:
    """Return what gives a device its token out of the text of a file.

    Raises
    ------
    TokenFileError : a line is none; later, if a device has none.
    """
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise TokenFileError(f"{name} is empty; write a token, or lines 'DEVICE TOKEN'")
    if len(lines) == 1 and key_of(lines[0][1]) is not None:
        alone = lines[0][1]
        return lambda _device: alone
    tokens: dict[int, str] = {}
    for number, line in lines:
        match = _LINE.fullmatch(line)
        if match is None or key_of(match[2]) is None:
            raise TokenFileError(
                f"{name}:{number}: write 'DEVICE TOKEN', as 'recfleet enroll issue' prints it"
            )
        if int(match[1]) in tokens:
            raise TokenFileError(f"{name}:{number}: device {match[1]} has a token already; keep one of them")
        tokens[int(match[1])] = match[2]
    return _of_each(tokens, name)


def _of_each(tokens: Mapping[int, str], name: str) -> Callable[[int], str]:
    def token_of(device: int) -> str:
        if device not in tokens:
            raise TokenFileError(f"{name} has no token for device {device}; add a line '{device} TOKEN'")
        return tokens[device]

    return token_of
