"""What a device's work costs by its profile: time of computing and of cryptography, memory, energy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import mul
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from device_profiles.profile import CryptoProfile, DeviceProfile, RadioProfile
from edge.core.rng import Counter, hashed_normal
from edge.learning.base import Work
from edge.secagg.participant import CryptoWork

Floats = npt.NDArray[np.float64]

KAPPA: Final[Floats] = np.array([1.5, 1.0, 1.0])
"""Cost of each kind relative to F/P + B/M, ordered as ``WORK_KINDS``.

``dense`` (matrix products, solves) 1.0: the sum fits measured training steps within 0.84 to 1.05 as it is.
``gather`` (rows of an embedding table by index) 1.5: random rows do not stream. Measured on one x86 server
core, a gather of rows of 64 to 200 bytes costs 1.0 times a copy of as many bytes from a table that fits the
cache, 1.4 times from one of 4 to 12 MB and 3.4 times from one of 32 MB. Assumed for phones as well.
``scoring`` (one vector against a whole table) 1.0: the same measurement gives 0.7 to 1.3; assumed for phones.
"""
KAPPA.setflags(write=False)

_NEWTON_TOLERANCE: Final = 1e-13
APP_SHARE_OF_RAM: Final = 0.25
"""Share of a device's RAM that one application may use before the system ends it.

An assumption: the operating system, its services and the foreground application take the rest, and mobile
systems end a background process long before memory is exhausted.
"""


@dataclass(frozen=True, slots=True)
class ComputeSpecs:
    """What the compute model needs of each device (or of each class of devices), float64[n] each.

    Attributes
    ----------
    flops_per_s, memory_bytes_per_s : rates P and M.
    op_overhead_s : time o per operation, seconds.
    sigma_log : σ, sd of the log of a task's time.
    thermal_floor : f in (0, 1]. thermal_onset_s, thermal_tau_s : seconds.
    """

    flops_per_s: Floats
    memory_bytes_per_s: Floats
    op_overhead_s: Floats
    sigma_log: Floats
    thermal_floor: Floats
    thermal_onset_s: Floats
    thermal_tau_s: Floats

    @classmethod
    def of(cls, profiles: Sequence[DeviceProfile], *, all_threads: bool) -> Self:
        """Return a row per profile; ``all_threads`` picks the rate of all threads instead of one."""
        rows = [
            (
                p.flops_all_threads if all_threads else p.flops_1_thread,
                p.memory_bytes_per_s,
                p.op_overhead_s,
                p.compute_sigma_log,
                p.thermal.floor,
                p.thermal.onset_s,
                p.thermal.tau_s,
            )
            for p in profiles
        ]
        table = np.array(rows, dtype=np.float64).reshape(len(rows), len(fields(cls)))
        return cls(*np.ascontiguousarray(table.T))

    def take(self, rows: npt.NDArray[np.integer]) -> Self:
        """Return the specs of ``rows`` (int[n]): a table of classes becomes one row per device."""
        return type(self)(*(getattr(self, name).take(rows) for name in self.__slots__))


def step_seconds(
    work: Work, specs: ComputeSpecs, *, framework_step_s: float, kappa: Floats = KAPPA
) -> Floats:
    """Return the time of one step on a cool device, without noise, float64[n] seconds.

    Parameters
    ----------
    work : of n clients, per step; its columns are ordered as ``WORK_KINDS``.
    specs : n rows.
    framework_step_s : c_fw, seconds a step.
    kappa : float64[kinds].
    """
    # Sums of a handful of columns, not matmul: BLAS may round a row by how many others there are.
    overhead = specs.op_overhead_s * _sum_kinds(work.ops)
    arithmetic = _sum_kinds(work.flops * kappa) / specs.flops_per_s
    traffic = _sum_kinds(work.moved_bytes * kappa) / specs.memory_bytes_per_s
    return np.asarray(framework_step_s + overhead + arithmetic + traffic)


def _sum_kinds(values: Floats) -> Floats:
    total = values[:, 0]
    for kind in range(1, values.shape[1]):
        total = total + values[:, kind]
    return total


def task_seconds(
    work: Work,
    specs: ComputeSpecs,
    *,
    framework_step_s: float,
    busy_s: Floats,
    noise_key: int,
    device_ids: npt.NDArray[np.int64],
    task: Counter,
    kappa: Floats = KAPPA,
) -> Floats:
    """Return how long each device takes for its task, float64[n] seconds.

    Row i depends on row i alone: the result is the same whoever else is in the batch.

    Parameters
    ----------
    work : of n clients, per step, with the number of steps.
    specs : n rows.
    framework_step_s : c_fw, seconds a step.
    busy_s : float64[n], seconds that each device has worked without a rest before this task.
    noise_key : key of the stream of the log-normal factor, from :func:`edge.core.rng.stream_key`.
    device_ids : int64[n].
    task : int or int[n], which task of the device this is; the round, if it has one a round.
    kappa : float64[kinds].
    """
    step_s = step_seconds(work, specs, framework_step_s=framework_step_s, kappa=kappa)
    noise = np.exp(specs.sigma_log * hashed_normal(noise_key, device_ids, task))
    return throttled_seconds(
        step_s * work.steps * noise, busy_s, specs.thermal_floor, specs.thermal_onset_s, specs.thermal_tau_s
    )


def speed(busy_s: Floats, floor: Floats, onset_s: Floats, tau_s: Floats) -> Floats:
    """Return s(t), the speed relative to a cool device after ``busy_s`` seconds of work, float64[n]."""
    return np.asarray(floor + (1.0 - floor) * np.exp(-np.maximum(busy_s - onset_s, 0.0) / tau_s))


def throttled_seconds(
    cool_s: Floats, busy_s: Floats, floor: Floats, onset_s: Floats, tau_s: Floats
) -> Floats:
    """Return the time that work worth ``cool_s`` seconds on a cool device takes, all float64[n], seconds.

    With e = (1 − f)·exp(−max(0, busy − onset)/τ) the work done d seconds after full speed has ended is
    G(d) = f·d + e·τ·(1 − exp(−d/τ)), and d solves G(d) = v, v being what full speed has left over.
    G rises and is concave, so Newton's iteration from below climbs to the root and never passes it; both
    v/(f + e) and (v − e·τ)/f are below.

    Parameters
    ----------
    busy_s : seconds of work before, without a rest.
    floor : in (0, 1]. onset_s : at least 0. tau_s : above 0.
    """
    full_speed_s = np.minimum(cool_s, np.maximum(onset_s - busy_s, 0.0))
    left = cool_s - full_speed_s
    slow = ((left > 0) & (floor < 1)).nonzero()[0]
    duration = np.array(cool_s)
    if slow.size == 0:
        return duration
    v, f, tau = left[slow], floor[slow], tau_s[slow]
    e = (1.0 - f) * np.exp(-np.maximum(busy_s[slow] - onset_s[slow], 0.0) / tau)
    solution = np.maximum(v / (f + e), (v - e * tau) / f)
    open_rows = np.arange(slow.size)
    while open_rows.size:
        d, f_open, e_open, tau_open = solution[open_rows], f[open_rows], e[open_rows], tau[open_rows]
        faded = np.expm1(-d / tau_open)
        missing = v[open_rows] - (f_open * d - e_open * tau_open * faded)
        step = missing / (f_open + e_open * (1.0 + faded))
        solution[open_rows] = d + np.maximum(step, 0.0)
        # A row stops by its own step alone, so that its digits do not depend on its neighbours.
        open_rows = open_rows[step > _NEWTON_TOLERANCE * d]
    duration[slow] = full_speed_s[slow] + solution
    return duration


def fits(
    memory_bytes: npt.NDArray[np.int64],
    ram_bytes: npt.NDArray[np.int64],
    *,
    app_share: float = APP_SHARE_OF_RAM,
) -> npt.NDArray[np.bool_]:
    """Return bool[n], whether each device has the memory for its task; where not, it fails as out of memory.

    Parameters
    ----------
    memory_bytes : int64[n], peak memory of the task: model, local data, workspace and update.
    ram_bytes : int64[n], main memory of the device.
    app_share : share of it that the task may use, in (0, 1].

    Raises
    ------
    ValueError : ``app_share`` outside (0, 1].
    """
    if not 0.0 < app_share <= 1.0:
        raise ValueError(
            f"app_share must be above 0 and at most 1, not {app_share!r}; write 0.25 for a quarter"
        )
    return np.asarray(memory_bytes <= ram_bytes * app_share)


@dataclass(frozen=True, slots=True)
class RadioSpecs:
    """What the energy model needs of each device's radio (or of each class), float64[n] each.

    Attributes
    ----------
    promotion_s, tail_s, tail2_s : seconds.
    promotion_w, tail_w, tail2_w, base_w : watts.
    up_w_per_bps, down_w_per_bps : α, watts per bit/s, which is joules per bit.
    """

    promotion_s: Floats
    promotion_w: Floats
    tail_s: Floats
    tail_w: Floats
    tail2_s: Floats
    tail2_w: Floats
    base_w: Floats
    up_w_per_bps: Floats
    down_w_per_bps: Floats

    @classmethod
    def of(cls, profiles: Sequence[RadioProfile]) -> Self:
        """Return a row per profile."""
        return cls(*(np.array([getattr(p, f.name) for p in profiles], np.float64) for f in fields(cls)))

    def take(self, rows: npt.NDArray[np.integer]) -> Self:
        """Return the specs of ``rows`` (int[n]): a table of classes becomes one row per device."""
        return type(self)(*(getattr(self, name).take(rows) for name in self.__slots__))


class Tail(NamedTuple):
    """Seconds after an activity in which the radio stays up, float64[n] each."""

    tail_s: Floats
    tail2_s: Floats


def compute_joules(active_power_w: Floats, compute_s: Floats) -> Floats:
    """Return the energy of ``compute_s`` seconds of work, float64[n] joules."""
    return np.asarray(active_power_w * compute_s)


def tail_after(gap_s: Floats, radio: RadioSpecs | Tail) -> Tail:
    """Return how long each radio stays up after an activity if the next follows ``gap_s`` seconds later.

    Parameters
    ----------
    gap_s : float64[n], seconds, at least 0; ``inf`` when nothing follows.
    radio : n rows, or what of them is used here: how long the parts of their tails are.
    """
    return Tail(
        np.minimum(gap_s, radio.tail_s),
        np.minimum(np.maximum(gap_s - radio.tail_s, 0.0), radio.tail2_s),
    )


def found_idle(gap_s: Floats, radio: RadioSpecs | Tail) -> npt.NDArray[np.bool_]:
    """Return bool[n], whether each radio is idle ``gap_s`` (``inf``: never used) after an activity."""
    return np.asarray(gap_s >= radio.tail_s + radio.tail2_s)


def radio_joules(
    radio: RadioSpecs,
    *,
    transfer_s: Floats,
    up_bits: Floats | npt.NDArray[np.int64],
    down_bits: Floats | npt.NDArray[np.int64],
    promotions: Floats | npt.NDArray[np.int64],
    tail: Tail,
) -> Floats:
    """Return the energy of each radio from its sums over a participation, float64[n] joules.

    Parameters
    ----------
    radio : n rows.
    transfer_s : seconds in which the radio sent or received, promotions not included.
    up_bits, down_bits : everything on the air in either direction, retransmissions included.
    promotions : how often it was woken from idle.
    tail : sums of :func:`tail_after` over the activities.
    """
    waking = promotions * (radio.promotion_s * radio.promotion_w)
    transfer = radio.base_w * transfer_s + radio.up_w_per_bps * up_bits + radio.down_w_per_bps * down_bits
    staying_up = radio.tail_w * tail.tail_s + radio.tail2_w * tail.tail2_s
    return np.asarray(waking + transfer + staying_up)


class CryptoCosts(NamedTuple):
    """What one unit of each count of :class:`CryptoWork` costs one device, seconds, in the same order."""

    key_pair_s: float
    exchange_s: float
    seal_s: float
    signature_s: float
    verification_s: float
    expanded_byte_s: float
    quantised_s: float
    share_product_s: float
    encryption_s: float
    decryption_s: float

    @classmethod
    def of(cls, profile: CryptoProfile) -> Self:
        """Return the costs that a profile states, rates turned into seconds."""
        return cls(
            key_pair_s=profile.key_pair_s,
            exchange_s=profile.key_exchange_s,
            seal_s=profile.seal_s,
            signature_s=profile.sign_s,
            verification_s=profile.verify_s,
            expanded_byte_s=1 / profile.expand_bytes_per_s,
            quantised_s=1 / profile.quantise_elements_per_s,
            share_product_s=1 / profile.share_products_per_s,
            encryption_s=profile.ckks_encrypt_s,
            decryption_s=profile.ckks_decrypt_s,
        )

    def seconds(self, work: CryptoWork) -> float:
        """Return how long ``work`` takes this device, seconds."""
        # Not sum: since Python 3.12 it rounds floats differently, and a run must not depend on the version.
        return math.fsum(map(mul, self, work))


@dataclass(frozen=True, slots=True)
class CryptoSpecs:
    """The costs of each device (or of each class of devices), float64[n] each; as :class:`CryptoCosts`."""

    key_pair_s: Floats
    exchange_s: Floats
    seal_s: Floats
    signature_s: Floats
    verification_s: Floats
    expanded_byte_s: Floats
    quantised_s: Floats
    share_product_s: Floats
    encryption_s: Floats
    decryption_s: Floats

    @classmethod
    def of(cls, profiles: Sequence[DeviceProfile]) -> Self:
        """Return a row per profile."""
        names = CryptoCosts._fields
        rows = [CryptoCosts.of(profile.crypto) for profile in profiles]
        table = np.array(rows, dtype=np.float64).reshape(len(rows), len(names))
        return cls(**dict(zip(names, np.ascontiguousarray(table.T), strict=True)))

    def take(self, rows: npt.NDArray[np.integer]) -> Self:
        """Return the specs of ``rows`` (int[n]): a table of classes becomes one row per device."""
        return type(self)(**{name: getattr(self, name)[rows] for name in CryptoCosts._fields})

    def rows(self) -> list[CryptoCosts]:
        """Return the costs of each device by itself, n of them."""
        columns = [getattr(self, name).tolist() for name in CryptoCosts._fields]
        return [CryptoCosts._make(row) for row in zip(*columns, strict=True)]
