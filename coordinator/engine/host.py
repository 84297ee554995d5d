"""What this host is, what it says of the process, and what it refuses: measured, and never part of a result.

The same scenario and seed give the same bits on the same *numerics*: Python (whose ``sum`` of floats is
compensated from 3.12 on) and numpy, the processor, the vector instructions that numpy chose for it, the BLAS
library and the kernels that it chose, the C library's mathematics, and the packages whose figures are in
tables. Other dependencies move bits or measure times; none of them makes a figure.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import shutil
import sys
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil

from device_profiles.units import format_bytes

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
_TORCH_METHODS: Final = "edge.learning.torch_recommender"
"""Imported by plug-ins whose methods are modules of PyTorch, and by nothing else."""

_STATUS = Path("/proc/self/status")
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_STATM = "/proc/self/statm"
_PAGE_BYTES = resource.getpagesize()
_HIGH_WATER = "VmHWM:"
_OF_THE_SYSTEM: Final = frozenset(
    {
        errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO,
        errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ESTALE,
        errno.ENAMETOOLONG, errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EAGAIN, errno.ELOOP,
    }
)  # fmt: skip
"""Refusals of the operating system that are nobody's bug."""
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)


def processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def rss_bytes() -> int:
    """Return the resident memory of this process, bytes.

    Read directly where the system allows: once a round, psutil's way is a tenth of a small round's cost.
    """
    descriptor = _statm(os.getpid())
    if descriptor is None:
        return int(psutil.Process().memory_info().rss)
    return int(os.pread(descriptor, 256, 0).split()[1]) * _PAGE_BYTES


@cache
def _statm(process: int) -> int | None:
    """Return a descriptor of the sizes of this process, which stays open; None where there is no such file.

    A child has another ``process``, and opens its own.
    """
    try:
        return os.open(_STATM, os.O_RDONLY)
    except FileNotFoundError:
        return None


def peak_rss_bytes() -> int:
    """Return the largest resident memory of this process so far, bytes; the present one where unknown.

    Not from ``getrusage``: there a child starts with the peak of the process that made it.
    """
    if _STATUS.exists():
        for line in _STATUS.read_text().splitlines():
            if line.startswith(_HIGH_WATER):
                return int(line.split()[1]) * 1024
    return rss_bytes()


def memory_bytes() -> int:
    """Return the memory that a process can have here at most, bytes: the machine's, or a limit below that."""
    most = [psutil.virtual_memory().total + psutil.swap_memory().total]
    if _CGROUP_LIMIT.is_file():
        written = _CGROUP_LIMIT.read_text(encoding="ascii").strip()
        most += [int(written)] if written.isdigit() else []
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return min([*most, limit] if limit != resource.RLIM_INFINITY else most)


def system_trouble(error: BaseException) -> str | None:
    """Return what the system lacks or refuses, and what to do about it; None for what may be a bug."""
    if isinstance(error, MemoryError):
        detail = f": {error}" if str(error) else ""
        return f"this machine has not enough memory{detail}; make the scenario smaller"
    if not isinstance(error, OSError) or error.errno not in _OF_THE_SYSTEM:
        return None
    said = error.strerror or os.strerror(error.errno)
    if error.filename is None:
        return f"{said}{_advice(error.errno, None)}"
    file = os.fsdecode(error.filename) if not isinstance(error.filename, int) else str(error.filename)
    return f"{file}: {said}{_advice(error.errno, file)}"


def _advice(number: int, file: str | None) -> str:
    if number in _NO_SPACE:
        left = _free(file)
        room = "" if left is None else f" ({left} free there)"
        return f"{room}; make room, or write to another place"
    if number == errno.EFBIG:
        return "; raise the limit on the size of files (ulimit -f), or write to another place"
    if number in (errno.EMFILE, errno.ENFILE):
        return "; raise the limit on open files (ulimit -n)"
    if number in (errno.EROFS, errno.EACCES, errno.EPERM):
        return "; change its mode, or name another place"
    return ""


def _free(file: str | None) -> str | None:
    """Return the space that is free where a file lies, or would; None where that is unknown."""
    folder = "" if file is None else os.path.dirname(file)
    # Without a folder it may be a standard stream.
    return format_bytes(shutil.disk_usage(folder).free) if os.path.isdir(folder) else None


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
    # torch takes seconds to import, and few runs use it: whoever does has imported both.
    if _TORCH_METHODS in sys.modules and sys.modules.get("torch") is not None:
        found |= sys.modules[_TORCH_METHODS].numerics()
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


@cache
def _version(distribution: str) -> str | None:
    try:
        found = metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return None
    # Its version without the parser of e-mail, which takes longer to import than a round to run.
    lines = (found.read_text("METADATA") or "").splitlines()
    written = (line.partition(":")[2].strip() for line in lines if line.startswith("Version:"))
    return next(written, None) or found.version


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
