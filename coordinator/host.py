"""What this host is, and what it says of the process: measured, and never part of a result.

The same scenario and seed give the same bits on the same *numerics*: Python (whose ``sum`` of floats is
compensated from 3.12 on) and numpy, the processor, the vector instructions that numpy chose for it, the BLAS
library and the kernels that it chose, the C library's mathematics, and the packages whose figures are in
tables. Other dependencies move bits or measure times; none of them makes a figure.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil

_CPU_INFO: Final = Path("/proc/cpuinfo")
_CPU_MODEL: Final = "model name"
_NUMPY_LIBRARIES: Final = (
    Path(np.__file__).parent.with_suffix(".libs"),
    Path(np.__file__).parent / ".dylibs",
)
_CORE_FUNCTIONS: Final = (
    "scipy_openblas_get_corename64_",
    "scipy_openblas_get_corename",
    "openblas_get_corename64_",
    "openblas_get_corename",
)
_PACKAGES_OF_FIGURES: Final = ("dp-accounting", "onnx", "scipy", "tenseal")
"""Of what is installed by extras: epsilon, the size of a model's file, homomorphic sums."""

_STATUS = Path("/proc/self/status")
_STATM = "/proc/self/statm"
_PAGE_BYTES = resource.getpagesize()
_HIGH_WATER = "VmHWM:"


def rss_bytes() -> int:
    """Return the resident memory of this process, bytes.

    Read directly where the system allows: once a round, psutil's way is a tenth of a small round's cost.
    """
    try:
        descriptor = os.open(_STATM, os.O_RDONLY)
    except FileNotFoundError:
        return int(psutil.Process().memory_info().rss)
    try:
        return int(os.read(descriptor, 256).split()[1]) * _PAGE_BYTES
    finally:
        os.close(descriptor)


def peak_rss_bytes() -> int:
    """Return the largest resident memory of this process so far, bytes; the present one where unknown.

    Not from ``getrusage``: there a child starts with the peak of the process that made it.
    """
    if _STATUS.exists():
        for line in _STATUS.read_text().splitlines():
            if line.startswith(_HIGH_WATER):
                return int(line.split()[1]) * 1024
    return rss_bytes()


def host_facts() -> dict[str, Any]:
    """Return what the manifest says of this host: versions, processors, memory and :func:`numerics`."""
    return {
        "recfleet": _version("recfleet") or "not installed",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "platform": platform.platform(),
        "machine": platform.machine(),
        "byte_order": sys.byteorder,
        "processors": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "numerics": numerics(),
    }


def numerics() -> dict[str, str]:
    """Return what the last bits of a run may depend on, beside the versions of Python and numpy."""
    config = np.show_config(mode="dicts")
    blas = config["Build Dependencies"]["blas"]
    libc, version = platform.libc_ver()
    found = {
        "cpu": _cpu_model(),
        "vector_instructions": " ".join(config.get("SIMD Extensions", {}).get("found", ())) or "baseline",
        "blas": f"{blas['name']} {blas.get('version', '')}".strip(),
        "blas_core": _blas_core() or "unknown",
        "blas_threads": os.environ.get("OPENBLAS_NUM_THREADS", "unset"),
        "libc": f"{libc} {version}".strip() or "unknown",
    }
    versions = {name: _version(name) for name in _PACKAGES_OF_FIGURES}
    return found | {name: version for name, version in versions.items() if version is not None}


def numerical_differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return by name what differs of the numerics of two hosts, from the ``host`` of their manifests.

    What only one of them names is left out, unless it is a package: manifests of before named fewer.
    """
    sides = [
        {"machine": host.get("machine"), "python": host.get("python"), "numpy": host.get("numpy")}
        | dict(host.get("numerics", {}))
        for host in (first, second)
    ]
    if all("numerics" in host for host in (first, second)):
        for side in sides:
            side.update((name, "not installed") for name in _PACKAGES_OF_FIGURES if name not in side)
    shared = [name for name in sides[0] if name in sides[1] and None not in (sides[0][name], sides[1][name])]
    return {
        name: (str(sides[0][name]), str(sides[1][name]))
        for name in shared
        if sides[0][name] != sides[1][name]
    }


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    if _CPU_INFO.exists():
        for line in _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == _CPU_MODEL:
                return value.strip()
    return platform.processor() or platform.machine()


def _blas_core() -> str | None:
    """Return the kernels that numpy's OpenBLAS runs here, as it names them; None for another library."""
    for path in (path for folder in _NUMPY_LIBRARIES for path in sorted(folder.glob("*openblas*"))):
        library = ctypes.CDLL(str(path))  # loaded already, by numpy
        for name in _CORE_FUNCTIONS:
            function = getattr(library, name, None)
            if function is not None:
                function.restype = ctypes.c_char_p
                core = function()
                return core.decode() if core is not None else None
    return None
