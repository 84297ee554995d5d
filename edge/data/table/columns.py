"""Which column of a table is the user, the item, the rating and the time."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from edge.core.errors import DataError
from edge.data.table.values import looks_like_time

ROLES: Final = ("user", "item", "rating", "time")
NO_COLUMN: Final = "none"
"""Written in place of a column: the table has no such column, or it is not to be read."""

KNOWN_NAMES: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "user": (
        ("user", "users", "userid", "uid", "usersid", "useridx", "userindex", "userkey", "useruuid"),
        (
            "reviewerid", "customerid", "visitorid", "memberid", "profileid", "accountid", "personid",
            "playerid", "viewerid", "readerid", "raterid", "subscriberid", "clientid", "steamid", "authorid",
            "custid", "usercode", "userno", "usernum", "userhash", "fullvisitorid", "userpseudoid",
        ),
        (
            "username", "customer", "visitor", "reviewer", "member", "profile", "profilename", "account",
            "person", "player", "viewer", "reader", "rater", "author", "reviewername", "nickname", "nutzer",
            "benutzer", "utilisateur", "usuario",
        ),
    ),
    "item": (
        ("item", "items", "itemid", "iid", "itemsid", "itemidx", "itemindex", "itemkey", "itemuuid"),
        (
            "movieid", "parentasin", "isbn", "isbn13", "bookid", "businessid", "productid", "sku", "artistid",
            "songid", "trackid", "gameid", "appid", "recipeid", "animeid", "newsid", "articleid", "videoid",
            "placeid", "venueid", "poiid", "gmapid", "locationid", "hotelid", "restaurantid", "jobid",
            "contentid", "showid", "beerid", "wineid", "jokeid", "courseid", "filmid", "titleid", "goodsid",
            "albumid", "podcastid", "repoid", "postid", "photoid", "itemcode", "itemno", "mid", "pid", "bid",
            "productcode", "stockcode", "workid", "mangaid", "eventid",
        ),
        ("asin", "ean", "gtin"),
        (
            "movie", "book", "business", "product", "artist", "song", "track", "game", "app", "recipe",
            "anime", "article", "video", "place", "venue", "poi", "restaurant", "hotel", "beer", "wine",
            "joke", "course", "film", "gamename", "itemname", "artikel", "produkt", "produit", "objet",
            "producto",
        ),
    ),
    "rating": (
        ("rating", "ratings", "userrating", "ratingvalue", "itemrating"),
        (
            "stars", "star", "starrating", "score", "overall", "bookrating", "myrating", "reviewscore",
            "reviewoverall", "reviewrating", "overallrating", "movierating", "ratingscore", "userscore",
            "vote", "mark", "points", "grade", "preference", "pref", "bewertung", "note", "puntuacion",
            "cijfer",
        ),
    ),
    "time": (
        ("timestamp", "unixtimestamp", "unixreviewtime", "unixtime", "ratingtimestamp", "timestampms",
         "epoch"),
        (
            "time", "ts", "reviewtime", "ratingtime", "datetime", "eventtime", "eventtimestamp", "ratedat",
            "ratingdate", "createdat", "created", "createdtime", "creationdate", "createtime",
        ),
        ("date", "reviewdate", "dateadded", "dateupdated", "updatedat", "updated", "submitted", "day", "zeit",
         "datum", "fecha"),
    ),
}  # fmt: skip
"""Names by role in ranks, in lower case without separators. Of two ranks the first is taken; two names of a
rank are ambiguous."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The columns of a table by role.

    Attributes
    ----------
    index : place of the role's column, from 0; the rating and the time may be absent.
    names : what each is called: its name in the header, or ``column 3``.
    left_out : the other columns, as they are called.
    by_position : whether they were guessed from their order.
    """

    index: Mapping[str, int]
    names: Mapping[str, str]
    left_out: tuple[str, ...]
    by_position: bool


def shown(text: str) -> str:
    """Return text as it may stand in a message: printable and short."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:80]


def known_role(name: str) -> tuple[str, int] | None:
    """Return the role that a column's name stands for, and its rank; None for other names.

    Case and separators do not count, nor does what stands before the last dot or slash (``reviews.user_id``)
    or after a colon (RecBole's ``user_id:token``).
    """
    head = name.split(":", 1)[0]
    for text in (head, re.split(r"[./]", head)[-1]):
        plain = re.sub(r"[\W_]+", "", text).lower()
        for role, ranks in KNOWN_NAMES.items():
            for rank, names in enumerate(ranks):
                if plain in names:
                    return role, rank
    return None


def names_known(names: Sequence[str]) -> int:
    """Return how many roles the names stand for."""
    return len({found[0] for found in map(known_role, names) if found is not None})


def is_header(first: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Return whether the first row of a table names its columns.

    It does when it has known names of three roles, or when nothing in it is a number or a date, and two names
    are known or some column below is all numbers or dates.
    """
    known = names_known(first)
    if any(map(_is_value, first)):
        return known >= 3
    if known >= 2:
        return True
    columns = zip(*(row for row in rows if len(row) == len(first)), strict=True)
    return any(all(map(_is_value, column)) for column in columns)


def _is_value(text: str) -> bool:
    text = text.strip()
    return (
        re.match(r"^([+-]?[0-9.,]*[0-9][0-9.,]*([eE][+-]?[0-9]+)?|\d{4}[-/]\d\d[-/]\d\d.*)$", text)
        is not None
    )


def choose(
    where: str,
    names: Sequence[str] | None,
    sample: Sequence[Sequence[str]],
    given: Mapping[str, str],
) -> Chosen:
    """Choose the columns of a table.

    Parameters
    ----------
    where : the file, for messages.
    names : of the columns, or None for a table without a header.
    sample : the first rows as text, of equal length; at least one.
    given : by role, a column's name or its number from 1, or ``none``.

    Raises
    ------
    DataError
        naming the columns that there are and ``data.columns``: none is the user or the item, several could
        be, a given one does not exist, or the rating looks like a time.
    """
    width = len(names) if names is not None else max(map(len, sample))
    called = tuple(
        (shown(names[at]) or "an unnamed index column") if names is not None else f"column {at + 1}"
        for at in range(width)
    )
    index = {
        role: _given(where, role, text, names, width) for role, text in given.items() if text != NO_COLUMN
    }
    taken = list(index.values())
    if len(set(taken)) < len(taken):
        raise DataError(f"{where}: data.columns names one column twice; {_there_are(called)}")
    refused = {role for role, text in given.items() if text == NO_COLUMN}
    by_position = names is None and not index
    if names is not None:
        wanted = [role for role in ROLES if role not in index and role not in refused]
        index |= _by_names(where, names, wanted, set(taken))
    elif by_position:
        index = _by_position(where, sample, width)
        index = {role: at for role, at in index.items() if role not in refused}
    for role in ("user", "item"):
        if role not in index:
            columns = f"{{{', '.join(_suggested(called, names))}}}"
            raise DataError(
                f"{where}: no column is known as the {role}; {_there_are(called)}; "
                f"write data.columns, such as {columns}, or --set 'data.columns={columns}'"
            )
    _refuse_times(where, sample, index, called, names)
    return Chosen(
        {role: index[role] for role in ROLES if role in index},
        {role: called[index[role]] for role in ROLES if role in index},
        tuple(name for at, name in enumerate(called) if at not in index.values()),
        by_position,
    )


def _there_are(called: Sequence[str]) -> str:
    first = [shown(name) for name in called[:20]]
    more = f" and {len(called) - 20} more" if len(called) > 20 else ""
    return f"there are: {', '.join(first)}{more}"


def _as_yaml(name: str) -> str:
    """Return a name as it stands in a mapping of YAML: quoted unless it is nothing but words."""
    return name if re.fullmatch(r"\w[\w .-]*", name) else json.dumps(name, ensure_ascii=False)


def _suggested(called: Sequence[str], names: Sequence[str] | None) -> list[str]:
    texts = [str(at + 1) for at in range(len(called))] if names is None else [*map(_as_yaml, called)]
    return [f"{role}: {text}" for role, text in zip(ROLES, texts, strict=False)]


def _given(where: str, role: str, text: str, names: Sequence[str] | None, width: int) -> int:
    if names is not None:
        exact = [at for at, name in enumerate(names) if name == text]
        found = exact or [at for at, name in enumerate(names) if name.strip().lower() == text.strip().lower()]
        if len(found) > 1:
            raise DataError(
                f"{where}: data.columns.{role}: {len(found)} columns are called {text!r}; write a number"
            )
        if found:
            return found[0]
    if text.isascii() and text.isdigit() and 1 <= int(text) <= width:
        return int(text) - 1
    there = _there_are(names) if names is not None else f"they are numbered 1 to {width}, without a header"
    raise DataError(f"{where}: data.columns.{role}: there is no column {text!r}; {there}")


def _by_names(where: str, names: Sequence[str], wanted: Sequence[str], taken: set[int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for role in wanted:
        ranked = [
            (known[1], at)
            for at, name in enumerate(names)
            if at not in taken and (known := known_role(name)) is not None and known[0] == role
        ]
        if not ranked:
            continue
        best = min(ranked)[0]
        alike = [at for rank, at in ranked if rank == best]
        if len(alike) > 1 and role != "time":
            listed = ", ".join(shown(names[at]) for at in alike)
            first = names[alike[0]]
            written = shown(first) if names.count(first) == 1 else alike[0] + 1
            raise DataError(
                f"{where}: columns {listed} could all be the {role}; name one, data.columns: "
                f"{{{role}: {written}}}"
            )
        found[role] = alike[0]
    return found


def _by_position(where: str, sample: Sequence[Sequence[str]], width: int) -> dict[str, int]:
    filled = [at for at in range(width) if any(len(row) > at and row[at].strip() for row in sample)]
    if not 2 <= len(filled) <= 4:
        raise DataError(
            f"{where}: {len(filled)} columns and no header with known names; write which is which, "
            "data.columns: {user: 1, item: 2, rating: 3, time: 4}"
        )
    first = [row[filled[0]].strip() for row in sample if len(row) > filled[0]]
    if len(first) > 9 and any(first == [str(start + at) for at in range(len(first))] for start in (0, 1)):
        raise DataError(
            f"{where}: column {filled[0] + 1} counts the rows, and there is no header; write which "
            f"columns are which, such as data.columns: {{user: {filled[1] + 1}, item: {filled[-1] + 1}}}"
        )
    return dict(zip(ROLES, filled, strict=False))


def _refuse_times(
    where: str,
    sample: Sequence[Sequence[str]],
    index: Mapping[str, int],
    called: Sequence[str],
    names: Sequence[str] | None,
) -> None:
    """Refuse a rating that looks like a time."""
    at = index.get("rating")
    if at is None or not looks_like_time(
        [row[at].strip() for row in sample if len(row) > at and row[at].strip()]
    ):
        return
    texts = {role: str(place + 1) if names is None else called[place] for role, place in index.items()}
    swapped = {"user": texts["user"], "item": texts["item"], "time": texts["rating"]}
    if "time" in texts:
        swapped["rating"] = texts["time"]
    written = ", ".join(f"{role}: {text}" for role, text in swapped.items())
    raise DataError(
        f"{where}: {called[at]}, taken for the rating, looks like times; write data.columns, such as "
        f"{{{written}}}"
    )
