"""Which format a file or folder has, and reading it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edge.data.build import RatingsFile
from edge.data.readers.lastfm import read_user_artists
from edge.data.readers.movielens import read_1m, read_100k, read_csv
from edge.data.readers.parquet import read_parquet
from edge.data.readers.plain import plain_layout, read_plain
from edge.data.readers.recbole import read_inter
from edge.errors import DataError

_READERS: dict[str, Callable[[Path], RatingsFile]] = {
    "movielens-100k": read_100k,
    "movielens-1m": read_1m,
    "movielens-csv": read_csv,
    "recbole": read_inter,
    "lastfm": read_user_artists,
    "parquet": read_parquet,
    "plain": read_plain,
}
FORMATS = tuple(_READERS)
"""Names of the formats, as :func:`read_ratings` accepts them beside ``auto``."""

_FILES_IN_FOLDER = {
    "movielens-100k": ("u.data",),
    "movielens-1m": ("ratings.dat",),
    "movielens-csv": ("ratings.csv",),
    "recbole": ("*.inter",),
    "lastfm": ("user_artists.dat",),
    "parquet": ("*.parquet",),
    "plain": ("ratings.txt", "ratings.dat", "ratings.csv"),
}
_FIRST_BYTES = 65_536


def read_ratings(path: str | Path, format: str = "auto") -> RatingsFile:  # noqa: A002 - the field's own name
    """Read a ratings file, or the one ratings file of a folder.

    Parameters
    ----------
    path : file or folder.
    format : one of :data:`FORMATS`, or ``auto`` to look at the names and the first line.

    Raises
    ------
    DataError
        naming file, line and what was expected.
    """
    if format == "auto":
        format, file = detect(path)  # noqa: A001
    elif format in _READERS:
        file = _file_in(Path(path), _FILES_IN_FOLDER[format], f"a {format} file")
    else:
        raise DataError(f"unknown data format {format!r}; write one of auto, {', '.join(FORMATS)}")
    return _READERS[format](file)


def detect(path: str | Path) -> tuple[str, Path]:
    """Return the format of ``path`` and the ratings file meant (in a folder, the one known name in it).

    Raises
    ------
    DataError
        when nothing, or more than one thing, in the folder could be meant, or the file looks like none of the
        formats.
    """
    names = tuple(dict.fromkeys(name for group in _FILES_IN_FOLDER.values() for name in group))
    file = _file_in(Path(path), names, "a ratings file")
    return _format_of(file), file


def _file_in(path: Path, names: tuple[str, ...], what: str) -> Path:
    if path.is_file():
        return path
    if not path.is_dir():
        raise DataError(f"{path}: no such file or folder")
    found = sorted({file for name in names for file in path.glob(name) if file.is_file()})
    if not found:
        raise DataError(f"{path}: the folder holds no {what.removeprefix('a ')} ({', '.join(names)})")
    if len(found) > 1:
        listed = ", ".join(file.name for file in found)
        raise DataError(f"{path}: the folder holds {listed}; write the path of the file meant")
    return found[0]


def _format_of(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            head = stream.read(_FIRST_BYTES)
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror or error}") from error
    if head.startswith(b"PAR1"):
        return "parquet"
    if not head.strip():
        raise DataError(f"{file}: the file is empty; expected one rating a line")
    line = (
        head.removeprefix(b"\xef\xbb\xbf").split(b"\n", 1)[0].decode("utf-8", errors="replace").rstrip("\r")
    )
    if ":token" in line:
        return "recbole"
    if line.replace('"', "").startswith("userId,movieId,"):
        return "movielens-csv"
    if line.startswith("userID\tartistID\t"):
        return "lastfm"
    if "::" in line:
        return "movielens-1m"
    layout = plain_layout(line)
    if layout is None:
        raise DataError(
            f"{file}:1: {line[:80]!r} fits none of {', '.join(FORMATS)};"
            " write the format if this is one of them"
        )
    fields = line.split("\t")
    if layout.delimiter == "\t" and len(fields) == 4 and all(field.isdecimal() for field in fields):
        return "movielens-100k"
    return layout.format
