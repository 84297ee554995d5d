"""The metrics a scenario can set thresholds on: name, unit, tags and what may be asked of them."""

from __future__ import annotations

import enum
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from device_profiles import units
from device_profiles.quantities import DURATION, ENERGY, SIZE
from edge.metrics.ranking import OF_LISTS


class MetricKind(enum.Enum):
    """What the values of a metric are, which decides how a limit is written."""

    DURATION = "duration"
    BYTES = "bytes"
    ENERGY = "energy"
    NUMBER = "number"
    SHARE = "share"
    """Part of a whole, 0 to 1."""
    EVENT = "event"
    """Happened (1) or not (0), once per observation."""

    def parse_limit(self, text: str) -> float:
        """Return a limit in base units. Raises UnitError."""
        return _PARSERS[self](text)

    def show(self, value: float) -> str:
        """Return a value for people."""
        return _WRITERS[self](value)


def _parse_number(text: str) -> float:
    return float(units.parse_number(text))


def _show_number(value: float) -> str:
    return f"{value:.6g}"


def _show_energy(value: float) -> str:
    return f"{value:.4g} J"


def _show_share(value: float) -> str:
    # 99.9999% must not be shown as 100%.
    return f"{float(f'{value * 100:.6g}')}%".replace(".0%", "%")


_PARSERS: Final[dict[MetricKind, Callable[[str], float]]] = {
    MetricKind.DURATION: DURATION.parse,
    MetricKind.BYTES: SIZE.parse,
    MetricKind.ENERGY: ENERGY.parse,
    MetricKind.NUMBER: _parse_number,
    MetricKind.SHARE: units.parse_ratio,
    MetricKind.EVENT: units.parse_ratio,
}
_WRITERS: Final[dict[MetricKind, Callable[[float], str]]] = {
    MetricKind.DURATION: units.format_duration,
    MetricKind.BYTES: units.format_bytes,
    MetricKind.ENERGY: _show_energy,
    MetricKind.NUMBER: _show_number,
    MetricKind.SHARE: _show_share,
    MetricKind.EVENT: _show_share,
}

ROUND_TAGS: Final = ("phase",)
GROUP_TAGS: Final = ("class", "network", "region")
DEVICE_TAGS: Final = ("phase", *GROUP_TAGS, "way")
INFERENCE_TAGS: Final = ("phase", "class", "network")
LOSS_TAGS: Final = ("phase", *GROUP_TAGS, "users")
HELD_OUT_GROUPS: Final = {"activity": ("light", "medium", "heavy"), "popularity": ("head", "middle", "tail")}
"""Groups of users by their training ratings, and of scored items by theirs: values by tag."""
MODEL_GROUP_TAGS: Final = (*GROUP_TAGS, *HELD_OUT_GROUPS)
"""Tags of which a model's metric has one at a time."""
MODEL_TAGS: Final = ("phase", *MODEL_GROUP_TAGS, "users", "split")
SPLITS: Final = ("test", "validation")
"""Values of the tag ``split``: which of the kept-back ratings are scored."""
USER_GROUPS: Final = ("seen", "unseen")
"""Values of the tag ``users``: users whose devices may train, and users that never did."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric: its name, what its values are, the tags that narrow it, and what one observation is.

    ``measured`` says that it was measured on this host, and so differs between identical runs.
    """

    name: str
    kind: MetricKind
    tags: tuple[str, ...]
    description: str
    measured: bool = False


METRICS: Final = {
    metric.name: metric
    for metric in (
        Metric(
            "round.completed",
            MetricKind.EVENT,
            ROUND_TAGS,
            "per round: it reached its quorum and was applied",
        ),
        Metric(
            "round.duration",
            MetricKind.DURATION,
            ROUND_TAGS,
            "per round: simulated time from invitation to end",
        ),
        Metric(
            "round.clipped",
            MetricKind.SHARE,
            ROUND_TAGS,
            "per round with clipping: share of the applied values other than zero that were clipped",
        ),
        Metric(
            "privacy.epsilon",
            MetricKind.NUMBER,
            ROUND_TAGS,
            "per round: differential privacy spent so far by the device that reported most, at "
            "the scenario's delta, zero-out: its updates against zeros",
        ),
        Metric(
            "privacy.epsilon_replace_one",
            MetricKind.NUMBER,
            ROUND_TAGS,
            "per round: the same, replace-one: its updates against any others",
        ),
        Metric(
            "privacy.clipped",
            MetricKind.SHARE,
            ROUND_TAGS,
            "per round with privacy: share of the applied updates whose norm was clipped",
        ),
        Metric(
            "secagg.sum_error",
            MetricKind.NUMBER,
            ROUND_TAGS,
            "per secure sum: largest difference from the sum in the clear, in units of the ring; 0 is exact",
        ),
        Metric(
            "secagg.double_reveal",
            MetricKind.EVENT,
            ROUND_TAGS,
            "per round of secure aggregation: both secrets of some device could be rebuilt",
        ),
        Metric(
            "device.completed",
            MetricKind.EVENT,
            DEVICE_TAGS,
            "per device and round: its report was applied",
        ),
        Metric(
            "device.dropped",
            MetricKind.EVENT,
            DEVICE_TAGS,
            "per device and round: it went away before it reported",
        ),
        Metric(
            "device.wasted_work",
            MetricKind.EVENT,
            DEVICE_TAGS,
            "per device and round that computed: its update was not applied",
        ),
        Metric(
            "device.shielded",
            MetricKind.EVENT,
            DEVICE_TAGS,
            "per device and round whose update arrived: it was reported in the clear, not in a secure sum",
        ),
        Metric(
            "device.work_share",
            MetricKind.SHARE,
            DEVICE_TAGS,
            "per device and round that made an update with partial work: part of its local steps",
        ),
        Metric(
            "device.staleness",
            MetricKind.NUMBER,
            DEVICE_TAGS,
            "per report applied with buffered pacing: server steps since its model",
        ),
        Metric(
            "device.latency",
            MetricKind.DURATION,
            DEVICE_TAGS,
            "per device and round that reported: simulated time from invitation to report",
        ),
        Metric(
            "device.up_bytes", MetricKind.BYTES, DEVICE_TAGS, "per device and round: bytes sent by the device"
        ),
        Metric(
            "device.down_bytes",
            MetricKind.BYTES,
            DEVICE_TAGS,
            "per device and round: bytes sent to the device",
        ),
        Metric(
            "device.energy",
            MetricKind.ENERGY,
            DEVICE_TAGS,
            "per device and round: energy of compute and radio",
        ),
        Metric(
            "inference.latency",
            MetricKind.DURATION,
            INFERENCE_TAGS,
            "per device and inference: simulated time of one call of its own model",
        ),
        Metric(
            "inference.energy",
            MetricKind.ENERGY,
            INFERENCE_TAGS,
            "per device and inference: simulated energy of that call",
        ),
        Metric(
            "inference.max_error",
            MetricKind.NUMBER,
            INFERENCE_TAGS,
            "per device and inference: largest relative error of onnxruntime's scores, measured on this host",
            measured=True,
        ),
        Metric(
            "model.loss",
            MetricKind.NUMBER,
            LOSS_TAGS,
            "per round: mean training loss of the applied reports",
        ),
        Metric(
            "model.rmse",
            MetricKind.NUMBER,
            MODEL_TAGS,
            "per evaluation: root mean squared error of predicted ratings",
        ),
        Metric(
            "model.mae",
            MetricKind.NUMBER,
            MODEL_TAGS,
            "per evaluation: mean absolute error of predicted ratings",
        ),
        Metric(
            "model.accuracy",
            MetricKind.NUMBER,
            MODEL_TAGS,
            "per evaluation: share of ratings that are predicted within half a star",
        ),
    )
}

ERROR_METRICS: Final = ("model.rmse", "model.mae", "model.accuracy")
"""Metrics of predicted ratings."""
RANKING_METRICS: Final = {
    "hr": "hit rate: share of users with a held-out item among the first k",
    "ndcg": "normalised discounted cumulative gain of the first k",
    "recall": "share of held-out items among the first k",
    "precision": "share of the first k that were held out",
    "mrr": "reciprocal rank of the first held-out item, 0 where it is not among the first k",
    "map": "precision at each held-out item among the first k, summed, per held-out item",
    "coverage": "share of all items that are among the first k of somebody",
    "novelty": "bits of surprise of the first k, −log2 of the share of users that have rated an item",
}
"""Metrics of the first k, by what comes before the ``@``."""
UNCUT_METRICS: Final = {
    "auc": "chance that a held-out item is ranked before one of the others, ties by half",
}
"""Metrics of whole rankings."""
_RANKING: Final = re.compile(
    rf"model\.(?:({'|'.join(RANKING_METRICS)})@([1-9][0-9]{{0,5}})|({'|'.join(UNCUT_METRICS)}))"
    r"(?:/([1-9][0-9]{0,6})neg)?"
)


class RankingName(NamedTuple):
    """What the name of a metric of rankings says; ``k`` is None without a cut-off."""

    kind: str
    k: int | None
    negatives: int | None


def ranking_name(name: str) -> RankingName | None:
    """Return what a name such as ``model.ndcg@10/99neg`` says; None where it is none of a ranking."""
    match = _RANKING.fullmatch(name)
    if match is None:
        return None
    cut, k, uncut, negatives = match.groups()
    return RankingName(
        cut or uncut, None if k is None else int(k), None if negatives is None else int(negatives)
    )


EXPOSURE: Final = "er"
"""The exposure ratio of a promoted item."""
_EXPOSURE: Final = re.compile(rf"model\.{EXPOSURE}@[1-9][0-9]{{0,5}}")

AUDIT_METRICS: Final = {
    "recovery": "share of training ratings that are recovered from masked ones within so many stars",
    "recovery_midrange": "the same for guessing the middle of each user's range",
    "recovery_chance": "the same for guessing at random",
    "ranking": "share of a user's first k that are among the first k of the masked ratings",
    "ranking_chance": "the same for choosing at random",
    "ranking_clear": "the same from the ratings themselves, whose ties leave it below 1",
    "indicator": "mean squared error of masks alone on test ratings scaled to 0…1",
}
RATED_METRICS: Final = {
    "rated_precision": "share of the items read off what the coordinator saw that their device has rated",
    "rated_recall": "share of the rated items of devices that were heard which are read off so",
    "rated_chance": "precision of items drawn at random",
    "rated_singletons": "share of the rated items in an update or a sum that one device alone has rated",
}
"""Figures of the audit of uploads."""
_BOUND: Final = r"@[0-9]+(?:\.[0-9]+)?"
_AUDIT: Final = re.compile(
    rf"audit\.(?:(indicator)|(recovery(?:_midrange|_chance)?){_BOUND}|(ranking(?:_chance|_clear)?){_BOUND}%?)"
)
BUCKET: Final = "bucket"
"""Tag of rows that say how the figures of users are distributed."""


def of_users(name: str) -> str:
    """Return what the distribution over users of an audit's figure is called."""
    kind, _, bound = name.partition("@")
    return f"{kind}_users@{bound}"


def buckets(number: int) -> tuple[str, ...]:
    """Return the names of equal parts of 0 … 100%."""
    edges = [f"{100 * part / number:.4g}%" for part in range(number + 1)]
    return tuple(f"{low} to {high}" for low, high in itertools.pairwise(edges))


def find_metric(name: str) -> Metric | None:
    """Return the metric of a name, such as ``round.duration`` or ``model.ndcg@10/99neg``, or None."""
    known = METRICS.get(name)
    if known is not None:
        return known
    read_off = RATED_METRICS.get(name.removeprefix("audit.")) if name.startswith("audit.") else None
    if read_off is not None:
        return Metric(name, MetricKind.NUMBER, ROUND_TAGS, f"once, of all rounds: {read_off}")
    audit = _AUDIT.fullmatch(name)
    if audit is not None:
        description = AUDIT_METRICS[audit[audit.lastindex or 0]]
        return Metric(name, MetricKind.NUMBER, ROUND_TAGS, f"once, of masks: {description}")
    if _EXPOSURE.fullmatch(name) is not None:
        description = "share of users without a promoted item in whose first k it is"
        return Metric(name, MetricKind.NUMBER, MODEL_TAGS, f"per evaluation: {description}")
    ranking = ranking_name(name)
    if ranking is None or (ranking.kind in OF_LISTS and ranking.negatives is not None):
        return None
    description = (RANKING_METRICS | UNCUT_METRICS)[ranking.kind]
    return Metric(name, MetricKind.NUMBER, MODEL_TAGS, f"per evaluation: {description}")


def metric_names() -> Iterator[tuple[str, str, Metric]]:
    """Yield an example of each metric's name, a pattern that all of its names fit, and the metric.

    The patterns, in the syntax that Python and ECMAScript share, admit what :func:`find_metric` knows.
    """
    cut, negatives, bound = "@[1-9][0-9]{0,5}", "(?:/[1-9][0-9]{0,6}neg)?", r"@[0-9]+(?:\.[0-9]+)?"
    endings = dict.fromkeys(METRICS, "")
    endings |= {f"model.{name}@10": cut + ("" if name in OF_LISTS else negatives) for name in RANKING_METRICS}
    endings |= {f"model.{name}": negatives for name in UNCUT_METRICS}
    endings[f"model.{EXPOSURE}@10"] = cut
    endings |= {f"audit.{name}": "" for name in RATED_METRICS}
    for name in AUDIT_METRICS:
        kind = name.partition("_")[0]
        endings[f"audit.{name}" if kind == "indicator" else f"audit.{name}@10"] = {
            "indicator": "", "recovery": bound, "ranking": f"{bound}%?",
        }[kind]  # fmt: skip
    for name, ending in endings.items():
        metric = find_metric(name)
        assert metric is not None
        yield name, re.escape(name.partition("@")[0]) + ending, metric


def ranking_examples() -> tuple[str, ...]:
    """Return the name of every metric of rankings, with one cut-off standing for all."""
    cut = (*RANKING_METRICS, EXPOSURE)
    return (*(f"model.{name}@10" for name in cut), *(f"model.{name}" for name in UNCUT_METRICS))


def metric_examples() -> tuple[str, ...]:
    """Return every metric name, with one cut-off standing for all of a ranking metric."""
    audits = (name if name == "indicator" else f"{name}@10" for name in AUDIT_METRICS)
    return (*METRICS, *ranking_examples(), *(f"audit.{name}" for name in (*audits, *RATED_METRICS)))


_HIGHER_IS_BETTER: Final = frozenset((*RANKING_METRICS, *UNCUT_METRICS, "accuracy"))


def _kind_of(metric: str) -> str:
    return re.split("[@/]", metric, maxsplit=1)[0]


def higher_is_better(metric: str) -> bool:
    """Return whether more of a metric is better: so it is of rankings and hits, not of errors and losses."""
    return _kind_of(metric) in _HIGHER_IS_BETTER


def is_accuracy(metric: str) -> bool:
    """Return whether a metric says how right a model is: what it recommends alone says nothing of that."""
    return _kind_of(metric) not in (*OF_LISTS, EXPOSURE)
