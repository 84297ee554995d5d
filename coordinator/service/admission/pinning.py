"""The device's side of TLS: which coordinator it talks to, and when it would tell its token to anybody."""

from __future__ import annotations

import re

from yarl import URL

from coordinator.service.admission.gate import ExposureError, is_loopback
from edge.core.errors import RecfleetError

_HEX = re.compile(r"[0-9a-f]{64}")


class PinError(RecfleetError):
    """A fingerprint that is none."""


def parse_pin(text: str) -> bytes:
    """Return the fingerprint in ``sha256:…``: SHA-256 of a certificate in DER, 32 bytes.

    The 64 hexadecimal digits may be in pairs with colons, as OpenSSL writes them.

    Raises
    ------
    PinError : it is none.
    """
    digits = text.strip().lower().removeprefix("sha256:").replace(":", "")
    if not _HEX.fullmatch(digits):
        raise PinError(
            f"{text[:80]!r} is no fingerprint; write 'sha256:' and 64 hexadecimal digits, "
            "as 'recfleet serve --tls' prints them"
        )
    return bytes.fromhex(digits)


def require_private(url: str, *, pinned: bool, insecure: bool) -> None:
    """Refuse to show a token where others can read it.

    Parameters
    ----------
    url : of the coordinator.
    pinned : whether its certificate is known by its fingerprint.
    insecure : whether somebody has said that plain HTTP will do.

    Raises
    ------
    ExposureError : with what to write instead.
    """
    parsed = _parsed(url)
    if parsed is None or parsed.scheme not in {"http", "https"} or not parsed.host:
        # Whoever connects says that it is no address.
        return
    if parsed.scheme == "https":
        if insecure:
            raise ExposureError("--insecure is for plain HTTP, and the address says https; leave it out")
        return
    if pinned:
        raise ExposureError(f"there is no certificate to pin on plain HTTP; write https://{parsed.authority}")
    if not insecure and not is_loopback(parsed.host):
        raise ExposureError(
            f"{url} would send the token and the model in the clear to another host; write "
            f"https://{parsed.authority}, or add --insecure where something else protects the connection"
        )


def _parsed(url: str) -> URL | None:
    try:
        return URL(url)
    except ValueError:
        return None
