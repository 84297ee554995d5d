"""What a device, its radio, its link and a fleet are like: frozen, checked when built, in SI units.

How the numbers enter time and energy is described where they are used (``edge.device``, ``edge.network``);
where each number comes from is in the profile's own ``sources``: field -> source. Each type has the model of
how it is written in YAML beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final

from pydantic import BaseModel, ConfigDict, Field

from device_profiles.errors import ProfileError
from device_profiles.fields import (
    ABOVE_ZERO_TO_ONE,
    BELOW_ONE,
    INSIDE_ONE,
    POSITIVE,
    BitsPerSecond,
    Bytes,
    BytesPerSecond,
    FlopsPerSecond,
    Fraction,
    Joules,
    JoulesPerBit,
    NonNegativeFloat,
    OperationsPerSecond,
    PositiveFloat,
    PositiveFraction,
    PositiveSeconds,
    Seconds,
    Text,
    Watts,
)
from device_profiles.importers.link_files import WrittenTrace, trace_beside
from device_profiles.schema import (
    NO_SOURCES,
    FrozenMap,
    Key,
    ProfileSection,
    check_number,
    check_numbers,
    check_profile,
    section_of,
)
from device_profiles.traces import RateTrace

SHARE_TOLERANCE = 1e-6
MAX_GROUPS: Final = 255
"""A device's group is a byte."""


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
        check_number(owner, f"{field}.{name}", share, ABOVE_ZERO_TO_ONE)
    total = math.fsum(values.values())
    if abs(total - 1) > SHARE_TOLERANCE:
        raise ProfileError(owner, field, f"shares sum to {total:.6g}; they must sum to 1 (100%)")
    return {name: share / total for name, share in values.items()}


@dataclass(frozen=True, slots=True)
class ThermalProfile:
    """How a device slows down when it computes for long.

    After t seconds of continuous work its speed relative to a cool device is
    ``floor + (1 - floor) * exp(-max(0, t - onset_s) / tau_s)``; with a floor of 1 it never throttles.
    """

    name: str
    floor: Annotated[PositiveFraction, Key("Relative speed that remains under continuous load.")]
    onset_s: Annotated[Seconds, Key("Time at full speed.", "onset")]
    tau_s: Annotated[PositiveSeconds, Key("Time constant of the slowdown.", "tau")]
    sources: Mapping[str, str] = field(default=NO_SOURCES, compare=False)

    def __post_init__(self) -> None:
        check_profile("thermal profile", self)


ThermalSection = section_of(ThermalProfile, "ThermalSection", ProfileSection)


@dataclass(frozen=True, slots=True)
class CryptoProfile:
    """What the primitives of secure aggregation and of homomorphic encryption cost on one core.

    The message that ``seal_s`` is of holds shares, about 66 bytes; n shares of a 32-byte secret with
    threshold t take n·t·16 of the multiply-adds of Shamir's scheme, on words of 16 bits. A CKKS ciphertext
    holds 4096 numbers; it is encoded and serialised, or parsed and decoded, in the time given.
    """

    name: str
    key_pair_s: Annotated[Seconds, Key("One X25519 key pair (RFC 7748).", "key_pair")]
    key_exchange_s: Annotated[
        Seconds, Key("One X25519 exchange and the HKDF-SHA256 of its secret (RFC 5869).", "key_exchange")
    ]
    seal_s: Annotated[Seconds, Key("AES-256-GCM of one message of shares, sealed or opened.", "seal")]
    sign_s: Annotated[Seconds, Key("One Ed25519 signature (RFC 8032).", "sign")]
    verify_s: Annotated[Seconds, Key("One Ed25519 verification.", "verify")]
    expand_bytes_per_s: Annotated[
        BytesPerSecond,
        Key("AES-128-CTR keystream of masks, made and added into a vector.", "expand_rate"),
    ]
    quantise_elements_per_s: Annotated[
        OperationsPerSecond,
        Key("Elements of a vector clipped, scaled and rounded stochastically.", "quantise_rate"),
    ]
    share_products_per_s: Annotated[
        OperationsPerSecond, Key("Multiply-adds of Shamir's scheme over F_65537.", "share_rate")
    ]
    ckks_encrypt_s: Annotated[Seconds, Key("One CKKS ciphertext of degree 8192 made.", "ckks_encrypt")]
    ckks_decrypt_s: Annotated[Seconds, Key("One CKKS ciphertext of degree 8192 opened.", "ckks_decrypt")]
    sources: Mapping[str, str] = field(default=NO_SOURCES, compare=False)

    def __post_init__(self) -> None:
        check_profile("crypto profile", self)


CryptoSection = section_of(CryptoProfile, "CryptoSection", ProfileSection)


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """What a class of devices can do; compute times vary log-normally between runs."""

    name: str
    example: Annotated[Text, Key("A product of this class.", word=True)]
    flops_1_thread: Annotated[FlopsPerSecond, Key("Sustained float32 rate of one thread.")]
    flops_all_threads: Annotated[FlopsPerSecond, Key("Sustained float32 rate of all threads.")]
    memory_bytes_per_s: Annotated[BytesPerSecond, Key("Copy rate of main memory on one core.", "memory_rate")]
    ram_bytes: Annotated[Bytes, POSITIVE, Key("Main memory.", "ram")]
    op_overhead_s: Annotated[Seconds, Key("Fixed time a framework spends on each operation.", "op_overhead")]
    active_power_w: Annotated[
        Watts, POSITIVE, Key("Power of the whole device under full load.", "active_power")
    ]
    compute_sigma_log: Annotated[
        NonNegativeFloat,
        Key("Sd of the log of a task's time about its model: variation from run to run.", "compute_sigma"),
    ]
    battery_j: Annotated[
        Annotated[Joules, POSITIVE] | None,
        Key("Energy of a full battery; none on mains power.", "battery", default=None),
    ]
    thermal: Annotated[ThermalProfile, Key("Name of a thermal profile.", written=Text, names="thermal")]
    crypto: Annotated[CryptoProfile, Key("Name of a crypto profile.", written=Text, names="crypto")]
    sources: Mapping[str, str] = field(default=NO_SOURCES, compare=False)

    def __post_init__(self) -> None:
        owner = check_profile("device", self)
        if not isinstance(self.ram_bytes, int):
            raise ProfileError(owner, "ram_bytes", f"must be a whole number of bytes, not {self.ram_bytes!r}")
        if self.flops_all_threads < self.flops_1_thread:
            raise ProfileError(
                owner,
                "flops_all_threads",
                f"all threads together ({self.flops_all_threads:g} flop/s) cannot be slower than one thread "
                f"({self.flops_1_thread:g} flop/s)",
            )


DeviceSection = section_of(DeviceProfile, "DeviceSection", ProfileSection)


@dataclass(frozen=True, slots=True)
class RadioProfile:
    """What a radio costs in time and energy.

    An idle radio is promoted before the first packet (``promotion_s`` at ``promotion_w``). While it
    transfers it draws ``base_w + up_w_per_bps * up_bps + down_w_per_bps * down_bps``. Afterwards it stays
    up for ``tail_s`` at ``tail_w``, then for ``tail2_s`` at ``tail2_w``, then it is idle again.
    """

    name: str
    promotion_s: Annotated[Seconds, Key("Delay before the first packet of an idle radio.", "promotion")]
    promotion_w: Annotated[Watts, Key("Power during the promotion.", "promotion_power")]
    tail_s: Annotated[Seconds, Key("Time that the radio stays up after the last packet.", "tail")]
    tail_w: Annotated[Watts, Key("Power during the tail.", "tail_power")]
    tail2_s: Annotated[Seconds, Key("A second, weaker tail after the first.", "second_tail", default=0.0)]
    tail2_w: Annotated[Watts, Key("Power during the second tail.", "second_tail_power", default=0.0)]
    base_w: Annotated[Watts, Key("Power during a transfer, whatever its rate.", "base_power")]
    up_w_per_bps: Annotated[JoulesPerBit, Key("Energy per bit sent, on top.", "up_energy")]
    down_w_per_bps: Annotated[JoulesPerBit, Key("Energy per bit received, on top.", "down_energy")]
    sources: Mapping[str, str] = field(default=NO_SOURCES, compare=False)

    def __post_init__(self) -> None:
        check_profile("radio", self)


RadioSection = section_of(RadioProfile, "RadioSection", ProfileSection)


@dataclass(frozen=True, slots=True)
class OutageProfile:
    """How often and for how long a link carries nothing."""

    fraction: Annotated[PositiveFraction, INSIDE_ONE, Key("Share of time without service.")]
    mean_s: Annotated[PositiveSeconds, Key("Mean length of an outage.", "mean")]

    def __post_init__(self) -> None:
        check_numbers("outage", self)


@dataclass(frozen=True, slots=True)
class SlowRateProfile:
    """How a link's rate varies over longer than seconds, beside the process of one second."""

    sigma_log: Annotated[PositiveFloat, Key("Sd of the log of the rate by it.", "sigma")]
    time_s: Annotated[
        PositiveSeconds,
        Key("Lag at which its correlation with itself has fallen to 1/e.", "correlation_time"),
    ]

    def __post_init__(self) -> None:
        check_numbers("slow rate", self)


@dataclass(frozen=True, slots=True)
class NetworkProfile:
    """What a class of access links is like."""

    name: str
    down_bps: Annotated[BitsPerSecond, Key("Typical rate towards the device.", "down")]
    up_bps: Annotated[BitsPerSecond, Key("Typical rate from the device.", "up")]
    rtt_s: Annotated[PositiveSeconds, Key("Round trip without queueing.", "rtt")]
    jitter_s: Annotated[
        Seconds, Key("Mean of the exponential delay that each message meets on top.", "jitter")
    ]
    loss: Annotated[Fraction, BELOW_ONE, Key("Probability that a segment is lost.")]
    rate_sigma_log: Annotated[NonNegativeFloat, Key("Sd of the log of the rate over time.", "rate_sigma")]
    rate_rho_1s: Annotated[
        Fraction, Key("Correlation of the log rate with itself one second later.", "rate_rho")
    ]
    radio: Annotated[RadioProfile, Key("Name of a radio profile.", written=Text, names="radios")]
    outage: Annotated[OutageProfile | None, Key("On/off outages; left out, none.")] = None
    connect_success: Annotated[PositiveFraction, Key("Probability that an attempt to connect succeeds.")] = (
        1.0
    )
    duty_cycle: Annotated[
        PositiveFraction, Key("Share of time that the device may transmit, by regulation.")
    ] = 1.0
    slow_rate: Annotated[
        SlowRateProfile | None,
        Key("A slow process of the rate beside that of one second; left out, none."),
    ] = None
    device_sigma_log: Annotated[
        NonNegativeFloat,
        Key("Sd of the log of the factor on both rates that each device keeps for good.", "device_sigma"),
    ] = 0.0
    trace: Annotated[
        RateTrace | None,
        Key(
            "Recorded link that stands in for rates, round trip, loss, outages and duty cycle.",
            "link_trace",
            written=WrittenTrace | None,
            read=trace_beside,
            files=((), ("down",), ("up",)),
        ),
    ] = None
    sources: Mapping[str, str] = field(default=NO_SOURCES, compare=False)

    def __post_init__(self) -> None:
        check_profile("network", self)


NetworkSection = section_of(NetworkProfile, "NetworkSection", ProfileSection)


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


class FleetShare(BaseModel):
    """Devices of one kind on links of one kind."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    device: Text = Field(description="name of a device profile")
    network: Text = Field(description="name of a network profile")
    share: PositiveFraction = Field(description="share of the fleet")
    availability: Text | None = Field(
        default=None, description="name of an availability profile; by default that of the fleet"
    )
    link_trace: WrittenTrace | None = Field(
        default=None,
        description="trace that the links of the group follow; by default its network's, else the fleet's",
    )

    def build(self, trace: RateTrace | None) -> FleetGroup:
        """Return the group; ``trace`` is what was read of ``link_trace``."""
        return FleetGroup(self.device, self.network, self.share, self.availability, trace)


def problem_of(groups: Sequence[FleetShare]) -> str | None:
    """Return what is wrong with groups as a whole, or None."""
    if len(groups) > MAX_GROUPS:
        return f"{len(groups)} are too many; write {MAX_GROUPS} or fewer"
    return not_whole(math.fsum(group.share for group in groups))


def beside_groups(key: str) -> str:
    """Return what is wrong with ``key``, which groups stand in place of."""
    return f"'groups' says which devices are on which networks; leave out '{key}' or 'groups'"


@dataclass(frozen=True, slots=True)
class FleetMix:
    """What a fleet is made of: shares of device and network classes, drawn independently of each other.

    With groups the two are not independent, and the shares are what the groups come to.

    Attributes
    ----------
    devices, networks : name of a profile -> share in (0, 1]; given to within 1e-6 of a sum of 1, stored
        scaled to it, in the order given (the order in which a draw walks them).
    availability : name of an availability profile.
    groups : which devices are on which networks; none where they are drawn independently.
    """

    name: str
    devices: Mapping[str, float]
    networks: Mapping[str, float]
    availability: str
    sources: Mapping[str, str] = field(default=NO_SOURCES, compare=False)
    groups: tuple[FleetGroup, ...] = ()

    def __post_init__(self) -> None:
        owner = check_profile("fleet", self)
        object.__setattr__(self, "devices", FrozenMap(shares(owner, "devices", self.devices)))
        object.__setattr__(self, "networks", FrozenMap(shares(owner, "networks", self.networks)))


class FleetSection(ProfileSection):
    """A fleet mix."""

    words: ClassVar[frozenset[str]] = frozenset({"availability"})

    files: ClassVar[tuple[tuple[str, ...], ...]] = tuple(("groups", *keys) for keys in NetworkSection.files)

    devices: dict[str, PositiveFraction] | None = Field(
        default=None, description="Name of a device profile to its share."
    )
    networks: dict[str, PositiveFraction] | None = Field(
        default=None, description="Name of a network profile to its share."
    )
    groups: tuple[FleetShare, ...] | None = Field(
        default=None, description="Which devices are on which networks, in place of shares of each."
    )
    availability: Text = Field(description="Name of an availability profile.")

    def mix(self, name: str, groups: tuple[FleetGroup, ...]) -> FleetMix:
        """Return the frozen profile; ``groups`` are its own, built."""
        devices, networks = self.devices, self.networks
        if devices is None or networks is None:
            devices = _totals([(group.device, group.share) for group in groups])
            networks = _totals([(group.network, group.share) for group in groups])
        return FleetMix(name, devices, networks, self.availability, self.field_sources(), groups)


def _totals(shares: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Return the sum of the shares of each name, in the order in which the names come first."""
    names = dict.fromkeys(name for name, _ in shares)
    # No more than 1, to which rounding may add a little.
    return {name: min(1.0, math.fsum(share for one, share in shares if one == name)) for name in names}
