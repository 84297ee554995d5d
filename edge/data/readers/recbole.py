"""RecBole's atomic ``.inter`` files: tab separated, a header of ``name:type``."""

from __future__ import annotations

from pathlib import Path

from edge.data.build import RatingsFile
from edge.data.readers.delimited import Layout, read_bytes, read_delimited
from edge.errors import DataError

_ROLES = {
    "user_id:token": "user",
    "item_id:token": "item",
    "rating:float": "rating",
    "timestamp:float": "timestamp",
}
_REQUIRED = ("user_id:token", "item_id:token", "rating:float")


def read_inter(path: Path) -> RatingsFile:
    """Read an ``.inter`` file with ratings; columns may come in any order and further ones are skipped.

    Raises
    ------
    DataError
        also when the header lacks ``user_id:token``, ``item_id:token`` or ``rating:float``, or repeats one.
    """
    first_line = read_bytes(path).split(b"\n", 1)[0].decode("utf-8", errors="replace").rstrip("\r")
    names = first_line.split("\t")
    missing = [name for name in _REQUIRED if name not in names]
    if missing:
        raise DataError(
            f"{path}:1: header {first_line[:120]!r} has no {' and no '.join(missing)}; expected tab separated"
            " 'user_id:token item_id:token rating:float' and, if known, 'timestamp:float'"
        )
    if len(set(names)) != len(names):
        raise DataError(f"{path}:1: header {first_line[:120]!r} names a column twice")
    layout = Layout(
        format="recbole",
        delimiter="\t",
        fields=tuple(_ROLES.get(name, name) for name in names),
        header=True,
        text_ids=True,
        quoted=False,
        example="\t".join(
            {"user": "196", "item": "242", "rating": "3"}.get(_ROLES.get(n, ""), "0") for n in names
        ),
    )
    return read_delimited(path, layout)
