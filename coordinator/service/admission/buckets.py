"""Token buckets: how often something may happen, overall and from one address; time is handed to them."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

ADDRESSES_KEPT: Final = 16384
"""Most addresses that are remembered: somebody who has many of them cannot fill the memory."""
_IPV6_NETWORK_BITS: Final = 64


@dataclass(frozen=True, slots=True)
class Rate:
    """So many a second in the long run, ``burst`` at once."""

    per_s: float
    burst: float


class TokenBucket:
    """Is full at first, loses a token at each take, and fills up at its rate.

    Parameters
    ----------
    rate : how fast it fills, and how much it holds.
    now_s : the time, seconds on any clock that does not go back.
    """

    __slots__ = ("_at_s", "_rate", "_tokens")

    def __init__(self, rate: Rate, now_s: float) -> None:
        self._rate = rate
        self._tokens = rate.burst
        self._at_s = now_s

    def take(self, now_s: float) -> bool:
        """Take a token; return whether there was one."""
        self._fill(now_s)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def change(self, rate: Rate, now_s: float) -> None:
        """Fill at another rate from now on; a token comes or goes with each that it holds more or less."""
        self._fill(now_s)
        self._tokens = max(0.0, self._tokens + rate.burst - self._rate.burst)
        self._rate = rate

    def is_full(self, now_s: float) -> bool:
        """Return whether the bucket is as good as a new one."""
        self._fill(now_s)
        return self._tokens >= self._rate.burst

    def _fill(self, now_s: float) -> None:
        passed_s = max(0.0, now_s - self._at_s)
        self._tokens = min(self._rate.burst, self._tokens + passed_s * self._rate.per_s)
        self._at_s = now_s


class BucketPerAddress:
    """A bucket for every address that asks.

    Parameters
    ----------
    rate : of each.
    kept : most addresses that are remembered. The one that has not asked for longest is forgotten first, so
        its bucket is full again.
    """

    def __init__(self, rate: Rate, kept: int = ADDRESSES_KEPT) -> None:
        self._rate = rate
        self._kept = kept
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, address: str, now_s: float) -> bool:
        """Take a token from the bucket of an address; return whether there was one."""
        bucket = self._buckets.get(address)
        if bucket is None:
            bucket = self._buckets[address] = TokenBucket(self._rate, now_s)
            self._forget(now_s)
        self._buckets.move_to_end(address)
        return bucket.take(now_s)

    def _forget(self, now_s: float) -> None:
        """Forget who has a full bucket, two at a time, and whoever is too many."""
        for _ in range(2):
            address, bucket = next(iter(self._buckets.items()))
            if len(self._buckets) > self._kept or (len(self._buckets) > 1 and bucket.is_full(now_s)):
                del self._buckets[address]


def origin(address: str) -> str:
    """Return what counts as one address: an IPv4 address, or the network of an IPv6 one.

    A host with IPv6 can usually choose among all addresses of its /64 network (RFC 7934, section 6), so these
    count as one. An IPv4 address that arrives as IPv6 (``::ffff:192.0.2.1``) counts as itself.
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, _IPV6_NETWORK_BITS), strict=False))
    return str(parsed)
