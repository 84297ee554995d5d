"""Quantities written as text: ``50 Mbit/s``, ``300 ms``, ``64 KiB``, ``30%``.

Text comes in, SI floats (or whole bytes) come out; a bare number where a unit is needed is an error, and so
is a unit of another quantity. Bits and bytes are never confused: ``Mbit/s``, ``Mb/s`` and ``Mbps`` are
megabits, ``MB/s`` is megabytes, ``kB`` is 1000 bytes and ``KiB`` is 1024. Spelling is exact: ``mb/s`` or
``KB``, which people use for two different things, is refused with the spellings to choose from.

Every ``parse_…`` function raises :class:`UnitError` for text that is not its quantity, is negative or is not
finite.
"""

from __future__ import annotations

import math
from decimal import Decimal

from device_profiles import quantities
from device_profiles.quantities import UnitError, parse_number, quoted

__all__ = [
    "UnitError",
    "format_bytes",
    "format_duration",
    "format_rate",
    "parse_bytes_per_s",
    "parse_charge_c",
    "parse_duration_s",
    "parse_energy_j",
    "parse_energy_per_bit_j",
    "parse_flops_per_s",
    "parse_fraction",
    "parse_frequency_hz",
    "parse_number",
    "parse_operations_per_s",
    "parse_power_w",
    "parse_rate_bps",
    "parse_ratio",
    "parse_size_bytes",
    "parse_voltage_v",
    "quoted",
    "write_ratio",
]


def parse_duration_s(text: str) -> float:
    """Return a duration in seconds: ``300 ms`` is 0.3, ``20 min`` is 1200.0."""
    return quantities.DURATION.parse(text)


def parse_rate_bps(text: str) -> float:
    """Return a rate in bits per second: ``50 Mbit/s`` is 5e7, ``1 MB/s`` is 8e6."""
    return quantities.RATE.parse(text)


def parse_size_bytes(text: str) -> int:
    """Return a size in whole bytes: ``64 KiB`` is 65536, ``64 kB`` is 64000."""
    return quantities.SIZE.parse_whole(text)


def parse_bytes_per_s(text: str) -> float:
    """Return a rate in bytes per second: ``20 GB/s`` is 2e10."""
    return quantities.BYTE_RATE.parse(text)


def parse_flops_per_s(text: str) -> float:
    """Return floating-point operations per second: ``58 GFLOP/s`` is 5.8e10."""
    return quantities.COMPUTE_RATE.parse(text)


def parse_operations_per_s(text: str) -> float:
    """Return operations of any other kind per second: ``190 Mop/s`` is 1.9e8."""
    return quantities.OPERATION_RATE.parse(text)


def parse_power_w(text: str) -> float:
    """Return a power in watts: ``900 mW`` is 0.9."""
    return quantities.POWER.parse(text)


def parse_energy_j(text: str) -> float:
    """Return an energy in joules: ``10 mJ`` is 0.01, ``1 Wh`` is 3600.0."""
    return quantities.ENERGY.parse(text)


def parse_energy_per_bit_j(text: str) -> float:
    """Return joules per bit (1 mW per Mbit/s is 1 nJ/bit): ``438 nJ/bit`` is 4.38e-7."""
    return quantities.ENERGY_PER_BIT.parse(text)


def parse_frequency_hz(text: str) -> float:
    """Return a frequency in hertz: ``2.8 GHz`` is 2.8e9."""
    return quantities.FREQUENCY.parse(text)


def parse_charge_c(text: str) -> float:
    """Return an electric charge in coulombs: ``4500 mAh`` is 16200.0."""
    return quantities.CHARGE.parse(text)


def parse_voltage_v(text: str) -> float:
    """Return a voltage in volts: ``3.85 V``."""
    return quantities.VOLTAGE.parse(text)


def parse_ratio(text: str) -> float:
    """Return a ratio, zero or more: ``130%`` is 1.3, and so is ``1.3``.

    Raises
    ------
    UnitError : not a number or percentage, negative, or not finite.
    """
    stripped = text.strip()
    percent = stripped.endswith("%")
    try:
        number = parse_number(stripped[:-1] if percent else stripped)
    except UnitError:
        raise UnitError(f"{quoted(text)} is not a ratio; write a percentage such as '30%'") from None
    if number < 0:
        raise UnitError(f"{quoted(text)} is negative; a ratio is zero or more")
    return float(number / 100 if percent else number)


def parse_fraction(text: str) -> float:
    """Return a fraction between 0 and 1: ``30%`` is 0.3, and so is ``0.3``.

    Raises
    ------
    UnitError : as :func:`parse_ratio`, and above 1.
    """
    value = parse_ratio(text)
    if value > 1:
        hint = (
            f"write {quoted(text.strip() + '%')}"
            if "%" not in text and value <= 100
            else "write at most '100%'"
        )
        raise UnitError(f"{quoted(text)} is more than the whole; {hint}")
    return value


def write_ratio(value: float) -> str:
    """Return a ratio as a percentage that :func:`parse_ratio` reads back to exactly ``value``."""
    percent = (Decimal(repr(float(value))) * 100).normalize()
    digits = format(percent, "f")
    return f"{digits if len(digits) <= 24 else percent}%"


def format_duration(duration_s: float) -> str:
    """Return a duration for people, three significant digits or better: ``312 ms``, ``12.4 s``, ``1.5 h``."""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        # Two of the larger unit, so that '90 s' is not '1.5 min'.
        if abs(duration_s) >= 2 * size:
            return f"{_significant(duration_s / size)} {unit}"
    return _prefixed(duration_s, "s", ((1.0, ""), (1e-3, "m"), (1e-6, "u"), (1e-9, "n")))


def format_bytes(size_bytes: float) -> str:
    """Return a size for people in binary units: ``512 B``, ``1.43 KiB``, ``64 MiB``."""
    return _prefixed(
        size_bytes, "B", ((2.0**40, "Ti"), (2.0**30, "Gi"), (2.0**20, "Mi"), (2.0**10, "Ki"), (1.0, ""))
    )


def format_rate(rate_bps: float) -> str:
    """Return a rate for people: ``29.5 Mbit/s``."""
    return _prefixed(rate_bps, "bit/s", ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")))


def _prefixed(value: float, unit: str, prefixes: tuple[tuple[float, str], ...]) -> str:
    if value == 0 or not math.isfinite(value):
        return f"{value:g} {unit}"
    larger, size, prefix = None, *prefixes[0]
    for next_size, next_prefix in prefixes[1:]:
        if abs(value) >= size:
            break
        larger, size, prefix = (size, prefix), next_size, next_prefix
    digits = _significant(value / size)
    # What rounds to the next larger unit is written in it: 999.8 ms is '1 s'.
    if larger is not None and float(digits) * size >= larger[0]:
        size, prefix = larger
        digits = _significant(value / size)
    return f"{digits} {prefix}{unit}"


def _significant(value: float) -> str:
    digits = f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return digits if "e" not in digits else f"{value:.0f}"
