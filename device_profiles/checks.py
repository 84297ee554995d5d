"""Checks that profile types run on construction; each raises a ProfileError that says what to write."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from device_profiles.errors import ProfileError

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9_.-]*[a-z0-9])?")
SHARE_TOLERANCE = 1e-6


def check_name(kind: str, name: str) -> str:
    """Return ``kind 'name'`` for use in messages; raise ProfileError if the name cannot be typed plainly."""
    owner = f"{kind} {name!r}"
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ProfileError(
            owner, "name", "use small letters, digits, '_', '-' and '.', for example 'phone_mid_2020'"
        )
    return owner


def _number(owner: str, field: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ProfileError(owner, field, f"must be a finite number, not {value!r}")


def positive(owner: str, **fields: float) -> None:
    """Raise ProfileError unless every field is a finite number above zero."""
    for field, value in fields.items():
        _number(owner, field, value)
        if value <= 0:
            raise ProfileError(owner, field, f"must be above zero, not {value!r}")


def non_negative(owner: str, **fields: float) -> None:
    """Raise ProfileError unless every field is a finite number, zero or more."""
    for field, value in fields.items():
        _number(owner, field, value)
        if value < 0:
            raise ProfileError(owner, field, f"must be zero or more, not {value!r}")


def probability(owner: str, **fields: float) -> None:
    """Raise ProfileError unless every field lies in [0, 1]."""
    for field, value in fields.items():
        _number(owner, field, value)
        if not 0 <= value <= 1:
            raise ProfileError(owner, field, f"must lie between 0 and 1 (0% and 100%), not {value!r}")


def below_one(owner: str, **fields: float) -> None:
    """Raise ProfileError unless every field lies in [0, 1)."""
    for field, value in fields.items():
        _number(owner, field, value)
        if not 0 <= value < 1:
            raise ProfileError(owner, field, f"must be at least 0 and below 1 (100%), not {value!r}")


def above_zero_to_one(owner: str, **fields: float) -> None:
    """Raise ProfileError unless every field lies in (0, 1]."""
    for field, value in fields.items():
        _number(owner, field, value)
        if not 0 < value <= 1:
            raise ProfileError(owner, field, f"must be above 0 and at most 1 (100%), not {value!r}")


def not_whole(total: float) -> str | None:
    """Return what is wrong with shares that sum to ``total``, or None."""
    if abs(total - 1) <= SHARE_TOLERANCE:
        return None
    return f"the shares sum to {total * 100:.6g}%; make them sum to 100%"


def shares(owner: str, field: str, values: Mapping[str, float]) -> dict[str, float]:
    """Return ``values`` scaled to sum to exactly 1 (to rounding), in the order given.

    Raises
    ------
    ProfileError : no entries, a share outside (0, 1], or a sum further than 1e-6 from 1.
    """
    if not values:
        raise ProfileError(owner, field, "is empty; give a name and its share, such as 'wifi_home: 100%'")
    for name, share in values.items():
        above_zero_to_one(owner, **{f"{field}.{name}": share})
    total = math.fsum(values.values())
    if abs(total - 1) > SHARE_TOLERANCE:
        raise ProfileError(owner, field, f"shares sum to {total:.6g}; they must sum to 1 (100%)")
    return {name: share / total for name, share in values.items()}
