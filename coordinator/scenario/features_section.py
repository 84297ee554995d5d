"""The section ``data.features``: what is publicly known of the items."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field

from coordinator.scenario.model import Section
from device_profiles.fields import NonNegativeFloat, PositiveInt, Text


class MovieLensFeatures(Section):
    """Genres and year of release, from the folder of the ratings."""

    kind: Literal["movielens"]


class LastFmTags(Section):
    """What listeners tagged artists with, from the folder of the ratings: TF-IDF and a truncated SVD."""

    kind: Literal["lastfm-tags"]
    components: PositiveInt = Field(default=20, description="numbers kept of an artist's tags")


class TableFeatures(Section):
    """The numeric columns of a CSV or Parquet file with a row an item."""

    kind: Literal["table"]
    path: Text = Field(description="the file, relative to the file that names it")
    item: Text = Field(default="item", description="column that holds the item's id, as in the ratings")
    title: Text | None = Field(
        default=None, description="column that holds the item's title; none by default"
    )
    columns: tuple[Text, ...] | None = Field(
        default=None, description="columns to use; all other numeric ones by default", min_length=1
    )


class SyntheticFeatures(Section):
    """Made up with the synthetic ratings: what each item is like, and noise."""

    kind: Literal["synthetic"]
    noise: NonNegativeFloat = Field(
        default=1.0, description="noise on each factor of an item, in standard deviations of the factor"
    )


SOURCES: Final = {
    "movielens": ("movielens-100k", "movielens-1m"),
    "lastfm-tags": ("lastfm",),
    "synthetic": ("synthetic-ratings",),
}
"""The sources of ratings that each kind of features belongs to; a table goes with any."""

if TYPE_CHECKING:
    Features = MovieLensFeatures | LastFmTags | TableFeatures | SyntheticFeatures
else:
    Features = Annotated[
        MovieLensFeatures | LastFmTags | TableFeatures | SyntheticFeatures, Field(discriminator="kind")
    ]
