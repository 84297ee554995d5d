"""What a model file says about itself: the entries of ``metadata_props``, all of them text."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from edge.core.errors import ExportError, ModelFileError

FORMAT_VERSION: Final = 1
PREFIX: Final = "recfleet."
REQUIRED: Final = (
    "format_version",
    "scenario",
    "seed",
    "kind",
    "features",
    "privacy",
    "items",
    "compression",
)
"""Entries that every file has, without their prefix."""

Label = int | str
"""The id of an item in the data: a whole number or text."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Where a model is from and what its indices stand for.

    Attributes
    ----------
    scenario : name of the scenario that it was trained in.
    seed : of the run.
    privacy : mechanism of differential privacy, such as ``central-gaussian``; ``none`` without.
    n_items : size of the catalogue.
    feature_names : of the item features, in their order; empty for a model without.
    item_labels : id of each item in the data, [n_items]; None for generated data, whose ids are the indices.
    rating_range : lowest and highest rating of the training data; None where ratings are not an input.
    titles : what to call each item, [n_items]; None if nobody said.

    Raises
    ------
    ExportError
        For labels or titles of another number than ``n_items``, labels that repeat, an empty catalogue or a
        rating range that is none.
    """

    scenario: str
    seed: int
    privacy: str
    n_items: int
    feature_names: tuple[str, ...] = ()
    item_labels: tuple[Label, ...] | None = None
    rating_range: tuple[float, float] | None = None
    titles: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.n_items < 1:
            raise ExportError(f"a catalogue has 1 item or more, not {self.n_items}")
        for name, entries in (("item_labels", self.item_labels), ("titles", self.titles)):
            if entries is not None and len(entries) != self.n_items:
                raise ExportError(
                    f"{name} has {len(entries)} entries; give one for each of {self.n_items} items"
                )
        if self.item_labels is not None and len(set(map(str, self.item_labels))) != self.n_items:
            raise ExportError("item_labels has the same label twice; ids of items must differ")
        if self.rating_range is not None:
            lowest, highest = self.rating_range
            if not (math.isfinite(lowest) and math.isfinite(highest) and lowest <= highest):
                raise ExportError(f"rating_range is (lowest, highest), both finite, not {self.rating_range}")

    def places(self) -> dict[str, int]:
        """Return the index of each item by its id as text, in the order of the catalogue."""
        labels = range(self.n_items) if self.item_labels is None else self.item_labels
        return {str(label): place for place, label in enumerate(labels)}

    def properties(self, kind: str, compression: str = "none") -> dict[str, str]:
        """Return the entries for a model of this ``kind``, sorted by key."""
        entries: dict[str, str] = {
            "format_version": str(FORMAT_VERSION),
            "scenario": self.scenario,
            "seed": str(self.seed),
            "kind": kind,
            "features": _json(self.feature_names),
            "privacy": self.privacy,
            "items": str(self.n_items),
            "compression": compression,
        }
        for name in ("item_labels", "rating_range", "titles"):
            value = getattr(self, name)
            if value is not None:
                entries[name] = _json(value)
        return {PREFIX + name: entries[name] for name in sorted(entries)}


def read_properties(properties: Mapping[str, str], where: str) -> tuple[ModelInfo, str, str]:
    """Return a file's information, its kind and its compression; ``where`` names the file in errors.

    Raises
    ------
    ModelFileError
        For an entry that is missing or is not what :meth:`ModelInfo.properties` writes.
    """
    entries = {key.removeprefix(PREFIX): text for key, text in properties.items() if key.startswith(PREFIX)}
    missing = [name for name in REQUIRED if name not in entries]
    if missing:
        raise ModelFileError(
            f"{where}: has no metadata {PREFIX}{missing[0]!s}; give a file that `recfleet export` has written"
        )
    version = _whole(entries, "format_version", where)
    if version != FORMAT_VERSION:
        raise ModelFileError(
            f"{where}: format version {version}, this recfleet reads {FORMAT_VERSION}; export the model again"
        )
    labels = _list(entries, "item_labels", (int, str), where)
    titles = _list(entries, "titles", (str,), where)
    limits = _list(entries, "rating_range", (int, float), where)
    if limits is not None and len(limits) != 2:
        raise ModelFileError(f"{where}: metadata {PREFIX}rating_range has {len(limits)} numbers, not 2")
    try:
        info = ModelInfo(
            scenario=entries["scenario"],
            seed=_whole(entries, "seed", where),
            privacy=entries["privacy"],
            n_items=_whole(entries, "items", where),
            feature_names=_list(entries, "features", (str,), where) or (),
            item_labels=labels,
            rating_range=None if limits is None else (float(limits[0]), float(limits[1])),
            titles=titles,
        )
    except ExportError as error:
        raise ModelFileError(f"{where}: metadata: {error}") from error
    return info, entries["kind"], entries["compression"]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _whole(entries: Mapping[str, str], name: str, where: str) -> int:
    text = entries[name]
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        raise ModelFileError(f"{where}: metadata {PREFIX}{name} is {text[:40]!r}, not a whole number")
    return int(text)


def _list(
    entries: Mapping[str, str], name: str, kinds: tuple[type, ...], where: str
) -> tuple[Any, ...] | None:
    if name not in entries:
        return None
    wanted = " or ".join(kind.__name__ for kind in kinds)
    try:
        found = json.loads(entries[name])
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{where}: metadata {PREFIX}{name} is no JSON: {error}") from error
    if not isinstance(found, list) or any(type(entry) not in kinds for entry in found):
        raise ModelFileError(f"{where}: metadata {PREFIX}{name} must be a JSON list of {wanted}")
    return tuple(found)
