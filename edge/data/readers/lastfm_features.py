"""Item features of HetRec 2011 LastFM: what users' tags say of artists, ``user_taggedartists.dat``.

A count is the number of users that gave an artist a tag. Counts become TF-IDF (Salton & Buckley 1988),
(1 + ln count) · ln(artists / artists with the tag), rows of length one; a truncated singular value
decomposition of that table (latent semantic analysis, Deerwester et al. 1990) gives an artist's features, its
row of U·S.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edge.core.errors import DataError
from edge.core.rng import stream
from edge.data.features import FeatureTable, ItemFeatures, align
from edge.data.store import Labels
from edge.data.table.files import read_bytes

_OVERSAMPLING = 20
_POWER_PASSES = 15
_HEADER = "userID\tartistID\ttagID\tday\tmonth\tyear"
_ARTISTS_HEADER = "id\tname\turl\tpictureURL"
_NUMBER = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True, eq=False)
class SparseMatrix:
    """A matrix by its entries that are not zero.

    Attributes
    ----------
    rows, columns : int64 [entries].
    values : float64 [entries].
    shape : numbers of rows and columns.
    """

    rows: npt.NDArray[np.int64]
    columns: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]
    shape: tuple[int, int]

    @property
    def transposed(self) -> SparseMatrix:
        """The transpose."""
        return SparseMatrix(self.columns, self.rows, self.values, self.shape[::-1])

    def times(self, dense: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the product with ``dense`` float64 [columns, k], float64 [rows, k]."""
        # A column at a time: bincount needs no buffer of entries × k.
        products = [
            np.bincount(self.rows, self.values * column[self.columns], self.shape[0])
            for column in np.ascontiguousarray(dense.T)
        ]
        return np.stack(products, axis=1)


def truncated_svd(
    matrix: SparseMatrix, components: int, rng: np.random.Generator
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the k = ``components`` largest singular values and vectors: U [rows, k], s [k], V [columns, k].

    Randomised subspace iteration with 20 spare directions and 15 passes (Halko, Martinsson & Tropp 2011,
    algorithms 4.4 and 5.1). The sign of each pair of vectors is that which makes the entry of V with the
    largest magnitude positive.

    Raises
    ------
    ValueError
        when ``components`` is not 1 … the smaller side of the matrix.
    """
    if not 1 <= components <= min(matrix.shape):
        raise ValueError(f"components must be 1 … {min(matrix.shape)}, not {components}")
    width = min(components + _OVERSAMPLING, *matrix.shape)
    basis = matrix.times(rng.standard_normal((matrix.shape[1], width)))
    for _ in range(_POWER_PASSES):
        basis, _ = np.linalg.qr(basis)
        across, _ = np.linalg.qr(matrix.transposed.times(basis))
        basis = matrix.times(across)
    basis, _ = np.linalg.qr(basis)
    # The projection is small and wide; its transpose is what the sparse product gives.
    right, values, left = np.linalg.svd(matrix.transposed.times(basis), full_matrices=False)
    right, values = right[:, :components], values[:components]
    signs = np.sign(right[np.argmax(np.abs(right), axis=0), np.arange(components)])
    return basis @ left.T[:, :components] * signs, values, right * signs


def read_tag_features(
    path: Path,
    item_ids: Labels | None,
    *,
    artists: Path | None = None,
    components: int = 20,
    seed: int = 0,
) -> ItemFeatures:
    """Read ``user_taggedartists.dat`` and reduce the tags to ``components`` features.

    Parameters
    ----------
    path : the file of tags.
    item_ids : the artist ids of a store, to align with. Artists without tags are unknown.
    artists : ``artists.dat``, for titles.
    components : features to keep.
    seed : of the random start of the decomposition; it moves the features by rounding only when the singular
        values are well apart.

    Raises
    ------
    DataError
        with ``file:line`` for a wrong header, number of fields, or id; when there are fewer artists or tags
        than ``components``; and as :func:`edge.data.features.align`.
    """
    given = np.array(
        [_numbers(where, line) for where, line in _lines(path, _HEADER)], dtype=np.int64
    ).reshape(-1, 3)
    if not len(given):
        raise DataError(f"{path}: no tags; expected lines like '2\\t52\\t13\\t1\\t4\\t2009' below the header")
    # A user that gave an artist the same tag twice counts once.
    given = np.unique(given, axis=0)
    artist_ids, artist = np.unique(given[:, 1], return_inverse=True)
    tag_ids, tag = np.unique(given[:, 2], return_inverse=True)
    if not 1 <= components <= min(len(artist_ids), len(tag_ids)):
        raise DataError(
            f"{path}: {components} components of {len(artist_ids)} artists and {len(tag_ids)} tags; take 1 …"
            f" {min(len(artist_ids), len(tag_ids))}"
        )
    matrix = tf_idf(artist.reshape(-1), tag.reshape(-1), (len(artist_ids), len(tag_ids)))
    left, values, _ = truncated_svd(matrix, components, stream(seed, "tag-features"))
    titles = None
    if artists is not None:
        names = _names(artists)
        titles = [names.get(label, "") for label in artist_ids.tolist()]
    columns = tuple(f"tags-{number}" for number in range(1, components + 1))
    return align(FeatureTable(artist_ids, columns, left * values, titles, str(path)), item_ids)


def tf_idf(
    rows: npt.NDArray[np.int64], columns: npt.NDArray[np.int64], shape: tuple[int, int]
) -> SparseMatrix:
    """Return the TF-IDF table of things counted one by one, its rows of length one (or all zero).

    ``rows``, ``columns`` int64 [N]: which term (column) each occurrence is of, and in which document (row). A
    term of every document weighs nothing.
    """
    cells, counts = np.unique(rows * shape[1] + columns, return_counts=True)
    row, column = np.divmod(cells, shape[1])
    documents = np.bincount(column, minlength=shape[1])
    values = (1.0 + np.log(counts)) * np.log(shape[0] / documents)[column]
    lengths = np.sqrt(np.bincount(row, values**2, shape[0]))[row]
    values = np.divide(values, lengths, out=np.zeros_like(values), where=lengths > 0)
    return SparseMatrix(row, column, values, shape)


def _lines(path: Path, header: str) -> list[tuple[str, str]]:
    """Return ``file:line`` and text of every line below the header that is not empty."""
    # Only numbers are read from the tags; names are UTF-8 with a few stray bytes.
    lines = read_bytes(path).decode("utf-8", errors="replace").split("\n")
    if lines[0].rstrip("\r") != header:
        raise DataError(f"{path}:1: header {lines[0][:80]!r}; expected {header!r}")
    numbered = ((f"{path}:{number}", line.rstrip("\r")) for number, line in enumerate(lines[1:], start=2))
    return [(where, line) for where, line in numbered if line]


def _numbers(where: str, line: str) -> tuple[int, int, int]:
    fields = line.split("\t")
    if len(fields) != 6:
        raise DataError(f"{where}: {len(fields)} fields instead of 6; expected {_HEADER!r} between tabs")
    for name, text in zip(("user", "artist", "tag"), fields, strict=False):
        if not _NUMBER.fullmatch(text):
            raise DataError(f"{where}: {name} {text!r} is not a whole number; write one from 0 up")
    return int(fields[0]), int(fields[1]), int(fields[2])


def _names(path: Path) -> dict[int, str]:
    """Return the names of ``artists.dat`` by id."""
    names: dict[int, str] = {}
    for where, line in _lines(path, _ARTISTS_HEADER):
        fields = line.split("\t")
        if len(fields) < 2 or not _NUMBER.fullmatch(fields[0]):
            raise DataError(f"{where}: {line[:80]!r}; expected {_ARTISTS_HEADER!r} between tabs")
        names[int(fields[0])] = fields[1]
    return names
