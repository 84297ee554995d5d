"""Whether this installation is sound, and what this machine is."""

from __future__ import annotations

import enum
import importlib
import importlib.util
import json
import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import numpy as np
import psutil

from coordinator.engine.host import numerics
from device_profiles.units import format_bytes, format_duration
from edge.clock import virtual as clock
from edge.core.errors import UnsupportedPythonError

DISTRIBUTION: Final = "recfleet"
PACKAGES: Final = ("edge", "coordinator", "device_profiles", "recfleet")

_LEAST_PYTHON: Final = (3, 11)
_LITTLE_MEMORY_BYTES: Final = 1 << 30
_LITTLE_DISK_BYTES: Final = 1 << 30
_COARSE_CLOCK_S: Final = 1e-3
_FIRST_RELEASE_YEAR: Final = 2025
_IMPORTED_AS: Final = {
    "ruamel-yaml": "ruamel.yaml",
    "dp-accounting": "dp_accounting",
    "prometheus-client": "prometheus_client",
    "mlflow-skinny": "mlflow",
    "tensorboardx": "tensorboardX",
}
"""Modules that are not called like their distribution (as metadata normalises its name)."""

_NOT_INSTALLED: Final = "is not installed"
_REQUIREMENT_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_EXTRA: Final = re.compile(r"""extra\s*==\s*['"]([A-Za-z0-9._-]+)['"]""")

EXTRAS: Final[Mapping[str, str]] = {
    "dp": "epsilon of differential privacy",
    "export": "model files in ONNX, and models that devices run themselves",
    "he": "sums under homomorphic encryption (secure_aggregation: {mode: ckks})",
    "pytest": "scenarios as tests (the fixture recfleet_run)",
    "service": "figures of a service for Prometheus",
    "mlflow": "runs in MLflow (--sink mlflow)",
    "ray": "workers on a Ray cluster (--engine ray)",
    "tensorboard": "runs in TensorBoard (--sink tensorboard)",
    "tune": "the search for settings (recfleet tune)",
    "torch": "methods whose models are modules of PyTorch",
}
"""What each extra gives to those who run scenarios."""


class Severity(enum.Enum):
    """How a finding is to be taken."""

    FINE = "fine"
    NOTE = "note"
    """Works, but the reader should know."""
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes
    ----------
    severity : how it is to be taken.
    subject : what was looked at.
    fact : what was found.
    advice : what to do about it; empty when there is nothing to do.
    """

    severity: Severity
    subject: str
    fact: str
    advice: str = ""


def examine() -> list[Finding]:
    """Look at everything, from Python and the packages to memory, disk and clocks."""
    found = numerics()
    return [
        python_finding(sys.version_info[:3]),
        *dependency_findings(),
        *extra_findings(),
        *package_findings(located_packages(), installed_at(), metadata.packages_distributions()),
        processor_finding(found["cpu"]),
        blas_finding(found),
        virtual_clock_finding(),
        memory_finding(psutil.virtual_memory().total, psutil.virtual_memory().available),
        disk_finding(shutil.disk_usage(Path.cwd()).free, Path.cwd()),
        clock_finding(time.get_clock_info("monotonic").resolution, datetime.now(UTC)),
    ]


def python_finding(version: Sequence[int]) -> Finding:
    """Judge the interpreter's version, for example ``(3, 11, 7)``."""
    shown = f"{'.'.join(map(str, version))} ({platform.python_implementation()}, {platform.platform()})"
    if tuple(version[:2]) < _LEAST_PYTHON:
        return Finding(Severity.WRONG, "python", shown, "recfleet needs Python 3.11 or newer")
    return Finding(Severity.FINE, "python", shown)


def requirements(lines: Sequence[str]) -> list[str]:
    """Return the names of the distributions that are always needed, from ``Requires-Dist`` lines."""
    needed = [line for line in lines if "extra ==" not in line]
    return [match.group() for line in needed if (match := _REQUIREMENT_NAME.match(line))]


def dependency_findings(distribution: str = DISTRIBUTION) -> Iterator[Finding]:
    """Report the distribution's own version, then the version of each dependency after importing it."""
    try:
        lines = metadata.requires(distribution) or []
        yield Finding(Severity.FINE, distribution, metadata.version(distribution))
    except metadata.PackageNotFoundError:
        advice = "install it: pip install ."
        yield Finding(Severity.WRONG, distribution, "is not installed in this environment", advice)
        return
    for name in requirements(lines):
        yield dependency_finding(name)


def extra_findings(distribution: str = DISTRIBUTION) -> Iterator[Finding]:
    """Report of each extra what it gives, and the versions of its packages or how to install them."""
    try:
        lines = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        return
    for extra, gives in EXTRAS.items():
        wanted = [line for line in lines if (match := _EXTRA.search(line)) and match.group(1) == extra]
        names = [match.group() for line in wanted if (match := _REQUIREMENT_NAME.match(line))]
        yield extra_finding(extra, gives, [dependency_finding(name) for name in names])


def extra_finding(extra: str, gives: str, packages: Sequence[Finding]) -> Finding:
    """Judge an extra by its packages: none of them must be there, and those that are must work."""
    subject = f"extra {extra}"
    broken = [one for one in packages if one.severity is Severity.WRONG and one.fact != _NOT_INSTALLED]
    if broken:
        return Finding(Severity.WRONG, subject, f"{broken[0].subject} {broken[0].fact}", broken[0].advice)
    missing = [one.subject for one in packages if one.fact == _NOT_INSTALLED]
    if missing:
        fact = f"{gives}: without {', '.join(missing)}"
        return Finding(Severity.NOTE, subject, fact, f"to have it: pip install 'recfleet[{extra}]'")
    versions = ", ".join(f"{one.subject} {one.fact}" for one in packages)
    return Finding(Severity.FINE, subject, f"{gives}: {versions}")


def dependency_finding(name: str, load: Callable[[str], object] = importlib.import_module) -> Finding:
    """Report the version of a dependency after importing it with ``load``."""
    advice = f"install it again: pip install --force-reinstall {name}"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(Severity.WRONG, name, _NOT_INSTALLED, advice)
    try:
        load(_IMPORTED_AS.get(name, name))
    except Exception as error:  # whatever a broken installation raises is the finding
        fact = f"{version}, but it cannot be imported: {type(error).__name__}: {error}"
        return Finding(Severity.WRONG, name, fact, advice)
    return Finding(Severity.FINE, name, version)


def located_packages() -> dict[str, Path | None]:
    """Return the folder that ``import`` takes each of our packages from; None where it finds none."""
    found: dict[str, Path | None] = {}
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        origin = spec.origin if spec is not None else None
        found[package] = Path(origin).resolve().parent if origin is not None else None
    return found


def installed_at(distribution: str = DISTRIBUTION) -> Path | None:
    """Return the folder that the installed distribution's packages lie in; None if it is not installed."""
    try:
        installed = metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return None
    source = json.loads(installed.read_text("direct_url.json") or "{}")
    return _editable_folder(source) or Path(str(installed.locate_file(""))).resolve()


def _editable_folder(source: Mapping[str, Any]) -> Path | None:
    """Return the source tree of an editable installation, from ``direct_url.json`` (PEP 610)."""
    if not source.get("dir_info", {}).get("editable", False):
        return None
    return Path(unquote(urlsplit(source["url"]).path)).resolve()


def package_findings(
    located: Mapping[str, Path | None], home: Path | None, owners: Mapping[str, Sequence[str]]
) -> Iterator[Finding]:
    """Judge whether our packages are ours: other distributions install a package ``coordinator``, too.

    Parameters
    ----------
    located : folder that each package is imported from, None where there is none.
    home : folder that the installed distribution's packages lie in; None if it is not installed.
    owners : distributions that install each package, as ``importlib.metadata.packages_distributions`` says.
    """
    for package, folder in located.items():
        others = sorted(set(owners.get(package, ())) - {DISTRIBUTION})
        if others:
            fact = f"is installed by {' and '.join(others)}, too; each overwrites the other's files"
            advice = (
                f"uninstall {' '.join(others)}, then: pip install --force-reinstall --no-deps {DISTRIBUTION}"
            )
            yield Finding(Severity.WRONG, package, fact, advice)
        elif folder is None:
            yield Finding(Severity.WRONG, package, "cannot be imported", "install recfleet: pip install .")
        elif home is not None and folder.parent != home:
            fact = f"is imported from {folder}, but recfleet is installed in {home}"
            advice = "start recfleet from another folder, or check PYTHONPATH"
            yield Finding(Severity.WRONG, package, fact, advice)
        else:
            yield Finding(Severity.FINE, package, str(folder))


def processor_finding(cpu: str) -> Finding:
    """Report how many processors there are, how many this process may use, and their model, ``cpu``."""
    usable = (
        len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else os.cpu_count()
    )
    fact = f"{os.cpu_count()}, {usable} usable by this process; {cpu}"
    return Finding(Severity.FINE, "processors", fact)


def blas_finding(found: Mapping[str, str]) -> Finding:
    """Judge BLAS's number of threads: a result must not depend on it; name what else its bits depend on.

    ``found`` is what :func:`coordinator.engine.host.numerics` returns.
    """
    fact = (
        f"numpy {np.__version__} with {found['blas']}, kernels {found['blas_core']}, "
        f"threads: {found['blas_threads']}; vector instructions: {found['vector_instructions']}; "
        f"{found['libc']}"
    )
    if found["blas_threads"] == "1":
        return Finding(Severity.FINE, "numerics", fact)
    advice = "the command sets it to 1; set OPENBLAS_NUM_THREADS=1 yourself where recfleet is a library"
    return Finding(Severity.NOTE, "numerics", fact, advice)


def virtual_clock_finding() -> Finding:
    """Try the virtual clock, which overrides private parts of this Python's asyncio."""
    try:
        clock.verify()
    except UnsupportedPythonError as error:
        return Finding(Severity.WRONG, "virtual clock", str(error), "use another Python")
    return Finding(Severity.FINE, "virtual clock", "goes right with the asyncio of this Python")


def memory_finding(total_bytes: int, available_bytes: int) -> Finding:
    """Judge the memory: a scenario of ordinary size needs a few hundred megabytes."""
    fact = f"{format_bytes(total_bytes)}, {format_bytes(available_bytes)} available"
    if available_bytes < _LITTLE_MEMORY_BYTES:
        return Finding(Severity.NOTE, "memory", fact, "a large fleet may not fit; close other programs")
    return Finding(Severity.FINE, "memory", fact)


def disk_finding(free_bytes: int, folder: Path) -> Finding:
    """Judge the disk under ``folder``, where runs are written."""
    fact = f"{format_bytes(free_bytes)} free in {folder}"
    if free_bytes < _LITTLE_DISK_BYTES:
        return Finding(Severity.NOTE, "disk", fact, "a long run may not fit; give another folder with --out")
    return Finding(Severity.FINE, "disk", fact)


def clock_finding(resolution_s: float, now: datetime) -> Finding:
    """Judge the clock: what was measured is only as fine as it is, and manifests carry its date."""
    fact = f"{now:%Y-%m-%d %H:%M:%S} UTC, resolution {format_duration(resolution_s)}"
    if now.year < _FIRST_RELEASE_YEAR:
        return Finding(
            Severity.WRONG, "clock", fact, "this date lies before recfleet's first release; set it"
        )
    if resolution_s > _COARSE_CLOCK_S:
        return Finding(Severity.NOTE, "clock", fact, "measured wall times are coarse on this machine")
    return Finding(Severity.FINE, "clock", fact)
