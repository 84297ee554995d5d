"""The ``data`` section: which ratings (or samples) the devices hold, and what is kept back for testing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args

from pydantic import Field

from coordinator.scenario.errors import FieldProblem
from coordinator.scenario.model import Registered, Section
from device_profiles.fields import (
    ByKey,
    Fraction,
    NonNegativeFloat,
    Number,
    PositiveFloat,
    PositiveFraction,
    PositiveInt,
    StrictBool,
    Text,
)
from edge.core.plugins import READERS, PluginKind, View
from edge.data import synthetic
from edge.data.table.options import LONGEST_DELIMITER, TableOptions, is_text_encoding

DEFAULT_ALPHA: Final = 0.5
_DELIMITERS: Final = {"tab": "\t", "space": " "}
"""Delimiters that are written by name: as text they would be blank."""


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
    Features = Annotated[MovieLensFeatures | LastFmTags | TableFeatures | SyntheticFeatures, ByKey("kind")]


class RatioSplit(Section):
    """A share of every user's ratings, drawn at random, is kept back."""

    kind: Literal["ratio"]
    test: Fraction = Field(default=0.2, description="share of each user's ratings kept back for testing")
    validation: Fraction = Field(
        default=0.0, description="share of each user's ratings kept back for choosing rounds and settings"
    )

    def _problems(self) -> Iterator[FieldProblem]:
        return _something_left(self.test + self.validation, "validation" if self.validation else "test")


class UserTemporalSplit(Section):
    """The latest share of every user's own ratings is kept back; among equal times the seed decides.

    Training ratings of one user may be later than test ratings of another.
    """

    kind: Literal["user-temporal"]
    test: Fraction = Field(default=0.2, description="share of each user's ratings, the latest, for testing")
    validation: Fraction = Field(
        default=0.0,
        description="share of each user's ratings, those before the test's, for choosing rounds and settings",
    )

    def _problems(self) -> Iterator[FieldProblem]:
        return _something_left(self.test + self.validation, "validation" if self.validation else "test")


class TemporalSplit(Section):
    """Everything that anybody rated from a moment on is kept back, as a service meets the future.

    Equal times stay together, in the later part. Users whose first rating comes after the training part have
    no device and are not scored; the summary says how many they are.
    """

    kind: Literal["temporal"]
    test: Fraction = Field(default=0.1, description="share of all ratings, the latest, for testing")
    validation: Fraction = Field(
        default=0.0,
        description="share of all ratings, those before the test's, for choosing rounds and settings",
    )

    def _problems(self) -> Iterator[FieldProblem]:
        return _something_left(self.test + self.validation, "validation" if self.validation else "test")


TIMED_SPLITS: Final = ("user-temporal", "temporal")
"""Kinds of splits that need ratings with times."""
SHUFFLED_SPLITS: Final = ("ratio", "users")
"""Kinds of splits that draw what is kept back, so that what trains may be later than what is scored."""


class LeaveOneOutSplit(Section):
    """Each user's last rating is kept back for testing; among equal times the seed decides."""

    kind: Literal["leave-one-out"]
    validation: StrictBool = Field(default=True, description="keep back the last but one for validation too")


class PublishedSplit(Section):
    """The leave-one-out split of MovieLens 1M that was published with Neural Collaborative Filtering.

    It needs `ml-1m.test.rating` and `ml-1m.test.negative` beside `ratings.dat`. Sampled negatives are the
    99 published ones; on validation they are drawn, as with other splits.
    """

    kind: Literal["published-leave-one-out"]
    validation: StrictBool = Field(
        default=False, description="keep back each user's last rating of the published training part too"
    )


class UserSplit(Section):
    """Some users never train: what the model is worth to people who join later."""

    kind: Literal["users"]
    unseen: PositiveFraction = Field(
        default=0.2,
        description="share of users that never train; half of their ratings reconstruct, half are scored",
    )
    validation: Fraction = Field(
        default=0.0, description="share of users kept back, in the same way, for choosing rounds and settings"
    )
    test: Fraction = Field(
        default=0.0, description="share of the ratings of training users that is scored too, for comparison"
    )

    def _problems(self) -> Iterator[FieldProblem]:
        return _something_left(self.unseen + self.validation, "validation" if self.validation else "unseen")


class NoSplit(Section):
    """Everything trains, nothing is kept back."""

    kind: Literal["none"]


def _something_left(kept_back: float, key: str) -> Iterator[FieldProblem]:
    if kept_back >= 1:
        yield FieldProblem(
            (key,), f"{kept_back * 100:.6g}% of the data is kept back and none trains; write less"
        )


if TYPE_CHECKING:
    Split = (
        RatioSplit
        | UserTemporalSplit
        | TemporalSplit
        | LeaveOneOutSplit
        | PublishedSplit
        | UserSplit
        | NoSplit
    )
else:
    Split = Annotated[
        RatioSplit
        | UserTemporalSplit
        | TemporalSplit
        | LeaveOneOutSplit
        | PublishedSplit
        | UserSplit
        | NoSplit,
        ByKey("kind"),
    ]


class DataSource(Section):
    """The section ``data``: each source has a field ``source`` that names it."""

    if TYPE_CHECKING:
        source: str


class PublicFacts(Section):
    """What everybody may know of the ratings: a service, which reads none, has nothing else."""

    clients: PositiveInt = Field(description="devices: clients with ratings to train on")
    items: PositiveInt = Field(description="items of the catalogue; devices have the same, in the same order")
    rating_mean: Number | None = Field(
        default=None, description="mean training rating, for methods that begin with it; theirs by default"
    )


class MeanQuerySection(Section):
    """A question before the first round: devices say count and sum of their training ratings.

    The answer is the mean that the method begins with. It is a round of its own, summed and protected as
    updates are.
    """

    range: tuple[Number, Number] = Field(
        description="lowest and highest rating; a device cuts off what lies outside"
    )
    cohort: PositiveInt | None = Field(
        default=None, description="devices that are asked, up to all there are; by default those of a round"
    )

    def _problems(self) -> Iterator[FieldProblem]:
        if self.range[0] >= self.range[1]:
            yield FieldProblem(("range",), "the lowest rating is not below the highest; write it first")


class _RatingsSource(DataSource):
    """What every source of ratings has."""

    max_ratings_per_user: PositiveInt | None = Field(
        default=None, description="keep at most this many ratings of a user, the latest; all by default"
    )
    positive: PositiveFloat | None = Field(
        default=None,
        description="implicit feedback: keep ratings of this much or more, as if lower ones had never been"
        " given; all by default",
    )
    negatives: PositiveInt | None = Field(
        default=None,
        description="implicit feedback for methods of ratings: what a device holds counts as 1, and it draws"
        " this many other items for each as 0, anew every round; ratings are what they are by default",
    )
    held_out_negatives: Literal["drawn", "spared", "symmetric"] = Field(
        default="drawn",
        description="sampler of training negatives: what is kept back for testing is `drawn` like any other"
        " item, as on real devices, which cannot know what their users will take to; `spared`, never drawn,"
        " as some published protocols have it, which tells a method what will be asked and marks the result"
        " as that of a leaky protocol; `symmetric`, a diagnostic: neither it nor the sampled items that it is"
        " ranked among are ever drawn",
    )
    users_per_client: PositiveInt | None = Field(
        default=None, description="users a client holds (cross-silo); 1 by default (cross-device)"
    )
    clients: PositiveInt | None = Field(
        default=None, description="number of clients to deal the users to, instead of `users_per_client`"
    )
    grouping: Literal["iid", "by-activity", "dirichlet"] = Field(
        default="iid",
        description="how users are dealt to clients: at random, by number of ratings, or by taste with "
        "Dirichlet proportions",
    )
    alpha: PositiveFloat = Field(
        default=DEFAULT_ALPHA,
        description="Dirichlet concentration of `grouping: dirichlet`; smaller is less alike",
    )
    split: Split = Field(
        default=RatioSplit.model_construct(kind="ratio"),
        description="what is kept back; by default 20% of each user's ratings for testing",
    )

    features: Features | None = Field(
        default=None, description="what is publicly known of the items, for methods that use it"
    )
    public: PublicFacts | None = Field(
        default=None,
        description="what `recfleet serve`, which reads no ratings, must know; `recfleet data` prints it",
    )
    mean_query: MeanQuerySection | None = Field(
        default=None,
        description="ask devices for the mean rating that the method begins with; by default it is public",
    )

    @property
    def grouped(self) -> bool:
        """Whether a client holds several users."""
        return self.clients is not None or (self.users_per_client or 1) > 1

    def _problems(self) -> Iterator[FieldProblem]:
        if self.clients is not None and self.users_per_client is not None:
            yield FieldProblem(
                ("clients",), "contradicts users_per_client; write one of the two", None, of_key=True
            )
        source = getattr(self, "source", "")
        if self.features is not None and source not in SOURCES.get(self.features.kind, (source,)):
            fitting = [kind for kind, sources in SOURCES.items() if source in sources]
            message = f"{self.features.kind!r} does not belong to ratings of {source!r}"
            yield FieldProblem(
                ("features", "kind"), message, f"write one of {', '.join([*fitting, 'table'])}"
            )
        if isinstance(self.split, PublishedSplit):
            if source != "movielens-1m":
                message = f"the published split is one of 'movielens-1m', not of {source!r}"
                yield FieldProblem(("split", "kind"), f"{message}; write 'leave-one-out'")
            for key in ("max_ratings_per_user", "min_user", "min_item", "sample_users"):
                if getattr(self, key, None) is not None:
                    message = "the published split has all ratings; leave it out"
                    yield FieldProblem((key,), message, None, of_key=True)
            if self.positive is not None:
                message = "the published split counts every rating as a positive; leave it out"
                yield FieldProblem(("positive",), message, None, of_key=True)
        if self.grouping != "iid" and not self.grouped:
            yield FieldProblem(
                ("grouping",), "a client holds one user, so nothing is grouped; write users_per_client too",
                None, of_key=True,
            )  # fmt: skip
        if self.alpha != DEFAULT_ALPHA and self.grouping != "dirichlet":
            yield FieldProblem(("alpha",), "applies to 'grouping: dirichlet' only", None, of_key=True)


class SyntheticRatingsSection(_RatingsSource):
    """Ratings made up from the seed: long-tailed popularity and activity, low-rank taste."""

    source: Literal["synthetic-ratings"]
    users: PositiveInt = Field(default=200, description="number of users")
    items: PositiveInt = Field(default=300, description="number of items")
    ratings_per_user: PositiveFloat = Field(
        default=30.0, description="mean number of ratings of a user, at most half the items"
    )
    min_ratings_per_user: PositiveInt = Field(default=5, description="least number of ratings of a user")
    activity_sigma: NonNegativeFloat = Field(
        default=0.8,
        description="how users differ in their number of ratings: standard deviation of its logarithm",
    )
    popularity_exponent: NonNegativeFloat = Field(
        default=1.0, description="long tail of the items; 0 makes all equally popular"
    )
    taste_rank: PositiveInt = Field(
        default=4, description="rank of the taste that the ratings follow, from 2"
    )
    mean_rating: PositiveFloat = Field(default=3.5, description="mean rating, stars")
    taste_sd: NonNegativeFloat = Field(default=0.9, description="standard deviation that taste gives, stars")
    user_bias_sd: NonNegativeFloat = Field(
        default=0.35, description="standard deviation of users' means, stars"
    )
    item_bias_sd: NonNegativeFloat = Field(
        default=0.35, description="standard deviation of items' means, stars"
    )
    noise_sd: NonNegativeFloat = Field(default=0.45, description="standard deviation of the noise, stars")
    timestamps: StrictBool = Field(
        default=False,
        description="give ratings times, an hour apart in a random order of each user's, for methods and"
        " splits that go by time",
    )

    def _problems(self) -> Iterator[FieldProblem]:
        yield from super()._problems()
        if self.split.kind in TIMED_SPLITS and not self.timestamps:
            message = f"{self.split.kind!r} goes by time, and these ratings have none"
            yield FieldProblem(("split", "kind"), message, "write 'timestamps: true' in data")
        most = self.items / 2
        if self.ratings_per_user > most:
            message = f"at most half of the {self.items} items; write {most:g} or less, or more items"
            yield FieldProblem(("ratings_per_user",), message)
        elif self.min_ratings_per_user > self.ratings_per_user:
            message = (
                f"{self.min_ratings_per_user} is more than the mean of {self.ratings_per_user:g}; write less"
            )
            yield FieldProblem(("min_ratings_per_user",), message)
        else:
            try:
                self.spec()
            except ValueError as error:
                # The generator's own limits; its messages start with the name of the setting.
                name = str(error).split(" ", maxsplit=1)[0]
                yield FieldProblem((name,) if name in type(self).model_fields else (), str(error))
        if self.clients is not None and self.clients > self.users:
            message = f"more than the {self.users} users there are; write {self.users} or less"
            yield FieldProblem(("clients",), message)

    def spec(self) -> synthetic.SyntheticRatings:
        """Return what the generator takes."""
        names = [field.name for field in dataclasses.fields(synthetic.SyntheticRatings)]
        return synthetic.SyntheticRatings(**{name: getattr(self, name) for name in names})

    @property
    def client_count(self) -> int:
        """Number of clients, and so of devices."""
        if self.clients is not None:
            return self.clients
        return -(-self.users // (self.users_per_client or 1))


class SyntheticRegression(DataSource):
    """Samples of a linear model plus noise, made up from the seed, for `linear-regression`."""

    source: Literal["synthetic-regression"]
    clients: PositiveInt = Field(default=10, description="number of clients, and so of devices")
    samples_per_client: PositiveInt = Field(default=50, description="samples each client holds")
    features: PositiveInt = Field(default=5, description="features of a sample")
    heterogeneity: Literal["iid", "feature-shift", "label-shift"] = Field(
        default="iid",
        description="how clients differ: not at all, in their mean features, or in their mean targets",
    )
    noise: NonNegativeFloat = Field(default=0.1, description="standard deviation of the noise on a target")

    @property
    def client_count(self) -> int:
        """Number of clients, and so of devices."""
        return self.clients


class FileRatings(_RatingsSource):
    """Ratings of a file or folder."""

    path: Text = Field(description="the file or folder, relative to the file that names it")
    on_bad_row: Literal["error", "skip"] = Field(
        default="error",
        description="what becomes of a row that cannot be read, such as one without a rating: an error that"
        " names it, or it is left out and counted",
    )
    duplicates: Literal["last", "first", "mean", "error"] = Field(
        default="last",
        description="which of a user's ratings of one item counts: the last or the first by time, then "
        "by row; their mean; or none, an error",
    )
    min_user: PositiveInt | None = Field(
        default=None,
        description="keep users with at least this many ratings; with `min_item`, until both hold (k-core);"
        " all by default",
    )
    min_item: PositiveInt | None = Field(
        default=None, description="keep items with at least this many ratings; all by default"
    )
    sample_users: PositiveInt | None = Field(
        default=None,
        description="keep this many users, drawn by the seed, and the items that they rated; all by default",
    )

    def options(self) -> TableOptions:
        """Return how the file is read."""
        return TableOptions(skip_bad_rows=self.on_bad_row == "skip", duplicates=self.duplicates)


class TableColumns(Section):
    """Which column is what: its name in the header, or its number from 1."""

    user: Text | None = Field(default=None, description="who rates; found by its name or place by default")
    item: Text | None = Field(default=None, description="what is rated")
    rating: Text | None = Field(
        default=None, description="the rating; `none` where there is none, or it is not to be used"
    )
    time: Text | None = Field(
        default=None,
        description="when: seconds, milli-, micro- or nanoseconds since 1970, ISO 8601 or dates; `none`",
    )


class _TableSource(FileRatings):
    columns: TableColumns | None = Field(
        default=None, description="which column is what, where names and order do not say so"
    )
    delimiter: Text | None = Field(
        default=None, description="between fields: `tab`, `space`, or the characters; found by default"
    )
    header: StrictBool | None = Field(
        default=None, description="whether the first line names the columns; found by default"
    )
    quotes: StrictBool | None = Field(
        default=None, description="whether fields may be in double quotes; found by default"
    )
    encoding: Text | None = Field(
        default=None, description="of text, such as `latin-1`; UTF-8, or UTF-16 with its mark, by default"
    )
    decimal: Literal[".", ","] | None = Field(
        default=None, description="decimal mark of ratings; a comma is found where it is certain"
    )
    scale: tuple[Number, Number] | None = Field(
        default=None,
        description="lowest and highest rating, such as `[1, 5]`; others are bad rows; no limit by default",
    )

    def _problems(self) -> Iterator[FieldProblem]:
        yield from super()._problems()
        if self.scale is not None and self.scale[0] >= self.scale[1]:
            yield FieldProblem(("scale",), "the lowest rating is not below the highest; write it first")
        if self.delimiter is not None and ('"' in self.delimiter or len(self.delimiter) > LONGEST_DELIMITER):
            message = f"{self.delimiter!r} is no delimiter"
            yield FieldProblem(
                ("delimiter",), f"{message}; write 'tab', 'space' or up to {LONGEST_DELIMITER} characters"
            )
        if self.encoding is not None and not is_text_encoding(self.encoding):
            yield FieldProblem(
                ("encoding",), f"{self.encoding!r} is no encoding of text; write one such as latin-1"
            )

    def options(self) -> TableOptions:
        """Return how the file is read."""
        written = {} if self.columns is None else dict(self.columns)
        return dataclasses.replace(
            super().options(),
            columns={role: column for role, column in written.items() if column is not None},
            delimiter=None if self.delimiter is None else _DELIMITERS.get(self.delimiter, self.delimiter),
            header=self.header,
            quotes=self.quotes,
            encoding=self.encoding,
            decimal=self.decimal,
            scale=self.scale,
        )


class MovieLens100K(FileRatings):
    """MovieLens 100K: the folder, or its `u.data`."""

    source: Literal["movielens-100k"]


class MovieLens1M(FileRatings):
    """MovieLens 1M: the folder, or its `ratings.dat`."""

    source: Literal["movielens-1m"]


class MovieLensCsv(FileRatings):
    """Newer MovieLens sets: the folder, or its `ratings.csv`."""

    source: Literal["movielens-csv"]


class RecBole(FileRatings):
    """A RecBole atomic file, `.inter`."""

    source: Literal["recbole"]


class LastFm(FileRatings):
    """HetRec LastFM: the folder, or its `user_artists.dat`; listening counts become ratings 1 to 5."""

    source: Literal["lastfm"]


class ParquetRatings(FileRatings):
    """A Parquet file with a user, an item and a rating column."""

    source: Literal["parquet"]


class PlainRatings(FileRatings):
    """Rows of user, item, rating and perhaps a time, apart by spaces, tabs or commas; ids may be text."""

    source: Literal["plain"]


class TableRatings(_TableSource):
    """Any table: CSV and other delimited text, JSON lines, Parquet; compressed, or a folder of parts."""

    source: Literal["table"]


class AutoRatings(_TableSource):
    """A file or folder whose format is recognised from its content; `table` where it is no other."""

    source: Literal["auto"]


class Reader(FileRatings):
    """Ratings in a format of one's own: base of the readers that plug-ins bring.

    A reader is the section ``data`` of its scenarios. It has a field ``source: Literal["its-name"]``, a field
    for each setting of its own, a docstring that says in a sentence what it reads, and the two methods below.
    """

    def rows(self, path: Path) -> Iterable[Any]:
        """Yield the rows of a file or folder, in as many parts as suit.

        Each part is a ``pyarrow.Table`` or a mapping of columns of one length: ``user`` and ``item`` (text or
        whole numbers), and if there are any ``rating`` (numbers; without it the feedback is implicit) and
        ``time`` (seconds since 1970).

        Raises
        ------
        DataError : what is in the file cannot be read; the message names the place.
        """
        raise NotImplementedError

    def example(self, folder: Path) -> Path:
        """Write a small file of the format; return its path. ``recfleet check-plugin`` reads it."""
        raise NotImplementedError


def _lacks(reader: type[DataSource]) -> Iterator[str]:
    source = reader.model_fields.get("source")
    if source is None or len(get_args(source.annotation)) != 1:
        yield "has no field 'source: Literal[\"its-name\"]'"
    for method in ("rows", "example") if issubclass(reader, Reader) else ():
        if getattr(reader, method) is getattr(Reader, method):
            yield f"has no method '{method}'"


def _name_of(reader: type[DataSource]) -> str:
    return str(get_args(reader.model_fields["source"].annotation)[0])


KIND: Final = PluginKind("reader", DataSource, _name_of, _lacks)
"""The extension point."""

if TYPE_CHECKING:
    Data = SyntheticRatingsSection | SyntheticRegression | FileRatings
else:
    Data = Annotated[DataSource, Registered("source", View(READERS), kind=READERS)]
