"""Files that are written whole or not at all, and arrays as the bytes of one."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


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


@contextmanager
def written_whole(target: Path) -> Iterator[Path]:
    """Give the path at which to write a file that then takes its place in one step.

    Its bytes, then its name, have reached the disk. What cannot be written whole is removed: on a full disk
    it takes the room that others need.

    Raises
    ------
    OSError : with the name of ``target``.
    """
    temporary = target.with_name(target.name + ".tmp")
    try:
        with errors_name(target):
            yield temporary
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(target)
            folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, contents: bytes) -> None:
    """Write a file so that its path holds the old contents or the new, whole, at any moment."""
    with written_whole(path) as temporary:
        temporary.write_bytes(contents)


def npz_bytes(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Return the bytes of an ``.npz`` file that ``numpy.load`` reads; names sorted, no time of day in it."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(arrays):
            one = io.BytesIO()
            np.lib.format.write_array(one, np.asarray(arrays[name], order="C"), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0)), one.getvalue())
    return whole.getvalue()
