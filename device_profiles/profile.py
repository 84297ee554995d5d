"""What a device, its radio, its link and a fleet are like: frozen, checked when built, in SI units.

How the numbers enter time and energy is described where they are used (``edge.device``, ``edge.network``);
where each number comes from is in the profile's own ``sources``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from device_profiles.errors import ProfileError
from device_profiles.traces import RateTrace

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9_.-]*[a-z0-9])?")
SHARE_TOLERANCE = 1e-6
V = TypeVar("V")


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
    for name, value in fields.items():
        _number(owner, name, value)
        if value <= 0:
            raise ProfileError(owner, name, f"must be above zero, not {value!r}")


def non_negative(owner: str, **fields: float) -> None:
    """Raise ProfileError unless every field is a finite number, zero or more."""
    for name, value in fields.items():
        _number(owner, name, value)
        if value < 0:
            raise ProfileError(owner, name, f"must be zero or more, not {value!r}")


def probability(owner: str, **fields: float) -> None:
    """Raise ProfileError unless every field lies in [0, 1]."""
    for name, value in fields.items():
        _number(owner, name, value)
        if not 0 <= value <= 1:
            raise ProfileError(owner, name, f"must lie between 0 and 1 (0% and 100%), not {value!r}")


def below_one(owner: str, **fields: float) -> None:
    """Raise ProfileError unless every field lies in [0, 1)."""
    for name, value in fields.items():
        _number(owner, name, value)
        if not 0 <= value < 1:
            raise ProfileError(owner, name, f"must be at least 0 and below 1 (100%), not {value!r}")


def above_zero_to_one(owner: str, **fields: float) -> None:
    """Raise ProfileError unless every field lies in (0, 1]."""
    for name, value in fields.items():
        _number(owner, name, value)
        if not 0 < value <= 1:
            raise ProfileError(owner, name, f"must be above 0 and at most 1 (100%), not {value!r}")


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


class FrozenMap(Mapping[str, V], Generic[V]):
    """An immutable mapping from str to V that keeps the order it was given.

    ``types.MappingProxyType`` would do, were it not that it can neither be pickled (profiles travel to worker
    processes) nor hashed. Two maps are equal when they hold the same items, whatever the order.
    """

    __slots__ = ("_items",)
    _items: dict[str, V]

    def __init__(self, items: Mapping[str, V]) -> None:
        object.__setattr__(self, "_items", dict(items))

    def __getitem__(self, key: str) -> V:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return f"FrozenMap({self._items!r})"

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a FrozenMap cannot change; build a new one to set {name!r}")

    def __reduce__(self) -> tuple[type[FrozenMap[V]], tuple[dict[str, V]]]:
        return type(self), (dict(self._items),)


NO_SOURCES: FrozenMap[str] = FrozenMap({})


def freeze_sources(profile: object, sources: Mapping[str, str]) -> None:
    """Store ``sources`` on a frozen profile as an immutable map (for use in ``__post_init__``)."""
    object.__setattr__(profile, "sources", FrozenMap(sources))


@dataclass(frozen=True, slots=True)
class ThermalProfile:
    """How a device slows down when it computes for long.

    After t seconds of continuous work its speed relative to a cool device is
    ``floor + (1 - floor) * exp(-max(0, t - onset_s) / tau_s)``.

    Attributes
    ----------
    floor : relative speed that remains in the end, in (0, 1]; 1 means that it never throttles.
    onset_s : seconds of work at full speed.
    tau_s : time constant of the slowdown, seconds, above zero.
    sources : field -> where the number comes from.
    """

    name: str
    floor: float
    onset_s: float
    tau_s: float
    sources: Mapping[str, str] = field(default=NO_SOURCES, compare=False)

    def __post_init__(self) -> None:
        owner = check_name("thermal profile", self.name)
        above_zero_to_one(owner, floor=self.floor)
        non_negative(owner, onset_s=self.onset_s)
        positive(owner, tau_s=self.tau_s)
        freeze_sources(self, self.sources)


@dataclass(frozen=True, slots=True)
class CryptoProfile:
    """What the primitives of secure aggregation and of homomorphic encryption cost on one core.

    Attributes
    ----------
    key_pair_s : one X25519 key pair (RFC 7748), seconds.
    key_exchange_s : one X25519 exchange and the HKDF-SHA256 of its secret (RFC 5869), seconds.
    seal_s : AES-256-GCM of one message of about 66 bytes that carries shares, sealed or opened, seconds.
    sign_s, verify_s : one Ed25519 signature of a short message (RFC 8032), seconds.
    expand_bytes_per_s : AES-128-CTR keystream made and added into a vector, bytes/s.
    quantise_elements_per_s : elements of a vector clipped, scaled and rounded stochastically, per second.
    share_products_per_s : multiply-adds of Shamir's scheme over F_65537 on words of 16 bits, per second; n
        shares of a 32-byte secret with threshold t take n·t·16.
    ckks_encrypt_s : one CKKS ciphertext of degree 8192 (4096 numbers) encoded, encrypted and serialised,
        seconds.
    ckks_decrypt_s : one such ciphertext parsed, decrypted and decoded, seconds.
    sources : field -> where the number comes from.
    """

    name: str
    key_pair_s: float
    key_exchange_s: float
    seal_s: float
    sign_s: float
    verify_s: float
    expand_bytes_per_s: float
    quantise_elements_per_s: float
    share_products_per_s: float
    ckks_encrypt_s: float
    ckks_decrypt_s: float
    sources: Mapping[str, str] = field(default=NO_SOURCES, compare=False)

    def __post_init__(self) -> None:
        owner = check_name("crypto profile", self.name)
        non_negative(
            owner,
            key_pair_s=self.key_pair_s,
            key_exchange_s=self.key_exchange_s,
            seal_s=self.seal_s,
            sign_s=self.sign_s,
            verify_s=self.verify_s,
            ckks_encrypt_s=self.ckks_encrypt_s,
            ckks_decrypt_s=self.ckks_decrypt_s,
        )
        positive(
            owner,
            expand_bytes_per_s=self.expand_bytes_per_s,
            quantise_elements_per_s=self.quantise_elements_per_s,
            share_products_per_s=self.share_products_per_s,
        )
        freeze_sources(self, self.sources)


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """What a class of devices can do.

    Attributes
    ----------
    name : key in the catalogue.
    example : a product of this class.
    flops_1_thread, flops_all_threads : sustained float32 rate, flop/s.
    memory_bytes_per_s : copy rate of main memory on one core, bytes/s.
    ram_bytes : main memory, bytes.
    op_overhead_s : fixed time that a framework spends on each operation, seconds.
    active_power_w : power of the whole device under full load, watts.
    compute_sigma_log : sd of the log of a task's time about its model (log-normal variation between runs).
    battery_j : energy of a full battery, joules; None on mains power.
    thermal : slowdown under continuous load.
    crypto : cost of cryptographic primitives.
    sources : field -> where the number comes from.
    """

    name: str
    example: str
    flops_1_thread: float
    flops_all_threads: float
    memory_bytes_per_s: float
    ram_bytes: int
    op_overhead_s: float
    active_power_w: float
    compute_sigma_log: float
    battery_j: float | None
    thermal: ThermalProfile
    crypto: CryptoProfile
    sources: Mapping[str, str] = field(default=NO_SOURCES, compare=False)

    def __post_init__(self) -> None:
        owner = check_name("device", self.name)
        positive(
            owner,
            flops_1_thread=self.flops_1_thread,
            flops_all_threads=self.flops_all_threads,
            memory_bytes_per_s=self.memory_bytes_per_s,
            ram_bytes=self.ram_bytes,
            active_power_w=self.active_power_w,
        )
        if not isinstance(self.ram_bytes, int):
            raise ProfileError(owner, "ram_bytes", f"must be a whole number of bytes, not {self.ram_bytes!r}")
        non_negative(owner, op_overhead_s=self.op_overhead_s, compute_sigma_log=self.compute_sigma_log)
        if self.flops_all_threads < self.flops_1_thread:
            raise ProfileError(
                owner,
                "flops_all_threads",
                f"all threads together ({self.flops_all_threads:g} flop/s) cannot be slower than one thread "
                f"({self.flops_1_thread:g} flop/s)",
            )
        if self.battery_j is not None:
            positive(owner, battery_j=self.battery_j)
        freeze_sources(self, self.sources)


@dataclass(frozen=True, slots=True)
class RadioProfile:
    """What a radio costs in time and energy.

    An idle radio is promoted before the first packet (``promotion_s`` at ``promotion_w``). While it
    transfers it draws ``base_w + up_w_per_bps * up_bps + down_w_per_bps * down_bps``. Afterwards it stays
    up for ``tail_s`` at ``tail_w``, then for ``tail2_s`` at ``tail2_w``, then it is idle again.

    Attributes
    ----------
    promotion_s, tail_s, tail2_s : seconds.
    promotion_w, tail_w, tail2_w, base_w : watts.
    up_w_per_bps, down_w_per_bps : watts per bit/s, which is joules per bit.
    sources : field -> where the number comes from.
    """

    name: str
    promotion_s: float
    promotion_w: float
    tail_s: float
    tail_w: float
    tail2_s: float
    tail2_w: float
    base_w: float
    up_w_per_bps: float
    down_w_per_bps: float
    sources: Mapping[str, str] = field(default=NO_SOURCES, compare=False)

    def __post_init__(self) -> None:
        non_negative(
            check_name("radio", self.name),
            promotion_s=self.promotion_s,
            promotion_w=self.promotion_w,
            tail_s=self.tail_s,
            tail_w=self.tail_w,
            tail2_s=self.tail2_s,
            tail2_w=self.tail2_w,
            base_w=self.base_w,
            up_w_per_bps=self.up_w_per_bps,
            down_w_per_bps=self.down_w_per_bps,
        )
        freeze_sources(self, self.sources)


@dataclass(frozen=True, slots=True)
class OutageProfile:
    """How often and for how long a link carries nothing.

    Attributes
    ----------
    fraction : share of time without service, in (0, 1).
    mean_s : mean length of an outage, seconds.
    """

    fraction: float
    mean_s: float

    def __post_init__(self) -> None:
        positive("outage", fraction=self.fraction, mean_s=self.mean_s)
        below_one("outage", fraction=self.fraction)


@dataclass(frozen=True, slots=True)
class SlowRateProfile:
    """How a link's rate varies over longer than seconds, beside the process of one second.

    Attributes
    ----------
    sigma_log : sd of the log of the rate by it, above zero.
    time_s : lag at which its correlation with itself has fallen to 1/e, seconds.
    """

    sigma_log: float
    time_s: float

    def __post_init__(self) -> None:
        positive("slow rate", sigma_log=self.sigma_log, time_s=self.time_s)


@dataclass(frozen=True, slots=True)
class NetworkProfile:
    """What a class of access links is like.

    Attributes
    ----------
    down_bps, up_bps : typical rate towards and from the device, bit/s.
    rtt_s : round trip without queueing, seconds.
    jitter_s : mean of the exponential delay that a message meets on top, seconds.
    loss : probability that a segment is lost, in [0, 1).
    rate_sigma_log : sd of the log of the rate over time.
    rate_rho_1s : correlation of the log rate with itself one second later, in [0, 1].
    radio : promotion, tail and power.
    outage : on/off outages; None if the link never goes away.
    connect_success : probability that an attempt to connect succeeds, in (0, 1].
    duty_cycle : share of time that the device may transmit, in (0, 1]; 1 where no regulation limits it.
    slow_rate : a slow process of the rate beside that of one second; None for none.
    device_sigma_log : sd of the log of the factor on both rates that a device keeps for good.
    trace : a recorded link that stands in for rates, round trip, loss, outages and duty cycle; None for none.
    sources : field -> where the number comes from.
    """

    name: str
    down_bps: float
    up_bps: float
    rtt_s: float
    jitter_s: float
    loss: float
    rate_sigma_log: float
    rate_rho_1s: float
    radio: RadioProfile
    outage: OutageProfile | None = None
    connect_success: float = 1.0
    duty_cycle: float = 1.0
    slow_rate: SlowRateProfile | None = None
    device_sigma_log: float = 0.0
    trace: RateTrace | None = None
    sources: Mapping[str, str] = field(default=NO_SOURCES, compare=False)

    def __post_init__(self) -> None:
        owner = check_name("network", self.name)
        positive(owner, down_bps=self.down_bps, up_bps=self.up_bps, rtt_s=self.rtt_s)
        non_negative(
            owner,
            jitter_s=self.jitter_s,
            rate_sigma_log=self.rate_sigma_log,
            device_sigma_log=self.device_sigma_log,
        )
        below_one(owner, loss=self.loss)
        probability(owner, rate_rho_1s=self.rate_rho_1s)
        above_zero_to_one(owner, connect_success=self.connect_success, duty_cycle=self.duty_cycle)
        freeze_sources(self, self.sources)


@dataclass(frozen=True, slots=True)
class FleetGroup:
    """Devices of one class on links of one class.

    Attributes
    ----------
    device, network : names of profiles.
    share : of the fleet, in (0, 1].
    availability : name of an availability profile, or None for that of the fleet.
    trace : a recorded link that stands in for that of the network, or None.
    """

    device: str
    network: str
    share: float
    availability: str | None = None
    trace: RateTrace | None = None


@dataclass(frozen=True, slots=True)
class FleetMix:
    """What a fleet is made of: shares of device and network classes, drawn independently of each other.

    With groups the two are not independent, and the shares are what the groups come to.

    Attributes
    ----------
    devices, networks : name of a profile -> share in (0, 1]; given to within 1e-6 of a sum of 1, stored
        scaled to it, in the order given (the order in which a draw walks them).
    availability : name of an availability profile.
    sources : field -> where the numbers come from.
    groups : which devices are on which networks; none where they are drawn independently.
    """

    name: str
    devices: Mapping[str, float]
    networks: Mapping[str, float]
    availability: str
    sources: Mapping[str, str] = field(default=NO_SOURCES, compare=False)
    groups: tuple[FleetGroup, ...] = ()

    def __post_init__(self) -> None:
        owner = check_name("fleet", self.name)
        object.__setattr__(self, "devices", FrozenMap(shares(owner, "devices", self.devices)))
        object.__setattr__(self, "networks", FrozenMap(shares(owner, "networks", self.networks)))
        freeze_sources(self, self.sources)
