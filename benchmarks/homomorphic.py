"""Secure aggregation beside homomorphic encryption, on the update that FedMF sums.

    pip install '.[he]'
    python benchmarks/homomorphic.py

Twenty devices each give the item factors of MovieLens 100K, float32 [1682, 16]; the sum is wanted.

secagg     double masking, both machines, real cryptography; the coordinator learns the sum alone
ckks       TenSEAL, 4,096 numbers a ciphertext; all devices hold one secret key as in FedMF (Chai et al. 2020,
           "Secure Federated Matrix Factorization"): one that colludes with the server opens everything
paillier   python-paillier, 2,048-bit modulus, a ciphertext a number; the same trust. Measured on a sample of
           the numbers and multiplied up: a whole round takes hours

Printed are process CPU of a device (encrypt and decrypt, or all its stages) and of the coordinator, and the
bytes that a device sends up and gets down for the sum. Nobody drops out: a homomorphic sum does not mind who
is missing.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import phe
import phe.util
import tenseal
from secagg import configuration, play

from edge.secagg.inputs import decode_sum

DEVICES, ITEMS, FACTORS = 20, 1_682, 16
LENGTH = ITEMS * FACTORS
CLIP = 1.0
CKKS_DEGREE, CKKS_SLOTS = 8_192, 4_096
CKKS_MODULUS_BITS = [60, 40, 60]
"""A chain with room for sums; with degree 8,192 it has 128 bits of security (218 are allowed)."""
PAILLIER_BITS, PAILLIER_SAMPLE = 2_048, 64


class Cost(NamedTuple):
    """What one round takes."""

    device_s: float
    coordinator_s: float
    up_bytes: float
    down_bytes: float
    largest_error: float


def timed(act: Callable[..., Any], *arguments: object) -> tuple[float, Any]:
    start_s = time.process_time()
    result = act(*arguments)
    return time.process_time() - start_s, result


def masked(updates: np.ndarray) -> Cost:
    config = configuration(DEVICES, LENGTH)
    taken = play(config, DEVICES, 0, updates[0])
    opened = decode_sum(config, taken.total).reals["update"]
    error = float(np.abs(opened - DEVICES * updates[0].astype(np.float64)).max())
    up = sum(taken.sent_bytes.values())
    return Cost(taken.device_s / DEVICES, taken.coordinator_s, up, 4 * LENGTH, error)


def ckks(updates: np.ndarray) -> Cost:
    secret = tenseal.context(
        tenseal.SCHEME_TYPE.CKKS, CKKS_DEGREE, coeff_mod_bit_sizes=CKKS_MODULUS_BITS, n_threads=1
    )
    secret.global_scale = 2.0**40
    public = tenseal.context_from(secret.serialize(save_secret_key=False))

    def encrypt(update: np.ndarray) -> list[bytes]:
        chunks = [update[start : start + CKKS_SLOTS] for start in range(0, LENGTH, CKKS_SLOTS)]
        return [tenseal.ckks_vector(secret, chunk).serialize() for chunk in chunks]

    def add(totals: list[tenseal.CKKSVector], frames: list[bytes]) -> list[tenseal.CKKSVector]:
        arrived = [tenseal.ckks_vector_from(public, frame) for frame in frames]
        return [total + one for total, one in zip(totals, arrived, strict=True)] if totals else arrived

    def decrypt(frames: list[bytes]) -> np.ndarray:
        return np.concatenate([tenseal.ckks_vector_from(secret, frame).decrypt() for frame in frames])

    device_s = coordinator_s = 0.0
    totals: list[tenseal.CKKSVector] = []
    for update in updates:
        seconds, frames = timed(encrypt, update)
        device_s += seconds
        seconds, totals = timed(add, totals, frames)
        coordinator_s += seconds
    seconds, answer = timed(lambda: [total.serialize() for total in totals])
    coordinator_s += seconds
    open_s, opened = timed(decrypt, answer)
    error = float(np.abs(opened - updates.sum(axis=0, dtype=np.float64)).max())
    up, down = sum(map(len, frames)), sum(map(len, answer))
    return Cost(device_s / DEVICES + open_s, coordinator_s, up, down, error)


def paillier(updates: np.ndarray) -> Cost:
    public, secret = phe.generate_paillier_keypair(n_length=PAILLIER_BITS)
    numbers = updates[:, :PAILLIER_SAMPLE].astype(np.float64)
    scale = LENGTH / PAILLIER_SAMPLE

    def encrypt(update: np.ndarray) -> list[phe.EncryptedNumber]:
        # One exponent for all, or adding would have to multiply ciphertexts first.
        return [public.encrypt(value, precision=2**-32) for value in update.tolist()]

    def add(totals: list[phe.EncryptedNumber], sent: list[phe.EncryptedNumber]) -> list[phe.EncryptedNumber]:
        return [a + b for a, b in zip(totals, sent, strict=True)] if totals else sent

    device_s = coordinator_s = 0.0
    totals: list[phe.EncryptedNumber] = []
    for update in numbers:
        seconds, sent = timed(encrypt, update)
        device_s += seconds
        seconds, totals = timed(add, totals, sent)
        coordinator_s += seconds
    open_s, opened = timed(lambda: [secret.decrypt(total) for total in totals])
    error = float(np.abs(np.array(opened) - numbers.sum(axis=0)).max())
    frame = LENGTH * 2 * PAILLIER_BITS / 8
    return Cost((device_s / DEVICES + open_s) * scale, coordinator_s * scale, frame, frame, error)


def main() -> None:
    updates = np.random.default_rng(1).normal(0, 0.1, (DEVICES, LENGTH)).astype(np.float32).clip(-CLIP, CLIP)
    print(f"{DEVICES} devices, {LENGTH:,} numbers each; plain float32 is {4 * LENGTH:,} bytes")
    print(f"python-paillier uses gmpy2: {phe.util.HAVE_GMP}")
    print("            CPU a device   × secagg  coordinator     bytes up    × plain   bytes down   error")
    base: Cost | None = None
    for function in (masked, ckks, paillier):
        cost = function(updates)
        base = base or cost
        print(
            f"{'secagg' if function is masked else function.__name__:<10}"
            f"{cost.device_s * 1e3:>11,.2f} ms {cost.device_s / base.device_s:>9,.1f}"
            f" {cost.coordinator_s * 1e3:>9,.1f} ms {cost.up_bytes:>12,.0f}"
            f" {cost.up_bytes / (4 * LENGTH):>10.2f} {cost.down_bytes:>12,.0f} {cost.largest_error:>7.0e}",
            flush=True,
        )


if __name__ == "__main__":
    main()
