"""How profiles are written in YAML: one pydantic model per section, each of which builds its frozen type.

A model only knows its own keys; ``device_profiles.catalogue`` resolves names between profiles and turns what
goes wrong into errors with a place in the file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from device_profiles.fields import (
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
from device_profiles.profile import (
    CryptoProfile,
    DeviceProfile,
    FleetGroup,
    FleetMix,
    NetworkProfile,
    OutageProfile,
    RadioProfile,
    SlowRateProfile,
    ThermalProfile,
)
from device_profiles.shared_sections import FleetShare, WrittenTrace, trace_beside


class ProfileSection(BaseModel):
    """Common to every profile in YAML.

    ``words`` are the keys that hold no number and so need no source, ``files`` the paths of those
    that name files; ``fields`` names the attribute that a key becomes, where the two differ.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    words: ClassVar[frozenset[str]] = frozenset()
    files: ClassVar[tuple[tuple[str, ...], ...]] = ()
    fields: ClassVar[dict[str, str]] = {}

    sources: dict[str, Text] = Field(
        default_factory=dict, description="Where each number comes from: key of this profile to source."
    )
    note: Text | None = Field(default=None, description="Anything a reader should know about the numbers.")

    def field_sources(self) -> dict[str, str]:
        """Return the sources by attribute of the frozen type."""
        return {self.fields.get(key, key): source for key, source in self.sources.items()}

    def attributes(self) -> dict[str, Any]:
        """Return what is written, and its sources, by attribute of the frozen type."""
        keys = (key for key in type(self).model_fields if key not in ("kind", "note", "sources"))
        written = {self.fields.get(key, key): getattr(self, key) for key in keys}
        return {**written, "sources": self.field_sources()}


class ThermalSection(ProfileSection):
    """A thermal profile."""

    fields: ClassVar[dict[str, str]] = {"onset": "onset_s", "tau": "tau_s"}

    floor: PositiveFraction = Field(description="Relative speed that remains under continuous load.")
    onset: Seconds = Field(description="Time at full speed.")
    tau: PositiveSeconds = Field(description="Time constant of the slowdown.")

    def build(self, name: str) -> ThermalProfile:
        """Return the frozen profile."""
        return ThermalProfile(name, **self.attributes())


class CryptoSection(ProfileSection):
    """A crypto profile."""

    fields: ClassVar[dict[str, str]] = {
        "key_pair": "key_pair_s",
        "key_exchange": "key_exchange_s",
        "seal": "seal_s",
        "sign": "sign_s",
        "verify": "verify_s",
        "expand_rate": "expand_bytes_per_s",
        "quantise_rate": "quantise_elements_per_s",
        "share_rate": "share_products_per_s",
        "ckks_encrypt": "ckks_encrypt_s",
        "ckks_decrypt": "ckks_decrypt_s",
    }

    key_pair: Seconds = Field(description="One X25519 key pair.")
    key_exchange: Seconds = Field(description="One X25519 exchange and the HKDF of its secret.")
    seal: Seconds = Field(description="AES-256-GCM of one message of shares, sealed or opened.")
    sign: Seconds = Field(description="One Ed25519 signature.")
    verify: Seconds = Field(description="One Ed25519 verification.")
    expand_rate: BytesPerSecond = Field(
        description="AES-128-CTR keystream of masks, made and added into a vector."
    )
    quantise_rate: OperationsPerSecond = Field(
        description="Elements of a vector clipped, scaled and rounded stochastically."
    )
    share_rate: OperationsPerSecond = Field(description="Multiply-adds of Shamir's scheme over F_65537.")
    ckks_encrypt: Seconds = Field(description="One CKKS ciphertext of degree 8192 made.")
    ckks_decrypt: Seconds = Field(description="One CKKS ciphertext of degree 8192 opened.")

    def build(self, name: str) -> CryptoProfile:
        """Return the frozen profile."""
        return CryptoProfile(name, **self.attributes())


class RadioSection(ProfileSection):
    """A radio profile."""

    fields: ClassVar[dict[str, str]] = {
        "promotion": "promotion_s",
        "promotion_power": "promotion_w",
        "tail": "tail_s",
        "tail_power": "tail_w",
        "second_tail": "tail2_s",
        "second_tail_power": "tail2_w",
        "base_power": "base_w",
        "up_energy": "up_w_per_bps",
        "down_energy": "down_w_per_bps",
    }

    promotion: Seconds = Field(description="Delay before the first packet of an idle radio.")
    promotion_power: Watts = Field(description="Power during the promotion.")
    tail: Seconds = Field(description="Time that the radio stays up after the last packet.")
    tail_power: Watts = Field(description="Power during the tail.")
    second_tail: Seconds = Field(default=0.0, description="A second, weaker tail after the first.")
    second_tail_power: Watts = Field(default=0.0, description="Power during the second tail.")
    base_power: Watts = Field(description="Power during a transfer, whatever its rate.")
    up_energy: JoulesPerBit = Field(description="Energy per bit sent, on top.")
    down_energy: JoulesPerBit = Field(description="Energy per bit received, on top.")

    def build(self, name: str) -> RadioProfile:
        """Return the frozen profile."""
        return RadioProfile(name, **self.attributes())


class DeviceSection(ProfileSection):
    """A device profile."""

    words: ClassVar[frozenset[str]] = frozenset({"example", "thermal", "crypto"})
    fields: ClassVar[dict[str, str]] = {
        "memory_rate": "memory_bytes_per_s",
        "ram": "ram_bytes",
        "op_overhead": "op_overhead_s",
        "active_power": "active_power_w",
        "compute_sigma": "compute_sigma_log",
        "battery": "battery_j",
    }

    example: Text = Field(description="A product of this class.")
    flops_1_thread: FlopsPerSecond = Field(description="Sustained float32 rate of one thread.")
    flops_all_threads: FlopsPerSecond = Field(description="Sustained float32 rate of all threads.")
    memory_rate: BytesPerSecond = Field(description="Copy rate of main memory on one core.")
    ram: Bytes = Field(description="Main memory.")
    op_overhead: Seconds = Field(description="Fixed time a framework spends on each operation.")
    active_power: Watts = Field(description="Power of the whole device under full load.")
    compute_sigma: NonNegativeFloat = Field(
        description="Sd of the log of a task's time about its model: variation from run to run."
    )
    battery: Joules | None = Field(default=None, description="Energy of a full battery; none on mains power.")
    thermal: Text = Field(description="Name of a thermal profile.")
    crypto: Text = Field(description="Name of a crypto profile.")

    def build(self, name: str, thermal: ThermalProfile, crypto: CryptoProfile) -> DeviceProfile:
        """Return the frozen profile."""
        return DeviceProfile(name, **{**self.attributes(), "thermal": thermal, "crypto": crypto})


class OutageSection(BaseModel):
    """On/off outages of a link."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    fraction: PositiveFraction = Field(description="Share of time without service.")
    mean: PositiveSeconds = Field(description="Mean length of an outage.")


class SlowRateSection(BaseModel):
    """A slow process of the rate of a link, beside that of one second."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sigma: PositiveFloat = Field(description="Sd of the log of the rate by it.")
    correlation_time: PositiveSeconds = Field(
        description="Lag at which its correlation with itself has fallen to 1/e."
    )


class NetworkSection(ProfileSection):
    """A network profile."""

    words: ClassVar[frozenset[str]] = frozenset({"radio", "link_trace"})
    files: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("link_trace",),
        ("link_trace", "down"),
        ("link_trace", "up"),
    )
    fields: ClassVar[dict[str, str]] = {
        "down": "down_bps",
        "up": "up_bps",
        "rtt": "rtt_s",
        "jitter": "jitter_s",
        "rate_sigma": "rate_sigma_log",
        "rate_rho": "rate_rho_1s",
        "device_sigma": "device_sigma_log",
    }

    down: BitsPerSecond = Field(description="Typical rate towards the device.")
    up: BitsPerSecond = Field(description="Typical rate from the device.")
    rtt: PositiveSeconds = Field(description="Round trip without queueing.")
    jitter: Seconds = Field(description="Mean of the exponential delay that each message meets on top.")
    loss: Fraction = Field(description="Probability that a segment is lost.")
    rate_sigma: NonNegativeFloat = Field(description="Sd of the log of the rate over time.")
    rate_rho: Fraction = Field(description="Correlation of the log rate with itself one second later.")
    slow_rate: SlowRateSection | None = Field(
        default=None, description="A slow process of the rate beside that of one second; left out, none."
    )
    device_sigma: NonNegativeFloat = Field(
        default=0.0, description="Sd of the log of the factor on both rates that each device keeps for good."
    )
    radio: Text = Field(description="Name of a radio profile.")
    outage: OutageSection | None = Field(default=None, description="On/off outages; left out, none.")
    connect_success: PositiveFraction = Field(
        default=1.0, description="Probability that an attempt to connect succeeds."
    )
    duty_cycle: PositiveFraction = Field(
        default=1.0, description="Share of time that the device may transmit, by regulation."
    )
    link_trace: WrittenTrace | None = Field(
        default=None, description="Recorded link that stands in for rates, round trip, loss and outages."
    )

    def build(self, name: str, radio: RadioProfile, folder: Path) -> NetworkProfile:
        """Return the frozen profile; ``folder`` is where relative file names start.

        Raises
        ------
        TraceError : a trace that cannot be used.
        """
        outage, slow = self.outage, self.slow_rate
        attributes = self.attributes()
        attributes |= {
            "radio": radio,
            "outage": OutageProfile(outage.fraction, outage.mean) if outage else None,
            "slow_rate": SlowRateProfile(slow.sigma, slow.correlation_time) if slow else None,
            "trace": trace_beside(attributes.pop("link_trace"), folder),
        }
        return NetworkProfile(name, **attributes)


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

    def build(self, name: str, groups: tuple[FleetGroup, ...]) -> FleetMix:
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


def spread_sources(raw: dict[str, Any], words: frozenset[str]) -> dict[str, Any]:
    """Return ``raw`` with ``sources: text`` spread over every key that needs a source."""
    sources = raw.get("sources")
    if not isinstance(sources, str):
        return raw
    return {**raw, "sources": dict.fromkeys(needs_source(raw, words), sources)}


def needs_source(raw: dict[str, Any], words: frozenset[str]) -> list[str]:
    """Return the keys of a profile that hold numbers; an empty value, such as no battery, is none."""
    return [
        key for key in raw if key not in words and key not in ("sources", "note") and raw[key] is not None
    ]
