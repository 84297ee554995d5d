"""The parameters of CKKS, the same for every run: the compute model knows what these ciphertexts cost.

Cheon, Kim, Kim & Song 2017, "Homomorphic Encryption for Arithmetic of Approximate Numbers". The modulus has
room for sums; nothing is ever multiplied. At degree 8,192 its 160 bits have 128 bits of security (218 are
allowed, Albrecht et al. 2018, "Homomorphic Encryption Security Standard").
"""

from __future__ import annotations

DEGREE = 8_192
"""Of the polynomials, N."""
SLOTS = DEGREE // 2
"""Numbers in a ciphertext."""
MODULUS_BITS = (60, 40, 60)
"""Of the primes in the chain of moduli. The last is for keys; a ciphertext has residues of the others."""
SCALE = 2.0**40
"""What numbers are multiplied by before they become coefficients."""

CIPHERTEXT_BYTES = 232 * 1024
"""The room of a ciphertext in a frame, 1.16 times its 2·N·(60 + 40) bits.

A ciphertext travels as TenSEAL serialises it, compressed: 234,402 to 235,364 bytes in 14,000 of them, 235,072
on average with a standard deviation of 95 (TenSEAL 0.3.18, zstd). The length of a frame would differ from run
to run, so each is padded to this room, 1.1 % above the average.
"""

SUM_MAX = 2**44
"""Largest absolute value of an element of a sum.

Encoding works in float64, so the error grows with the largest number in a ciphertext. Measured on one: below
1e-8 for numbers up to 2**20, 0.01 at 2**44, above the allowed 0.25 from 2**50 on. The noise of encryption
itself grows with the root of the number of devices, from 1e-9.
"""
ERROR_MAX = 0.25
"""A decrypted number that is further than this from whole is not believed."""
LEVELS_MAX = 2**30
"""Most steps from 0 to the clip of a real part; far finer than the 24 bits of a float32."""
