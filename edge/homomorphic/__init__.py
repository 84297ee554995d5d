"""Sums under homomorphic encryption (CKKS) on the device: the baseline beside secure aggregation.

The trust is that of FedMF (Chai, Wang, Chen & Yang 2020, "Secure Federated Matrix Factorization"): all
devices of a run hold one secret key, and the coordinator holds the public one. It adds ciphertexts, and
learns the sum when a device decrypts it and sends it back. A device that colludes with the coordinator opens
everything. A coordinator that lies can have a single device's update decrypted: devices check how many inputs
a sum says it is made of, but whoever holds the public key can raise that number.
"""

from __future__ import annotations

import importlib.util


def available() -> bool:
    """Say whether TenSEAL, which the extra ``he`` installs, is there, without importing it."""
    return importlib.util.find_spec("tenseal") is not None
