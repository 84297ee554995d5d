"""What both machines check in a message before they believe it: which arrays it has, and lists of devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.crypto.errors import (
    MalformedMessageError,
    MissingSignatureError,
    StaleRoundError,
    StaleSessionError,
    WrongDtypeError,
    WrongLengthError,
)
from edge.wire.messages import Arrays

Octets = npt.NDArray[np.uint8]
"""Byte strings as they travel: uint8[length], or uint8[rows, length]."""
DeviceIds = npt.NDArray[np.int64]
"""Device ids, int64[m]."""

OCTETS = np.dtype(np.uint8)
DEVICE_IDS = np.dtype("<i8")


def octets(data: bytes) -> Octets:
    """Return ``data`` as an array that can travel; a read-only view."""
    return np.frombuffer(data, dtype=np.uint8)


def expect_round(run_id: str, round_number: int, run_id_seen: str, round_number_seen: int) -> None:
    """Refuse a message of another run (``StaleSessionError``) or another round (``StaleRoundError``)."""
    if run_id_seen != run_id:
        raise StaleSessionError(f"a message of run {run_id_seen!r:.40}; this is run {run_id!r:.40}")
    if round_number_seen != round_number:
        raise StaleRoundError(f"a message of round {round_number_seen}; this is round {round_number}")


def expect_arrays(arrays: Arrays, *names: str, signature: str | None = None) -> None:
    """Refuse a message that does not have exactly the arrays ``names``, and ``signature`` if one is due.

    Raises ``MissingSignatureError`` if only the signature is missing, else ``MalformedMessageError``.
    """
    expected = set(names) if signature is None else {*names, signature}
    if arrays.keys() == expected:
        return
    if signature is not None and arrays.keys() == set(names):
        raise MissingSignatureError(f"the message has no {signature!r}, which the active mode demands")
    raise MalformedMessageError(f"the message has the arrays {sorted(arrays)!s:.80}, not {sorted(expected)}")


def read(arrays: Arrays, name: str, dtype: np.dtype[Any], shape: Sequence[int | None]) -> npt.NDArray[Any]:
    """Return the array ``name``, of exactly this dtype and shape; None stands for any length.

    Raises ``WrongDtypeError`` and ``WrongLengthError``.
    """
    array = arrays[name]
    if array.dtype != dtype:
        raise WrongDtypeError(f"{name!r} is of dtype {array.dtype}, not {dtype}")
    fits = array.ndim == len(shape) and all(
        want is None or have == want for have, want in zip(array.shape, shape, strict=True)
    )
    if not fits:
        raise WrongLengthError(f"{name!r} has shape {array.shape}, not {tuple(shape)}")
    return array


def read_devices(arrays: Arrays, name: str) -> DeviceIds:
    """Return the list of devices ``name``, which must ascend strictly: so nobody is in it twice.

    Raises ``WrongDtypeError``, ``WrongLengthError`` and ``MalformedMessageError``.
    """
    devices = read(arrays, name, DEVICE_IDS, (None,))
    if devices.size and (devices[0] < 0 or not (devices[1:] > devices[:-1]).all()):
        raise MalformedMessageError(f"the devices in {name!r} must ascend, each at most once")
    return devices
