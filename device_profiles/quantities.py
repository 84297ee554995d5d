"""The machinery of units: what a quantity is, how its text is read, refused and written.

:mod:`device_profiles.units` has the functions to use; this module has the table they share. Scaling is done
in decimal, so ``300 ms`` is the float nearest to 0.3 and ``Quantity.write`` gives text that reads back to the
same float.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

_NUMBER: Final = re.compile(r"([+-]?(?:[0-9][0-9_]*(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?)")
_LONGEST_TEXT: Final = 100
_LARGEST: Final = 1e30
"""No quantity of a device, link or run comes near this; larger is a slip, and may not overflow later."""


class UnitError(ValueError):
    """Text that is not the quantity asked for; the message says what to write instead."""


def quoted(text: object) -> str:
    """Return ``text`` in quotes, cut when long, for an error message."""
    shown = str(text)
    if len(shown) > 60:
        shown = shown[:57] + "..."
    return repr(shown)


def parse_number(text: str) -> Decimal:
    """Return the plain decimal number in ``text`` (no unit, no percent sign).

    Raises
    ------
    UnitError : not a number, not finite, or beyond 1e30.
    """
    stripped = text.strip()
    match = _NUMBER.fullmatch(stripped) if len(stripped) <= _LONGEST_TEXT else None
    if match is None:
        raise UnitError(f"{quoted(text)} is not a number; write {_example_number(stripped)}")
    return _decimal(match.group(1), text)


def _example_number(text: str) -> str:
    """Return, quoted, a number to propose instead of ``text``."""
    if re.fullmatch(r"[0-9]+,[0-9]+", text) and len(text) <= 30:
        return repr(text.replace(",", "."))
    match = _NUMBER.match(text)
    # '45 s' where a plain number is wanted: the number is what to keep.
    if match and match.group(1) and len(match.group(1)) <= 20 and ":" not in text:
        return repr(match.group(1))
    return "one, such as '0.5' or '1e-3'"


def _decimal(digits: str, text: str) -> Decimal:
    number = Decimal(digits.replace("_", ""))
    if abs(number) > _LARGEST:
        raise UnitError(f"{quoted(text)} is too large; write a number below {_LARGEST:g}")
    return number


@dataclass(frozen=True, slots=True)
class Quantity:
    """One kind of quantity: its units, how to read one and how to write one.

    Attributes
    ----------
    name : with its article, for messages: ``a duration``.
    usual : the unit proposed to somebody who wrote none.
    units : spelling to size in the base unit.
    written : the units ``write`` chooses from, largest first.
    ambiguous : spellings refused with advice.
    """

    name: str
    usual: str
    units: Mapping[str, Decimal]
    written: tuple[str, ...]
    ambiguous: Mapping[str, str] = field(default_factory=dict)
    whole: bool = False
    """True when the base unit cannot be divided (bytes)."""

    def parse(self, text: str) -> float:
        """Return ``text`` in the base unit, float64.

        Raises
        ------
        UnitError : not a number, no unit, a unit of another quantity, negative or not finite.
        """
        return float(self._parse(text))

    def parse_whole(self, text: str) -> int:
        """Return ``text`` as a whole number of base units.

        Raises
        ------
        UnitError : as :meth:`parse`, and for a fraction of the base unit.
        """
        value = self._parse(text)
        if value != value.to_integral_value():
            raise UnitError(
                f"{quoted(text)} is not a whole number of {self.written[-1]}; write '{round(value)} "
                f"{self.written[-1]}'"
            )
        return int(value)

    def write(self, value: float) -> str:
        """Return text that :meth:`parse` reads back to exactly ``value``, in a unit that keeps it short."""
        if not math.isfinite(value) or value < 0:
            raise ValueError(f"{self.name} is finite and not negative, not {value}")
        exact = Decimal(repr(value))
        candidates = []
        for unit in self.written:
            size = self.units[unit]
            scaled = exact / size
            if scaled >= 1 and scaled * size == exact:
                digits = format(scaled.normalize(), "f")
                if float(Decimal(digits) * size) == value and len(digits) <= 17:
                    whole, _, part = digits.partition(".")
                    candidates.append((len(whole) + 2 * len(part), f"{digits} {unit}"))
        if candidates:
            # min keeps the first of equals: the largest unit.
            return min(candidates, key=lambda candidate: candidate[0])[1]
        number = str(int(value)) if self.whole or value == int(value) else repr(value)
        return f"{number} {self._base_unit()}"

    def _base_unit(self) -> str:
        return next(unit for unit in reversed(self.written) if self.units[unit] == 1)

    def _parse(self, text: str) -> Decimal:
        stripped = text.strip()
        match = _NUMBER.match(stripped) if len(stripped) <= _LONGEST_TEXT else None
        if match is None:
            raise UnitError(f"{quoted(text)} is not {self.name}; write one such as '{self._example('5')}'")
        digits, unit = match.group(1), stripped[match.end() :].strip()
        size = self.units.get(unit)
        if size is None:
            raise UnitError(self._explain(text, digits, unit))
        number = _decimal(digits, text)
        if number < 0:
            raise UnitError(f"{quoted(text)} is negative; {self.name} is zero or more")
        value = number * size
        if value > _LARGEST:
            raise UnitError(f"{quoted(text)} is too large for {self.name}")
        return value

    def _example(self, digits: str) -> str:
        return f"{digits} {self.usual}"

    def _explain(self, text: str, digits: str, unit: str) -> str:
        """Return why ``unit`` is refused and what to write."""
        if not unit:
            return f"{quoted(text)} has no unit; write '{self._example(digits)}'"
        if unit in self.ambiguous:
            return f"{quoted(text)}: {self.ambiguous[unit]}"
        if unit.startswith(":"):
            return f"{quoted(text)} is not {self.name}; write a number and a unit: '{self._example('90')}'"
        if unit.startswith(",") and re.fullmatch(r",[0-9]+\s*\S*", unit):
            return f"{quoted(text)}: the decimal sign is a point; write {quoted(digits + '.' + unit[1:])}"
        for other in _QUANTITIES:
            if unit in other.units:
                meant = self._converted(digits, unit)
                return f"{quoted(text)} is {other.name}, not {self.name}; write '{meant}'"
        close = difflib.get_close_matches(unit, list(self.units), n=1, cutoff=0.6)
        if not close:
            close = [known for known in self.units if known.lower() == unit.lower()][:1]
        if close:
            return f"{quoted(text)}: unknown unit {quoted(unit)}; write '{digits} {close[0]}'"
        return f"{quoted(text)}: unknown unit {quoted(unit)}; write one of {', '.join(self.written)}"

    def _converted(self, digits: str, unit: str) -> str:
        """Return what somebody who took a unit of another quantity most likely meant."""
        if self.whole and unit in _BIT_UNITS:
            return self.write(math.ceil(Decimal(digits.replace("_", "")) * _BIT_UNITS[unit] / 8))
        for candidate in (f"{unit}/s", unit.removesuffix("/s"), unit.removesuffix("ps")):
            if candidate in self.units:
                return f"{digits} {candidate}"
        return self._example(digits)


def _decimals(**units: str) -> dict[str, Decimal]:
    return {name: Decimal(size) for name, size in units.items()}


def _scaled(base: str, prefixes: Mapping[str, str]) -> dict[str, Decimal]:
    return {prefix + base: Decimal(size) for prefix, size in prefixes.items()}


_SMALL = {"n": "1e-9", "u": "1e-6", "µ": "1e-6", "μ": "1e-6", "m": "1e-3"}
_LARGE = {"": "1", "k": "1e3", "M": "1e6", "G": "1e9", "T": "1e12"}
_BINARY = {"Ki": str(2**10), "Mi": str(2**20), "Gi": str(2**30), "Ti": str(2**40)}

_MINUTES = "'m' could be minutes, metres or milli; write 'min' or 'ms'"
DURATION: Final = Quantity(
    name="a duration",
    usual="s",
    units={
        **_scaled("s", {**_SMALL, "": "1"}),
        **_decimals(second="1", seconds="1", min="60", minute="60", minutes="60"),
        **_decimals(h="3600", hour="3600", hours="3600", d="86400", day="86400", days="86400"),
    },
    written=("d", "h", "min", "s", "ms", "us", "ns"),
    ambiguous={"m": _MINUTES, "M": _MINUTES},
)
_BYTE_UNITS = {**_scaled("B", _LARGE), **_scaled("B", _BINARY)}
_BIT_UNITS = {
    **_scaled("bit", _LARGE),
    **{prefix + "b": Decimal(size) for prefix, size in _LARGE.items() if prefix},
    **_scaled("bit", _BINARY),
}
_KILOBYTES = "'K' is not a prefix; write 'kB' for 1000 bytes or 'KiB' for 1024 bytes"
SIZE: Final = Quantity(
    name="a size in bytes",
    usual="KiB",
    units={**_BYTE_UNITS, "byte": Decimal(1), "bytes": Decimal(1)},
    written=("GiB", "MiB", "KiB", "GB", "MB", "kB", "B"),
    ambiguous=dict.fromkeys(("K", "k", "KB", "Kb", "kb", "kbyte", "Kbyte"), _KILOBYTES)
    | {unit: f"{unit!r} is not a unit; write '{unit.upper()}iB' or '{unit.upper()}B'" for unit in "MGTmgt"},
    whole=True,
)
_RATE_CASE = "write 'kbit/s' or 'Mbit/s' for bits, 'kB/s' or 'MB/s' for bytes"
RATE: Final = Quantity(
    name="a rate",
    usual="Mbit/s",
    units={
        **_scaled("bit/s", _LARGE),
        **_scaled("b/s", _LARGE),
        **_scaled("bps", _LARGE),
        **{f"{unit}/s": size * 8 for unit, size in _BYTE_UNITS.items()},
    },
    written=("Gbit/s", "Mbit/s", "kbit/s", "bit/s"),
    ambiguous={
        unit: f"the prefix and the case of {unit!r} leave bits or bytes open; {_RATE_CASE}"
        for unit in (
            "mbps",
            "mb/s",
            "mbit/s",
            "Kbps",
            "Kb/s",
            "KB/s",
            "KBps",
            "kBps",
            "MBps",
            "GBps",
            "gbps",
            "M",
            "k",
            "K",
        )
    },
)
BYTE_RATE: Final = Quantity(
    name="a rate in bytes per second",
    usual="GB/s",
    units={
        **{f"{unit}/s": size for unit, size in _BYTE_UNITS.items()},
        **{f"{prefix}bit/s": Decimal(size) / 8 for prefix, size in _LARGE.items()},
    },
    written=("GB/s", "MB/s", "kB/s", "B/s"),
)
COMPUTE_RATE: Final = Quantity(
    name="a compute rate",
    usual="GFLOP/s",
    units={**_scaled("FLOP/s", _LARGE), **_scaled("FLOPS", {k: v for k, v in _LARGE.items() if k})},
    written=("TFLOP/s", "GFLOP/s", "MFLOP/s", "kFLOP/s", "FLOP/s"),
)
OPERATION_RATE: Final = Quantity(
    name="an operation rate",
    usual="Mop/s",
    units=_scaled("op/s", _LARGE),
    written=("Gop/s", "Mop/s", "kop/s", "op/s"),
)
POWER: Final = Quantity(
    name="a power",
    usual="W",
    units=_scaled("W", {**_SMALL, "": "1", "k": "1e3"}),
    written=("kW", "W", "mW", "uW"),
)
ENERGY: Final = Quantity(
    name="an energy",
    usual="J",
    units={**_scaled("J", {**_SMALL, **_LARGE}), **_decimals(mWh="3.6", Wh="3600", kWh="3600000")},
    written=("Wh", "kJ", "J", "mJ", "uJ", "nJ"),
)
ENERGY_PER_BIT: Final = Quantity(
    name="an energy per bit",
    usual="nJ/bit",
    units=_scaled("J/bit", {**_SMALL, "p": "1e-12", "": "1"}),
    written=("J/bit", "mJ/bit", "uJ/bit", "nJ/bit", "pJ/bit"),
)
FREQUENCY: Final = Quantity(
    name="a frequency",
    usual="Hz",
    units=_scaled("Hz", {**_LARGE, "m": "1e-3"}),
    written=("GHz", "MHz", "kHz", "Hz"),
)
CHARGE: Final = Quantity(
    name="an electric charge",
    usual="mAh",
    units=_decimals(mAh="3.6", Ah="3600", C="1"),
    written=("Ah", "mAh", "C"),
)
VOLTAGE: Final = Quantity(
    name="a voltage", usual="V", units=_scaled("V", {"m": "1e-3", "": "1"}), written=("V", "mV")
)
_BIT_SIZE: Final = Quantity(
    name="a size in bits", usual="Mbit", units=_BIT_UNITS, written=("Mbit", "kbit", "bit")
)
_QUANTITIES: Final = (
    *(DURATION, SIZE, RATE, BYTE_RATE, COMPUTE_RATE, OPERATION_RATE, POWER, ENERGY, ENERGY_PER_BIT),
    *(FREQUENCY, CHARGE, VOLTAGE, _BIT_SIZE),
)
