"""The ratings that a scenario's ``data`` asks for, and the features of their items."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.scenario.data_section import (
    FileRatings,
    LastFmTags,
    MovieLensFeatures,
    Reader,
    SyntheticFeatures,
    SyntheticRatingsSection,
    TableFeatures,
)
from coordinator.scenario.errors import ScenarioError
from coordinator.scenario.load import LoadedScenario
from device_profiles.errors import DocumentError
from edge.core.plugins import code_errors
from edge.data.features import ItemFeatures
from edge.data.filters import keep_core, keep_positives, sample_users
from edge.data.split import limit_per_user
from edge.data.store import RatingStore
from edge.data.synthetic import generate_ratings, synthetic_features

# Readers of files are imported where they are used, and pyarrow with them: made up ratings need neither.
if TYPE_CHECKING:
    from edge.data.table.files import Rows
    from edge.data.table.reading import RatingsFile, TableFacts


def file_facts(read: RatingsFile, kept: RatingStore) -> dict[str, Any]:
    """Return what the manifest of a run says of the file that was read, and of what is kept of it."""
    return {
        "format": read.format,
        "rows": read.rows,
        "duplicates": read.duplicates,
        "skipped": read.skipped,
        "columns": dict(read.columns),
        "read": _said(read, kept),
        "warnings": list(read.warnings),
    }


def _said(read: RatingsFile, kept: RatingStore) -> str:
    """Return what was read and kept, in one line."""
    if kept is read.store:
        return read.line()
    there = f"{kept.n_ratings:,} ratings of {kept.n_users:,} users and {kept.n_items:,} items"
    return f"{read.line()}; kept of them {there}"


def read_file(data: FileRatings, path: Path) -> RatingsFile:
    """Read the ratings at a path as a section says.

    Raises
    ------
    DataError : they cannot be read, or are not those that were prepared.
    PluginError : the code of a reader that is not built in failed.
    """
    from edge.data.table.prepared import check_prepared  # noqa: PLC0415
    from edge.data.table.reading import read_ratings  # noqa: PLC0415

    check_prepared(path)
    return read_ratings(path, data.source, data.options(), _rows_of(data, path))


def prepare_file(data: FileRatings, path: Path, target: Path) -> TableFacts:
    """Write the ratings at a path, read as a section says, to a folder that is prepared.

    Raises
    ------
    DataError : they cannot be read, or there is something at the target.
    PluginError : the code of a reader that is not built in failed.
    """
    from edge.data.table.prepared import prepare_ratings  # noqa: PLC0415

    return prepare_ratings(path, target, data.source, data.options(), _rows_of(data, path))


def _rows_of(data: FileRatings, path: Path) -> Rows | None:
    """Return what yields the rows of a reader that is not built in."""
    if not isinstance(data, Reader):
        return None

    def rows() -> Iterator[Any]:
        with code_errors(f"the reader {data.source!r}"):
            yield from data.rows(path)

    return rows


def read_data(loaded: LoadedScenario) -> tuple[RatingStore, RatingsFile | None]:
    """Return the ratings that a scenario asks for, and the file that they are from, if any.

    Raises
    ------
    DataError : ratings that cannot be read, or of which none is left.
    ScenarioError : there is no rating, and the scenario does not say what to make of that.
    """
    data = loaded.scenario.data
    if isinstance(data, SyntheticRatingsSection):
        return _limited(generate_ratings(data.spec(), seed=loaded.scenario.seed), data, loaded), None
    assert isinstance(data, FileRatings)
    read = read_file(data, loaded.resolve(("data", "path")))
    if read.implicit and data.positive is None and data.negatives is None:
        raise _implicit_error(loaded, read.path.name, read.left_out)
    return _limited(read.store, data, loaded), read


def _implicit_error(loaded: LoadedScenario, name: str, left_out: tuple[str, ...]) -> ScenarioError:
    """Return the error of a scenario that does not say how ratings are made of pairs."""
    path = ("data", "path")
    others = f" (left out: {', '.join(left_out)})" if left_out else ""
    message = f"{name} has no rating column{others}: implicit feedback"
    hint = (
        "write 'data.positive: 1' for methods that learn from ones, 'data.negatives: 4' for methods of "
        "ratings, or name the rating in data.columns"
    )
    return ScenarioError([DocumentError(loaded.document.position(path), path, message, hint)])


def _limited(
    store: RatingStore, data: SyntheticRatingsSection | FileRatings, loaded: LoadedScenario
) -> RatingStore:
    if data.positive is not None:
        store = keep_positives(store, data.positive)
    if isinstance(data, FileRatings):
        if data.min_user is not None or data.min_item is not None:
            store = keep_core(store, min_user=data.min_user or 1, min_item=data.min_item or 1)
        if data.sample_users is not None:
            store = sample_users(store, data.sample_users, seed=loaded.scenario.seed)
    if data.max_ratings_per_user is None:
        return store
    return limit_per_user(store, data.max_ratings_per_user, seed=loaded.scenario.seed)


def check_data(loaded: LoadedScenario, data: FileRatings, *, full: bool) -> str | None:
    """Open the files of a scenario's ratings and read their first rows, or all of them.

    Parameters
    ----------
    loaded, data : the scenario and its section on data.
    full : read all rows.

    Returns
    -------
    What was read, in one line, if all of it was; None otherwise.

    Raises
    ------
    DataError : ratings that cannot be read.
    ScenarioError : they do not suit the scenario.
    """
    if full:
        kept, read = read_data(loaded)
        assert read is not None
        return _said(read, kept)
    from edge.data.table.reading import check_ratings  # noqa: PLC0415

    path = loaded.resolve(("data", "path"))
    chosen = check_ratings(path, data.source, data.options(), _rows_of(data, path))
    if "rating" not in chosen.index and data.positive is None and data.negatives is None:
        raise _implicit_error(loaded, path.name, chosen.left_out)
    return None


def item_features(loaded: LoadedScenario, store: RatingStore) -> ItemFeatures | None:
    """Return the features that the scenario asks for, in the order of the items of ``store``, or None.

    Raises
    ------
    DataError : a file that cannot be read, or one that knows none of the items.
    """
    data, seed = loaded.scenario.data, loaded.scenario.seed
    assert isinstance(data, SyntheticRatingsSection | FileRatings)
    section = data.features
    if section is None:
        return None
    if isinstance(section, TableFeatures):
        from edge.data.readers.table_features import read_table_features  # noqa: PLC0415

        return read_table_features(
            loaded.resolve(("data", "features", "path")),
            store.item_ids,
            item_column=section.item,
            columns=section.columns,
            title_column=section.title,
        )
    if isinstance(section, SyntheticFeatures):
        assert isinstance(data, SyntheticRatingsSection), "the scenario was checked"
        return synthetic_features(data.spec(), seed=seed, noise=section.noise)
    path = loaded.resolve(("data", "path"))
    folder = path.parent if path.is_file() else path
    if isinstance(section, LastFmTags):
        from edge.data.readers.lastfm_features import read_tag_features  # noqa: PLC0415

        return read_tag_features(
            folder / "user_taggedartists.dat",
            store.item_ids,
            artists=folder / "artists.dat",
            components=section.components,
            seed=seed,
        )
    from edge.data.readers.movielens_features import read_1m_features, read_100k_features  # noqa: PLC0415

    assert isinstance(section, MovieLensFeatures)
    if data.source == "movielens-100k":
        return read_100k_features(folder / "u.item", store.item_ids)
    return read_1m_features(folder / "movies.dat", store.item_ids)
