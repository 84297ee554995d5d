"""The token of those who watch: the dashboard, its events and the metrics. No I/O."""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Mapping
from enum import Enum
from typing import Final

from edge.core.errors import RecfleetError

COOKIE: Final = "recfleet_view"
QUERY: Final = "token"
_NOT_FOR_VIEWERS: Final = frozenset({"/healthz", "/readyz", "/v1/join", "/v1/roster"})
_TOKEN_BYTES: Final = 32
_SHORTEST: Final = 32
"""Characters of a token that somebody has made: 32 hexadecimal digits are 128 bits."""
_LETTERS: Final = re.compile(r"[A-Za-z0-9_\-.~]+", re.ASCII)


class ViewTokenError(RecfleetError):
    """A token that protects nothing."""


class Viewing(Enum):
    """What becomes of a request."""

    ALLOWED = "allowed"
    TO_COOKIE = "to-cookie"
    """The token is right, but stands in the address: it is put into a cookie, out of sight."""
    REFUSED = "refused"


def new_view_token() -> str:
    """Return a new token, 32 random bytes."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


def checked_view_token(token: str) -> str:
    """Return a token that somebody has made, if it is fit to be one.

    Raises
    ------
    ViewTokenError : it is too short, or has characters that an address or a header would change.
    """
    if len(token) < _SHORTEST or not _LETTERS.fullmatch(token):
        raise ViewTokenError(
            f"the token of the dashboard needs {_SHORTEST} letters, digits, '-', '_', '.' or '~', or more; "
            "'openssl rand -hex 32' makes one"
        )
    return token


def is_for_viewers(path: str) -> bool:
    """Return whether a path is for those who watch: everything is, but for health, and for what devices ask.

    So a route that is added later is protected unless somebody decides otherwise here.
    """
    return path not in _NOT_FOR_VIEWERS


def judge_viewer(
    token: str | None, headers: Mapping[str, str], cookies: Mapping[str, str], query: Mapping[str, str]
) -> Viewing:
    """Judge a request of somebody who wants to watch.

    Parameters
    ----------
    token : what they must have; None where nobody needs one.
    headers : of the request; ``Authorization: Bearer …`` is for programs, such as a metrics collector.
    cookies : of the request; :data:`COOKIE` is for a browser, which cannot send a header with its events.
    query : of the request; ``?token=…`` brings it into a browser.
    """
    if token is None:
        return Viewing.ALLOWED
    scheme, _, shown = headers.get("Authorization", "").partition(" ")
    bearer = shown.strip() if scheme.lower() == "bearer" else ""
    # All are compared, in constant time.
    by_header, by_cookie, by_query = (
        hmac.compare_digest(one.encode(errors="replace"), token.encode())
        for one in (bearer, cookies.get(COOKIE, ""), query.get(QUERY, ""))
    )
    if by_query:
        return Viewing.TO_COOKIE
    return Viewing.ALLOWED if by_header or by_cookie else Viewing.REFUSED
