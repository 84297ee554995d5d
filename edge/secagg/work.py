"""What cryptography costs a device, as counts of primitives; its profile turns them into seconds."""

from __future__ import annotations

from typing import NamedTuple


class CryptoWork(NamedTuple):
    """How often each primitive is done."""

    key_pairs: int = 0
    """X25519 key pairs made."""
    exchanges: int = 0
    """X25519 exchanges, each with its key derivation."""
    seals: int = 0
    """Share messages sealed or opened with AES-256-GCM."""
    signatures: int = 0
    """Ed25519 signatures made."""
    verifications: int = 0
    """Ed25519 signatures verified."""
    expanded_bytes: int = 0
    """Bytes of AES-128-CTR keystream expanded and added."""
    quantised: int = 0
    """Elements clipped, scaled and rounded stochastically."""
    share_products: int = 0
    """Multiply-adds of Shamir over F_65537, 16-bit words."""
    encryptions: int = 0
    """CKKS ciphertexts of degree 8192 made."""
    decryptions: int = 0
    """CKKS ciphertexts of degree 8192 opened."""
