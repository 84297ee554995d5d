"""Formats of rating files: one row each, which one a file has, and the files of a folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from edge.core.errors import DataError
from edge.data.table.columns import known_role
from edge.data.table.files import first_bytes, is_json
from edge.data.table.options import TableOptions

TABLE: Final = "table"
"""The format of everything that has no format of its own."""

_ENDINGS: Final = (
    ".csv", ".tsv", ".tab", ".txt", ".dat", ".data", ".psv", ".json", ".jsonl", ".ndjson", ".parquet", ".pq",
    ".inter", ".mtx", ".rating", ".ratings", ".edgelist",
)  # fmt: skip
_COMPRESSED_ENDINGS: Final = (".gz", ".zst", ".bz2", ".lz4")
_PLAIN_DELIMITERS: Final = ("\t", ",", ";", " ")
_MOVIELENS_HEADER: Final = "userId,movieId,rating,timestamp"
_LASTFM_HEADER: Final = "userID\tartistID\tweight"
_POSITIONS: Final = MappingProxyType({"user": "1", "item": "2", "rating": "3", "time": "4"})


@dataclass(frozen=True, slots=True)
class Format:
    """A format of rating files.

    Attributes
    ----------
    files : names of the ratings file in a folder, as patterns.
    options : how its tables are read.
    header : the first line, where the format fixes it.
    parquet : whether the file must be Parquet.
    binned : whether values become ratings 1 to 5 by their quantiles.
    """

    files: tuple[str, ...] = ()
    options: TableOptions = field(default_factory=TableOptions)
    header: str | None = None
    parquet: bool = False
    binned: bool = False


_MOVIELENS: Final = TableOptions(
    columns=_POSITIONS, delimiter="\t", header=False, quotes=False, width=4, whole_ids=True
)
FORMATS: Final[Mapping[str, Format]] = {
    "movielens-100k": Format(("u.data",), _MOVIELENS),
    "movielens-1m": Format(("ratings.dat",), dataclasses.replace(_MOVIELENS, delimiter="::")),
    "movielens-csv": Format(
        ("ratings.csv",),
        TableOptions(columns=dict(zip(_POSITIONS, _MOVIELENS_HEADER.split(","), strict=True)), delimiter=",",
                     header=True, whole_ids=True),
        header=_MOVIELENS_HEADER,
    ),
    "recbole": Format(("*.inter",), TableOptions(delimiter="\t", header=True, quotes=False)),
    "lastfm": Format(
        ("user_artists.dat",),
        TableOptions(columns=dict(zip(_POSITIONS, _LASTFM_HEADER.split("\t"), strict=False)), delimiter="\t",
                     header=True, quotes=False, whole_ids=True),
        header=_LASTFM_HEADER,
        binned=True,
    ),
    "parquet": Format(("*.parquet",), parquet=True),
    "plain": Format(("ratings.txt", "ratings.dat", "ratings.csv"), TableOptions(header=False)),
    TABLE: Format(),
}  # fmt: skip
"""Formats by name, the most particular first."""


def find(path: Path, name: str, options: TableOptions) -> tuple[str, list[Path]]:
    """Return the name of a format and the files to read.

    Parameters
    ----------
    path : file or folder.
    name : one of :data:`FORMATS`, or ``auto``: the most particular format that the name or the first line
        has; ``table`` where there is none, or something about the layout is given.
    options : what is given.

    Raises
    ------
    DataError
        when nothing, or more than one thing, in the folder could be meant, or the file has not the format's
        header.
    """
    if name != "auto" and name not in FORMATS:
        raise DataError(f"unknown data format {name!r}; write one of auto, {', '.join(FORMATS)}")
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    if name == TABLE:
        return name, [path] if not path.is_dir() else parts(path)
    if name == "auto":
        files = [path] if not path.is_dir() else _named(path) or parts(path)
        given = (
            dataclasses.replace(options, skip_bad_rows=False, duplicates="last", scale=None) != TableOptions()
        )
        return (TABLE, files) if given or len(files) > 1 else (_format_of(files[0]), files)
    form = FORMATS[name]
    files = [path] if not path.is_dir() else _matching(path, form.files)
    if not files:
        raise DataError(f"{path}: the folder holds no {name} file ({', '.join(form.files)})")
    if len(files) > 1:
        _refuse_several(path, files)
    _check_header(files[0], name, form)
    return name, files


def _matching(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    return sorted({file for pattern in patterns for file in folder.glob(pattern) if file.is_file()})


def _named(folder: Path) -> list[Path]:
    """Return the one file of a folder that has a format's name; none where its parts are one table."""
    files = _matching(folder, tuple(name for form in FORMATS.values() for name in form.files))
    if len(files) > 1 and len({file.suffix for file in files}) > 1:
        _refuse_several(folder, files)
    return files if len(files) == 1 else []


def _refuse_several(folder: Path, files: list[Path]) -> None:
    listed = ", ".join(str(file.relative_to(folder)) for file in files[:10])
    raise DataError(f"{folder}: the folder holds {listed}; write the path of the file meant")


def parts(folder: Path) -> list[Path]:
    """Return the files of a folder that make one table, in the order of their names.

    Files in folders below count; names that begin with a dot or an underscore, as Spark's ``_SUCCESS``, and
    empty files do not. All have the same ending.

    Raises
    ------
    DataError
        when there are none, or several kinds.
    """
    found = []
    for file in sorted(folder.rglob("*")):
        hidden = any(name.startswith((".", "_")) for name in file.relative_to(folder).parts)
        if not hidden and file.is_file() and file.stat().st_size and _is_table(file):
            found.append(file)
    if not found:
        raise DataError(f"{folder}: the folder holds no ratings file ({', '.join(_ENDINGS)})")
    if len({_ending(file) for file in found}) > 1:
        _refuse_several(folder, found)
    return found


def _ending(file: Path) -> str:
    suffixes = [suffix.lower() for suffix in file.suffixes if suffix.lower() not in _COMPRESSED_ENDINGS]
    return suffixes[-1] if suffixes and suffixes[-1] in _ENDINGS else ""


def _is_table(file: Path) -> bool:
    return _ending(file) != "" or file.name.startswith("part-") or file.suffix == ""


def _first_line(head: bytes) -> str:
    return head.split(b"\n", 1)[0].decode("utf-8", errors="replace").rstrip("\r")


def _check_header(file: Path, name: str, form: Format) -> None:
    if form.parquet:
        with file.open("rb") as stream:
            if stream.read(4) != b"PAR1":
                raise DataError(f"{file}: cannot be read as Parquet: it does not begin with PAR1")
    if form.header is None:
        return
    line = _first_line(first_bytes(file))
    if line.replace('"', "") != form.header:
        raise DataError(
            f"{file}:1: header {line[:80]!r}; expected {form.header!r}; for another, source: table"
        )


def _format_of(file: Path) -> str:
    with file.open("rb") as stream:
        if stream.read(4) == b"PAR1":
            return "parquet"
    head = first_bytes(file)
    line = _first_line(head)
    if is_json(head):
        return TABLE
    if ":token" in line:
        return "recbole"
    if line.replace('"', "") == _MOVIELENS_HEADER:
        return "movielens-csv"
    if line == _LASTFM_HEADER:
        return "lastfm"
    if line.count("::") >= 3:
        return "movielens-1m" if all(field.strip().isdigit() for field in line.split("::")[:2]) else TABLE
    for delimiter in _PLAIN_DELIMITERS:
        fields = line.split(delimiter)
        if (
            len(fields) in (3, 4)
            and all(fields)
            and _are_numbers(fields[2:])
            and known_role(fields[0]) is None
        ):
            if delimiter == "\t" and len(fields) == 4 and all(field.isdecimal() for field in fields):
                return "movielens-100k"
            return "plain"
    return TABLE


def _are_numbers(fields: list[str]) -> bool:
    try:
        [float(field) for field in fields]
    except ValueError:
        return False
    return True
