"""From a scenario's ``data.features`` to the features of the items of its ratings."""

from __future__ import annotations

from coordinator.scenario.data_section import FileRatings, SyntheticRatingsSection
from coordinator.scenario.features_section import (
    LastFmTags,
    MovieLensFeatures,
    SyntheticFeatures,
    TableFeatures,
)
from coordinator.scenario.load import LoadedScenario
from edge.data.features import ItemFeatures
from edge.data.readers.lastfm_features import read_tag_features
from edge.data.readers.movielens_features import read_1m_features, read_100k_features
from edge.data.readers.table_features import read_table_features
from edge.data.store import RatingStore
from edge.data.synthetic_features import synthetic_features


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
        return read_tag_features(
            folder / "user_taggedartists.dat",
            store.item_ids,
            artists=folder / "artists.dat",
            components=section.components,
            seed=seed,
        )
    assert isinstance(section, MovieLensFeatures)
    if data.source == "movielens-100k":
        return read_100k_features(folder / "u.item", store.item_ids)
    return read_1m_features(folder / "movies.dat", store.item_ids)
