"""What this host says of the process and of its files: never part of a result."""

from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil

from device_profiles.units import format_bytes

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


def memory_bytes() -> int:
    """Return the memory that a process can have here at most, bytes: the machine's, or a limit below that."""
    most = [psutil.virtual_memory().total + psutil.swap_memory().total]
    if _CGROUP_LIMIT.is_file():
        written = _CGROUP_LIMIT.read_text(encoding="ascii").strip()
        most += [int(written)] if written.isdigit() else []
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return min([*most, limit] if limit != resource.RLIM_INFINITY else most)


@contextmanager
def errors_name(path: Path) -> Iterator[None]:
    """Let refusals of the operating system name the file that is written: those of a write do not.

    Raises
    ------
    OSError : of the same number, with the file's name.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error


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
